"""Our event vocabulary: what an agent's run puts on its stream (as in AG2), as frozen models with one JSON form.

Every event has a ``type`` (its discriminator in JSON) and an ``id``. ``event_to_json`` and ``event_from_json`` are
exact inverses (`json_form`). How the engine reads an event is its ``describe()`` row, in `rows`.
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
    """The id of an event that nobody has named: 32 hex digits."""
    return os.urandom(16).hex()


class Event(BaseModel):
    """The base of our events; frozen, and refusing fields it does not know.

    Attributes:
        id: Its own id; of a tool call, the call's.
        type: What it is, in JSON; of each class its own, and never given.
    """

    # An error's message goes to logs, where no content belongs.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str = Field(default_factory=new_id)


class ModelRequest(Event):
    """What a user (or whoever plays one) asks of the agent.

    Attributes:
        content: The text.
    """

    type: Literal["model_request"] = "model_request"
    content: str


class ToolCallEvent(Event):
    """A call of a tool that the model asks for; its `id` is the call's.

    Attributes:
        name: The tool's name.
        arguments: Its arguments, as the JSON text that the model wrote.
        awaiting_approval: Whether the call waits for a person: it stays pending however old it is.
        external: True if the call waits for a result because this agent does not run it: its tool is external, or a
            permission check decided so.
    """

    type: Literal["tool_call"] = "tool_call"
    name: str
    arguments: str = "{}"
    awaiting_approval: bool = False
    external: bool = False


class Usage(BaseModel):
    """Tokens as the provider billed them.

    Attributes:
        input_tokens: Of the prompt, cached ones included.
        output_tokens: Of the response.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(default=0, ge=0)


class Thinking(BaseModel):
    """What a model thought before it answered, in the form in which its provider wants it back.

    Attributes:
        text: What can be read of it.
        signature: By which the provider knows it for its own.
        sealed: What only the provider can read, where it gives no text.
        form: What it is called in the provider's messages, which are the only ones that it is sent in.
        behind: How many parts of the response, its text and its calls, stand in front of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    text: str = ""
    signature: str = ""
    sealed: str = ""
    form: Literal["thinking", "redacted_thinking", "reasoning_content", "reasoning"]
    behind: int = Field(default=0, ge=0)


class ModelResponse(Event):
    """What the model answered: a text, tool calls, or both.

    Attributes:
        content: The text; empty where there is none.
        tool_calls: The calls that it asks for.
        usage: What the provider billed for it, where that is known: an estimating counter is calibrated by it.
        thinking: What the model thought. It is sent back, and counted, where the response calls tools: there providers
            want it, and elsewhere they pass it over.
        structured_output: The answer in the form that the ask has asked for, as JSON values; None where it has not.
        finish_reason: Why the model stopped: ``stop``, ``length``, ``content_filter``, ``tool_call`` or ``error``, as
            OpenTelemetry's GenAI conventions name it. A provider's own word is given as the value that it stands for,
            or as it is if the conventions have none. None if it is not known.
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
    """A piece of what the model is answering, as it comes; whoever shows it while it is written watches this.

    The whole `ModelResponse` follows it, and only that stands in a conversation: a piece is in no prompt.

    Attributes:
        content: The piece's text.
    """

    type: Literal["response_chunk"] = "response_chunk"
    content: str


class ToolResultEvent(Event):
    """What a tool returned.

    Attributes:
        parent_id: The id of the call.
        name: The tool's name.
        content: What the model reads of it.
    """

    type: Literal["tool_result"] = "tool_result"
    parent_id: str
    name: str = ""
    content: str


class ToolErrorEvent(Event):
    """A tool that failed.

    Attributes:
        parent_id: The id of the call.
        name: The tool's name.
        error: What the model reads as the call's result.
        still_running: True if the call exceeded its time limit and its function, which is not async, runs on in a
            thread: its side effects may come later. If it ends, a `ToolFinishedLate` is sent.
    """

    type: Literal["tool_error"] = "tool_error"
    parent_id: str
    name: str = ""
    error: str
    still_running: bool = False


class ToolFinishedLate(Event):
    """The function of a tool call ended after the call had been given up, so that its side effects came late.

    A function that is not async runs in a thread, and a thread cannot be stopped. The model has read a
    `ToolErrorEvent` as the call's result by then; this event changes no prompt.

    Attributes:
        parent_id: The id of the call.
        name: The tool's name.
        seconds: How long the function ran.
        error: The type of the exception that it raised; empty if it returned.
    """

    type: Literal["tool_finished_late"] = "tool_finished_late"
    parent_id: str
    name: str = ""
    seconds: float = Field(ge=0)
    error: str = ""


class ToolResultsEvent(Event):
    """The results of one response's calls together, as they go back to the model.

    Attributes:
        results: One for each call that was answered.
    """

    type: Literal["tool_results"] = "tool_results"
    results: tuple[Annotated[ToolResultEvent | ToolErrorEvent, Field(discriminator="type")], ...]


class CompactionSummary(Event):
    """A summary that stands for earlier events.

    Attributes:
        summary: The text.
        event_count: How many events it stands for.
        provenance: The ids of what it was made from.
        lossy: Whether it tells less than they did.
    """

    type: Literal["compaction_summary"] = "compaction_summary"
    summary: str
    event_count: int = Field(default=0, ge=0)
    provenance: tuple[str, ...] = ()
    lossy: bool = True


class Severity(StrEnum):
    """How bad an alert is; `FATAL` halts."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    FATAL = "fatal"


#: A severity as a configuration, or a caller who imports nothing for it, names it.
SeverityName: TypeAlias = Literal["info", "warning", "critical", "fatal"]


class ObserverAlert(Event):
    """What an observer has to say to the model and to the people on call.

    Attributes:
        source: Who raised it: the observer's name.
        severity: How bad it is, as `Severity` or its name in any case; a fatal one halts the conversation.
        message: Operator text: it is exported, cut at 256 characters, unless that is switched off.
        data: Numbers and names for whoever handles it; never exported.
    """

    type: Literal["observer_alert"] = "observer_alert"
    source: str
    severity: Severity
    message: str
    data: dict[str, Any] = Field(default_factory=dict)

    if TYPE_CHECKING:  # a severity's name is taken as well, which a field's type cannot say

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
    """The run is over: after it no model call and no tool call starts.

    Attributes:
        reason: Why; it may quote the message of an alert.
        source: Who halted.
        alerts: The alerts that led to it.
    """

    type: Literal["halt"] = "halt"
    reason: str
    source: str
    alerts: tuple[ObserverAlert, ...] = ()


class ConversationResumed(Event):
    """Somebody let a halted conversation go on: its calls may start again.

    Attributes:
        halt: The id of the `HaltEvent` that is lifted.
        reason: Why, in the words of who did.
    """

    type: Literal["conversation_resumed"] = "conversation_resumed"
    halt: str
    reason: str = ""


class ConfirmResult(BaseModel):
    """What a person decided on one tool call that waits.

    Attributes:
        tool_call: The call as it waits; its arguments may be changed, its tool may not.
        confirmed: Whether it may run.
        message: What the model reads where it may not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    tool_call: ToolCallEvent
    confirmed: bool
    message: str = ""


class ToolArgumentsChanged(Event):
    """A tool call runs with other arguments than the model gave.

    Attributes:
        parent_id: The id of the call.
        name: The tool's name.
        original: The arguments as the model wrote them.
        arguments: The arguments that the tool was given, as JSON.
        source: What changed them: a person's ``confirmation``, a ``permission`` check, or a ``middleware``.
    """

    type: Literal["tool_arguments_changed"] = "tool_arguments_changed"
    parent_id: str
    name: str
    original: str
    arguments: str
    source: Literal["confirmation", "permission", "middleware"]


class UserConfirmResultEvent(Event):
    """A person decided on tool calls that wait for it.

    Attributes:
        confirm_results: One for each call that was decided on; others go on waiting.
    """

    type: Literal["user_confirm_result"] = "user_confirm_result"
    confirm_results: tuple[ConfirmResult, ...]


class ExternalExecutionResultEvent(Event):
    """Tool calls that somebody else ran have come to their results.

    Attributes:
        execution_results: One for each call that was run; others go on waiting.
    """

    type: Literal["external_execution_result"] = "external_execution_result"
    execution_results: tuple[Annotated[ToolResultEvent | ToolErrorEvent, Field(discriminator="type")], ...]


class TurnStarted(Event):
    """A turn of the loop began.

    Attributes:
        turn: Its number, from 0.
    """

    type: Literal["turn_started"] = "turn_started"
    turn: int = Field(ge=0)


class TurnCompleted(Event):
    """A turn of the loop ended.

    Attributes:
        turn: Its number, from 0.
    """

    type: Literal["turn_completed"] = "turn_completed"
    turn: int = Field(ge=0)


class UsageEvent(Event):
    """Tokens that a model call was billed for.

    Attributes:
        model: The model that was called.
        usage: The tokens.
    """

    type: Literal["usage"] = "usage"
    model: str = ""
    usage: Usage


class AssemblyCompleted(Event):
    """A context was assembled; observers of budgets watch this.

    Attributes:
        assembly: Its id.
        turn: How many assemblies of its ledger came before.
        tokens: Tokens of the assembled prompt.
        budget: The tightest token limit that a policy held; None where none did.
        fixed: Tokens of what may not be dropped; None where no policy knew.
        overflow_tokens: By how many tokens a budget could not hold; 0 where it held.
        overflow_cause: Why it could not, as `OverflowCause` has it; empty where it held.
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
    """An observer began to work on an event.

    Attributes:
        observer: Its name.
    """

    type: Literal["observer_started"] = "observer_started"
    observer: str


class ObserverCompleted(Event):
    """An observer ended.

    Attributes:
        observer: Its name.
        error: The type of what it raised; empty where it raised nothing.
    """

    type: Literal["observer_completed"] = "observer_completed"
    observer: str
    error: str = ""


class AggregationCompleted(Event):
    """An aggregate wrote to the knowledge store.

    Attributes:
        aggregate: Its name.
    """

    type: Literal["aggregation_completed"] = "aggregation_completed"
    aggregate: str


class AggregationFailed(Event):
    """An aggregate could not write.

    Attributes:
        aggregate: Its name.
        error: The type of what it raised.
    """

    type: Literal["aggregation_failed"] = "aggregation_failed"
    aggregate: str
    error: str


def severity_name(severity: Any) -> str:
    """An alert's severity as a lower-case string, whether it came as an enum of any library or as a string.

    ``str()`` of a plain enum gives ``Severity.FATAL``, so an enum is read by its value.
    """
    return str(getattr(severity, "value", severity)).lower()


# These name the classes above. Whoever has an event has imported this, and so the engine can read it.
from otel_assembly.events import rows as _rows  # noqa: E402, F401
from otel_assembly.events.json_form import AnyEvent, event_from_json, event_to_json  # noqa: E402
