"""The tools that a model is offered, as a provider is sent them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def offered(tools: object, schema_of: Callable[[Any], Mapping[str, Any] | None]) -> tuple[dict[str, Any], ...]:
    """The schemas of tools; of one whose schema cannot be written as JSON, nobody knows what it costs.

    Args:
        tools: The tools, as the framework has them; what can be read once is left to the client.
        schema_of: The schema of one; None where a provider has the tool itself.
    """
    again = tools if isinstance(tools, Iterable) and not isinstance(tools, Iterator) else ()
    return tuple(schema for tool in again if (schema := _plain(tool, schema_of)) is not None)


def _plain(tool: Any, schema_of: Callable[[Any], Mapping[str, Any] | None]) -> dict[str, Any] | None:
    try:
        schema: dict[str, Any] | None = json.loads(json.dumps(schema_of(tool)))
    except (TypeError, ValueError):
        return None
    return schema


class Offered:
    """The tools of one run: read once, where a framework hands the same list on with each of its calls.

    Args:
        schema_of: As for `offered`.

    Attributes:
        schemas: Those that were read last; None until any were.
    """

    def __init__(self, schema_of: Callable[[Any], Mapping[str, Any] | None]) -> None:
        self.schemas: tuple[dict[str, Any], ...] | None = None
        self._schema_of = schema_of
        self._tools: object = None

    def read(self, tools: object) -> tuple[dict[str, Any], ...]:
        """The schemas of these tools."""
        if self.schemas is None or self._tools is not tools:
            self._tools, self.schemas = tools, offered(tools, self._schema_of)
        return self.schemas
