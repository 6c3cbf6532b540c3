"""`to_openai`: converts an assembly to messages of OpenAI's Chat Completions or a compatible API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent
from otel_assembly.messages.event_facts import THOUGHT_KEYS, sendable
from otel_assembly.messages.provider_rules import Provider, call_id, tool_name
from otel_assembly.messages.replacements import summary_text
from otel_assembly.runtime.rendered_parts import (
    CallPart,
    File,
    Picture,
    ProviderPart,
    ResultPart,
    Text,
    Thought,
    is_chat_message,
    texts_of,
)
from otel_assembly.runtime.rendered_turns import (
    NO_RESULT_YET,
    Answer,
    RenderedTurn,
    rendered_turns,
    sendable_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_assembly.runtime.rendered_parts import Part

_PROVIDER: Final = "OpenAI"
#: Keys that recorders and this package add to messages; providers reject them.
_MARKS: Final = ("tool_call_ids", "awaiting_approval")


def to_openai(prompts: Sequence[str], events: Sequence[Any], *, pending: str | None = NO_RESULT_YET) -> list[Any]:
    """Render an assembly as the messages of a chat completion: ``to_openai(*assembly)``.

    The output has the same content as the assembly, so its token count holds. Each prompt becomes a system message.
    Events that the model does not receive (alerts, notes, duplicates of other events) are omitted. Chat messages in
    OpenAI's form are passed unchanged. Tool results follow the response with their calls, one message per result,
    because providers reject any other order.

    Messages in other supported forms (Responses, Anthropic, Bedrock, Gemini, OpenTelemetry) are converted: texts,
    images, files, calls and results. Thinking of other providers is not sent. Images in a tool result are moved to a
    user message after the results. Tool names are changed to valid names by `tool_name`, and call ids are cut to 40
    characters. Results that answer no call are omitted.

    Args:
        prompts: The system-level texts, in order.
        events: Events of this package, and message dicts of any supported provider.
        pending: The result that is added for a call without a result, because the API rejects such a call. The token
            count of the assembly does not include these added messages. None: no result is added.

    Returns:
        The messages, as dicts.

    Raises:
        DescribeError: The type of an event is not supported.
        RenderError: An event, or a part of a message, has no equivalent in Chat Completions.
    """
    messages: list[Any] = [{"role": "system", "content": sendable(prompt)} for prompt in prompts]
    for turn in rendered_turns(events, _PROVIDER):
        ids = _unique([call.id for call in turn.calls])
        messages += _asking(turn, ids)
        sent = [(call.answer, name) for call, name in zip(turn.calls, ids, strict=True)]
        pictures: list[Any] = []
        for answer in turn.answers:
            name = next((name for sent_answer, name in sent if sent_answer is answer), answer.call_id)
            messages.append(_answer(turn, answer, name, pictures))
        if pending is not None and not _is_legacy(turn.event):
            unanswered = (name for sent_answer, name in sent if sent_answer is None)
            messages += ({"role": "tool", "tool_call_id": name, "content": pending} for name in unanswered)
        if pictures:
            messages.append({"role": "user", "content": pictures})
    return messages


def _unique(ids: Sequence[str]) -> list[str]:
    """Return valid, unique ids for one response's calls; a model may write the same id twice."""
    made: list[str] = []
    for original in ids:
        others = {*made, *(ids if original in made else ())}
        made.append(call_id(original, Provider.CHAT, others))
    return made


def _asking(turn: RenderedTurn, ids: Sequence[str]) -> list[Any]:
    """Return the messages of an event, without the results of its calls; none if it is only a result."""
    event = turn.event
    if isinstance(event, dict):
        return [_as_it_is(turn, ids)] if turn.is_chat else _converted(turn, ids)
    if isinstance(event, ModelRequest):
        return [{"role": "user", "content": sendable(event.content)}]
    if isinstance(event, CompactionSummary):
        return [{"role": "system", "content": sendable(summary_text(event.summary))}]
    if isinstance(event, (ModelResponse, ToolCallEvent)):
        text = sendable(event.content) if isinstance(event, ModelResponse) else ""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if turn.calls:
            message |= {"content": text or None, "tool_calls": _calls(turn, ids)} | _thoughts(event)
        return [message]
    if not turn.facts.texts and not turn.facts.media_tokens:
        return []
    raise turn.cannot(_PROVIDER, "it has no form there")


def _calls(turn: RenderedTurn, ids: Sequence[str]) -> list[Any]:
    return [
        {
            "id": name,
            "type": "function",
            "function": {"name": tool_name(call.name), "arguments": sendable(call.arguments)},
        }
        for call, name in zip(turn.calls, ids, strict=True)
    ]


def _thoughts(event: Any) -> dict[str, str]:
    """Return the model's thinking, under the key that its server used."""
    texts: dict[str, list[str]] = {}
    for thought in getattr(event, "thinking", ()):
        if thought.form in THOUGHT_KEYS and thought.text:
            texts.setdefault(thought.form, []).append(thought.text)
    return {form: sendable("".join(pieces)) for form, pieces in texts.items()}


def _as_it_is(turn: RenderedTurn, ids: Sequence[str]) -> Any:
    """Return a chat message, the same object if nothing must be changed."""
    message: dict[str, Any] = turn.event
    if "content" not in message and not turn.calls:
        raise turn.cannot(_PROVIDER, "it has no content, and calls no tool")
    made = sendable_json(message)
    content = made.get("content")
    if isinstance(content, (list, tuple)) and any(isinstance(part, str) for part in content):
        said = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        made = {**made, "content": said}
    calls = made.get("tool_calls") or ()
    named = [_named(call, name) for call, name in zip(calls, ids, strict=False)]
    if any(call is not before for call, before in zip(named, calls, strict=False)):
        made = {**made, "tool_calls": named}
    legacy = made.get("function_call")
    if isinstance(legacy, dict) and legacy.get("name") != tool_name(str(legacy.get("name"))):
        made = {**made, "function_call": {**legacy, "name": tool_name(str(legacy.get("name")))}}
    return made


def _named(call: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a call with a valid id and name, the same object if it has them."""
    key = "function" if isinstance(call.get("function"), dict) else "custom"
    called = str(call[key].get("name", ""))
    if "awaiting_approval" not in call and call["id"] == name and called == tool_name(called):
        return call
    return {**_plain(call), "id": name, key: {**call[key], "name": tool_name(called)}}


def _converted(turn: RenderedTurn, ids: Sequence[str]) -> list[Any]:
    """Convert a message of another form."""
    content = _content(turn, turn.parts)
    message: dict[str, Any] = {"role": turn.role, "content": content}
    if isinstance(turn.event.get("name"), str) and turn.role == "user":
        message["name"] = turn.event["name"]
    if turn.calls:
        return [{**message, "content": content or None, "tool_calls": _calls(turn, ids)}]
    return [message] if content else []


def _content(turn: RenderedTurn, parts: Iterable[Part]) -> Any:
    """Return the content of a message: one text, or a list of parts."""
    made = list(_blocks(turn, parts))
    if not made:
        return ""
    return made[0]["text"] if len(made) == 1 and made[0]["type"] == "text" else made


def _blocks(turn: RenderedTurn, parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        match part:
            case Text(text):
                if text:
                    yield {"type": "text", "text": sendable(text)}
            case Picture(url, media_type, data) if url or data:
                detail = _detail(part.raw)
                yield {"type": "image_url", "image_url": {"url": url or f"data:{media_type};base64,{data}", **detail}}
            case File(_, media_type, data, name) if data:
                yield {"type": "file", "file": {"filename": name, "file_data": f"data:{media_type};base64,{data}"}}
            case CallPart() | ResultPart() | Thought():
                pass
            case ProviderPart(kind, raw) if (
                isinstance(turn.event.get("content"), (list, tuple)) and kind == "input_audio"
            ):
                yield sendable_json(raw)
            case ProviderPart():
                texts = texts_of(part)
                if texts is None:
                    raise turn.cannot(_PROVIDER, f"a part of type {part.kind!r} of its content has no form there")
                for text in texts:
                    yield {"type": "text", "text": sendable(text)}
            case _:
                kind = "image" if isinstance(part, Picture) else "file"
                raise turn.cannot(_PROVIDER, f"a part of type {kind!r} of its content has no form there")


def _detail(raw: Any) -> dict[str, Any]:
    """Return the image's detail level, which Responses sets next to the URL."""
    detail = raw.get("detail") if isinstance(raw, dict) else None
    return {"detail": detail} if detail in ("low", "high", "auto") else {}


def _answer(turn: RenderedTurn, answer: Answer, name: str, pictures: list[Any]) -> Any:
    message = answer.message
    if message is None or not is_chat_message(message):
        blocks = list(_blocks(turn, answer.parts))
        pictures += (block for block in blocks if block["type"] != "text")
        texts = [block for block in blocks if block["type"] == "text"]
        return {
            "role": "tool",
            "tool_call_id": name,
            "content": texts[0]["text"] if len(texts) == 1 else texts or "",
        }
    made = sendable_json(message)
    if message.get("role") == "function":
        called = str(message.get("name", ""))
        return made if called == tool_name(called) else {**made, "name": tool_name(called)}
    if "tool_call_ids" not in message and message.get("tool_call_id") == name:
        return made
    content = sendable_json(message.get("content")) if answer.parts else ""
    return {**_plain(made), "tool_call_id": name, "content": content}


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in _MARKS}


def _is_legacy(event: Any) -> bool:
    return isinstance(event, dict) and "function_call" in event
