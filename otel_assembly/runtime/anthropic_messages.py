"""`to_anthropic`: an assembly as the system prompt and the messages of Anthropic's Messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent
from otel_assembly.messages.describe import ROLES, EventKind, sendable
from otel_assembly.messages.replacements import summary_text
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

_PROVIDER: Final = "Anthropic"
#: What stands in front of a conversation that begins with an answer: the first message has to be the user's.
OPENING: Final = "[Earlier messages were left out]"
#: The key under which arguments stand that are no JSON object, as the model wrote them.
MALFORMED: Final = "malformed_arguments"
_REFUSED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME: Final = 128
_DATA_URL: Final = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_OWN_PARTS: Final = ("image", "document")
#: What Anthropic's models think, as `Thinking.form` has it.
_THOUGHTS: Final = ("thinking", "redacted_thinking")


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

    Args:
        prompts: The system-level texts, in order.
        events: Our events, and chat messages in OpenAI's form.
        breakpoints: Where explicit cache control is to be marked, as `Assembly.breakpoints` says it; None: nowhere.
        pending: The answer that is made up for a call that has none yet: a prompt with such a call is refused. None:
            nothing is made up.

    Returns:
        A dict with ``system``, a list of blocks, and ``messages``.

    Raises:
        DescribeError: An event that the engine cannot read.
        RenderError: An event of a type, or a message of a form, that has no form there.
    """
    ids = _Ids()
    system = _Run("system")
    runs: list[_Run] = []
    for index, prompt in enumerate(prompts):
        system.add(index - len(prompts), _texts(prompt))
    for turn in rendered_turns(events, _PROVIDER):
        if turn.facts.kind == EventKind.SYSTEM and not runs and isinstance(turn.event, dict):
            system.add(turn.position, _content(turn, turn.event.get("content")))
            continue
        names = [ids.of(call.id) for call in turn.calls]
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
    return {"system": system.blocks, "messages": [{"role": run.role, "content": run.blocks} for run in runs]}


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


class _Ids:
    """Ids of calls as Anthropic takes them: of letters that it knows, and each once in a conversation."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def of(self, call_id: str) -> str:
        base = _REFUSED.sub("_", call_id) or "call"
        name, again = base, 2
        while name in self._used:
            name, again = f"{base}_{again}", again + 1
        self._used.add(name)
        return name


def _asking(turn: RenderedTurn, names: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """The role of an event and its blocks, without the answers to its calls."""
    event = turn.event
    if isinstance(event, dict):
        kind = ROLES.get(event.get("role", ""))
        if kind is None or ("content" not in event and not turn.calls):
            raise turn.cannot(_PROVIDER, "it is a message of another form than OpenAI's")
        if kind is EventKind.TOOL_RESULT:
            return "user", []
        said = [*_content(turn, event.get("content")), *_texts(_text(turn, "refusal", event.get("refusal") or ""))]
        return "assistant" if kind is EventKind.RESPONSE else "user", said + _uses(turn, names)
    if isinstance(event, ModelRequest):
        return "user", list(_texts(event.content))
    if isinstance(event, CompactionSummary):
        return "user", list(_texts(summary_text(event.summary)))
    if isinstance(event, (ModelResponse, ToolCallEvent)):
        text = event.content if isinstance(event, ModelResponse) else ""
        return "assistant", _with_thoughts(event, [*_texts(text), *_uses(turn, names)])
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


def _content(turn: RenderedTurn, content: Any) -> Iterator[dict[str, Any]]:
    """The blocks of a chat message's content."""
    if content is None or isinstance(content, str):
        yield from _texts(content or "")
        return
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            yield from _texts(part)
        elif kind in ("text", "refusal"):
            yield from _texts(_text(turn, kind, part.get(kind)))
        elif kind == "image_url":
            given = part.get("image_url")
            url = _text(turn, kind, given.get("url") if isinstance(given, dict) else given)
            yield {"type": "image", "source": _image(url)}
        elif kind in _OWN_PARTS and "source" in part:
            yield sendable_json(part)
        else:
            raise turn.cannot(_PROVIDER, f"a part of type {kind!r} of its content has no form there")


def _text(turn: RenderedTurn, kind: str, given: Any) -> str:
    if not isinstance(given, str):
        raise turn.cannot(_PROVIDER, f"a part of type {kind!r} of its content has a {type(given).__name__} for a text")
    return given


def _image(url: str) -> dict[str, Any]:
    data = _DATA_URL.fullmatch(url)
    if data is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data[1], "data": data[2]}


def _uses(turn: RenderedTurn, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "type": "tool_use",
            "id": name,
            "name": _REFUSED.sub("_", call.name)[:_LONGEST_NAME] or "unnamed",
            "input": _input(call.arguments),
        }
        for call, name in zip(turn.calls, names, strict=True)
    ]


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as the object that Anthropic takes; whatever else the model wrote stands in one, as a text."""
    if not arguments.strip():
        return {}
    try:
        given = read_json(arguments)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {MALFORMED: sendable(arguments)}


def _name_of(turn: RenderedTurn, answer: Answer, names: Sequence[str], ids: _Ids) -> str:
    called = (name for call, name in zip(turn.calls, names, strict=True) if call.answer is answer)
    return next(called, None) or ids.of(answer.call_id)


def _unanswered(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id}


def _result(turn: RenderedTurn, answer: Answer, call_id: str) -> dict[str, Any]:
    block = _unanswered(call_id)
    said = list(_content(turn, answer.content))
    if len(said) == 1 and isinstance(answer.content, str):
        block["content"] = said[0]["text"]
    elif said:
        block["content"] = said
    return {**block, "is_error": True} if answer.is_error else block
