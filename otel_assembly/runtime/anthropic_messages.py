"""`to_anthropic`: converts an assembly to the system prompt and messages of Anthropic's Messages API."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent
from otel_assembly.messages.event_facts import EventKind, sendable
from otel_assembly.messages.provider_rules import NO_RESULT_YET, OPENING, Provider, call_id, tool_name
from otel_assembly.messages.replacements import summary_text
from otel_assembly.runtime.rendered_parts import (
    ANTHROPIC_BLOCKS,
    CallPart,
    File,
    Picture,
    ProviderPart,
    ResultPart,
    Text,
    Thought,
    has_anthropic_blocks,
    texts_of,
)
from otel_assembly.runtime.rendered_turns import (
    Answer,
    RenderedTurn,
    read_json,
    rendered_turns,
    sendable_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_assembly.events import Thinking
    from otel_assembly.ledger.figures import Breakpoints
    from otel_assembly.runtime.rendered_parts import Part
    from otel_assembly.runtime.rendered_turns import Call

_PROVIDER: Final = "Anthropic"
#: The key under which call arguments are sent that are not a JSON object; the value is the model's text.
MALFORMED: Final = "malformed_arguments"
#: The values of `Thinking.form` for Anthropic's thinking blocks.
_THOUGHTS: Final = ("thinking", "redacted_thinking")
#: A key that this package adds to calls that wait for an approval; providers reject the key.
_APPROVAL_KEY: Final = "awaiting_approval"


def to_anthropic(
    prompts: Sequence[str],
    events: Sequence[Any],
    *,
    breakpoints: Breakpoints | None = None,
    pending: str | None = NO_RESULT_YET,
) -> dict[str, Any]:
    """Convert an assembly (prompts and events) to the arguments ``system`` and ``messages`` of ``messages.create``.

    ::

        client.messages.create(..., **to_anthropic(*assembly))

    The content does not change, so the token count of the assembly applies to the output. The output is arranged as
    Anthropic requires:

    - Leading system messages join the system prompt. Later system messages, and summaries, become user messages.
    - The results of a response's calls follow the response in one message. Adjacent messages of one role are merged.
    - Texts of only white space are omitted, and call ids are made unique.
    - Arguments that are not a JSON object are sent under the key ``malformed_arguments``.
    - If the conversation begins with an assistant message, a short user message is inserted before it.
    - The ``name`` keys of messages, and results without a call, are omitted.

    Message dicts in Anthropic's form are passed unchanged. Messages in other supported forms (OpenAI's two, Bedrock,
    Gemini, OpenTelemetry) are converted: texts, images, documents, calls and results. Thinking of other providers'
    models is not sent. Tool names are changed to valid names by `tool_name`.

    Args:
        prompts: The system prompts, in order.
        events: Events of this package, and message dicts of any supported provider.
        breakpoints: The positions of cache control marks, from `Assembly.breakpoints`; None: no marks.
        pending: The text that is sent as the result of a call without a result, because the API rejects such a call.
            None: nothing is sent.

    Returns:
        A dict with ``system``, a list of blocks, and ``messages``.

    Raises:
        DescribeError: The type of an event is not supported.
        RenderError: An event, or a part of a message, has no equivalent in Anthropic's API.
    """
    ids: set[str] = set()
    system = _Message("system")
    messages: list[_Message] = []
    for index, prompt in enumerate(prompts):
        system.add(index - len(prompts), _texts(prompt))
    for turn in rendered_turns(events, _PROVIDER):
        if turn.facts.kind == EventKind.SYSTEM and not messages and isinstance(turn.event, dict):
            system.add(turn.position, _blocks(turn, turn.parts))
            continue
        call_ids = [_unique_id(call.id, ids) for call in turn.calls]
        role, blocks = _role_and_blocks(turn, call_ids)
        _message_for(messages, role).add(turn.position, blocks)
        results = [
            (answer.position, _result(turn, answer, _result_id(turn, answer, call_ids, ids))) for answer in turn.answers
        ]
        if pending is not None:
            unanswered = (call_id for call, call_id in zip(turn.calls, call_ids, strict=True) if call.answer is None)
            results += [(turn.position, {**_tool_result(call_id), "content": pending}) for call_id in unanswered]
        for position, block in results:
            _message_for(messages, "user").add(position, [block])
    messages = _merge_adjacent(messages)
    if messages and messages[0].role == "assistant":
        messages.insert(0, _Message("user"))
        messages[0].add(-1, _texts(OPENING))
    if breakpoints is not None:
        prompt_indexes = [] if breakpoints.prompt is None else [breakpoints.prompt - len(prompts)]
        _add_cache_control([system, *messages], prompt_indexes + list(breakpoints.events))
    # A plain text message looks the same for several providers. Return original dicts only if a block is Anthropic's.
    originals = events if any(map(has_anthropic_blocks, events)) else ()
    return {"system": system.blocks, "messages": [message.as_dict(originals) for message in messages]}


def _unique_id(original: str, used_ids: set[str]) -> str:
    """Return a valid call id that is unique in the conversation, and add it to `used_ids`."""
    unique = call_id(original, Provider.ANTHROPIC, used_ids)
    used_ids.add(unique)
    return unique


class _Message:
    """A message of the output while its blocks are collected.

    Attributes:
        role: ``user``, ``assistant`` or ``system``.
        blocks: The content blocks.
        sources: The index of each block's event; a negative number for prompts and inserted texts.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[dict[str, Any]] = []
        self.sources: list[int] = []

    def add(self, source: int, blocks: Iterable[dict[str, Any]]) -> None:
        for block in blocks:
            self.blocks.append(block)
            self.sources.append(source)

    def as_dict(self, events: Sequence[Any]) -> dict[str, Any]:
        """Return the message as a dict; if an event is an equal message dict, return this event itself."""
        first = self.sources[0]
        event = events[first] if 0 <= first < len(events) and set(self.sources) == {first} else None
        if isinstance(event, dict) and event.keys() == {"role", "content"} and event["role"] == self.role:
            content = event["content"]
            if self.blocks == ([{"type": "text", "text": content}] if isinstance(content, str) else content):
                return event
        return {"role": self.role, "content": self.blocks}


def _message_for(messages: list[_Message], role: str) -> _Message:
    """Return the last message if it has this role; otherwise append a new message."""
    if not messages or messages[-1].role != role:
        messages.append(_Message(role))
    return messages[-1]


def _merge_adjacent(messages: Iterable[_Message]) -> list[_Message]:
    """Merge adjacent messages of one role; messages without blocks are omitted."""
    merged: list[_Message] = []
    for message in messages:
        if message.blocks:
            target = _message_for(merged, message.role)
            target.blocks += message.blocks
            target.sources += message.sources
    return merged


def _add_cache_control(messages: Sequence[_Message], breakpoints: Iterable[int]) -> None:
    """Add a cache control mark at each breakpoint, which is the index of the last event to cache.

    The mark is set on the last block before the first block of a later event.
    """
    flat = [(message, index, source) for message in messages for index, source in enumerate(message.sources)]
    for breakpoint_index in set(breakpoints):
        end = next((position for position, (_, _, source) in enumerate(flat) if source > breakpoint_index), len(flat))
        if end:
            message, index, _ = flat[end - 1]
            message.blocks[index] = {**message.blocks[index], "cache_control": {"type": "ephemeral"}}


def _role_and_blocks(turn: RenderedTurn, call_ids: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the role and the blocks of an event, without the results of its calls.

    Args:
        turn: The event.
        call_ids: The ids to send for its calls, in order.
    """
    event = turn.event
    if isinstance(event, dict):
        if turn.is_chat and "content" not in event and not turn.calls:
            raise turn.render_error(_PROVIDER, "it has no content, and calls no tool")
        calls = list(zip(turn.calls, call_ids, strict=True))
        calls_outside_content = calls[sum(isinstance(part, CallPart) for part in turn.parts) :]
        blocks = list(_blocks(turn, turn.parts, calls))
        refusal = event.get("refusal")
        if refusal is not None and not isinstance(refusal, str):
            raise turn.render_error(_PROVIDER, f"its 'refusal' is a {type(refusal).__name__}, expected a text")
        blocks += _texts(refusal or "")
        blocks += (_tool_use(call, call_id) for call, call_id in calls_outside_content)
        return "assistant" if turn.role == "assistant" else "user", blocks
    if isinstance(event, ModelRequest):
        return "user", list(_texts(event.content))
    if isinstance(event, CompactionSummary):
        return "user", list(_texts(summary_text(event.summary)))
    if isinstance(event, (ModelResponse, ToolCallEvent)):
        text = event.content if isinstance(event, ModelResponse) else ""
        uses = (_tool_use(call, call_id) for call, call_id in zip(turn.calls, call_ids, strict=True))
        return "assistant", _with_thoughts(event, [*_texts(text), *uses])
    if turn.answers or not (turn.facts.texts or turn.facts.media_tokens):
        return "user", []
    raise turn.render_error(_PROVIDER, "its type has no equivalent there")


def _with_thoughts(event: Any, other_blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Insert a response's thinking blocks at their original positions.

    A response without tool calls is sent without thinking, because the API requires it only with tool calls.
    """
    thinking = [thought for thought in getattr(event, "thinking", ()) if thought.form in _THOUGHTS]
    if not thinking or not event.tool_calls:
        return other_blocks
    blocks: list[dict[str, Any]] = []
    for index in range(len(other_blocks) + 1):
        last = index == len(other_blocks)
        blocks += [_thought(part) for part in thinking if part.behind == index or (last and part.behind > index)]
        blocks += other_blocks[index : index + 1]
    return blocks


def _thought(thought: Thinking) -> dict[str, Any]:
    if thought.form == "redacted_thinking":
        return {"type": "redacted_thinking", "data": thought.sealed}
    return {"type": "thinking", "thinking": sendable(thought.text), "signature": thought.signature}


def _texts(text: str) -> Iterator[dict[str, Any]]:
    if text.strip():
        yield {"type": "text", "text": sendable(text)}


def _blocks(
    turn: RenderedTurn, parts: Iterable[Part], calls: Iterable[tuple[Call, str]] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a message's parts; blocks in Anthropic's form are unchanged.

    Args:
        turn: The message, for errors.
        parts: The parts of the message.
        calls: The calls among the parts, each with the id to send.
    """
    next_call = iter(calls)
    for part in parts:
        kind = part.raw.get("type") if isinstance(part.raw, dict) else None
        match part:
            case CallPart():
                call, call_id = next(next_call)
                yield _tool_use(call, call_id) if kind != "tool_use" else _anthropic_tool_use(part, call_id)
            case Text(text) if kind == "text" and text.strip():
                yield _anthropic_text(part.raw, text)
            case Picture() | File() | Thought() | ProviderPart() | Text() if kind in ANTHROPIC_BLOCKS:
                yield sendable_json(part.raw)
            case Text(text):
                yield from _texts(text)
            case Picture(url, media_type, data) if url or data:
                yield {"type": "image", "source": _source(url, media_type, data)}
            case File(url, media_type, data) if url or data:
                yield _document(turn, url, media_type, data)
            case Thought() | ResultPart():
                pass
            case ProviderPart():
                texts = texts_of(part)
                if texts is None:
                    raise turn.render_error(
                        _PROVIDER, f"a part of type {part.kind!r} of its content has no equivalent there"
                    )
                for text in texts:
                    yield from _texts(text)
            case _:
                raise turn.render_error(_PROVIDER, f"a part of type {kind!r} of its content has no equivalent there")


def _anthropic_text(raw: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a text block with the optional fields of Anthropic, but without those of other providers."""
    fields = {name: raw[name] for name in ("cache_control", "citations") if raw.get(name) is not None}
    block = {"type": "text", "text": sendable(text), **fields}
    return raw if block == raw else block


def _anthropic_tool_use(part: CallPart, call_id: str) -> dict[str, Any]:
    """Return a tool call block that is already in Anthropic's form, with a valid id and tool name."""
    raw = part.raw
    if _APPROVAL_KEY not in raw and raw["id"] == call_id and part.name == tool_name(part.name):
        block: dict[str, Any] = sendable_json(raw)
        return block
    fields = {key: value for key, value in raw.items() if key != _APPROVAL_KEY}
    return sendable_json({**fields, "id": call_id, "name": tool_name(part.name)})  # type: ignore[no-any-return]


def _source(url: str, media_type: str, data: str) -> dict[str, Any]:
    if not data:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": media_type, "data": data}


def _document(turn: RenderedTurn, url: str, media_type: str, data: str) -> dict[str, Any]:
    if media_type.startswith("text/") and data:
        text = base64.b64decode(data).decode(errors="replace")
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    if media_type != "application/pdf":
        raise turn.render_error(_PROVIDER, f"a file of type {media_type!r} has no equivalent there")
    return {"type": "document", "source": _source(url, media_type, data)}


def _tool_use(call: Call, call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": tool_name(call.name), "input": _input_object(call.arguments)}


def _input_object(arguments: str) -> dict[str, Any]:
    """Parse call arguments; a text that is not a JSON object becomes ``{"malformed_arguments": text}``."""
    if not arguments.strip():
        return {}
    try:
        value = read_json(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {MALFORMED: sendable(arguments)}


def _result_id(turn: RenderedTurn, answer: Answer, call_ids: Sequence[str], used_ids: set[str]) -> str:
    """Return the id of the call that a result answers; a new id if no call of the event has this result."""
    matching = (call_id for call, call_id in zip(turn.calls, call_ids, strict=True) if call.answer is answer)
    return next(matching, None) or _unique_id(answer.call_id, used_ids)


def _tool_result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id}


def _result(turn: RenderedTurn, answer: Answer, call_id: str) -> dict[str, Any]:
    if answer.raw is not None and answer.raw.get("type") == "tool_result":
        original: dict[str, Any] = sendable_json(answer.raw)
        return original if original["tool_use_id"] == call_id else {**original, "tool_use_id": call_id}
    block = _tool_result(call_id)
    content = list(_blocks(turn, answer.parts))
    if len(content) == 1 and content[0].keys() == {"type", "text"} and _is_plain_text(answer):
        block["content"] = content[0]["text"]
    elif content:
        block["content"] = content
    return {**block, "is_error": True} if answer.is_error else block


def _is_plain_text(answer: Answer) -> bool:
    """Return True if the original result was a text and not a list of parts."""
    return answer.message is None or isinstance(answer.message.get("content"), str)
