"""How the SDK's items are read that are no dicts, and the schemas of its tools; importing this imports ``openai``."""

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
    """What a model has answered, as the client has it: the provider is sent it as a dict."""
    return describe(item.to_dict(mode="json"))


@summary_like.register(BaseModel)
def _(item: BaseModel, text: str, events: Sequence[Any]) -> Any:
    return summary_like({}, text, ())  # an item of the input is a dict


read_as(BaseModel, lambda item: item.to_dict(mode="json"))


def items_of(given: Any, made: Iterable[Any] = ()) -> list[Any]:
    """The items of an input, and behind them those that a run has made, as a model is given them."""
    held = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [*held, *(one.to_input_item() for one in made if one.type != "tool_approval_item")]


def _schema(tool: Any) -> dict[str, Any] | None:
    """The schema of a function, or of a handoff; of what a provider runs itself, or is told of later, there is none."""
    if hasattr(tool, "tool_name"):
        return function_schema(tool.tool_name, tool.tool_description, tool.input_json_schema)
    if hasattr(tool, "params_json_schema") and not getattr(tool, "defer_loading", False):
        return function_schema(tool.name, tool.description, tool.params_json_schema)
    return None


#: The schemas of tools and handoffs.
SCHEMAS = ToolSchemas(_schema)
