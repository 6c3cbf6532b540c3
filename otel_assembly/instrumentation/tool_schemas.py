"""The schemas of tools in the form that a provider receives.

A framework takes longer to create a schema than the rest of an assembly takes, so schemas are cached by tool.
"""

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
    """Creates the schemas of tools, and caches each as long as its tool lives.

    Args:
        schema_of: Returns the schema of a tool; None for a tool that the provider runs itself.
    """

    def __init__(self, schema_of: Callable[[Any], Mapping[str, Any] | None]) -> None:
        self._schema_of = schema_of
        self._cache: IdentityWeakMap[Mapping[str, Any]] = IdentityWeakMap()

    def of(self, tools: object) -> Schemas:
        """Return the schemas of tools, without those of tools that have none; a dict is a schema already.

        An iterator is not read, because the client could not read it again.
        """
        if not isinstance(tools, Iterable) or isinstance(tools, Iterator):
            return ()
        schemas = (tool if isinstance(tool, dict) else self._cache.get_or_create(tool, self._create) for tool in tools)
        return tuple(schema for schema in schemas if schema)

    def _create(self, tool: Any) -> Mapping[str, Any]:
        try:
            schema: Mapping[str, Any] | None = json.loads(json.dumps(self._schema_of(tool)))
        except Exception as error:  # noqa: BLE001  # the request fails on such a tool itself; this must not
            logger.debug("the schema of a tool could not be created: %s", type(error).__name__)
            return {}
        return schema or {}
