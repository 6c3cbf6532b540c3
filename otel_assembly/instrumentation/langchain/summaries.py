"""Summaries that a framework's reducer requests from a model, such as LangChain's `SummarizationMiddleware`.

A reducer may truncate the messages before it sends them to the summarizer. `Summary` compares the messages that a
summary replaces with those that the model read: the former are compacted if the model read them, or else dropped.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.message_alignment import identity_keys
from otel_assembly.instrumentation.reducers import no_summary, outcome_of
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import Reduction


class Summary:
    """One summary; a context manager around the reducer's code that creates it.

    Args:
        reduction: The reduction, whose step is open.

    Attributes:
        needed: The tokens that the summarizer's input needed, if it was truncated to nothing; None otherwise.
        limit: The limit of the summarizer's input in tokens.
    """

    def __init__(self, reduction: Reduction, messages: Sequence[Any]) -> None:
        self.needed: int | None = None
        self.limit = 0
        self._reduction = reduction
        self._messages = messages
        self._read: Sequence[Any] | None = None
        self._attempt: Attempt | None = None
        self._attempt_span = ExitStack()

    def __enter__(self) -> Self:
        self._reduction.summary = self
        return self

    def __exit__(self, *raised: Any) -> None:
        self._reduction.summary = None
        self._attempt_span.__exit__(*raised)

    def begin(self, model: str, read: Sequence[Any]) -> None:
        """Start the ``compact_block`` span of the summarizer's call, which is next.

        If there are no messages to read, the summarizer is not called.
        """
        self._read, step, call = list(read), self._reduction.step, self._reduction.call
        assembly = call.assembly if call is not None else None
        if read and self._attempt is None and step is not None and assembly is not None:
            tokens_in = sum(assembly.count(text) for message in read for text in describe(message).texts)
            self._attempt = self._attempt_span.enter_context(step.compacting(model, tokens_in=tokens_in))

    def finish(self, text: str) -> None:
        """Record the text of the summary, and the verdicts on the messages that it replaces."""
        step, read = self._reduction.step, self._read
        if step is None or read is None:
            return
        if self._attempt is None:  # the summarizer's input was truncated to nothing, so all messages are lost
            if self.needed is not None:
                step.overflow(budget=self.limit, needed=self.needed, cause=OverflowCause.FRAMEWORK)
            self._add_verdict(self._messages, DecisionReason.OVER_BUDGET)
            return
        self._attempt.tokens_out = step.count(text)
        self._attempt.outcome = no_summary(text, read)
        if self._attempt.outcome is not None:
            self._add_verdict(self._messages, DecisionReason.POLICY_ERROR)
            return
        keys = identity_keys(read)
        unread = [message for message in self._messages if not identity_keys([message]) & keys]
        self._add_verdict(unread, DecisionReason.OVER_BUDGET)
        summarized = [message for message in self._messages if identity_keys([message]) & keys]
        self._add_verdict(summarized, DecisionReason.COMPACTED)

    def _add_verdict(self, messages: Sequence[Any], reason: DecisionReason) -> None:
        if messages:
            self._reduction.add_verdict(Verdict(messages, outcome_of(reason), reason))


def summary_hook(messages_of: Callable[..., Sequence[Any]]) -> Wrap:
    """Return the hook of a reducer's function, async or not, that returns the text of a summary.

    `messages_of` returns the messages that the summary replaces, from the function's arguments.
    """

    def observe(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        messages, reduction = messages_of(*args, **kwargs), reducing()
        if messages and reduction is not None and reduction.open() is not None:
            with Summary(reduction, messages) as summary:
                text = yield
                summary.finish(text if isinstance(text, str) else "")

    return observe_hook(observe)


def summarizer_input_hook(model: Callable[..., str]) -> Wrap:
    """Return the hook of a reducer's function that returns the messages for the summarizer, before it is called.

    `model` returns the summarizer's name, from the function's arguments.
    """

    def observe(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        messages, reduction = (yield), reducing()
        if reduction is not None and reduction.summary is not None:
            reduction.summary.begin(model(*args, **kwargs), messages)

    return observe_hook(observe)
