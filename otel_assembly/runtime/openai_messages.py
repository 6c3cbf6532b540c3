"""`to_openai`: an assembly as the messages of OpenAI's Chat Completions, and of all who take the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent
from otel_assembly.messages.describe import ROLES, THOUGHT_KEYS, sendable
from otel_assembly.messages.replacements import summary_text
from otel_assembly.runtime.rendered_turns import (
    NO_RESULT_YET,
    Answer,
    RenderedTurn,
    rendered_turns,
    sendable_json,
    unique_ids,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROVIDER: Final = "OpenAI"
#: Marks of recorders and of ours, which no provider takes.
_MARKS: Final = ("tool_call_ids", "awaiting_approval")


def to_openai(prompts: Sequence[str], events: Sequence[Any], *, pending: str | None = NO_RESULT_YET) -> list[Any]:
    """Render an assembly as the messages of a chat completion: ``to_openai(*assembly)``.

    What is rendered is what was counted. Each prompt is a system message; what the engine counts nothing for (alerts,
    notes, what only restates another event) is left out; chat messages in OpenAI's form go as they are. Results stand
    right behind the response whose calls they answer, one message for each, for no provider takes them elsewhere.

    Args:
        prompts: The system-level texts, in order.
        events: Our events, and chat messages as dicts.
        pending: The answer that is made up for a call that has none yet: a prompt with such a call is refused. It is
            the only thing that was not counted: its tokens and a message's framing for each such call. None: nothing
            is made up.

    Returns:
        The messages, as dicts.

    Raises:
        DescribeError: An event that the engine cannot read.
        RenderError: An event of a type, or a message of a form, that OpenAI's messages have nothing for.
    """
    messages: list[Any] = [{"role": "system", "content": sendable(prompt)} for prompt in prompts]
    for turn in rendered_turns(events, _PROVIDER):
        ids = unique_ids([call.id for call in turn.calls])
        messages += _asking(turn, ids)
        sent = [(call.answer, name) for call, name in zip(turn.calls, ids, strict=True)]
        for answer in turn.answers:
            name = next((name for one, name in sent if one is answer), answer.call_id)
            messages.append(_answer(answer, name))
        if pending is not None and not _is_legacy(turn.event):
            unanswered = (name for one, name in sent if one is None)
            messages += ({"role": "tool", "tool_call_id": name, "content": pending} for name in unanswered)
    return messages


def _asking(turn: RenderedTurn, ids: Sequence[str]) -> list[Any]:
    """The message that an event is, without the answers to its calls; none where it is nothing but an answer."""
    event = turn.event
    if turn.answers and not turn.calls:
        return []
    if isinstance(event, dict):
        return [_as_it_is(turn, ids)]
    if isinstance(event, ModelRequest):
        return [{"role": "user", "content": sendable(event.content)}]
    if isinstance(event, CompactionSummary):
        return [{"role": "system", "content": sendable(summary_text(event.summary))}]
    if isinstance(event, (ModelResponse, ToolCallEvent)):
        text = sendable(event.content) if isinstance(event, ModelResponse) else ""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if turn.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": name, "type": "function", "function": {"name": call.name, "arguments": sendable(call.arguments)}}
                for call, name in zip(turn.calls, ids, strict=True)
            ]
            message |= _thoughts(event)
        return [message]
    if not turn.facts.texts and not turn.facts.media_tokens:
        return []
    raise turn.cannot(_PROVIDER, "it has no form there")


def _thoughts(event: Any) -> dict[str, str]:
    """What the model thought, under the name under which its server said it."""
    texts: dict[str, list[str]] = {}
    for thought in getattr(event, "thinking", ()):
        if thought.form in THOUGHT_KEYS and thought.text:
            texts.setdefault(thought.form, []).append(thought.text)
    return {form: sendable("".join(said)) for form, said in texts.items()}


def _as_it_is(turn: RenderedTurn, ids: Sequence[str]) -> Any:
    message: dict[str, Any] = turn.event
    if message.get("role") not in ROLES or ("content" not in message and not turn.calls):
        raise turn.cannot(_PROVIDER, "it is a message of another provider's form")
    made = sendable_json(message)
    if any(isinstance(part, str) for part in _parts(made)):
        said = [{"type": "text", "text": part} if isinstance(part, str) else part for part in _parts(made)]
        made = {**made, "content": said}
    calls = made.get("tool_calls") or ()
    if any("awaiting_approval" in call or call["id"] != name for call, name in zip(calls, ids, strict=False)):
        named = [{**_plain(call), "id": name} for call, name in zip(calls, ids, strict=False)]
        made = {**made, "tool_calls": named}
    return made


def _answer(answer: Answer, call_id: str) -> Any:
    message = answer.message
    if message is None:
        return {"role": "tool", "tool_call_id": call_id, "content": sendable(answer.content)}
    made = sendable_json(message)
    if message.get("role") != "tool" or ("tool_call_ids" not in message and message.get("tool_call_id") == call_id):
        return made
    return {**_plain(made), "tool_call_id": call_id, "content": sendable_json(answer.content)}


def _parts(message: Any) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, (list, tuple)) else ()


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key not in _MARKS}


def _is_legacy(event: Any) -> bool:
    return isinstance(event, dict) and "function_call" in event
