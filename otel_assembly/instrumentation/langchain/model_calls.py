"""What a chat model is called with, as far as it is said: the name of the model, and the schemas of its tools."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.hooks import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger("otel_assembly")

#: Where chat models of LangChain keep the name of the model that they call.
_NAMES: Final = ("model_name", "model", "model_id")
#: So many runnables stand around a model, at most.
_AROUND: Final = 8


def model_of(model: Any, settings: Mapping[str, Any] | None = None) -> str | None:
    """The name of the model that a chat model calls, where one is said.

    Args:
        model: A chat model, or a runnable around one: bound to settings, with fall-backs, or configurable.
        settings: Those of the call, which may name another model.
    """
    for _ in range(_AROUND):
        held = getattr(model, "__dict__", {})
        said = _said(settings) or _said(held.get("_default_config"))
        inner = held.get("bound", held.get("runnable"))
        if said is not None or inner is None:
            return said or next((name for key in _NAMES if isinstance(name := getattr(model, key, None), str)), None)
        model, settings = inner, held.get("kwargs")
    return None


def _said(settings: Mapping[str, Any] | None) -> str | None:
    name = settings.get("model") if settings else None
    return name if isinstance(name, str) else None


_KNOWN: Final[ByIdentity[Mapping[str, Any]]] = ByIdentity()


def schemas_of(tools: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    """The schemas of tools; each is worked out once. One that has none takes no tokens."""
    found = (tool if isinstance(tool, dict) else _schema(tool) for tool in tools)
    return tuple(schema for schema in found if schema is not None)


def _schema(tool: Any) -> Mapping[str, Any] | None:
    known = _KNOWN.get(tool)
    if known is not None:
        return known
    from langchain_core.utils.function_calling import convert_to_openai_tool  # who has tools has imported it

    try:
        schema: Mapping[str, Any] = convert_to_openai_tool(tool)
    except Exception as error:  # noqa: BLE001  # a tool that LangChain itself cannot describe is the model's to refuse
        logger.debug("a tool has no schema: %s", type(error).__name__)
        return None
    return _KNOWN.put(tool, schema)
