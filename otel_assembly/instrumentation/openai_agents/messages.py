"""Registers how the SDK's items are read, and reads the schemas of its tools.

Most items are dicts, which need no registration; the others are models of the ``openai`` package, which this module
imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai import BaseModel

from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.messages import function_schema, summary_like
from otel_assembly.messages.content_snapshot import read_as
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@describe.register(BaseModel)
def _(item: BaseModel) -> EventFacts:
    """Read an item of a model's response, which the client sends back to the provider as a dict."""
    return describe(item.to_dict(mode="json"))


@summary_like.register(BaseModel)
def _(item: BaseModel, text: str, events: Sequence[Any]) -> Any:
    return summary_like({}, text, ())  # the model's input accepts dicts


read_as(BaseModel, lambda item: item.to_dict(mode="json"))


def items_of(model_input: Any, run_items: Iterable[Any] = ()) -> list[Any]:
    """Return the items that a model receives: those of the input, then those that the run has produced.

    The input is a text or items. Approval requests of the run are left out, because no model receives them.
    """
    items = [{"role": "user", "content": model_input}] if isinstance(model_input, str) else model_input
    return [*items, *(item.to_input_item() for item in run_items if item.type != "tool_approval_item")]


def _schema(tool: Any) -> dict[str, Any] | None:
    """Return the schema of a function tool or a handoff; None for a hosted tool, or one that is loaded later."""
    if hasattr(tool, "tool_name"):  # a handoff
        return function_schema(tool.tool_name, tool.tool_description, tool.input_json_schema)
    if hasattr(tool, "params_json_schema") and not getattr(tool, "defer_loading", False):
        return function_schema(tool.name, tool.description, tool.params_json_schema)
    return None


#: The schemas of tools and handoffs, cached per tool object.
SCHEMAS = ToolSchemas(_schema)
