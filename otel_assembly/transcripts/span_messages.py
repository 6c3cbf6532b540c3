"""Read the request and the response of a model call from the attributes of a span, in six conventions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_assembly.transcripts.call_log import parsed
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.messages import as_name, as_text, call_message, function_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Attributes = Mapping[str, Any]
    Events = Sequence[tuple[str, Mapping[str, Any]]]

__all__ = ["SpanCall", "conversation_id", "span_call", "unflattened"]


class SpanCall(NamedTuple):
    """The messages of one model call.

    Attributes:
        messages: The messages of the request.
        answer: The messages of the response.
        tools: The tool schemas; None if the span does not have them.
    """

    messages: list[Any]
    answer: list[Any]
    tools: list[dict[str, Any]] | None


_IDS = (
    "gen_ai.conversation.id",
    "session.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
    "ai.telemetry.metadata.sessionId",
)


def conversation_id(attributes: Attributes) -> str | None:
    """Return the id of the conversation that the attributes name; None if they name none."""
    return next(filter(None, (as_name(attributes.get(key)) for key in _IDS)), None)


def span_call(attributes: Attributes, events: Events) -> SpanCall | None:
    """Return the model call of a span; None if the span has no messages of a request."""
    return next(filter(None, (read(attributes, events) for read in _CONVENTIONS)), None)


def _genai(attributes: Attributes, events: Events) -> SpanCall | None:
    """OpenTelemetry's conventions: JSON in attributes, of the span or of its event with the details."""
    details = next((each for name, each in events if name == "gen_ai.client.inference.operation.details"), {})
    attributes = {**attributes, **details}
    messages = parsed(attributes.get("gen_ai.input.messages"))
    if not isinstance(messages, list):
        return None
    parts = parsed(attributes.get("gen_ai.system_instructions"))
    system = [{"role": "system", "parts": parts if isinstance(parts, list) else [parts]}] if parts else []
    answer = parsed(attributes.get("gen_ai.output.messages"))
    tools = parsed(attributes.get("gen_ai.tool.definitions"))
    return SpanCall(
        [*system, *messages],
        answer if isinstance(answer, list) else [],
        objects_in(tools) if isinstance(tools, list) else None,
    )


def _genai_events(attributes: Attributes, events: Events) -> SpanCall | None:
    """OpenTelemetry's earlier conventions: one event per message; Logfire has them as JSON in an attribute."""
    listed = parsed(attributes.get("events"))
    named = [(as_text(each.get("event.name", "")), each) for each in objects_in(listed)] or events
    messages: list[Any] = []
    answer: list[Any] = []
    for name, fields in named:
        match = re.fullmatch(r"gen_ai\.(system|user|assistant|tool)\.message", name)
        if match:
            messages.append(_event_message(match[1], fields))
        elif name == "gen_ai.choice":
            answer.append(_event_message("assistant", fields_of(parsed(fields.get("message")))))
    return SpanCall(messages, answer, None) if messages else None


def _event_message(role: str, fields: Attributes) -> dict[str, Any]:
    content = fields.get("content")
    content = content if isinstance(content, str | None) else as_text(content)
    if role == "tool":
        return {"role": role, "content": content, "tool_call_id": as_name(fields.get("id"))}
    calls = objects_in(parsed(fields.get("tool_calls")))
    return call_message(content, calls) if role == "assistant" else {"role": role, "content": content}


def _openllmetry(attributes: Attributes, events: Events) -> SpanCall | None:
    """OpenLLMetry before the conventions: one attribute per field of a message."""
    messages = [_numbered_message(fields) for fields in unflattened(attributes, "gen_ai.prompt")]
    answer = [_numbered_message(fields) for fields in unflattened(attributes, "gen_ai.completion")]
    tools = [
        {"type": "function", "function": {**fields, "parameters": parsed(fields.get("parameters"))}}
        for fields in unflattened(attributes, "llm.request.functions")
    ]
    return SpanCall(messages, answer, tools or None) if messages else None


def _numbered_message(fields: dict[str, Any]) -> dict[str, Any]:
    content = parsed(fields.get("content"))
    message = {"role": fields.get("role"), "content": content if isinstance(content, str | list) else as_text(content)}
    calls = [
        function_call(as_name(call.get("id")) or f"call {at}", str(call.get("name")), call.get("arguments"))
        for at, call in enumerate(_listed(fields.get("tool_calls")))
    ]
    if calls:
        message["tool_calls"] = calls
    if (call_id := as_name(fields.get("tool_call_id"))) is not None:
        message["tool_call_id"] = call_id
    return message


def _vercel(attributes: Attributes, events: Events) -> SpanCall | None:
    """Vercel's AI SDK 4 to 6."""
    messages = parsed(attributes.get("ai.prompt.messages"))
    if not isinstance(messages, list):
        return None
    calls = [
        function_call(
            as_name(call.get("toolCallId")) or f"call {at}",
            str(call.get("toolName")),
            call.get("input", call.get("args")),
        )
        for at, call in enumerate(objects_in(parsed(attributes.get("ai.response.toolCalls"))))
    ]
    text = attributes.get("ai.response.text")
    answer = [call_message(text if isinstance(text, str) else None, calls)] if text or calls else []
    tools = attributes.get("ai.prompt.tools")
    schemas = objects_in([parsed(tool) for tool in tools]) if isinstance(tools, list) else None
    return SpanCall(messages, answer, schemas)


def _openinference(attributes: Attributes, events: Events) -> SpanCall | None:
    """OpenInference: one attribute per field of a message, or nested objects in exports of Phoenix."""
    messages, answer = (
        [_openinference_message(fields) for fields in _openinference_list(attributes, key)]
        for key in ("input_messages", "output_messages")
    )
    tools = [fields_of(each.get("tool")) for each in _openinference_list(attributes, "tools")]
    schemas = [parsed(tool.get("json_schema")) for tool in tools]
    return SpanCall(messages, answer, objects_in(schemas) or None) if messages else None


def _openinference_list(attributes: Attributes, key: str) -> list[dict[str, Any]]:
    nested = fields_of(attributes.get("llm")).get(key, attributes.get(f"llm.{key}"))
    found = objects_in(nested) or unflattened(attributes, f"llm.{key}")
    return [fields_of(_tree(each)) for each in found]


def _openinference_message(each: dict[str, Any]) -> dict[str, Any]:
    fields = fields_of(each.get("message"))
    contents = [fields_of(part.get("message_content")) for part in _listed(fields.get("contents"))]
    content: Any = fields.get("content")
    if contents:
        content = [part if part.get("type") == "text" else {"type": "file"} for part in contents]
    message = {"role": fields.get("role"), "content": content}
    calls: list[dict[str, Any]] = []
    for at, wrapper in enumerate(_listed(fields.get("tool_calls"))):
        call = fields_of(wrapper.get("tool_call"))
        function = fields_of(call.get("function"))
        made_id = as_name(call.get("id")) or f"call {at}"
        calls.append(function_call(made_id, str(function.get("name")), function.get("arguments")))
    if calls:
        message["tool_calls"] = calls
    if (call_id := as_name(fields.get("tool_call_id"))) is not None:
        message["tool_call_id"] = call_id
    return message


_CONVENTIONS: tuple[Callable[[Attributes, Events], SpanCall | None], ...] = (
    _genai,
    _genai_events,
    _vercel,
    _openinference,
    _openllmetry,
)


def unflattened(attributes: Attributes, prefix: str) -> list[dict[str, Any]]:
    """Return the objects of a list whose fields are attributes of their own, such as ``gen_ai.prompt.0.role``.

    Args:
        attributes: The attributes.
        prefix: The name of the list.
    """
    start = f"{prefix}."
    return _listed(_tree({key[len(start) :]: value for key, value in attributes.items() if key.startswith(start)}))


def _tree(flat: Attributes) -> dict[str, Any]:
    """Return nested objects for keys with dots."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = tree
        for name in path:
            inner = place.get(name)
            if not isinstance(inner, dict):
                inner = place[name] = {}
            place = inner
        place[last] = value
    return tree


def _listed(tree: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, or of an object whose keys are the indexes of a list."""
    if isinstance(tree, dict):
        keys: Iterable[str] = sorted((key for key in tree if key.isdecimal()), key=int)
        return objects_in([tree[key] for key in keys])
    return objects_in(tree)
