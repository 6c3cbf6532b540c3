"""What a model is told of the tools it is offered."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.wrapping import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger("otel_assembly")

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
