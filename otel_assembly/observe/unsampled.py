"""Observed assemblies of which nobody is told the numbers, being sampled out: no event of them is read or counted."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from otel_assembly.budget.attempt import Attempt
from otel_assembly.decision import DecisionReason, Overflow, OverflowCause
from otel_assembly.observe.assembly import ObservedAssembly
from otel_assembly.observe.step import STEP, Compacting, ObservedStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Verdict
    from otel_assembly.observe.assembler import ObservedAssembler
    from otel_assembly.recorder import PolicyTime, Recording


class UnmeasuredAssembly(ObservedAssembly):
    """One that nobody is told the numbers of: it is counted as a turn, and tells of alerts and overflows."""

    __slots__ = ()

    def __init__(self, assembler: ObservedAssembler, recording: Recording) -> None:
        self._assembler = assembler
        self.recording = recording
        self.events = []
        self._broken = False

    @property
    def id(self) -> str:
        """None: it has no span that anybody could look for."""
        return ""

    def take(
        self,
        policy: str,
        kind: str | None,
        config: Mapping[str, Any],
        time_of: PolicyTime | None,
        attempts: Sequence[Attempt] = (),
    ) -> ObservedStep:
        """The same, of a step that ran before."""
        return UnmeasuredStep(self)

    def step(
        self,
        policy: str,
        *,
        kind: str | None = None,
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> ObservedStep:
        """One policy or reducer, of which nothing is told but what went wrong."""
        return UnmeasuredStep(self)

    def tokens(self) -> int | None:
        """Nobody is told of it: nothing is counted."""
        return None

    def end(
        self,
        error: BaseException | None = None,
        *,
        stays: bool = False,
        called: bool = True,
        over_ns: int | None = None,
    ) -> None:
        """It came to its end."""
        try:
            self.recording.abandon()
        except Exception as problem:  # noqa: BLE001
            self._assembler.failed(None, problem)


class UnmeasuredStep(ObservedStep):
    """One policy or reducer of such an assembly: its alerts and its overflows are told, and nothing else."""

    __slots__ = ()

    def __init__(self, assembly: UnmeasuredAssembly) -> None:
        self._assembly = assembly
        self._current = None

    def __enter__(self) -> Self:
        self._current = STEP.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
                STEP.reset(self._current)

    def out(
        self,
        events: Sequence[Any] | None = None,
        *,
        prompts: Sequence[str] | None = None,
        reason: DecisionReason = DecisionReason.POLICY,
        verdicts: Sequence[Verdict] = (),
        budget: int | None = None,
        fixed: int | None = None,
        alerts: Sequence[AlertFacts] = (),
        halts: int = 0,
        reported: int | None = None,
        stands_in: bool | None = None,
    ) -> None:
        """Alerts are told of, whoever counts."""
        if alerts:
            try:
                self._assembly.recording.signal(alerts, None)
            except Exception as problem:  # noqa: BLE001
                self._assembly.fail(problem)

    def overflow(
        self, *, budget: int, needed: int, cause: OverflowCause = OverflowCause.FRAMEWORK, unit: str = "tokens"
    ) -> None:
        """So are overflows."""
        try:
            self._assembly.recording.signal((), Overflow(budget, needed, cause, unit))
        except Exception as problem:  # noqa: BLE001
            self._assembly.fail(problem)

    def failed(self, error: BaseException | None) -> None:
        """Nobody is told."""

    def compacting(self, compactor: str, *, kind: str = "summary", target: int = 0, tokens_in: int = 0) -> Compacting:
        """No span."""
        return Compacting(Attempt(compactor, 1, target, tokens_in), nullcontext())

    def count(self, text: str) -> int:
        """Nobody is told of it: nothing is counted."""
        return 0
