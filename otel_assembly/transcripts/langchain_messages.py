"""Convert LangChain's messages into chat messages: those of ``dumpd``, ``messages_to_dict`` and LangGraph's states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.messages import as_name, as_text, call_message, function_call

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["chat_message", "is_langchain_message"]

_ROLES: Mapping[str, str] = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}


def is_langchain_message(value: Any) -> bool:
    """Return whether a value is a message of LangChain in one of its JSON forms."""
    return isinstance(value, dict) and _role_and_fields(value) is not None


def chat_message(value: dict[str, Any]) -> dict[str, Any]:
    """Return a message of LangChain as a chat message; any other object unchanged."""
    found = _role_and_fields(value)
    if found is None:
        return value
    role, fields = found
    content = fields.get("content")
    content = content if isinstance(content, str | list) else as_text("" if content is None else content)
    name = {"name": fields["name"]} if isinstance(fields.get("name"), str) and role != "tool" else {}
    if role == "tool":
        call_id = as_name(fields.get("tool_call_id"))
        return {"role": "tool", "content": content} | ({"tool_call_id": call_id} if call_id else {})
    if role != "assistant":
        return {"role": role, "content": content} | name
    calls = [
        function_call(as_name(call.get("id")) or f"{call.get('name')}", str(call.get("name")), call.get("args"))
        for call in objects_in(fields.get("tool_calls"))
    ]
    if not calls:
        calls = objects_in(fields_of(fields.get("additional_kwargs")).get("tool_calls"))
    return call_message(content, calls) | name


def _role_and_fields(value: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    kind = value.get("type")
    if "lc" in value and isinstance(value.get("id"), list) and value["id"] and isinstance(value["id"][-1], str):
        name = value["id"][-1].removesuffix("Chunk").removesuffix("Message").lower()
        fields = fields_of(value.get("kwargs"))
    elif isinstance(kind, str) and isinstance(value.get("data"), dict):
        name, fields = kind, value["data"]
    elif isinstance(kind, str) and "content" in value and "role" not in value:
        name, fields = kind.removesuffix("MessageChunk").lower(), value
    else:
        return None
    if name == "chat" and fields.get("role") in ("user", "assistant", "system", "tool"):
        return str(fields["role"]), fields
    return (_ROLES[name], fields) if name in _ROLES else None
