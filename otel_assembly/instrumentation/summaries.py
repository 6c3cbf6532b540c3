"""Summaries that a framework's reducer has a model make: what each stands for, and what the model never saw of that."""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.hooks import observe_any_hook
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.message_alignment import identity_keys
from otel_assembly.instrumentation.reducers import no_summary, outcome_of
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import Reduction


class Summary:
    """One summary, from what it is to stand for to what comes out; it is entered around the making of it.

    Args:
        reduction: The reducer, whose step is open.
        given: What the summary is to stand for.

    Attributes:
        needed: What would have had to fit for the model to see anything, where nothing did.
        limit: What it had to fit in.
    """

    def __init__(self, reduction: Reduction, given: Sequence[Any]) -> None:
        self.needed: int | None = None
        self.limit = 0
        self._reduction = reduction
        self._given = given
        self._seen: Sequence[Any] | None = None
        self._attempt: Attempt | None = None
        self._open = ExitStack()
        self._bound = context_value(SUMMARY, self)

    def __enter__(self) -> Self:
        self._bound.__enter__()
        self._reduction.summarising = True
        return self

    def __exit__(self, *raised: Any) -> None:
        self._bound.__exit__()
        self._reduction.summarising = False
        self._open.__exit__(*raised)

    def begin(self, model: str, seen: Sequence[Any]) -> None:
        """The model is called next, with these messages, or not at all if there are none."""
        self._seen, step, call = list(seen), self._reduction.step, self._reduction.call
        if seen and self._attempt is None and step is not None and call is not None:
            tokens_in = sum(call.count(text) for message in seen for text in describe(message).texts)
            self._attempt = self._open.enter_context(step.compacting(model, tokens_in=tokens_in))

    def made(self, text: str) -> None:
        """This has come out as the summary."""
        step, seen = self._reduction.step, self._seen
        if step is None or seen is None:
            return
        if self._attempt is None:  # nothing was left to summarise: what was there is gone
            if self.needed is not None:
                step.overflow(budget=self.limit, needed=self.needed, cause=OverflowCause.FRAMEWORK)
            self._left(self._given, DecisionReason.OVER_BUDGET)
            return
        self._attempt.tokens_out = step.count(text)
        self._attempt.outcome = no_summary(text, seen)
        if self._attempt.outcome is not None:
            self._left(self._given, DecisionReason.POLICY_ERROR)
            return
        known = identity_keys(seen)
        self._left([one for one in self._given if not identity_keys([one]) & known], DecisionReason.OVER_BUDGET)
        self._left([one for one in self._given if identity_keys([one]) & known], DecisionReason.COMPACTED)

    def _left(self, messages: Sequence[Any], reason: DecisionReason) -> None:
        if messages:
            self._reduction.verdicts.append(Verdict(messages, outcome_of(reason), reason))


def summed_up(reduction: Reduction, after: Sequence[Any], summary: Any = None) -> list[Verdict]:
    """Why messages left that a reducer had a model summarise: what that had read is in the summary, if it made one.

    An earlier summary is in the next one; where no summariser was seen, so is all that left.

    Args:
        reduction: The reducer, with what it took in.
        after: What it lets out.
        summary: What of that is the summary, where it is not just what the summariser said: so it will be counted.
    """
    attempt, call = reduction.attempt, reduction.call
    made = attempt is not None and attempt.outcome is CompactionOutcome.COMPACTED
    stays, read = identity_keys(after), identity_keys(reduction.read if made else ())
    gone = [one for one in reduction.before if not identity_keys([one]) & stays]
    told = [
        one for one in gone if attempt is None or identity_keys([one]) & read or describe(one).kind is EventKind.SUMMARY
    ]
    if attempt is not None and made and call is not None and summary is not None:
        attempt.tokens_out = call.instrumentation.observed.meter(call.model).event(describe(summary))
    return [Verdict(told, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)]


#: The summary that is being made here.
SUMMARY: Final[ContextVar[Summary | None]] = ContextVar("otel_assembly_summary", default=None)


def summarises(given: Callable[..., Sequence[Any]]) -> Wrap:
    """The hook of a function that makes a summary inside of a reducer, awaited or not, by the messages it is given."""

    def observe(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        messages, reduction = given(*args, **kwargs), reducing()
        if messages and reduction is not None and reduction.open() is not None:
            with Summary(reduction, messages) as summary:
                made = yield
                summary.made(made if isinstance(made, str) else "")

    return observe_any_hook(observe)


def read_by_summariser(model: Callable[..., str]) -> Wrap:
    """The hook of a function that gives what a summariser is to read, which is called next, by its name."""

    def observe(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        seen, summary = (yield), SUMMARY.get()
        if summary is not None:
            summary.begin(model(*args, **kwargs), seen)

    return observe_any_hook(observe)
