"""What a model is told of the tools it is offered."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger("otel_assembly")

_KNOWN: Final[dict[int, tuple[weakref.ref[Any], Mapping[str, Any]]]] = {}


def schemas_of(tools: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    """The schemas of tools; each is worked out once. One that has none takes no tokens."""
    found = (tool if isinstance(tool, dict) else _schema(tool) for tool in tools)
    return tuple(schema for schema in found if schema is not None)


def _schema(tool: Any) -> Mapping[str, Any] | None:
    held = _KNOWN.get(id(tool))
    if held is not None and held[0]() is tool:
        return held[1]
    from langchain_core.utils.function_calling import convert_to_openai_tool  # who has tools has imported it

    try:
        schema: Mapping[str, Any] = convert_to_openai_tool(tool)
    except Exception as error:  # noqa: BLE001  # a tool that LangChain itself cannot describe is the model's to refuse
        logger.debug("a tool has no schema: %s", type(error).__name__)
        return None
    key = id(tool)
    _KNOWN[key] = weakref.ref(tool, lambda _: _KNOWN.pop(key, None)), schema
    return schema
