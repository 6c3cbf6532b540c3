"""`to_openai`: converts an assembly to messages of OpenAI's Chat Completions or a compatible API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent
from otel_assembly.messages.event_facts import THOUGHT_KEYS, sendable
from otel_assembly.messages.provider_rules import NO_RESULT_YET, Provider, call_id, tool_name
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
    Answer,
    RenderedTurn,
    rendered_turns,
    sendable_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_assembly.runtime.rendered_parts import Part

_PROVIDER: Final = "OpenAI"
#: Keys that transcript recorders and this package add to messages; providers reject these keys.
_OWN_KEYS: Final = ("tool_call_ids", "awaiting_approval")


def to_openai(prompts: Sequence[str], events: Sequence[Any], *, pending: str | None = NO_RESULT_YET) -> list[Any]:
    """Convert an assembly (prompts and events) to the messages of a chat completion: ``to_openai(*assembly)``.

    The content does not change, so the token count of the assembly applies to the output. Each prompt becomes a system
    message. Events that the model does not receive (alerts, notes, duplicates of other events) are omitted. Chat
    messages in OpenAI's form are passed unchanged. Tool results follow the response with their calls, one message per
    result, because providers reject any other order.

    Messages in other supported forms (Responses, Anthropic, Bedrock, Gemini, OpenTelemetry) are converted: texts,
    images, files, calls and results. Thinking of other providers' models is not sent. Images in a tool result are moved
    to a user message after the results. Tool names are changed to valid names by `tool_name`, and call ids are
    shortened to 40 characters. Results without a call are omitted.

    Args:
        prompts: The system prompts, in order.
        events: Events of this package, and message dicts of any supported provider.
        pending: The text that is sent as the result of a call without a result, because the API rejects such a call.
            The token count of the assembly does not include these added messages. None: nothing is sent.

    Returns:
        The messages, as dicts.

    Raises:
        DescribeError: The type of an event is not supported.
        RenderError: An event, or a part of a message, has no equivalent in Chat Completions.
    """
    messages: list[Any] = [{"role": "system", "content": sendable(prompt)} for prompt in prompts]
    for turn in rendered_turns(events, _PROVIDER):
        ids = _unique_ids([call.id for call in turn.calls])
        messages += _event_messages(turn, ids)
        sent_calls = list(zip(turn.calls, ids, strict=True))
        pictures: list[Any] = []
        for answer in turn.answers:
            result_id = next((sent_id for call, sent_id in sent_calls if call.answer is answer), answer.call_id)
            messages.append(_result_message(turn, answer, result_id, pictures))
        if pending is not None and not _is_legacy(turn.event):
            unanswered = (sent_id for call, sent_id in sent_calls if call.answer is None)
            messages += ({"role": "tool", "tool_call_id": sent_id, "content": pending} for sent_id in unanswered)
        if pictures:
            messages.append({"role": "user", "content": pictures})
    return messages


def _unique_ids(ids: Sequence[str]) -> list[str]:
    """Return valid, unique ids for the calls of one response; a model may use the same id twice."""
    unique: list[str] = []
    for original in ids:
        used_ids = {*unique, *(ids if original in unique else ())}
        unique.append(call_id(original, Provider.CHAT, used_ids))
    return unique


def _event_messages(turn: RenderedTurn, ids: Sequence[str]) -> list[Any]:
    """Return the messages of an event, without the results of its calls.

    The list is empty if the event contains only a result, or neither text nor media.
    """
    event = turn.event
    if isinstance(event, dict):
        return [_chat_message(turn, ids)] if turn.is_chat else _convert(turn, ids)
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
    raise turn.render_error(_PROVIDER, "its type has no equivalent there")


def _calls(turn: RenderedTurn, ids: Sequence[str]) -> list[Any]:
    return [
        {
            "id": sent_id,
            "type": "function",
            "function": {"name": tool_name(call.name), "arguments": sendable(call.arguments)},
        }
        for call, sent_id in zip(turn.calls, ids, strict=True)
    ]


def _thoughts(event: Any) -> dict[str, str]:
    """Return the model's thinking (reasoning texts) by the message key under which the server sent each text."""
    texts: dict[str, list[str]] = {}
    for thought in getattr(event, "thinking", ()):
        if thought.form in THOUGHT_KEYS and thought.text:
            texts.setdefault(thought.form, []).append(thought.text)
    return {form: sendable("".join(pieces)) for form, pieces in texts.items()}


def _chat_message(turn: RenderedTurn, ids: Sequence[str]) -> Any:
    """Return a Chat Completions message with valid ids, names and content; unchanged messages are the same object."""
    message: dict[str, Any] = turn.event
    if "content" not in message and not turn.calls:
        raise turn.render_error(_PROVIDER, "it has no content, and calls no tool")
    result = sendable_json(message)
    content = result.get("content")
    if isinstance(content, (list, tuple)) and any(isinstance(part, str) for part in content):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        result = {**result, "content": parts}
    calls = result.get("tool_calls") or ()
    valid_calls = [_valid_call(call, sent_id) for call, sent_id in zip(calls, ids, strict=False)]
    if any(valid is not call for valid, call in zip(valid_calls, calls, strict=False)):
        result = {**result, "tool_calls": valid_calls}
    legacy = result.get("function_call")
    if isinstance(legacy, dict) and legacy.get("name") != tool_name(str(legacy.get("name"))):
        result = {**result, "function_call": {**legacy, "name": tool_name(str(legacy.get("name")))}}
    return result


def _valid_call(call: dict[str, Any], sent_id: str) -> dict[str, Any]:
    """Return a call with a valid id and tool name; the same object if both are already valid."""
    key = "function" if isinstance(call.get("function"), dict) else "custom"
    tool = str(call[key].get("name", ""))
    if "awaiting_approval" not in call and call["id"] == sent_id and tool == tool_name(tool):
        return call
    return {**_without_own_keys(call), "id": sent_id, key: {**call[key], "name": tool_name(tool)}}


def _convert(turn: RenderedTurn, ids: Sequence[str]) -> list[Any]:
    """Convert a message dict of another provider or API to Chat Completions messages: one message, or none if empty.

    Args:
        turn: The message, with its parts and tool calls.
        ids: The ids to send for the tool calls, in order.
    """
    content = _content(turn, turn.parts)
    message: dict[str, Any] = {"role": turn.role, "content": content}
    if isinstance(turn.event.get("name"), str) and turn.role == "user":
        message["name"] = turn.event["name"]
    if turn.calls:
        return [{**message, "content": content or None, "tool_calls": _calls(turn, ids)}]
    return [message] if content else []


def _content(turn: RenderedTurn, parts: Iterable[Part]) -> Any:
    """Convert parts to the ``content`` of a Chat Completions message: a string for one text, else a list of parts."""
    blocks = list(_blocks(turn, parts))
    if not blocks:
        return ""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks


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
                    raise turn.render_error(
                        _PROVIDER, f"a part of type {part.kind!r} of its content has no equivalent there"
                    )
                for text in texts:
                    yield {"type": "text", "text": sendable(text)}
            case _:
                kind = "image" if isinstance(part, Picture) else "file"
                raise turn.render_error(_PROVIDER, f"a part of type {kind!r} of its content has no equivalent there")


def _detail(raw: Any) -> dict[str, Any]:
    """Return the detail level of an image in the Responses form, as a dict; empty if there is none."""
    detail = raw.get("detail") if isinstance(raw, dict) else None
    return {"detail": detail} if detail in ("low", "high", "auto") else {}


def _result_message(turn: RenderedTurn, answer: Answer, sent_id: str, pictures: list[Any]) -> Any:
    """Return the message with one tool result; its images and files are appended to `pictures`."""
    message = answer.message
    if message is None or not is_chat_message(message):
        blocks = list(_blocks(turn, answer.parts))
        pictures += (block for block in blocks if block["type"] != "text")
        texts = [block for block in blocks if block["type"] == "text"]
        return {
            "role": "tool",
            "tool_call_id": sent_id,
            "content": texts[0]["text"] if len(texts) == 1 else texts or "",
        }
    result = sendable_json(message)
    if message.get("role") == "function":
        tool = str(message.get("name", ""))
        return result if tool == tool_name(tool) else {**result, "name": tool_name(tool)}
    if "tool_call_ids" not in message and message.get("tool_call_id") == sent_id:
        return result
    content = sendable_json(message.get("content")) if answer.parts else ""
    return {**_without_own_keys(result), "tool_call_id": sent_id, "content": content}


def _without_own_keys(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in _OWN_KEYS}


def _is_legacy(event: Any) -> bool:
    return isinstance(event, dict) and "function_call" in event
