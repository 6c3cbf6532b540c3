"""The one small interface by which the engine reaches telemetry; the engine itself knows of no OpenTelemetry."""

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
    """What one agent gets to see of what a network of agents has said.

    Attributes:
        view: The view's name.
        model: The model whose tokenizer counts.
        whose: Whose it is.
        started_ns: When it began.
        envelopes_in: Envelopes that it was made of.
        envelopes_out: Envelopes of which something is in it, where that is known.
        error: What was raised instead of it.
        measure: Its events, its tokens, how they were counted and by what; asked only where it is recorded.
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
    """The time in which a policy runs."""

    def stop(self) -> None:
        """It has done its work: what is done in the block from here on is not its time."""
        ...


class Recording(Protocol):
    """One assembly while it runs. No method raises: what fails in telemetry is logged there and goes no further."""

    #: Whether the assembly's span records, so that a reader of the traces will know of it.
    recorded: bool
    #: What is remembered of it for a halt that comes when no assembly of the conversation is open.
    trail: Any
    #: Whether numbers go anywhere: onto a span, or into a metric. Where they do not, none is worked out.
    measured: bool

    def policy(self, name: str, index: int, started_ns: int | None = None) -> PolicyTime:
        """The time in which a policy runs, from now or from when it began; what it does inside belongs to its span."""
        ...

    def watch(self, kind: str) -> Watch:
        """What stands around attempts to compact something of this kind, inside a policy."""
        ...

    def observers(self) -> AbstractContextManager[Any]:
        """The time in which observers look at it; what they do inside belongs to its span."""
        ...

    def finish(self, record: Record) -> Iterable[None]:
        """The assembly came to its end, well (``record.error`` is None) or not.

        It is told of while this is iterated over, to its end; what is large, in slices.
        """
        ...

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None) -> None:
        """Alerts were delivered or a limit could not hold, in an assembly of which nothing else is recorded."""
        ...

    def abandon(self) -> None:
        """Nothing will be known of this assembly: what was opened for it is closed."""
        ...


class CompactionRecording(AbstractContextManager[Any], Protocol):
    """What a policy compacts ahead of need, while no assembly is open; left, it is told to its end."""

    def watch(self, kind: str) -> Watch:
        """What stands around attempts to compact something of this kind."""
        ...


class Recorder(Protocol):
    """Turns records into telemetry."""

    def listening(self) -> bool:
        """Whether a provider is configured."""
        ...

    def begin(self, name: str | None, model: str | None, context: Any, started_ns: int) -> Recording | None:
        """An assembly begins; None where no provider is configured, which must cost one check."""
        ...

    def begin_allocation(self) -> AllocationRecording | None:
        """The allocator begins, outside of any chain; None where no provider is configured."""
        ...

    def begin_compaction(self, policy: str, agent_name: str | None) -> CompactionRecording | None:
        """A policy is to compact ahead of need, while no assembly is open; None where no provider is configured."""
        ...

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """The provider billed `billed` tokens for a prompt that was counted as `counted`."""
        ...

    def source_failed(self, role: str, source: str, error_type: str, agent_name: str | None) -> None:
        """A source of a `ContextAssembler` failed, whether it was passed over or stopped the assembly."""
        ...

    def refused(self, whose: Whose, window: int | None, tokens: int | None) -> None:
        """The provider refused an assembled prompt as too long: of so many tokens for such a window, if it says so."""
        ...

    def declined(self, policy: str, agent_name: str | None, framework: str | None) -> None:
        """A reducer looked whether there was anything to do, and there was not."""
        ...

    def projected(self, projection: Projection) -> None:
        """What one agent sees of what a network of agents has said was worked out."""
        ...

    def failed(self, component: str, error: BaseException) -> None:
        """Something of ours that only observes went wrong: the agent goes on."""
        ...


class _NullRecording(nullcontext[None]):
    recorded = measured = False
    trail = None

    def policy(self, *_: Any, **__: Any) -> Self:
        return self

    watch = observers = __call__ = policy

    def finish(self, *_: Any) -> Iterable[None]:
        return ()

    def stop(self, *_: Any) -> None:
        return None

    signal = abandon = stop


#: Stands in for a recording, and for all the times in it, where no provider is configured: nothing is projected.
NULL_RECORDING: Final[Recording] = _NullRecording()


class NullRecorder:
    """Records nothing."""

    def listening(self) -> bool:
        """Nothing is recorded."""
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


#: What makes the recorder of assemblers that are given none: called when the first one needs it.
set_default_recorder: Callable[[Callable[[], Recorder]], None] = current_recorder.set_default_recorder
#: The recorder of assemblers that are given none.
default_recorder: Callable[[], Recorder] = current_recorder.default_recorder
#: Until the block ends, this is the recorder of assemblers that are given none; then it is again what it was.
using_recorder: Callable[[Recorder], AbstractContextManager[None]] = current_recorder.using_recorder
