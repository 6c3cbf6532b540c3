"""`to_anthropic`: an assembly as the system prompt and the messages of Anthropic's Messages."""

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
    Other,
    Picture,
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
#: What stands in front of a conversation that begins with an answer: the first message has to be the user's.
OPENING: Final = "[Earlier messages were left out]"
#: The key under which arguments stand that are no JSON object, as the model wrote them.
MALFORMED: Final = "malformed_arguments"
#: What Anthropic's models think, as `Thinking.form` has it.
_THOUGHTS: Final = ("thinking", "redacted_thinking")
#: Our mark of a call that waits for an approval, which no provider takes.
_MARK: Final = "awaiting_approval"


def to_anthropic(
    prompts: Sequence[str],
    events: Sequence[Any],
    *,
    breakpoints: Breakpoints | None = None,
    pending: str | None = NO_RESULT_YET,
) -> dict[str, Any]:
    """Render an assembly as ``system`` and ``messages``: ``client.messages.create(..., **to_anthropic(*assembly))``.

    What is rendered is what was counted. Leading system messages among the events are part of the system prompt, later
    ones and summaries are the user's; the results of one response stand together in the message right behind it;
    neighbours of one role are one message. What Anthropic refuses is put in order: a text of nothing but white space is
    left out, ids of calls are made unique, arguments that are no JSON object stand under ``malformed_arguments``, and a
    conversation that begins with an answer gets a line of the user's in front. Names of speakers are not sent.

    Anthropic's own message dicts go as they are. Messages in any other form that the engine reads (OpenAI's two,
    Bedrock, Gemini, OpenTelemetry's) are converted: texts, images, documents, calls and results; another provider's
    thoughts are not sent. Names of tools are spelled as `tool_name` does. A result that answers no call is left out.

    Args:
        prompts: The system-level texts, in order.
        events: Our events, and message dicts in the form of any provider.
        breakpoints: Where explicit cache control is to be marked, as `Assembly.breakpoints` says it; None: nowhere.
        pending: The answer that is made up for a call that has none yet: a prompt with such a call is refused. None:
            nothing is made up.

    Returns:
        A dict with ``system``, a list of blocks, and ``messages``.

    Raises:
        DescribeError: An event that the engine cannot read.
        RenderError: An event of a type, or a part of a message, that has no form there.
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
    # A text alone is written in the same way for several providers: one block of Anthropic's tells its conversations.
    own = any(map(has_anthropic_blocks, events))
    return {"system": system.blocks, "messages": [run.message(events if own else ()) for run in runs]}


def _id(given: str, used: set[str]) -> str:
    """The id of a call as Anthropic accepts it, each once in a conversation."""
    name = call_id(given, Provider.ANTHROPIC, used)
    used.add(name)
    return name


class _Run:
    """The blocks of one message, and where each came from: the index of its event; of prompts, below 0."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[dict[str, Any]] = []
        self.sources: list[int] = []

    def add(self, source: int, blocks: Iterable[dict[str, Any]]) -> None:
        for block in blocks:
            self.blocks.append(block)
            self.sources.append(source)

    def message(self, events: Sequence[Any]) -> dict[str, Any]:
        """The message; the very event that it was, if it is one of these and still says the same."""
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
    """The messages that say something, neighbours of one role as one."""
    joined: list[_Run] = []
    for run in runs:
        if run.blocks:
            whole = _run(joined, run.role)
            whole.blocks += run.blocks
            whole.sources += run.sources
    return joined


def _mark(runs: Sequence[_Run], marks: Iterable[int]) -> None:
    """Mark the last block of what stands in front of anything that came after the event that a mark names."""
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
    """The parts of a response, with what the model thought where it stood; it is not sent where no tool is called."""
    thinking = [one for one in getattr(event, "thinking", ()) if one.form in _THOUGHTS]
    if not thinking or not event.tool_calls:
        return said
    blocks: list[dict[str, Any]] = []
    for index in range(len(said) + 1):
        last = index == len(said)
        blocks += [_thought(one) for one in thinking if one.behind == index or (last and one.behind > index)]
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
    """The blocks of a message's parts, Anthropic's own as they are.

    Args:
        turn: The message, for errors.
        parts: Its parts.
        calls: The calls among them, with their ids.
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
            case Picture() | File() | Thought() | Other() | Text() if kind in ANTHROPIC_BLOCKS:
                yield sendable_json(part.raw)
            case Text(text):
                yield from _texts(text)
            case Picture(url, media_type, data) if url or data:
                yield {"type": "image", "source": _source(url, media_type, data)}
            case File(url, media_type, data) if url or data:
                yield _document(turn, url, media_type, data)
            case Thought() | ResultPart():
                pass
            case Other():
                texts = texts_of(part)
                if texts is None:
                    raise turn.cannot(_PROVIDER, f"a part of type {part.kind!r} of its content has no form there")
                for text in texts:
                    yield from _texts(text)
            case _:
                raise turn.cannot(_PROVIDER, f"a part of type {kind!r} of its content has no form there")


def _own_text(raw: dict[str, Any], text: str) -> dict[str, Any]:
    """A text block with the marks that Anthropic has beside the text; no other provider's."""
    marks = {name: raw[name] for name in ("cache_control", "citations") if raw.get(name) is not None}
    made = {"type": "text", "text": sendable(text), **marks}
    return raw if made == raw else made


def _own_use(part: CallPart, name: str) -> dict[str, Any]:
    """A call of Anthropic's own, the very block if its id and its name are accepted."""
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
    """Arguments as the object that Anthropic takes; whatever else the model wrote stands in one, as a text."""
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
    """Whether a result is one text, and no list of parts."""
    return answer.message is None or isinstance(answer.message.get("content"), str)
