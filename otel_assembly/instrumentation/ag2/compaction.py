"""Compaction and aggregation: what AG2 does with a history after a turn, and what its summariser's calls took.

Compaction is an assembly of its own, of one step, in the ledger of the prompts: what it takes out, no later prompt has.
Aggregation takes nothing out; it reads a history and writes memory, in a ledger of its own.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.ag2.conversation import agent_name_of, begin
from otel_assembly.instrumentation.ag2.runs import AGENT_RUN, agent_run_of
from otel_assembly.instrumentation.hooks import argument, bound
from otel_assembly.instrumentation.reducers import no_summary, same_objects
from otel_assembly.observe.assembler import current_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.hooks import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly, ObservedStep

    Wrap = Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]

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
        record.count(view)
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


def _strategy(policy: str, original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    @wraps(original)
    async def kept_up(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A strategy that calls another, or a policy that calls one, reports what comes of all of it.
        if not instrumentation.listening() or _RUNNING.get() is not None or current_step() is not None:
            return await original(self, *args, **kwargs)
        context = argument(args, kwargs, 1, "context")
        agent_run = agent_run_of(context)
        with agent_run.current() if agent_run is not None else nullcontext():
            strategy_run: _StrategyRun | None = None
            with instrumentation.contained():
                strategy_run = _StrategyRun(instrumentation, policy, argument(args, kwargs, 0, "events"), context)
                if policy == AGGREGATION:
                    strategy_run.open(self)
            if strategy_run is None:
                return await original(self, *args, **kwargs)
            try:
                with bound(_RUNNING, strategy_run):
                    result = await original(self, *args, **kwargs)
            except BaseException as error:
                strategy_run.fail(self, error)
                raise
            strategy_run.end(self, result if policy == COMPACTION else None)
            return result

    return kept_up


def compact(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around a strategy's ``compact``."""
    return _strategy(COMPACTION, original, instrumentation)


def aggregate(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around a strategy's ``aggregate``."""
    return _strategy(AGGREGATION, original, instrumentation)


def summarize(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around the summariser's call of a strategy of AG2's own; the events are the last list among the arguments."""

    @wraps(original)
    async def summarized(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy_run = _RUNNING.get()
        if strategy_run is None or not instrumentation.listening():
            return await original(self, *args, **kwargs)
        step = strategy_run.open(self)
        attempt = None
        with instrumentation.contained():
            if step is not None:
                events = next(given for given in reversed((*args, *kwargs.values())) if isinstance(given, list))
                attempt = step.compacting(type(self).__name__, tokens_in=strategy_run.tokens(events))
        if step is None or attempt is None:
            return await original(self, *args, **kwargs)
        with attempt as made:
            text = await original(self, *args, **kwargs)
            with instrumentation.contained():
                made.tokens_out = step.count(text)
                made.outcome = no_summary(text, events)
                strategy_run.lost = events if made.outcome is not None else ()
        return text

    return summarized


def _strategies_of(
    method: str, wrap: Wrap, original: Callable[..., Any], instrumentation: Instrumentation
) -> Callable[..., Any]:
    @wraps(original)
    async def on_turn(self: Any, call_next: Any, event: Any, context: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, call_next, event, context)
        with instrumentation.contained():
            take = instrumentation.patches.take
            take(type(self._strategy), method, lambda method: wrap(method, instrumentation))
        put_back = getattr(sys.modules.get(type(self).__module__), "_with_usage_events", None)
        with bound(_PUT_BACK, put_back if method == "compact" else None):
            return await original(self, call_next, event, context)

    return on_turn


def compaction_turn(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around the middleware that runs compaction: the strategies of users are known when they are met."""
    return _strategies_of("compact", compact, original, instrumentation)


def aggregation_turn(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around the middleware that runs aggregation, as above."""
    return _strategies_of("aggregate", aggregate, original, instrumentation)
