"""Steps that are kept: what reducers do outside of any model call, and what was said of the steps of one.

The first waits for the next call of its conversation and asker. The second is said again of a call that is made again,
as a retry does, and messages that turn out to have stood around those that were reduced belong into each of them.
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

#: Conversations with reductions that wait for a model call; beyond it the least recently used ones' are forgotten.
_WAITING: Final = 1_000
#: Reductions of one conversation that wait; beyond it the oldest are forgotten.
_WAIT_AT_ONCE: Final = 16
#: What is said of a step once, however often a model is sent what it let out.
_ONCE: Final = frozenset({"alerts", "halts"})


@dataclass(slots=True)
class DeferredAttempt:
    """What a summariser did for a reducer outside of any model call.

    Attributes:
        attempt: How it ended.
        tokens_in: Tokens of what it was given, as the call that it is told with counts them.
        text: What it said.
    """

    attempt: Attempt
    tokens_in: Callable[[Callable[[str], int]], int]
    text: str | None = None

    def told(self, count: Callable[[str], int], step: ObservedStep) -> None:
        """Tell of it under the reducer's step."""
        attempt = self.attempt
        with step.compacting(
            attempt.compactor,
            tokens_in=self.tokens_in(count),
            started_ns=attempt.started_ns,
            ended_ns=attempt.ended_ns,
            model_spans=attempt.model_spans,
        ) as told:
            told.outcome, told.error_type = self.attempt.outcome, self.attempt.error_type
            told.tokens_out = None if self.text is None else count(self.text)


class DeferredReduction(NamedTuple):
    """What a reducer did outside of any model call.

    Attributes:
        policy: Its name.
        before: What it took in.
        after: What it let out.
        kind: ``reduction`` or ``injection``.
        config: Its settings.
        said: What else `ObservedStep.out` is told.
        attempts: What summarisers did for it.
    """

    policy: str
    before: Sequence[Any]
    after: Sequence[Any]
    kind: str | None = "reduction"
    config: Mapping[str, Any] = {}  # never written to
    said: Mapping[str, Any] = {}
    attempts: Sequence[DeferredAttempt] = ()


#: Who had a summarizer called outside of any model call, in the run that goes on here.
SUMMARIZED: Final[ContextVar[list[InvokingAgent] | None]] = ContextVar("otel_assembly_summarized", default=None)


class DeferredReductions:
    """The reductions that wait, by conversation and asker.

    Attributes:
        record: Records reductions of an asker as an assembly that no model is called with; set by `model_call`.
    """

    record: Callable[[Instrumentation, InvokingAgent, Sequence[DeferredReduction]], None]

    def __init__(self) -> None:
        self._of: Registry[Any, list[DeferredReduction]] = Registry(_WAITING, clear_after_fork=True)

    def put(self, invoking_agent: InvokingAgent, waiting: DeferredReduction) -> None:
        """The next model call of this asker in this conversation has this step first."""
        key = invoking_agent.ledger()
        if key is not None:
            held = self._of.of(key, list)
            held.append(waiting)
            del held[:-_WAIT_AT_ONCE]
            invoking_agents = SUMMARIZED.get()
            if waiting.attempts and invoking_agents is not None:
                invoking_agents.append(invoking_agent)

    def take(self, invoking_agent: InvokingAgent) -> list[DeferredReduction]:
        """What waits for a model call, the oldest first; it waits no more."""
        key = invoking_agent.ledger()
        held = self._of.get(key) if key is not None else None
        if not held:
            return []
        taken = [*held]
        held.clear()
        return taken

    def run_ended(self, instrumentation: Instrumentation, invoking_agents: Sequence[InvokingAgent]) -> None:
        """A run is over: what summarizers did for these askers is recorded, where it still waits.

        It may have been the last run of its conversation. A later call has the reductions as its steps, too, but not
        what the summarizers did.
        """
        for invoking_agent in invoking_agents:
            held = self._of.get(invoking_agent.ledger()) or []
            waiting = [*held]
            if any(reduction.attempts for reduction in waiting):
                held.clear()  # a call takes up what waits for its asker
                self.record(instrumentation, invoking_agent, waiting)
                held += [reduction._replace(attempts=()) for reduction in waiting]


DEFERRED_REDUCTIONS: Final = DeferredReductions()


@dataclass(slots=True)
class RecordedStep:
    """A step of a model call, and what was said of it.

    Attributes:
        policy: The policy's name.
        kind: ``reduction`` or ``injection``; None where that is not known.
        config: Its settings.
        step: Its step in the assembly that is open, or was the last.
        events: All messages of the call, as it left them.
        prompts: The system prompts, where it changed them.
        said: What else `ObservedStep.out` is told.
    """

    policy: str
    kind: str | None
    config: Mapping[str, Any]
    step: ObservedStep
    events: list[Any]
    prompts: Sequence[str] | None
    said: Mapping[str, Any]

    def tell(self) -> None:
        """The step is done: it ends, unless whoever opened it has ended it."""
        if not self.step.entered:
            with self.step:
                pass
        self.step.out(self.events, prompts=self.prompts, **self.said)

    def again(self, step: ObservedStep) -> RecordedStep:
        """The same, as a step of the next assembly."""
        step.beside = self.step.beside
        return replace(self, step=step, said={name: value for name, value in self.said.items() if name not in _ONCE})

    def widen(self, reduced: Sequence[Any], gaps: Sequence[list[Any]]) -> None:
        """The framework held more: what stands in the gaps between these messages, and around them."""
        self.events = self.step.events = insert_gaps(self.events, reduced, gaps)
        self.step.beside = [*self.step.beside, *(one for gap in gaps for one in gap)]


def remap_verdicts(said: Mapping[str, Any], known: Mapping[int, Any]) -> dict[str, Any]:
    """What is said of copies, said of the messages themselves, by the identity of the copies."""
    verdicts = [
        replace(verdict, events=[known.get(id(event), event) for event in verdict.events])
        for verdict in said.get("verdicts", ())
    ]
    return {**said, **({"verdicts": verdicts} if verdicts else {})}
