"""The tools that a model is offered, as a provider is sent them: making a schema takes longer than all else."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.conversation import IdentityWeakMap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Schemas = tuple[Mapping[str, Any], ...]

logger = logging.getLogger("otel_assembly")


class ToolSchemas:
    """The schemas of tools, each of which is worked out once, for as long as the tool lives.

    Args:
        schema_of: The schema of a tool; None where a provider has the tool itself.
    """

    def __init__(self, schema_of: Callable[[Any], Mapping[str, Any] | None]) -> None:
        self._schema_of = schema_of
        self._known: IdentityWeakMap[Mapping[str, Any]] = IdentityWeakMap()

    def of(self, tools: object) -> Schemas:
        """The schemas of tools, some of which may be that already; of one that has none nobody knows what it costs.

        Args:
            tools: The tools, as the framework has them; what can be read once is left to the client.
        """
        again = tools if isinstance(tools, Iterable) and not isinstance(tools, Iterator) else ()
        found = (tool if isinstance(tool, dict) else self._known.get_or_create(tool, self._made) for tool in again)
        return tuple(schema for schema in found if schema)

    def _made(self, tool: Any) -> Mapping[str, Any]:
        """A tool that the framework itself cannot describe, or that is no JSON, is the model's to refuse."""
        try:
            schema: Mapping[str, Any] | None = json.loads(json.dumps(self._schema_of(tool)))
        except Exception as error:  # noqa: BLE001  # as above
            logger.debug("a tool has no schema: %s", type(error).__name__)
            return {}
        return schema or {}


class Offered(ToolSchemas):
    """The tools of one run: read once, where a framework hands the same list on with each of its calls.

    Attributes:
        schemas: Those that were read last; None until any were.
    """

    schemas: Schemas | None = None
    _tools: object = None

    def read(self, tools: object) -> Schemas:
        """The schemas of these tools."""
        if self.schemas is None or self._tools is not tools:
            self._tools, self.schemas = tools, self.of(tools)
        return self.schemas


def offered(tools: object, schema_of: Callable[[Any], Mapping[str, Any] | None]) -> Schemas:
    """The schemas of tools that are met once, as `ToolSchemas` takes and makes them."""
    return ToolSchemas(schema_of).of(tools)
