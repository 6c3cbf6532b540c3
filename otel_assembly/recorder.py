"""The interface between the engine and telemetry; the engine does not import OpenTelemetry."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from otel_assembly._internal import current_recorder
from otel_assembly.budget.recording import AllocationRecording
from otel_assembly.conversation_state import Whose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_assembly.budget.attempt import Watch
    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.ledger.record import Record

__all__ = [
    "NULL_RECORDING",
    "AllocationRecording",
    "CompactionRecording",
    "NullRecorder",
    "PolicyTime",
    "Projection",
    "Recorder",
    "Recording",
    "Whose",
    "default_recorder",
    "set_default_recorder",
    "using_recorder",
]


@dataclass(frozen=True, slots=True)
class Projection:
    """The selection of a network's messages that one agent reads.

    Attributes:
        view: The name of the view.
        model: The model whose tokenizer counts.
        whose: The agent.
        started_ns: The start time, in nanoseconds since the epoch.
        envelopes_in: The number of envelopes that the view was made from.
        envelopes_out: The number of envelopes with content in the view, if it is known.
        error: The exception, if the view failed.
        measure: Returns the number of events, the tokens, the method and the encoding; called only if they are
            recorded.
    """

    view: str
    model: str | None
    whose: Whose
    started_ns: int
    envelopes_in: int
    envelopes_out: int | None
    error: BaseException | None
    measure: Callable[[], tuple[int, int, str, str]]


class PolicyTime(AbstractContextManager[None], Protocol):
    """The timing of a policy."""

    def stop(self) -> None:
        """Stop the timing before the block ends."""
        ...


class Recording(Protocol):
    """The recording of one running assembly. No method raises: a failure of telemetry is logged."""

    #: Whether the assembly's span is recorded.
    recorded: bool
    #: A reference to the assembly, for a halt that occurs while no assembly of the conversation is open.
    assembly_reference: Any
    #: Whether a span or a metric records numbers; if not, they are not computed.
    measured: bool

    def policy(self, name: str, index: int, started_ns: int | None = None) -> PolicyTime:
        """Return the timing of a policy, from now or from its start; spans opened within are its children."""
        ...

    def watch(self, kind: str) -> Watch:
        """Return the recording of compaction attempts for a kind of block, within a policy."""
        ...

    def observers(self) -> AbstractContextManager[Any]:
        """Return the scope in which observers run; spans opened within are children of the assembly's span."""
        ...

    def finish(self, record: Record) -> Iterable[None]:
        """Record the end of the assembly, successful (``record.error`` is None) or not.

        Iterate over the result to its end; large assemblies are recorded in slices.
        """
        ...

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None) -> None:
        """Record delivered alerts or an exceeded limit of an assembly that is not recorded otherwise."""
        ...

    def abandon(self) -> None:
        """Close the recording without recording the assembly."""
        ...


class CompactionRecording(AbstractContextManager[Any], Protocol):
    """The recording of a compaction while no assembly is open; it ends with the block."""

    def watch(self, kind: str) -> Watch:
        """Return the recording of compaction attempts for a kind of block."""
        ...


class Recorder(Protocol):
    """Converts records into telemetry."""

    def listening(self) -> bool:
        """Whether a provider is configured."""
        ...

    def begin(self, name: str | None, model: str | None, context: Any, started_ns: int) -> Recording | None:
        """Start the recording of an assembly; None if no provider is configured, which must cost one check."""
        ...

    def begin_allocation(self) -> AllocationRecording | None:
        """Start the recording of an allocation outside a chain; None if no provider is configured."""
        ...

    def begin_compaction(self, policy: str, agent_name: str | None) -> CompactionRecording | None:
        """Start the recording of a compaction outside an assembly; None if no provider is configured."""
        ...

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """Record that the provider billed `billed` tokens for a prompt that was counted as `counted`."""
        ...

    def source_failed(self, role: str, source: str, error_type: str, agent_name: str | None) -> None:
        """Record that a source of a `ContextAssembler` failed, whether it was skipped or not."""
        ...

    def refused(self, whose: Whose, window: int | None, tokens: int | None) -> None:
        """Record that the provider refused a prompt as too long, with its window and tokens if it reported them."""
        ...

    def declined(self, policy: str, agent_name: str | None, framework: str | None) -> None:
        """Record that a reducer was called and had nothing to do."""
        ...

    def projected(self, projection: Projection) -> None:
        """Record the selection of a network's messages for one agent."""
        ...

    def failed(self, component: str, error: BaseException) -> None:
        """Record a failure of telemetry; the agent is not affected."""
        ...


class _NullRecording(nullcontext[None]):
    recorded = measured = False
    assembly_reference = None

    def policy(self, *_: Any, **__: Any) -> Self:
        return self

    watch = observers = __call__ = policy

    def finish(self, *_: Any) -> Iterable[None]:
        return ()

    def stop(self, *_: Any) -> None:
        return None

    signal = abandon = stop


#: The recording, and its timings, if no provider is configured.
NULL_RECORDING: Final[Recording] = _NullRecording()


class NullRecorder:
    """Records nothing."""

    def listening(self) -> bool:
        """Return False."""
        return False

    def begin(self, name: str | None, model: str | None, context: Any, started_ns: int) -> Recording | None:
        """Nothing is recorded."""
        return None

    def begin_allocation(self) -> AllocationRecording | None:
        """Nothing is recorded."""
        return None

    def begin_compaction(self, policy: str, agent_name: str | None) -> CompactionRecording | None:
        """Nothing is recorded."""
        return None

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """Nothing is recorded."""

    def source_failed(self, role: str, source: str, error_type: str, agent_name: str | None) -> None:
        """Nothing is recorded."""

    def refused(self, whose: Whose, window: int | None, tokens: int | None) -> None:
        """Nothing is recorded."""

    def declined(self, policy: str, agent_name: str | None, framework: str | None) -> None:
        """Nothing is recorded."""

    def projected(self, projection: Projection) -> None:
        """Nothing is recorded."""

    def failed(self, component: str, error: BaseException) -> None:
        """Nothing is recorded."""


#: Set the factory of the default recorder, which is called on first use.
set_default_recorder: Callable[[Callable[[], Recorder]], None] = current_recorder.set_default_recorder
#: Return the recorder of assemblers without a recorder of their own.
default_recorder: Callable[[], Recorder] = current_recorder.default_recorder
#: Replace the default recorder until the block ends.
using_recorder: Callable[[Recorder], AbstractContextManager[None]] = current_recorder.using_recorder
