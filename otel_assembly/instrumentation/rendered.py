"""Finds conversations that a program rendered into the text of one prompt or message.

Group chats that select the next speaker by a model do that, for example. The messages are then not sent as messages,
but they are not lost: the text contains them. Such a prompt is an item, and the messages are compacted into it.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.errors import DescribeError
from otel_assembly.instrumentation.message_alignment import locate, same_objects
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The most messages that may be absent from a text before the search ends; each costs one pass over the text.
_MAX_ABSENT: Final = 16
#: The most new messages that are searched: a conversation is rendered into one message, or a few.
_MAX_SEARCHED: Final = 4
#: A shorter text must be a whole word in the rendering, or "no" would be found in "know".
_MIN_SUBSTRING_LENGTH: Final = 12


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A system prompt whose text contains messages of the conversation."""

    text: str


@describe.register(RenderedPrompt)
def _(prompt: RenderedPrompt) -> EventFacts:
    return EventFacts(EventKind.SYSTEM, prompt.text)


read_from(RenderedPrompt, "text")


def rendered_in(text: str, messages: Sequence[Any], sent: Sequence[Any]) -> list[Any]:
    """Return the messages that a text contains in their order, oldest first; none if the newest one is absent.

    Messages of which a copy is sent are omitted. The search runs backwards from the newest message. It costs one pass
    over the text, and another one for each absent message.
    """
    contained: list[Any] = []
    end, absent, newest = len(text), 0, True
    for message in reversed(messages):
        parts = _texts(message)
        if not parts:
            continue
        start = _start(text, parts, end)
        if start is None:
            absent += 1
            if newest or absent > _MAX_ABSENT:
                break
            continue
        newest, end = False, start
        contained.append(message)
    return _not_sent(contained[::-1], sent)


class Rendering(NamedTuple):
    """A client request into which a conversation was rendered.

    Attributes:
        messages: The request's messages, after the prompts (`RenderedPrompt`) that contain messages.
        prompts: The other prompts.
        verdicts: The verdicts on the messages that are not sent as messages.
        beside: The new messages that contain no other message.
    """

    messages: Sequence[Any]
    prompts: Sequence[str]
    verdicts: Sequence[Verdict]
    beside: Sequence[Any]


def find_rendering(
    messages: Sequence[Any], sent: Sequence[Any], prompts: Sequence[str], earlier_prompts: Sequence[str]
) -> Rendering | None:
    """Return the rendering of messages in a client request; None if the request's texts contain no messages.

    `ModelCall` calls this when the client is called, so that rendered messages are compacted instead of dropped.
    `messages` and `earlier_prompts` are those of the model call before that, `sent` and `prompts` those of the request.
    """
    if same_objects(messages, sent):  # the usual case
        return None
    sent_ids, message_ids = set(map(id, sent)), set(map(id, messages))
    missing = [message for message in messages if id(message) not in sent_ids]
    new_messages = [message for message in sent if id(message) not in message_ids]
    if not missing or len(new_messages) > _MAX_SEARCHED:
        return None
    in_prompts = {text: rendered_in(text, missing, sent) for text in prompts if text not in earlier_prompts}
    in_messages = [(message, rendered_in("\n".join(_texts(message)), missing, sent)) for message in new_messages]
    all_rendered = [*chain(*in_prompts.values()), *chain(*(rendered for _, rendered in in_messages))]
    if not all_rendered:
        return None
    rendered_ids = set(map(id, all_rendered))
    dropped = _not_sent([message for message in missing if id(message) not in rendered_ids], sent)
    verdicts = [Verdict(all_rendered, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)]
    if dropped:
        verdicts.append(Verdict(dropped, DecisionOutcome.DROPPED, DecisionReason.POLICY))
    rendered_prompts = [RenderedPrompt(text) for text in prompts if in_prompts.get(text)]
    other_prompts = [text for text in prompts if not in_prompts.get(text)]
    other_messages = [message for message, rendered in in_messages if not rendered]
    return Rendering([*rendered_prompts, *sent], other_prompts, verdicts, other_messages)


def _not_sent(messages: Sequence[Any], sent: Sequence[Any]) -> list[Any]:
    """Return the messages of which neither the object nor a copy is sent."""
    return [message for message in messages if locate(sent, [message]) is None]


def is_rendered(messages: Sequence[Any], sent: Sequence[Any]) -> bool:
    """Return whether one of the `sent` messages has some of `messages` written out in its text.

    LangChain's hooks use it to recognize that a request continues a prepared call. A mere copy of one message does not
    count. Requests of many messages are not searched, because each search reads their whole text.
    """
    if not messages or len(sent) > _MAX_SEARCHED:
        return False
    for texts in map(_texts, sent):
        rendered = rendered_in("\n".join(texts), messages, sent)
        is_copy = len(rendered) == 1 and _texts(rendered[0]) == texts
        if rendered and not is_copy:
            return True
    return False


def _texts(message: Any) -> list[str]:
    """Return a message's texts without its author's name, which a rendering may write in another way or omit."""
    try:
        facts = describe(message)
    except DescribeError:
        return []
    texts = list(facts.texts)
    if facts.name in texts:
        texts.remove(facts.name)
    return [stripped for part in texts if (stripped := part.strip())]


def _start(text: str, parts: Sequence[str], end: int) -> int | None:
    """Return the start of a message's texts in a rendering, before the index `end`; None if one of them is absent."""
    for part in reversed(parts):
        start = next((index for form in _forms(part) if (index := _last_index(text, form, end)) >= 0), None)
        if start is None:
            return None
        end = start
    return end


def _last_index(text: str, part: str, end: int) -> int:
    """Return the last index of a part before `end`; -1 if there is none. A short part must be a whole word."""
    while (index := text.rfind(part, 0, end)) >= 0 and len(part) < _MIN_SUBSTRING_LENGTH:
        adjacent = text[max(0, index - 1) : index], text[index + len(part) : index + len(part) + 1]
        if not any(map(str.isalnum, adjacent)):
            break
        end = index + len(part) - 1
    return index


def _forms(part: str) -> Iterator[str]:
    """Yield the forms in which programs render a text: unchanged, and escaped for JSON, XML or Python."""
    yield part
    as_json, ascii_json = json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1]
    forms = as_json, ascii_json, html.escape(part, quote=False), html.escape(part), repr(part)[1:-1]
    yield from (form for form in dict.fromkeys(forms) if form != part)
