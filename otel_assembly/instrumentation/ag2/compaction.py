"""Compaction and aggregation: what AG2 does with a history after a turn, and what its summariser's calls took.

Compaction is an assembly of its own, of one step, in the ledger of the prompts: what it takes out, no later prompt has.
Aggregation takes nothing out; it reads a history and writes memory, in a ledger of its own.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.ag2.conversation import agent_name_of, begin
from otel_assembly.instrumentation.ag2.runs import AGENT_RUN, agent_run_of
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.reducers import no_summary, same_objects
from otel_assembly.observe.assembly import current_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep

COMPACTION: Final = "compaction"
AGGREGATION: Final = "aggregation"
#: The stage of the prompts' own ledger.
_PROMPTS: Final = ""

_RUNNING: Final[ContextVar[_StrategyRun | None]] = ContextVar("otel_assembly_ag2_upkeep", default=None)
#: What AG2 puts back of what a strategy took out (its records of tokens), in the releases that do.
_PUT_BACK: Final[ContextVar[Callable[..., Any] | None]] = ContextVar("otel_assembly_ag2_put_back", default=None)


class _StrategyRun:
    """One run of a strategy; nothing is opened for one that finds nothing to do."""

    def __init__(self, instrumentation: Instrumentation, policy: str, events: Sequence[Any], context: Any) -> None:
        self._instrumentation = instrumentation
        self._policy = policy
        self._given = list(events)
        self._context = context
        self._started_ns = time.time_ns()
        self._assembly: ObservedAssembly | None = None
        self.step: ObservedStep | None = None
        #: What a summariser was to stand for that gave no summary.
        self.lost: Sequence[Any] = ()

    def open(self, strategy: Any) -> ObservedStep | None:
        """Open the step: the strategy has found something to do."""
        with self._instrumentation.contained():
            if self._assembly is None:
                compacts = self._policy == COMPACTION
                agent_run = AGENT_RUN.get()
                self._assembly = begin(
                    self._instrumentation,
                    self._context,
                    self._given,
                    stage=_PROMPTS if compacts else self._policy,
                    prompts=self._context.prompt if compacts else (),
                    tools=agent_run.tools[1] if compacts and agent_run and agent_run.tools else (),
                    name=self._policy,
                    started_ns=self._started_ns,
                )
                if self._assembly is not None:
                    target = getattr(strategy, "_target", None)
                    self.step = self._assembly.step(
                        self._policy,
                        kind="reduction" if compacts else None,
                        config={} if target is None else {"target": target},
                        started_ns=self._started_ns,
                    )
                    self.step.__enter__()
        return self.step

    def tokens(self, events: Sequence[Any]) -> int:
        """Tokens of the first so many events of the history."""
        if self._assembly is None or not self._assembly.recording.measured:
            return 0
        record = self._assembly.record
        view = record.ledger_input.view.pick([(0, len(events))])
        return record.items_tokens(view)

    def end(self, strategy: Any, events: Any) -> None:
        """End the step: the strategy has returned, with these events if it compacted."""
        with self._instrumentation.contained():
            put_back = _PUT_BACK.get()
            if events is not None and put_back is not None:
                events = put_back(before=self._given, compacted=list(events), spent_during=[])
            if events is not None and not same_objects(events, self._given):
                self.open(strategy)
            if self._assembly is None or self.step is None:
                self._instrumentation.observed.declined(self._policy, agent_name_of(self._context))
                return
            if events is not None:
                tail = type(strategy).__name__ == "TailWindowCompact"
                self.step.out(
                    events,
                    reason=DecisionReason.OUTSIDE_WINDOW if tail else DecisionReason.POLICY,
                    verdicts=[Verdict(self.lost, DecisionOutcome.DROPPED, DecisionReason.POLICY_ERROR)],
                )
            self.step.__exit__(None, None, None)
            self._assembly.end()

    def fail(self, strategy: Any, error: BaseException) -> None:
        """End the step: the strategy raised or was cancelled, and AG2 goes on with the history as it was."""
        with self._instrumentation.contained():
            self.open(strategy)
            if self._assembly is not None and self.step is not None:
                self.step.__exit__(type(error), error, error.__traceback__)
                self._assembly.end(error, stays=True)


def _strategy(policy: str) -> Wrap:
    @around_awaited
    def kept_up(instrumentation: Instrumentation, strategy: Any, /, *args: Any, **kwargs: Any) -> Observation:
        # A strategy that calls another, or a policy that calls one, reports what comes of all of it.
        if _RUNNING.get() is not None or current_step() is not None:
            return
        context = argument(args, kwargs, 1, "context")
        agent_run = agent_run_of(context)
        with agent_run.current() if agent_run is not None else nullcontext():
            strategy_run = _StrategyRun(instrumentation, policy, argument(args, kwargs, 0, "events"), context)
            if policy == AGGREGATION:
                strategy_run.open(strategy)
            try:
                with bound(_RUNNING, strategy_run):
                    result = yield
            except BaseException as error:
                strategy_run.fail(strategy, error)
                raise
            strategy_run.end(strategy, result if policy == COMPACTION else None)

    return kept_up


#: Around a strategy's ``compact``, and its ``aggregate``.
compact, aggregate = _strategy(COMPACTION), _strategy(AGGREGATION)


@around_awaited
def summarize(instrumentation: Instrumentation, strategy: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around the summariser's call of a strategy of AG2's own; the events are the last list among the arguments."""
    strategy_run = _RUNNING.get()
    step = strategy_run.open(strategy) if strategy_run is not None else None
    if strategy_run is None or step is None:
        return
    events = next(given for given in reversed((*args, *kwargs.values())) if isinstance(given, list))
    with step.compacting(type(strategy).__name__, tokens_in=strategy_run.tokens(events)) as made:
        text = yield
        with instrumentation.contained():
            made.tokens_out = step.count(text)
            made.outcome = no_summary(text, events)
            strategy_run.lost = events if made.outcome is not None else ()


def _strategies_of(method: str, wrap: Wrap) -> Wrap:
    """Around the middleware that runs strategies: those of users are known when they are met."""

    @around_awaited
    def on_turn(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
        with instrumentation.contained():
            instrumentation.take(type(middleware._strategy), method, wrap)  # noqa: SLF001  # nothing else names it
        put_back = getattr(sys.modules.get(type(middleware).__module__), "_with_usage_events", None)
        with bound(_PUT_BACK, put_back if method == "compact" else None):
            yield

    return on_turn


compaction_turn, aggregation_turn = _strategies_of("compact", compact), _strategies_of("aggregate", aggregate)
