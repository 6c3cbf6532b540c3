"""The interface between assemblies and telemetry. Code that assembles prompts does not import OpenTelemetry."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from otel_assembly._internal import current_recorder
from otel_assembly.budget.recording import AllocationRecording
from otel_assembly.conversation_state import AgentIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_assembly.budget.attempt import Watch
    from otel_assembly.context import Context
    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.ledger.record import Record

__all__ = [
    "NULL_RECORDING",
    "AgentIdentity",
    "AllocationRecording",
    "CompactionRecording",
    "NullRecorder",
    "PolicyTime",
    "Projection",
    "ProviderEdit",
    "Recorder",
    "Recording",
    "default_recorder",
    "set_default_recorder",
    "using_recorder",
]


@dataclass(frozen=True, slots=True)
class Projection:
    """One application of a view: the selection of a session's messages (envelopes) that one agent reads.

    Attributes:
        view: The name of the view.
        model: The model whose tokenizer counts.
        identity: The agent.
        started_ns: The start time, in nanoseconds since the epoch.
        envelopes_in: The number of envelopes that the view was made from.
        envelopes_out: The number of envelopes with content in the view, if it is known.
        error: The exception, if the view failed.
        measure: Returns the number of events, the tokens, the method and the encoding; called only if they are
            recorded.
    """

    view: str
    model: str | None
    identity: AgentIdentity
    started_ns: int
    envelopes_in: int
    envelopes_out: int | None
    error: BaseException | None
    measure: Callable[[], tuple[int, int, str, str]]


@dataclass(frozen=True, slots=True)
class ProviderEdit:
    """A change that a model's provider made to a request before the model read it.

    Attributes:
        type: The kind of change, such as ``clear_tool_uses_20250919`` or ``compaction``.
        cleared_tokens: The number of tokens that the change removed; None if the provider does not report it.
        cleared_tool_uses: The same for tool uses.
        cleared_thinking_turns: The same for turns with reasoning.
        cleared_blocks: The same for blocks or items with reasoning.
        reason: Why the provider made the change; None if it does not report it.
    """

    type: str
    cleared_tokens: int | None = None
    cleared_tool_uses: int | None = None
    cleared_thinking_turns: int | None = None
    cleared_blocks: int | None = None
    reason: str | None = None


class PolicyTime(AbstractContextManager[None], Protocol):
    """Measures the duration of one policy, until the ``with`` block ends or `stop` is called."""

    def stop(self) -> None:
        """Stop the measurement before the ``with`` block ends."""
        ...


class Recording(Protocol):
    """Records one running assembly. No method raises: a failure of telemetry is logged.

    If neither the span is sampled nor metrics are exported, `measured` is False. Alerts, overflows and halts are still
    exported as events then.
    """

    #: A reference to the assembly's span, for a halt that occurs while no assembly of the conversation is running.
    assembly_reference: Any
    #: Whether a span or a metric records numbers; if not, they are not computed.
    measured: bool

    def policy(self, name: str, index: int, started_ns: int | None = None) -> PolicyTime:
        """Return a context manager that measures one policy, by its name and its position in the chain, from 0.

        Spans that are started inside its ``with`` block are children of the policy's span. The measurement starts at
        `started_ns`, in nanoseconds since the epoch; None means now.
        """
        ...

    def watch(self, kind: str) -> Watch:
        """Return an object that records a policy's attempts to compact a kind of content, such as ``older``."""
        ...

    def observers(self) -> AbstractContextManager[Any]:
        """Return a context manager for calls of observers: spans started inside are children of the assembly's span."""
        ...

    def finish(self, record: Record) -> Iterable[None]:
        """Record the end of the assembly, successful (``record.error`` is None) or not.

        Iterate over the result to its end; large assemblies are recorded in slices.
        """
        ...

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None) -> None:
        """Record delivered alerts or an exceeded limit, for an assembly that has no span."""
        ...

    def answered(self, edits: Sequence[ProviderEdit]) -> None:
        """Record the provider's edits of the request, which its answer reports.

        Required after `finish` if ``record.allowed_edits`` is not empty: the assembly's span ends only now.
        """
        ...

    def abandon(self) -> None:
        """Close the recording without recording the assembly."""
        ...


class CompactionRecording(AbstractContextManager[Any], Protocol):
    """Records a compaction outside an assembly, until its ``with`` block ends."""

    def watch(self, kind: str) -> Watch:
        """Return an object that records attempts to compact a kind of content, such as ``older``."""
        ...


class Recorder(Protocol):
    """Receives the results of assemblies and related events, and exports them as telemetry.

    A subclass records only what it overrides: the methods of this class record nothing.
    """

    def is_enabled(self) -> bool:
        """Return whether an OpenTelemetry provider is configured, so that records are exported."""
        return False

    def begin(
        self, name: str | None, model: str | None, context: Context | AgentIdentity, started_ns: int
    ) -> Recording | None:
        """Start to record an assembly, which started at `started_ns`, in nanoseconds since the epoch.

        `name` is the assembler's, and `model` the one whose tokens are counted. Of an observed assembly, `context` is
        the agent's identity. The result is None if no OpenTelemetry provider is configured. That case must be fast.
        """
        return None

    def begin_allocation(self) -> AllocationRecording | None:
        """Start to record a call of `allocate` outside a chain of policies; None without an OpenTelemetry provider."""
        return None

    def begin_compaction(self, policy: str, agent_name: str | None) -> CompactionRecording | None:
        """Start to record a policy's compaction outside an assembly; None without an OpenTelemetry provider."""
        return None

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """Record that the model's provider billed `billed` tokens for a prompt that was counted as `counted`."""
        return

    def source_failed(self, role: str, source: str, error_type: str, agent_name: str | None) -> None:
        """Record that a source of a `ContextAssembler` raised an error, or was skipped because of one.

        `role` is what the source provides, such as ``retriever`` or ``state``.
        """
        return

    def refused(self, identity: AgentIdentity, window: int | None, tokens: int | None) -> None:
        """Record that the model's provider refused an agent's prompt as too long.

        `window` (the model's, in tokens) and `tokens` (of the prompt) are None if the provider did not report them.
        """
        return

    def declined(self, policy: str, agent_name: str | None, framework: str | None) -> None:
        """Record that a framework's reducer was called and changed nothing, because it had nothing to do."""
        return

    def projected(self, projection: Projection) -> None:
        """Record that a session's messages were selected for one agent."""
        return

    def failed(self, component: str, error: BaseException) -> None:
        """Record that a component of this package's telemetry failed; the agent is not affected."""
        return


class _NullRecording(nullcontext[None]):
    measured = False
    assembly_reference = None

    def policy(self, *_: Any, **__: Any) -> Self:
        return self

    watch = observers = __call__ = policy

    def finish(self, *_: Any) -> Iterable[None]:
        return ()

    def stop(self, *_: Any) -> None:
        return None

    signal = abandon = answered = stop


#: The `Recording` that records nothing, for assemblies without a configured OpenTelemetry provider.
NULL_RECORDING: Final[Recording] = _NullRecording()


class NullRecorder(Recorder):
    """A `Recorder` that records nothing."""


#: Set the factory of the default recorder, which is called on first use.
set_default_recorder: Callable[[Callable[[], Recorder]], None] = current_recorder.set_default_recorder
#: Return the recorder of assemblers without a recorder of their own.
default_recorder: Callable[[], Recorder] = current_recorder.default_recorder
#: Replace the default recorder until the block ends.
using_recorder: Callable[[Recorder], AbstractContextManager[None]] = current_recorder.using_recorder
