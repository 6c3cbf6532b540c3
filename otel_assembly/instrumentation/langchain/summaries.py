"""What a `SummarizationMiddleware` gives its summariser, and what comes of it.

The messages that are summarised are trimmed before: what the summariser never saw is not in the summary, and has left
without a trace. It is told as dropped, and the rest as compacted.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.langchain.observation import EDIT, FOR_A_SUMMARY
from otel_assembly.instrumentation.summaries import no_summary
from otel_assembly.instrumentation.wrapping import argument, bound
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.budget.compaction import Attempt
    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.instrumentation.langchain.observation import ReducerCall
    from otel_assembly.observe.assembler import ObservedStep


class Summarising:
    """One call of ``_create_summary``: the summariser's own call in it, if it comes to one.

    Attributes:
        given: The messages that are to be summarised.
        seen: Those that the summariser was given; None until that is known.
        trimmed: Where trimming left nothing, what would have had to fit, and the limit.
    """

    def __init__(self, edit: ReducerCall, step: ObservedStep, middleware: Any, given: Sequence[Any]) -> None:
        self.edit = edit
        self.step = step
        self.middleware = middleware
        self.given = list(given)
        self.seen: list[Any] | None = None
        self.trimmed: tuple[int | None, int] | None = None
        self._attempt: Attempt | None = None
        self._compacting: AbstractContextManager[Attempt] | None = None

    def begin(self, seen: Sequence[Any]) -> None:
        """The summariser is called next, with these messages, or not at all if there are none."""
        self.seen = list(seen)
        if self.seen and self._compacting is None:
            model = getattr(self.middleware, "summarizer", None) or self.middleware.model
            read = (text for message in self.seen for text in describe(message).texts)
            preparation = self.edit.preparation
            tokens = sum(map(preparation.count, read)) if preparation is not None else 0
            compacting = self.step.compacting(type(model).__name__, tokens_in=tokens)
            self._attempt = compacting.__enter__()
            self._compacting = compacting

    def end(self, error: BaseException | None) -> None:
        """The call has come back."""
        compacting, self._compacting = self._compacting, None
        if compacting is not None:
            compacting.__exit__(type(error) if error is not None else None, error, None)

    def returned(self, summary: Any) -> None:
        """The summary is this: tell what it stands for."""
        attempt = self._attempt
        if attempt is None:
            if self.given and self.seen is not None:
                self._too_long()
            return
        text = summary if isinstance(summary, str) else ""
        attempt.tokens_out = self.step.count(text)
        attempt.outcome = no_summary(text, self.seen or ())
        if attempt.outcome is not None:
            self._lost(self.given, DecisionReason.POLICY_ERROR)
        elif self.seen is not None:
            seen = {id(message) for message in self.seen} | {message.id for message in self.seen if message.id}
            self._lost([one for one in self.given if not {id(one), one.id} & seen], DecisionReason.OVER_BUDGET)
            told = [one for one in self.given if {id(one), one.id} & seen]
            self.edit.explained = True
            self.edit.verdicts.append(Verdict(told, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED))

    def _too_long(self) -> None:
        """Nothing was left to summarise: the history is replaced by a sentence that says so, and is gone."""
        self._lost(self.given, DecisionReason.OVER_BUDGET)
        if self.trimmed is not None and self.trimmed[0] is not None:
            needed, budget = self.trimmed
            self.step.overflow(budget=budget, needed=needed or 0, cause=OverflowCause.FRAMEWORK)

    def _lost(self, messages: Sequence[Any], reason: DecisionReason) -> None:
        if messages:
            self.edit.explained = True
            self.edit.verdicts.append(Verdict(messages, DecisionOutcome.DROPPED, reason))


SUMMARISING: Final[ContextVar[Summarising | None]] = ContextVar("otel_assembly_summarising", default=None)


def _begin(instrumentation: Instrumentation, middleware: Any, given: Sequence[Any]) -> Summarising | None:
    """What is going to be told, where the middleware runs inside a step that is."""
    summarising = None
    with instrumentation.contained():
        edit = EDIT.get()
        step = edit.open() if edit is not None and given else None
        if edit is not None and step is not None:
            summarising = Summarising(edit, step, middleware, given)
    return summarising


def create_summary(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``SummarizationMiddleware._create_summary``."""

    @functools.wraps(original)
    def _create_summary(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return original(self, *args, **kwargs)
        summarising = _begin(instrumentation, self, argument(args, kwargs, 0, "messages_to_summarize"))
        if summarising is None:
            return original(self, *args, **kwargs)
        with summarising.step, _Inside(instrumentation, summarising) as inside:
            return inside.returned(original(self, *args, **kwargs))

    return _create_summary


def acreate_summary(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``SummarizationMiddleware._acreate_summary``."""

    @functools.wraps(original)
    async def _acreate_summary(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        summarising = _begin(instrumentation, self, argument(args, kwargs, 0, "messages_to_summarize"))
        if summarising is None:
            return await original(self, *args, **kwargs)
        with summarising.step, _Inside(instrumentation, summarising) as inside:
            return inside.returned(await original(self, *args, **kwargs))

    return _acreate_summary


def trim_for_summary(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``SummarizationMiddleware._trim_messages_for_summary``, after which the summariser is called."""

    @functools.wraps(original)
    def _trim_messages_for_summary(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return original(self, *args, **kwargs)
        with bound(FOR_A_SUMMARY, True):
            result = original(self, *args, **kwargs)
        with instrumentation.contained():
            summarising = SUMMARISING.get()
            if summarising is not None and summarising.middleware is self:
                summarising.begin(result)
        return result

    return _trim_messages_for_summary


class _Inside:
    """Around what happens in ``_create_summary``; what fails in ours is ours alone."""

    __slots__ = ("_bound", "_instrumentation", "_summarising")

    def __init__(self, instrumentation: Instrumentation, summarising: Summarising) -> None:
        self._instrumentation = instrumentation
        self._summarising = summarising

    def __enter__(self) -> Self:
        self._bound = bound(SUMMARISING, self._summarising)
        self._bound.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._bound.__exit__()
        with self._instrumentation.contained():
            self._summarising.end(error)

    def returned(self, summary: Any) -> Any:
        with self._instrumentation.contained():
            self._summarising.returned(summary)
        return summary
