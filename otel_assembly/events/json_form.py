"""The JSON form of events."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from otel_assembly.events import (
    AggregationCompleted,
    AggregationFailed,
    AssemblyCompleted,
    CompactionSummary,
    ConversationResumed,
    Event,
    ExternalExecutionResultEvent,
    HaltEvent,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    ObserverCompleted,
    ObserverStarted,
    ResponseChunk,
    ToolArgumentsChanged,
    ToolCallEvent,
    ToolErrorEvent,
    ToolFinishedLate,
    ToolResultEvent,
    ToolResultsEvent,
    TurnCompleted,
    TurnStarted,
    UsageEvent,
    UserConfirmResultEvent,
)

AnyEvent = Annotated[
    ModelRequest
    | ModelResponse
    | ResponseChunk
    | ToolCallEvent
    | ToolArgumentsChanged
    | ToolResultEvent
    | ToolErrorEvent
    | ToolFinishedLate
    | ToolResultsEvent
    | CompactionSummary
    | ObserverAlert
    | HaltEvent
    | ConversationResumed
    | UserConfirmResultEvent
    | ExternalExecutionResultEvent
    | TurnStarted
    | TurnCompleted
    | UsageEvent
    | AssemblyCompleted
    | ObserverStarted
    | ObserverCompleted
    | AggregationCompleted
    | AggregationFailed,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(AnyEvent, config=ConfigDict(defer_build=True, hide_input_in_errors=True))


def event_to_json(event: Event) -> str:
    """Return the JSON text of an event, with its keys in the order of the class's fields.

    A lone surrogate, which a model's output may contain and UTF-8 cannot encode, is written as its JSON escape.
    """
    try:
        return event.model_dump_json()
    except PydanticSerializationError:
        return json.dumps(event.model_dump(), separators=(",", ":"))


def event_from_json(text: str | bytes) -> Event:
    """Return the event that `event_to_json` wrote.

    Raises:
        pydantic.ValidationError: The text is not the JSON form of an event of this package.
    """
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        if error.errors()[0]["type"] != "json_invalid":
            raise
        try:
            value = json.loads(text)  # accepts an escaped lone surrogate, which pydantic's parser refuses
        except (ValueError, RecursionError):
            raise error from None
        return _ADAPTER.validate_python(value)
