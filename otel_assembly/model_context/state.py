"""Validation of a context's state and configuration. Errors name the invalid field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from otel_assembly.errors import ConfigurationError

Form = TypeVar("Form", bound=BaseModel)

#: The key of the context's state in an agent's state.
_OF_AGENT: Final = "llm_context"


def read_form(form: type[Form], given: Any, where: str) -> Form:
    """Validate a mapping with a pydantic class.

    Args:
        form: The class.
        given: The mapping.
        where: The name of the mapping in error messages.

    Raises:
        ConfigurationError: The mapping is invalid. The message names the field and the reason.
    """
    try:
        return form.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = where
        for step in first["loc"]:
            if isinstance(step, int):
                place += f"[{step}]"
            elif not str(step).endswith("Message"):  # the union's member, not a field
                place += f".{step}"
        raise ConfigurationError(f"{place}: {first['msg']}; give it as AutoGen writes it") from None


def read_state(form: type[Form], state: Any) -> Form:
    """Validate the state of a context, or of the agent that uses it.

    Args:
        form: The pydantic class of the state.
        state: ``{"messages": […]}``, or an agent's ``{"llm_context": {"messages": […]}}``. An empty state empties the
            context.

    Raises:
        ConfigurationError: The state is invalid. The message names the field and the reason.
    """
    if isinstance(state, BaseModel):
        state = state.model_dump()
    where = "state"
    while isinstance(state, Mapping) and "messages" not in state and isinstance(state.get(_OF_AGENT), Mapping):
        state, where = state[_OF_AGENT], f"{where}.{_OF_AGENT}"
    if not isinstance(state, Mapping):
        raise ConfigurationError(f"{where}: expected a mapping with 'messages', found {type(state).__name__}")
    if state and "messages" not in state:
        found = ", ".join(repr(str(key)) for key in list(state)[:4])
        raise ConfigurationError(
            f"{where}: has no 'messages' (it has {found}); give what a context's save_state() returned, or {{}} to "
            "empty the context"
        )
    messages = state.get("messages", [])
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ConfigurationError(f"{where}.messages: expected a list of messages, found {type(messages).__name__}")
    return read_form(form, {"messages": _with_names(messages)}, where)


def _with_names(messages: Sequence[Any]) -> list[Any]:
    """Add missing tool names to results, from their calls. Older states do not contain them."""
    names: dict[Any, Any] = {}
    made: list[Any] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
        for part in parts:
            if "arguments" in part and isinstance(part.get("id"), str):
                names[part["id"]] = part.get("name")
        if content is not None and any("call_id" in part and "name" not in part for part in parts):
            named = [
                {"name": _name_of(part, names), **part} if isinstance(part, Mapping) and "call_id" in part else part
                for part in content
            ]
            message = {**message, "content": named}
        made.append(message)
    return made


def _name_of(result: Mapping[str, Any], names: Mapping[Any, Any]) -> str:
    call = result["call_id"]
    name = names.get(call) if isinstance(call, str) else None
    return name if isinstance(name, str) else ""
