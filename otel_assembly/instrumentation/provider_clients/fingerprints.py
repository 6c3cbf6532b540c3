"""The keys by which a message of one request is found in another: a fingerprint, and the keys of an answer.

A program seldom sends an answer back exactly as the provider returned it: reasoning, unset fields and metadata are
removed, JSON is formatted again, and a router converts messages to another provider's format. Keys are equal across
such differences. They contain no text, only hashes, and are computed once per message.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.errors import AssemblyError
from otel_assembly.messages.event_facts import THOUGHT_KEYS, EventFacts, EventKind, describe
from otel_assembly.messages.keyed_parts import is_thought

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A text of this length is assumed to occur in one conversation only.
DISTINCTIVE_LENGTH: Final = 80
#: The same for the name and the arguments of a tool call.
_DISTINCTIVE_CALL_LENGTH: Final = 30
#: The longest text that is read as JSON.
_LONGEST_JSON: Final = 100_000
#: The generated part of a tool call's id is at least this long; counters such as ``call_1`` are shorter.
_GENERATED_ID_LENGTH: Final = 8
_ID_SEPARATORS: Final = re.compile(r"[_\-:.]")
_ANSWER_KINDS: Final = (EventKind.RESPONSE, EventKind.TOOL_CALL)
_REASONING_TYPES: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
_REASONING_KEYS: Final = frozenset({"reasoningContent", "reasoning_content"})
_CONTENT_KEYS: Final = ("content", "parts")
#: Nested values are read up to this depth.
_DEPTH: Final = 32


class AnswerKey(NamedTuple):
    """A key under which an assistant's message is looked up among the recorded answers.

    Attributes:
        hash: The hash of the answer's text, or of one tool call with its id, name and arguments.
        is_generated: True if the key contains an id that a provider generated, so that no two answers have it.
        is_distinctive: True if it is unlikely that two answers have this key.
    """

    hash: int
    is_generated: bool = False
    is_distinctive: bool = False


class MessageKeys(NamedTuple):
    """The keys of one message.

    Attributes:
        fingerprint: Equal for messages that the model reads as equal, in any provider's format.
        is_from_assistant: True for a message of the assistant.
        is_result: True for the result of a tool call.
        answer_keys: The keys of an answer: one per tool call; if there is none, one for the text.
        text: The normalized text of an answer without tool calls and reasoning, else an empty string.
    """

    fingerprint: int
    is_from_assistant: bool = False
    answer_keys: Sequence[AnswerKey] = ()
    text: str = ""
    is_result: bool = False


def message_keys(message: Any) -> MessageKeys:
    """Return the keys of a message. A message that cannot be described has only a fingerprint."""
    facts = facts_of(without_reasoning(message))
    if facts is None:
        return MessageKeys(hash(repr(message)))
    texts = tuple(filter(None, map(normalized, facts.texts)))
    media = tuple(_leaves(message)) if facts.media_tokens else ()  # `texts` do not contain the data of images
    fingerprint = hash((str(facts.kind), texts, tuple(facts.opens), tuple(facts.closes), media))
    if facts.kind not in _ANSWER_KINDS:
        return MessageKeys(fingerprint, is_result=bool(facts.closes))
    if facts.calls:
        return MessageKeys(fingerprint, is_from_assistant=True, answer_keys=tuple(map(_call_key, facts.calls)))
    text = normalized("".join((facts.text, *facts.fields)))
    if text:
        return MessageKeys(fingerprint, is_from_assistant=True, answer_keys=(text_key(text),), text=text)
    if facts.id is not None and message.get("type") == "item_reference":
        return MessageKeys(fingerprint, is_from_assistant=True, answer_keys=(item_key(facts.id),))
    return MessageKeys(fingerprint, is_from_assistant=True)


def text_key(text: str) -> AnswerKey:
    return AnswerKey(hash(("text", text)), is_distinctive=len(text) >= DISTINCTIVE_LENGTH)


def item_key(item_id: str) -> AnswerKey:
    """Return the key of an item that the provider stores, and that requests name only by its id."""
    return AnswerKey(hash(("item", item_id)), is_generated=True, is_distinctive=True)


def normalized(text: str) -> str:
    """Return a text with uniform white space; JSON is formatted uniformly."""
    text = text.strip()
    if text[:1] in ("{", "[") and len(text) <= _LONGEST_JSON:
        try:
            return json.dumps(json.loads(text), sort_keys=True)
        except (ValueError, RecursionError):
            pass
    return " ".join(text.split())


def facts_of(message: Any) -> EventFacts | None:
    try:
        return describe(message)
    except AssemblyError:
        return None


def answer_text(message: Any) -> str:
    """Return the text of an answer, without reasoning; empty if the answer is a tool call."""
    facts = facts_of(without_reasoning(message))
    return "" if facts is None or facts.calls else "".join((facts.text, *facts.fields))


def size_of(message: Any) -> int:
    """Return the number of characters and bytes in a message, without its keys."""
    return sum(map(len, _leaves(message)))


def _call_key(call: Any) -> AnswerKey:
    """Return the key of a tool call. Ids that are counters, or the tool's name, recur in other answers."""
    arguments = normalized(call.arguments)
    id_end = _ID_SEPARATORS.split(call.id)[-1]
    is_generated = len(id_end) >= _GENERATED_ID_LENGTH and not id_end.isdigit() and call.id != call.name
    return AnswerKey(
        hash(("call", call.id, call.name, arguments)),
        is_generated,
        is_distinctive=is_generated or len(call.name) + len(arguments) >= _DISTINCTIVE_CALL_LENGTH,
    )


def without_reasoning(message: Any) -> Any:
    """Return a message without reasoning: the same object if it has none."""
    if not isinstance(message, dict):
        return message
    changed: dict[str, Any] = {key: None for key in THOUGHT_KEYS if isinstance(message.get(key), str)}
    for key in _CONTENT_KEYS:
        parts = message.get(key)
        if isinstance(parts, list) and any(map(_is_reasoning, parts)):
            changed[key] = [part for part in parts if not _is_reasoning(part)]
    return {**message, **changed} if changed else message


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, dict) and (
        part.get("type") in _REASONING_TYPES or not _REASONING_KEYS.isdisjoint(part) or is_thought(part)
    )


def _leaves(value: Any, depth: int = 0) -> Iterator[str | bytes]:
    """Yield all texts and bytes in a value, at any depth, except marks of a cache."""
    if isinstance(value, (str, bytes)):
        yield value
    elif depth < _DEPTH and isinstance(value, dict):
        for key, part in value.items():
            if key not in ("cache_control", "cachePoint"):
                yield from _leaves(part, depth + 1)
    elif depth < _DEPTH and isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part, depth + 1)
