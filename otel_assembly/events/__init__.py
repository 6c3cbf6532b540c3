"""The events of an agent's stream (as in AG2), as frozen models with one JSON form.

Each event has a ``type`` (its discriminator in JSON) and an ``id``. ``event_to_json`` and ``event_from_json`` are exact
inverses (`json_form`). The module `rows` defines how the rest of the package reads each event.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

from otel_assembly.events.finish_reasons import CUT_OFF, finish_reason

__all__ = [
    "AggregationCompleted",
    "AggregationFailed",
    "AnyEvent",
    "AssemblyCompleted",
    "CompactionSummary",
    "ConfirmResult",
    "ConversationResumed",
    "Event",
    "ExternalExecutionResultEvent",
    "HaltEvent",
    "ModelRequest",
    "ModelResponse",
    "ObserverAlert",
    "ObserverCompleted",
    "ObserverStarted",
    "ResponseChunk",
    "Severity",
    "SeverityName",
    "Thinking",
    "ToolArgumentsChanged",
    "ToolCallEvent",
    "ToolErrorEvent",
    "ToolFinishedLate",
    "ToolResultEvent",
    "ToolResultsEvent",
    "TurnCompleted",
    "TurnStarted",
    "Usage",
    "UsageEvent",
    "UserConfirmResultEvent",
    "event_from_json",
    "event_to_json",
    "severity_name",
]


def new_id() -> str:
    """Return a random event id of 32 hexadecimal digits."""
    return os.urandom(16).hex()


class Event(BaseModel):
    """The base class of events. Events are immutable and refuse unknown fields.

    Attributes:
        id: The id of the event; for a tool call, the id of the call.
        type: The discriminator in JSON; fixed for each class.
    """

    # Error messages go to logs, which must not have content.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str = Field(default_factory=new_id)


class ModelRequest(Event):
    """A request to the agent, from a user or from a program in the role of a user.

    Attributes:
        content: The text of the request.
    """

    type: Literal["model_request"] = "model_request"
    content: str


class ToolCallEvent(Event):
    """A tool call of the model; its `id` is the id of the call.

    Attributes:
        name: The name of the tool.
        arguments: The arguments, as the JSON text that the model wrote.
        awaiting_approval: Whether the call waits for an approval; it is then pending regardless of its age.
        external: True if the call waits for a result because this agent does not run it: its tool is external, or a
            permission check decided so.
    """

    type: Literal["tool_call"] = "tool_call"
    name: str
    arguments: str = "{}"
    awaiting_approval: bool = False
    external: bool = False


class Usage(BaseModel):
    """The tokens that the provider billed.

    Attributes:
        input_tokens: The tokens of the prompt, including cached ones.
        output_tokens: The tokens of the response.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(default=0, ge=0)


class Thinking(BaseModel):
    """The reasoning of a model before its answer, in the form in which its provider requires it back.

    Attributes:
        text: The readable text.
        signature: The provider's signature of the text.
        sealed: The encrypted reasoning, if the provider gives no text.
        form: The type of the reasoning in the provider's messages; only providers that know this type get it back.
        behind: The number of other parts of the response (its text and its calls) that precede the reasoning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    text: str = ""
    signature: str = ""
    sealed: str = ""
    form: Literal["thinking", "redacted_thinking", "reasoning_content", "reasoning"]
    behind: int = Field(default=0, ge=0)


class ModelResponse(Event):
    """A response of the model: a text, tool calls, or both.

    Attributes:
        content: The text; empty if there is none.
        tool_calls: The tool calls.
        usage: The billed tokens, if they are known. They calibrate a token counter that only estimates.
        thinking: The reasoning. If the response has tool calls, providers require it in the next request, so it is sent
            and counted; otherwise they ignore it.
        structured_output: The answer in the requested schema, as JSON values; None if no schema was requested.
        finish_reason: Why the model stopped: ``stop``, ``length``, ``content_filter``, ``tool_call`` or ``error``, the
            values of OpenTelemetry's GenAI conventions. A provider's own value is converted, or unchanged if the
            conventions have no equivalent. None if it is unknown.
    """

    type: Literal["model_response"] = "model_response"
    content: str = ""
    tool_calls: tuple[ToolCallEvent, ...] = ()
    usage: Usage | None = None
    thinking: tuple[Thinking, ...] = ()
    structured_output: dict[str, Any] | None = None
    finish_reason: str | None = None

    @field_validator("finish_reason")
    @classmethod
    def _by_the_conventions(cls, value: str | None) -> str | None:
        return None if value is None else finish_reason(value)

    @property
    def is_truncated(self) -> bool:
        """True if the response is incomplete: it was cut off at a token limit, filtered, interrupted, or it failed.

        Tool calls of such a response never run.
        """
        return self.finish_reason in CUT_OFF


class ResponseChunk(Event):
    """A chunk of a streamed response, for programs that show the answer while it is generated.

    A `ModelResponse` with the whole text follows. Chunks are not part of the conversation and never in a prompt.

    Attributes:
        content: The text of the chunk.
    """

    type: Literal["response_chunk"] = "response_chunk"
    content: str


class ToolResultEvent(Event):
    """The result of a tool call.

    Attributes:
        parent_id: The id of the call.
        name: The name of the tool.
        content: The text for the model.
    """

    type: Literal["tool_result"] = "tool_result"
    parent_id: str
    name: str = ""
    content: str


class ToolErrorEvent(Event):
    """A failed tool call.

    Attributes:
        parent_id: The id of the call.
        name: The name of the tool.
        error: The text for the model, as the result of the call.
        still_running: True if the call exceeded its time limit or was cancelled, and its function, which is not async,
            continues in a thread, so that side effects may still happen. When the function ends, a `ToolFinishedLate`
            is sent.
    """

    type: Literal["tool_error"] = "tool_error"
    parent_id: str
    name: str = ""
    error: str
    still_running: bool = False


class ToolFinishedLate(Event):
    """The function of a tool call ended after the call's time limit or cancellation: its side effects happened late.

    A function that is not async runs in a thread, and a thread cannot be stopped. The model received a `ToolErrorEvent`
    as the result of the call. This event is never in a prompt.

    Attributes:
        parent_id: The id of the call.
        name: The tool's name.
        seconds: The duration of the function, in seconds.
        error: The type of the exception that it raised; empty if it returned.
    """

    type: Literal["tool_finished_late"] = "tool_finished_late"
    parent_id: str
    name: str = ""
    seconds: float = Field(ge=0)
    error: str = ""


class ToolResultsEvent(Event):
    """The results of all tool calls of one response.

    Attributes:
        results: One result per answered call.
    """

    type: Literal["tool_results"] = "tool_results"
    results: tuple[Annotated[ToolResultEvent | ToolErrorEvent, Field(discriminator="type")], ...]


class CompactionSummary(Event):
    """A summary that replaces earlier events.

    Attributes:
        summary: The text.
        event_count: The number of replaced events.
        provenance: The ids of the replaced events.
        lossy: Whether information was lost.
    """

    type: Literal["compaction_summary"] = "compaction_summary"
    summary: str
    event_count: int = Field(default=0, ge=0)
    provenance: tuple[str, ...] = ()
    lossy: bool = True


class Severity(StrEnum):
    """The severity of an alert; `FATAL` halts the conversation."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    FATAL = "fatal"


#: The names of severities, for configurations and callers that do not import the enum.
SeverityName: TypeAlias = Literal["info", "warning", "critical", "fatal"]


class ObserverAlert(Event):
    """A message of an observer to the model and to the people on call.

    Attributes:
        source: The name of the observer.
        severity: A `Severity`, or its name in any case; ``fatal`` halts the conversation.
        message: The text for the model and for operators. Telemetry exports its first 256 characters, unless that is
            turned off.
        data: Values for the program that handles the alert; never exported.
    """

    type: Literal["observer_alert"] = "observer_alert"
    source: str
    severity: Severity
    message: str
    data: dict[str, Any] = Field(default_factory=dict)

    if TYPE_CHECKING:  # the constructor also accepts a severity's name, which the field's type cannot express

        def __init__(
            self,
            *,
            source: str,
            severity: Severity | SeverityName,
            message: str,
            data: dict[str, Any] = ...,
            id: str = ...,  # noqa: A002  # the field's name
            type: Literal["observer_alert"] = ...,  # noqa: A002  # the field's name
        ) -> None: ...

    @field_validator("severity", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return severity_name(value) if isinstance(value, str) else value


class HaltEvent(Event):
    """The conversation was halted: no model call and no tool call starts after this event.

    Attributes:
        reason: The reason; it can quote the message of an alert.
        source: The observer or caller that halted the conversation.
        alerts: The alerts that caused the halt.
    """

    type: Literal["halt"] = "halt"
    reason: str
    source: str
    alerts: tuple[ObserverAlert, ...] = ()


class ConversationResumed(Event):
    """A halted conversation was resumed: model calls and tool calls may start again.

    Attributes:
        halt: The id of the lifted `HaltEvent`.
        reason: The reason that was given.
    """

    type: Literal["conversation_resumed"] = "conversation_resumed"
    halt: str
    reason: str = ""


class ConfirmResult(BaseModel):
    """A person's decision about one tool call that waits for approval.

    Attributes:
        tool_call: The waiting call. You may change the arguments of the call, but not the tool.
        confirmed: Whether the call may run.
        message: The text for the model if the call may not run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    tool_call: ToolCallEvent
    confirmed: bool
    message: str = ""


class ToolArgumentsChanged(Event):
    """A tool call runs with other arguments than the model wrote.

    Attributes:
        parent_id: The id of the call.
        name: The name of the tool.
        original: The arguments that the model wrote.
        arguments: The arguments of the call, as JSON.
        source: What changed the arguments: a person's ``confirmation``, a ``permission`` check, or a ``middleware``.
    """

    type: Literal["tool_arguments_changed"] = "tool_arguments_changed"
    parent_id: str
    name: str
    original: str
    arguments: str
    source: Literal["confirmation", "permission", "middleware"]


class UserConfirmResultEvent(Event):
    """A person's decisions about waiting tool calls.

    Attributes:
        confirm_results: One decision per call. Calls without a decision keep waiting.
    """

    type: Literal["user_confirm_result"] = "user_confirm_result"
    confirm_results: tuple[ConfirmResult, ...]


class ExternalExecutionResultEvent(Event):
    """The results of tool calls that ran outside of this program.

    Attributes:
        execution_results: One result per finished call. The other calls keep waiting.
    """

    type: Literal["external_execution_result"] = "external_execution_result"
    execution_results: tuple[Annotated[ToolResultEvent | ToolErrorEvent, Field(discriminator="type")], ...]


class TurnStarted(Event):
    """A turn of an agent's loop began: one model call with its tool calls.

    Attributes:
        turn: The index of the turn, from 0.
    """

    type: Literal["turn_started"] = "turn_started"
    turn: int = Field(ge=0)


class TurnCompleted(Event):
    """A turn of an agent's loop ended.

    Attributes:
        turn: The index of the turn, from 0.
    """

    type: Literal["turn_completed"] = "turn_completed"
    turn: int = Field(ge=0)


class UsageEvent(Event):
    """The billed tokens of a model call.

    Attributes:
        model: The model that was called.
        usage: The tokens.
    """

    type: Literal["usage"] = "usage"
    model: str = ""
    usage: Usage


class AssemblyCompleted(Event):
    """The prompt of a model call was assembled. Observers that check budgets subscribe to this event.

    Attributes:
        assembly: The id of the assembly.
        turn: The index of the assembly within its conversation and agent, from 0.
        tokens: The tokens of the assembled prompt.
        budget: The tightest token limit that a policy enforced; None without one.
        fixed: The tokens of content that must not be dropped; None if no policy knows them.
        overflow_tokens: The tokens above the budget; 0 without an overflow.
        overflow_cause: The value of the `OverflowCause`; empty without an overflow.
    """

    type: Literal["assembly_completed"] = "assembly_completed"
    assembly: str
    turn: int = Field(ge=0)
    tokens: int = Field(ge=0)
    budget: int | None = None
    fixed: int | None = None
    overflow_tokens: int = Field(default=0, ge=0)
    overflow_cause: str = ""


class ObserverStarted(Event):
    """An observer started to process an event.

    Attributes:
        observer: The name of the observer.
    """

    type: Literal["observer_started"] = "observer_started"
    observer: str


class ObserverCompleted(Event):
    """An observer finished processing an event.

    Attributes:
        observer: The name of the observer.
        error: The type of the exception that it raised; empty without one.
    """

    type: Literal["observer_completed"] = "observer_completed"
    observer: str
    error: str = ""


class AggregationCompleted(Event):
    """An aggregate (code that derives entries, such as summaries, from events) wrote to the knowledge store.

    Attributes:
        aggregate: The name of the aggregate.
    """

    type: Literal["aggregation_completed"] = "aggregation_completed"
    aggregate: str


class AggregationFailed(Event):
    """An aggregate (code that derives knowledge store entries from events) failed.

    Attributes:
        aggregate: The name of the aggregate.
        error: The type of its exception.
    """

    type: Literal["aggregation_failed"] = "aggregation_failed"
    aggregate: str
    error: str


def severity_name(severity: Any) -> str:
    """Return the lower-case name of a severity, which can be a string or an enum of any library.

    Of an enum, the value is used, because ``str()`` of a plain enum returns ``Severity.FATAL``.
    """
    return str(getattr(severity, "value", severity)).lower()


# These modules use the classes above. Importing them here registers the readers of all events.
from otel_assembly.events import rows as _rows  # noqa: E402, F401
from otel_assembly.events.json_form import AnyEvent, event_from_json, event_to_json  # noqa: E402
