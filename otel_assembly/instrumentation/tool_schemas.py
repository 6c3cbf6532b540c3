"""The schemas of a framework's tools: making one takes longer than all the rest of an assembly."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.conversation import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

logger = logging.getLogger("otel_assembly")


class ToolSchemas:
    """The schemas of tools, each of which is worked out once, for as long as the tool lives.

    Args:
        schema: Makes one. A tool that the framework itself cannot describe is the model's to refuse: it has none.
    """

    def __init__(self, schema: Callable[[Any], Mapping[str, Any]]) -> None:
        self._schema = schema
        self._known: ByIdentity[Mapping[str, Any]] = ByIdentity()

    def of(self, tools: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
        """The schemas of tools, some of which may be that already; one that has none takes no tokens."""
        found = (tool if isinstance(tool, dict) else self._known.worked_out(tool, self._made) for tool in tools)
        return tuple(schema for schema in found if schema)

    def _made(self, tool: Any) -> Mapping[str, Any]:
        try:
            return self._schema(tool)
        except Exception as error:  # noqa: BLE001  # as above
            logger.debug("a tool has no schema: %s", type(error).__name__)
            return {}
