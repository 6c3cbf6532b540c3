"""Steps that are recorded later than their reducer ran, and steps that are recorded again.

A framework can run a reducer (code that removes or shortens messages) outside any model call, for example between two
runs. `DeferredReductions` stores such a reduction until the invoking agent's next model call in the same conversation,
which records it as a step. A model call stores each of its steps as a `RecordedStep`. It can then record the step again
if the call is repeated, as in a retry, or add messages that were observed only after the step.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.message_alignment import insert_gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedStep

#: The most ledgers with deferred reductions; the least recently used ones are dropped first.
_MOST_LEDGERS: Final = 1_000
#: The most deferred reductions of one ledger; the oldest ones are dropped first.
_MOST_PER_LEDGER: Final = 16
#: Arguments of `ObservedStep.out` that are recorded only once, even if a repeated model call repeats the step.
_REPORTED_ONCE: Final = frozenset({"alerts", "halts"})


@dataclass(slots=True)
class DeferredAttempt:
    """A summarizer's attempt to compact messages for a reducer that ran outside any model call.

    Attributes:
        attempt: The outcome and the times of the attempt.
        tokens_in: Returns the tokens of the summarizer's input. It takes the function that counts the tokens of a text
            for the model call with which the attempt is recorded.
        text: The summary; None if there is none.
    """

    attempt: Attempt
    tokens_in: Callable[[Callable[[str], int]], int]
    text: str | None = None

    def record(self, count: Callable[[str], int], step: ObservedStep) -> None:
        """Record the attempt as a ``compact_block`` span below the reducer's step.

        Args:
            count: Returns the tokens of a text.
            step: The reducer's step.
        """
        attempt = self.attempt
        with step.compacting(
            attempt.compactor,
            tokens_in=self.tokens_in(count),
            started_ns=attempt.started_ns,
            ended_ns=attempt.ended_ns,
            model_spans=attempt.model_spans,
        ) as recorded_attempt:
            recorded_attempt.outcome, recorded_attempt.error_type = attempt.outcome, attempt.error_type
            recorded_attempt.tokens_out = None if self.text is None else count(self.text)


class DeferredReduction(NamedTuple):
    """The change that a reducer made to messages outside any model call.

    Attributes:
        policy: The reducer's name, of low cardinality.
        before: The reducer's input.
        after: The reducer's output.
        kind: ``reduction`` or ``injection``; None if unknown.
        config: The reducer's settings.
        said: Other arguments for `ObservedStep.out`, such as verdicts.
        attempts: What summarizers did for the reducer.
    """

    policy: str
    before: Sequence[Any]
    after: Sequence[Any]
    kind: str | None = "reduction"
    config: Mapping[str, Any] = {}  # never written to
    said: Mapping[str, Any] = {}
    attempts: Sequence[DeferredAttempt] = ()


#: The invoking agents for which a summarizer ran outside any model call, in the current run; None outside any run.
SUMMARIZED: Final[ContextVar[list[InvokingAgent] | None]] = ContextVar("otel_assembly_summarized", default=None)


class DeferredReductions:
    """The reductions that are not recorded yet, by ledger: one per invoking agent and conversation.

    Attributes:
        record: Records reductions of an invoking agent as an assembly without a model call. `model_call` sets this
            attribute, because `ModelCall` uses this module.
    """

    record: Callable[[Instrumentation, InvokingAgent, Sequence[DeferredReduction]], None]

    def __init__(self) -> None:
        self._by_ledger: Registry[Any, list[DeferredReduction]] = Registry(_MOST_LEDGERS, clear_after_fork=True)

    def put(self, invoking_agent: InvokingAgent, reduction: DeferredReduction) -> None:
        """Store a reduction; the next model call of this invoking agent records it before the call's own steps.

        Nothing is stored if the invoking agent has no conversation, because no later call can then be its next one.
        """
        key = invoking_agent.ledger()
        if key is not None:
            reductions = self._by_ledger.of(key, list)
            reductions.append(reduction)
            del reductions[:-_MOST_PER_LEDGER]
            invoking_agents = SUMMARIZED.get()
            if reduction.attempts and invoking_agents is not None:
                invoking_agents.append(invoking_agent)

    def take(self, invoking_agent: InvokingAgent) -> list[DeferredReduction]:
        """Remove the reductions of an invoking agent and return them, the oldest first."""
        key = invoking_agent.ledger()
        stored = self._by_ledger.get(key) if key is not None else None
        if not stored:
            return []
        reductions = [*stored]
        stored.clear()
        return reductions

    def run_ended(self, instrumentation: Instrumentation, invoking_agents: Sequence[InvokingAgent]) -> None:
        """Record what summarizers did in a run that has ended, unless a model call has already recorded it.

        No later run may follow, so the attempts are recorded now, in an assembly without a model call. The reductions
        themselves stay stored: the next model call, if there is one, has them as its steps, too.

        Args:
            instrumentation: The framework's instrumentation.
            invoking_agents: The agents for which summarizers ran.
        """
        for invoking_agent in invoking_agents:
            stored = self._by_ledger.get(invoking_agent.ledger()) or []
            reductions = [*stored]
            if any(reduction.attempts for reduction in reductions):
                stored.clear()  # else the assembly would take the reductions from here, too
                self.record(instrumentation, invoking_agent, reductions)
                stored += [reduction._replace(attempts=()) for reduction in reductions]


DEFERRED_REDUCTIONS: Final = DeferredReductions()


@dataclass(slots=True)
class RecordedStep:
    """A step of a model call, with everything that is needed to record the step again.

    Attributes:
        policy: The name of the policy or reducer.
        kind: ``reduction`` or ``injection``; None if unknown.
        config: The settings of the policy.
        step: The step in the assembly that is open, or in the last one.
        events: All messages of the call after the step.
        prompts: The system prompts after the step; None if the step did not change them.
        report: Other arguments for `ObservedStep.out`, such as verdicts.
    """

    policy: str
    kind: str | None
    config: Mapping[str, Any]
    step: ObservedStep
    events: list[Any]
    prompts: Sequence[str] | None
    report: Mapping[str, Any]

    def finish(self) -> None:
        """Record the output of the step, and end the step's span if it was never entered as a context manager."""
        if not self.step.entered:
            with self.step:
                pass
        self.step.out(self.events, prompts=self.prompts, **self.report)

    def repeated(self, step: ObservedStep) -> RecordedStep:
        """Return a copy of this recorded step for `step`, which belongs to the next assembly."""
        step.beside = self.step.beside
        report = {name: value for name, value in self.report.items() if name not in _REPORTED_ONCE}
        return replace(self, step=step, report=report)

    def widen(self, reduced: Sequence[Any], gaps: Sequence[list[Any]]) -> None:
        """Add messages that were not part of the step's input, but were between or around its messages.

        Args:
            reduced: The output of the last step.
            gaps: The messages before, between and after those of `reduced`; one list more than `reduced` has messages.
        """
        self.events = self.step.events = insert_gaps(self.events, reduced, gaps)
        self.step.beside = [*self.step.beside, *(message for gap in gaps for message in gap)]


def remap_verdicts(report: Mapping[str, Any], originals: Mapping[int, Any]) -> dict[str, Any]:
    """Return the report of a step, with verdicts on the original messages instead of on copies of them.

    Args:
        report: The arguments for `ObservedStep.out`.
        originals: The original message by the `id` of its copy.
    """
    verdicts = [
        replace(verdict, events=[originals.get(id(event), event) for event in verdict.events])
        for verdict in report.get("verdicts", ())
    ]
    return {**report, **({"verdicts": verdicts} if verdicts else {})}
