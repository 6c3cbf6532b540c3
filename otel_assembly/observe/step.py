"""One policy or reducer of an observed assembly, while it runs; what came out of it is read once it has said so."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly._internal.intervals import to_runs
from otel_assembly.budget.attempt import Attempt, CompactionOutcome
from otel_assembly.chain.step_diff import match
from otel_assembly.decision import DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import error_type, is_failure
from otel_assembly.ledger.snapshot import StepCompaction, item_id_runs
from otel_assembly.messages.content_snapshot import equal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from contextvars import Token
    from types import TracebackType

    from otel_assembly._internal.intervals import Run
    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Verdict
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.observe.assembly import ObservedAssembly
    from otel_assembly.recorder import PolicyTime, Recording

STEP: Final[ContextVar[ObservedStep | None]] = ContextVar("otel_assembly_observed_step", default=None)


def current_step() -> ObservedStep | None:
    """The step that is running here: where what it calls, a summariser, can be told of."""
    return STEP.get()


class ObservedStep:
    """One policy or reducer of an observed assembly, while it runs."""

    __slots__ = ("_assembly", "_attempts", "_current", "_step", "_time")

    def __init__(
        self, assembly: ObservedAssembly, step: Step, time_of: PolicyTime | None, attempts: Sequence[Attempt] = ()
    ) -> None:
        self._assembly = assembly
        self._step = step
        self._time = time_of
        self._attempts: list[Attempt] = [*attempts]
        self._current: Token[ObservedStep | None] | None = None

    def __enter__(self) -> Self:
        if self._time is not None:
            self._time.__enter__()
        self._current = STEP.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind, error, trace)
        self._step.error = error

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
                STEP.reset(self._current)
        if self._time is not None:
            self._time.__exit__(kind, error, trace)

    def _over(self) -> None:
        """The policy has done its work: what follows is ours, and no part of the time that it took."""
        if self._time is not None:
            self._time.stop()

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
        """Say what came out; the time that the policy took ends here.

        What is in it that lost the other half of its pair, a tool's result without the call or the other way round, is
        found here, and told as ``assembly.pairs.broken``.

        Args:
            events: The events; None where they are those that came in.
            prompts: The prompts; None where they are those that came in.
            reason: Why an event left of which no verdict speaks.
            verdicts: Why, by event; a verdict on an event that did not leave is not heeded.
            budget: The limit that was held, in tokens.
            fixed: Tokens of what could not be dropped.
            alerts: Alerts that were delivered to the model.
            halts: Halts that were emitted.
            reported: How many events the framework itself says that it left out, in the text that it puts in their
                place or elsewhere; told beside what is really not there.
            stands_in: Whether what is new where something left stands in for it, so that this was compacted into it, or
                only notes that something is missing, so that it was dropped. By default it does, unless the framework
                says how many it left out.
        """
        self._over()
        step, assembly = self._step, self._assembly
        try:
            if events is not None:
                record = assembly.record
                index = record.ledger_input.numbered.places if step.view_in is record.ledger_input.view else None
                with record.ledger.lock:
                    inputs = assembly.events
                    if len(inputs) > len(step.view_in):  # another assembly of the conversation put more behind them
                        inputs = inputs[: len(step.view_in)]
                    given = inputs if type(events) is list and _unchanged(inputs, events) else list(events)
                    match(
                        step,
                        inputs,
                        given,
                        verdicts,
                        record.ledger,
                        otherwise=reason,
                        rereads=True,
                        stands_in=reported is None if stands_in is None else stands_in,
                        index=index,
                    )
                assembly.events = given
            if prompts is not None:
                step.let_out(tuple(prompts))
            step.budget, step.fixed = budget, fixed
            step.alerts, step.halts = tuple(alerts), halts
            step.reported = reported
            if assembly.record.unknown:
                step.exits = step.pinned = ()
            if step.created:
                step.compactions = tuple(_compactions(step, self._attempts, assembly.record.ledger))
        except Exception as problem:  # noqa: BLE001
            assembly.fail(problem)

    def overflow(
        self, *, budget: int, needed: int, cause: OverflowCause = OverflowCause.FRAMEWORK, unit: str = "tokens"
    ) -> None:
        """A limit could not hold; the time that the policy took ends here."""
        self._over()
        self._step.overflow = Overflow(budget, needed, cause, unit)
        if self._assembly.record.overflow is None:
            self._assembly.record.overflow = self._step.overflow

    def failed(self, error: BaseException | None) -> None:
        """It failed, where that is told after the block, beside what it had done by then."""
        self._step.error = error

    def compacting(self, compactor: str, *, kind: str = "summary", target: int = 0, tokens_in: int = 0) -> Compacting:
        """Around one attempt to compact, such as a summariser's model call: a ``compact_block`` span.

        What is yielded is the `Attempt`; the block fills in `tokens_out`, and `outcome` where it came to nothing.
        """
        attempt = started_attempt(self._attempts, compactor, target, tokens_in)
        return Compacting.of(attempt, self._assembly.recording, kind)

    def count(self, text: str) -> int:
        """Tokens of a text, by what counts for this assembly.

        The time that the policy took ends here, but where it compacts: then it goes on with what was made.
        """
        if not self._attempts:
            self._over()
        return self._assembly.record.meter.prompt(text)


def started_attempt(attempts: list[Attempt], compactor: str, target: int, tokens_in: int) -> Attempt:
    """One more attempt of a step to compact."""
    attempt = Attempt(compactor, len(attempts) + 1, target, tokens_in)
    attempts.append(attempt)
    return attempt


class Compacting:
    """One attempt to compact, while it runs."""

    __slots__ = ("_around", "_attempt")

    def __init__(self, attempt: Attempt, around: AbstractContextManager[Any]) -> None:
        self._attempt = attempt
        self._around = around

    @classmethod
    def of(cls, attempt: Attempt, recording: Recording, kind: str) -> Compacting:
        """One that is told of, by its span, if anything is told."""
        return cls(attempt, recording.watch(kind)(attempt) if recording.measured else nullcontext())

    def __enter__(self) -> Attempt:
        self._around.__enter__()
        return self._attempt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        attempt = self._attempt
        if error is None:
            attempt.outcome = attempt.outcome or CompactionOutcome.COMPACTED
        else:
            attempt.error_type = error_type(error)
            if isinstance(error, TimeoutError):
                attempt.outcome = CompactionOutcome.TIMED_OUT
            elif is_failure(error):
                attempt.outcome = CompactionOutcome.RAISED
        self._around.__exit__(None, None, None)


def _unchanged(inputs: list[Any], events: list[Any]) -> bool:
    if len(inputs) != len(events) or not inputs:
        return False
    return inputs[0] is events[0] and inputs[-1] is events[-1] and equal(inputs, events)


def _compactions(step: Step, attempts: Sequence[Attempt], ledger: Ledger) -> Sequence[StepCompaction]:
    """What was made of others: of leaves alone, also where a summary was compacted once more."""
    gone = [group for group in step.exits if group.outcome is DecisionOutcome.COMPACTED]
    if not gone or (not attempts and (len(step.created) > 1 or step.created[0][1] in ledger.leaves)):
        return ()
    runs = sorted(run for group in gone for run in item_id_runs(group.view, group.numbered))
    leaves = tuple(_leaves(runs, ledger))
    if len(step.created) == 1:
        ledger.remember_leaves(step.created[0][1], leaves)
    return [StepCompaction(leaves, step.created[0][1], tuple(attempts))] if attempts else ()


def _leaves(runs: Sequence[Run], ledger: Ledger) -> list[Run]:
    found: set[int] = set()
    for first, last in runs:
        found.update(range(first, last + 1))
    for item in found & ledger.leaves.keys():
        found.discard(item)
        for first, last in ledger.leaves[item]:
            found.update(range(first, last + 1))
    return [(start, stop - 1) for start, stop in to_runs(sorted(found))]
