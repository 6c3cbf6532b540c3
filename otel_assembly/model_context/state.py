"""Validation of a model context's saved state and configuration. Errors name the invalid field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from otel_assembly.errors import ConfigurationError

Form = TypeVar("Form", bound=BaseModel)

#: The key of the context's state in the saved state of an AutoGen agent.
_AGENT_KEY: Final = "llm_context"


def read_form(form: type[Form], values: Any, where: str) -> Form:
    """Validate a mapping with a pydantic class and return an instance of the class.

    Args:
        form: The pydantic class.
        values: The mapping.
        where: The name of the mapping in error messages.

    Raises:
        ConfigurationError: The mapping is invalid. The message names the field and the reason.
    """
    try:
        return form.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = where
        for step in first["loc"]:
            if isinstance(step, int):
                place += f"[{step}]"
            elif not str(step).endswith("Message"):  # pydantic adds the message's class, which is not a field
                place += f".{step}"
        raise ConfigurationError(f"{place}: {first['msg']}; use the format that AutoGen writes") from None


def read_state(form: type[Form], state: Any) -> Form:
    """Validate the saved state of a model context, or of the agent that uses the context.

    Args:
        form: The pydantic class of the state.
        state: ``{"messages": […]}``, or an agent's ``{"llm_context": {"messages": […]}}``. An empty mapping is a
            state without messages.

    Raises:
        ConfigurationError: The state is invalid. The message names the field and the reason.
    """
    if isinstance(state, BaseModel):
        state = state.model_dump()
    where = "state"
    while isinstance(state, Mapping) and "messages" not in state and isinstance(state.get(_AGENT_KEY), Mapping):
        state, where = state[_AGENT_KEY], f"{where}.{_AGENT_KEY}"
    if not isinstance(state, Mapping):
        raise ConfigurationError(f"{where}: expected a mapping with 'messages', found {type(state).__name__}")
    if state and "messages" not in state:
        keys = ", ".join(repr(str(key)) for key in list(state)[:4])
        raise ConfigurationError(
            f"{where}: has no 'messages' (it has {keys}); give what a context's save_state() returned, or {{}} to "
            "empty the context"
        )
    messages = state.get("messages", [])
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ConfigurationError(f"{where}.messages: expected a list of messages, found {type(messages).__name__}")
    return read_form(form, {"messages": _with_tool_names(messages)}, where)


def _with_tool_names(messages: Sequence[Any]) -> list[Any]:
    """Add missing tool names to tool results, from the calls: states of older AutoGen versions lack the names."""
    names: dict[Any, Any] = {}
    completed: list[Any] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
        for part in parts:
            if "arguments" in part and isinstance(part.get("id"), str):
                names[part["id"]] = part.get("name")
        if content is not None and any("call_id" in part and "name" not in part for part in parts):
            named_parts = [
                {"name": _tool_name(part, names), **part} if isinstance(part, Mapping) and "call_id" in part else part
                for part in content
            ]
            message = {**message, "content": named_parts}
        completed.append(message)
    return completed


def _tool_name(result: Mapping[str, Any], names: Mapping[Any, Any]) -> str:
    call = result["call_id"]
    name = names.get(call) if isinstance(call, str) else None
    return name if isinstance(name, str) else ""
