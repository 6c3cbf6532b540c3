"""`to_anthropic`: converts an assembly to the system prompt and messages of Anthropic's Messages API."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent
from otel_assembly.messages.event_facts import EventKind, sendable
from otel_assembly.messages.provider_rules import Provider, call_id, tool_name
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
    NO_RESULT_YET,
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
#: The user message that is inserted before a leading assistant message: the API requires a user message first.
OPENING: Final = "[Earlier messages were left out]"
#: The key for call arguments that are not a JSON object; the value is the model's text.
MALFORMED: Final = "malformed_arguments"
#: The values of `Thinking.form` for Anthropic's thinking blocks.
_THOUGHTS: Final = ("thinking", "redacted_thinking")
#: The mark of a call that is pending approval; providers reject it.
_MARK: Final = "awaiting_approval"


def to_anthropic(
    prompts: Sequence[str],
    events: Sequence[Any],
    *,
    breakpoints: Breakpoints | None = None,
    pending: str | None = NO_RESULT_YET,
) -> dict[str, Any]:
    """Render an assembly as ``system`` and ``messages``: ``client.messages.create(..., **to_anthropic(*assembly))``.

    The output has the same content as the assembly, so its token count holds. It is arranged as Anthropic requires:

    - Leading system messages join the system prompt. Later ones, and summaries, become user messages.
    - The results of one response follow it in one message. Adjacent messages of one role are merged.
    - Texts of only white space are omitted, and call ids are made unique.
    - Arguments that are not a JSON object are sent under the key ``malformed_arguments``.
    - If the conversation begins with an assistant message, a short user message is inserted before it.
    - Names of speakers, and results that answer no call, are omitted.

    Anthropic's own message dicts are passed unchanged. Messages in other supported forms (OpenAI's two, Bedrock,
    Gemini, OpenTelemetry) are converted: texts, images, documents, calls and results. Thinking of other providers is
    not sent. Tool names are changed to valid names by `tool_name`.

    Args:
        prompts: The system-level texts, in order.
        events: Events of this package, and message dicts of any supported provider.
        breakpoints: The positions of cache control marks, from `Assembly.breakpoints`; None: no marks.
        pending: The result that is added for a call without a result, because the API rejects such a call. None: no
            result is added.

    Returns:
        A dict with ``system``, a list of blocks, and ``messages``.

    Raises:
        DescribeError: The type of an event is not supported.
        RenderError: An event, or a part of a message, has no equivalent in Anthropic's API.
    """
    ids: set[str] = set()
    system = _Run("system")
    runs: list[_Run] = []
    for index, prompt in enumerate(prompts):
        system.add(index - len(prompts), _texts(prompt))
    for turn in rendered_turns(events, _PROVIDER):
        if turn.facts.kind == EventKind.SYSTEM and not runs and isinstance(turn.event, dict):
            system.add(turn.position, _blocks(turn, turn.parts))
            continue
        names = [_id(call.id, ids) for call in turn.calls]
        role, blocks = _asking(turn, names)
        _run(runs, role).add(turn.position, blocks)
        results = [
            (answer.position, _result(turn, answer, _name_of(turn, answer, names, ids))) for answer in turn.answers
        ]
        if pending is not None:
            waiting = (name for call, name in zip(turn.calls, names, strict=True) if call.answer is None)
            results += [(turn.position, {**_unanswered(name), "content": pending}) for name in waiting]
        for position, block in results:
            _run(runs, "user").add(position, [block])
    runs = _joined(runs)
    if runs and runs[0].role == "assistant":
        runs.insert(0, _Run("user"))
        runs[0].add(-1, _texts(OPENING))
    if breakpoints is not None:
        marks = [mark for mark in (breakpoints.prompt,) if mark is not None]
        _mark([system, *runs], [mark - len(prompts) for mark in marks] + list(breakpoints.events))
    # A plain text message looks the same for several providers. Return original dicts only if a block is Anthropic's.
    own = any(map(has_anthropic_blocks, events))
    return {"system": system.blocks, "messages": [run.message(events if own else ()) for run in runs]}


def _id(given: str, used: set[str]) -> str:
    """Return a valid call id that is unique in the conversation."""
    name = call_id(given, Provider.ANTHROPIC, used)
    used.add(name)
    return name


class _Run:
    """The blocks of one message, each with the index of its event; prompts have negative indexes."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[dict[str, Any]] = []
        self.sources: list[int] = []

    def add(self, source: int, blocks: Iterable[dict[str, Any]]) -> None:
        for block in blocks:
            self.blocks.append(block)
            self.sources.append(source)

    def message(self, events: Sequence[Any]) -> dict[str, Any]:
        """Return the message; the original event if the message is equal to it."""
        first = self.sources[0]
        event = events[first] if 0 <= first < len(events) and set(self.sources) == {first} else None
        if isinstance(event, dict) and event.keys() == {"role", "content"} and event["role"] == self.role:
            content = event["content"]
            if self.blocks == ([{"type": "text", "text": content}] if isinstance(content, str) else content):
                return event
        return {"role": self.role, "content": self.blocks}


def _run(runs: list[_Run], role: str) -> _Run:
    if not runs or runs[-1].role != role:
        runs.append(_Run(role))
    return runs[-1]


def _joined(runs: Iterable[_Run]) -> list[_Run]:
    """Return the messages that have blocks; adjacent ones of one role are merged."""
    joined: list[_Run] = []
    for run in runs:
        if run.blocks:
            whole = _run(joined, run.role)
            whole.blocks += run.blocks
            whole.sources += run.sources
    return joined


def _mark(runs: Sequence[_Run], marks: Iterable[int]) -> None:
    """Add cache control to the last block before the first block of a later event than each mark."""
    flat = [(run, index, source) for run in runs for index, source in enumerate(run.sources)]
    for mark in set(marks):
        end = next((at for at, (_, _, source) in enumerate(flat) if source > mark), len(flat))
        if end:
            run, index, _ = flat[end - 1]
            run.blocks[index] = {**run.blocks[index], "cache_control": {"type": "ephemeral"}}


def _asking(turn: RenderedTurn, names: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """The role of an event and its blocks, without the answers to its calls."""
    event = turn.event
    if isinstance(event, dict):
        if turn.is_chat and "content" not in event and not turn.calls:
            raise turn.cannot(_PROVIDER, "it has no content, and calls no tool")
        calls = list(zip(turn.calls, names, strict=True))
        beside = calls[sum(isinstance(part, CallPart) for part in turn.parts) :]
        said = list(_blocks(turn, turn.parts, calls))
        refusal = event.get("refusal")
        if refusal is not None and not isinstance(refusal, str):
            raise turn.cannot(_PROVIDER, f"its 'refusal' is a {type(refusal).__name__}, expected a text")
        said += _texts(refusal or "")
        said += (_use(call, name) for call, name in beside)
        return "assistant" if turn.role == "assistant" else "user", said
    if isinstance(event, ModelRequest):
        return "user", list(_texts(event.content))
    if isinstance(event, CompactionSummary):
        return "user", list(_texts(summary_text(event.summary)))
    if isinstance(event, (ModelResponse, ToolCallEvent)):
        text = event.content if isinstance(event, ModelResponse) else ""
        uses = (_use(call, name) for call, name in zip(turn.calls, names, strict=True))
        return "assistant", _with_thoughts(event, [*_texts(text), *uses])
    if turn.answers or not (turn.facts.texts or turn.facts.media_tokens):
        return "user", []
    raise turn.cannot(_PROVIDER, "it has no form there")


def _with_thoughts(event: Any, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Insert thinking blocks at their positions; a response without tool calls is sent without them."""
    thinking = [thought for thought in getattr(event, "thinking", ()) if thought.form in _THOUGHTS]
    if not thinking or not event.tool_calls:
        return said
    blocks: list[dict[str, Any]] = []
    for index in range(len(said) + 1):
        last = index == len(said)
        blocks += [_thought(part) for part in thinking if part.behind == index or (last and part.behind > index)]
        blocks += said[index : index + 1]
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
    """Yield the blocks of a message's parts; Anthropic's own blocks are unchanged.

    Args:
        turn: The message, for errors.
        parts: The parts of the message.
        calls: The calls among the parts, with their ids.
    """
    called = iter(calls)
    for part in parts:
        kind = part.raw.get("type") if isinstance(part.raw, dict) else None
        match part:
            case CallPart():
                call, name = next(called)
                yield _use(call, name) if kind != "tool_use" else _own_use(part, name)
            case Text(text) if kind == "text" and text.strip():
                yield _own_text(part.raw, text)
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
                    raise turn.cannot(_PROVIDER, f"a part of type {part.kind!r} of its content has no form there")
                for text in texts:
                    yield from _texts(text)
            case _:
                raise turn.cannot(_PROVIDER, f"a part of type {kind!r} of its content has no form there")


def _own_text(raw: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a text block with Anthropic's extra fields, but not those of other providers."""
    marks = {name: raw[name] for name in ("cache_control", "citations") if raw.get(name) is not None}
    made = {"type": "text", "text": sendable(text), **marks}
    return raw if made == raw else made


def _own_use(part: CallPart, name: str) -> dict[str, Any]:
    """Return an Anthropic tool call block, unchanged if its id and name are valid."""
    raw = part.raw
    if _MARK not in raw and raw["id"] == name and part.name == tool_name(part.name):
        block: dict[str, Any] = sendable_json(raw)
        return block
    kept = {key: value for key, value in raw.items() if key != _MARK}
    return sendable_json({**kept, "id": name, "name": tool_name(part.name)})  # type: ignore[no-any-return]


def _source(url: str, media_type: str, data: str) -> dict[str, Any]:
    if not data:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": media_type, "data": data}


def _document(turn: RenderedTurn, url: str, media_type: str, data: str) -> dict[str, Any]:
    if media_type.startswith("text/") and data:
        text = base64.b64decode(data).decode(errors="replace")
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    if media_type != "application/pdf":
        raise turn.cannot(_PROVIDER, f"a file of type {media_type!r} has no form there")
    return {"type": "document", "source": _source(url, media_type, data)}


def _use(call: Call, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool_name(call.name), "input": _input(call.arguments)}


def _input(arguments: str) -> dict[str, Any]:
    """Return arguments as an object; a text that is not a JSON object is wrapped in one."""
    if not arguments.strip():
        return {}
    try:
        given = read_json(arguments)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {MALFORMED: sendable(arguments)}


def _name_of(turn: RenderedTurn, answer: Answer, names: Sequence[str], ids: set[str]) -> str:
    called = (name for call, name in zip(turn.calls, names, strict=True) if call.answer is answer)
    return next(called, None) or _id(answer.call_id, ids)


def _unanswered(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id}


def _result(turn: RenderedTurn, answer: Answer, call_id: str) -> dict[str, Any]:
    if answer.raw is not None and answer.raw.get("type") == "tool_result":
        own: dict[str, Any] = sendable_json(answer.raw)
        return own if own["tool_use_id"] == call_id else {**own, "tool_use_id": call_id}
    block = _unanswered(call_id)
    said = list(_blocks(turn, answer.parts))
    if len(said) == 1 and said[0].keys() == {"type", "text"} and _is_text(answer):
        block["content"] = said[0]["text"]
    elif said:
        block["content"] = said
    return {**block, "is_error": True} if answer.is_error else block


def _is_text(answer: Answer) -> bool:
    """Whether a result is a text rather than a list of parts."""
    return answer.message is None or isinstance(answer.message.get("content"), str)
