"""Hooks of `trim_messages`, which trims messages to a limit with a token counter that the caller passes.

The hook wraps the counter and reads from its results which messages did not fit. It never calls the counter itself. The
function is instrumented in the two private functions that it calls, so that it does not matter how a program imported
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import ismethod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.langchain.model_calls import model_of
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall


@dataclass(frozen=True, slots=True)
class CountedTrim:
    """Describes a function that trims messages: the messages are its first argument, all others are keywords.

    Attributes:
        policy: The name of its steps, of low cardinality.
        limit: The name of the argument with the limit.
        counter: The name of the argument with the function that counts the tokens of messages.
        flags: The names of other arguments that are recorded as the step's configuration.
        cuts: The names of arguments that allow the function to shorten a message.
        system: The name of the argument that keeps a system message at the start.
        role: Returns the role of a message.
        find_call: Returns the model call that a trim works for; takes the `Instrumentation`, and then the arguments of
            `find_call` in `Reduction`.
        model_of: Returns the model's name, if the counter is a method of this object; None if the object is no model.
    """

    policy: str
    limit: str
    counter: str
    flags: Sequence[str]
    cuts: Sequence[str]
    system: str
    role: Callable[[Any], str]
    find_call: Callable[[Instrumentation, Sequence[Any], int], tuple[ModelCall, Sequence[Any] | None]]
    model_of: Callable[[Any], str | None]


class _Trim:
    """One call of a function that trims, with the results of the caller's counter.

    Args:
        last: Whether the function keeps the last messages, and not the first.
    """

    def __init__(
        self, description: CountedTrim, messages: Sequence[Any], settings: Mapping[str, Any], *, last: bool
    ) -> None:
        self._messages = messages
        self._settings = settings
        self._last = last
        self._description = description
        self.limit: int = settings[description.limit]
        self._counter: Callable[[Any], int] = settings[description.counter]
        #: The ids of the unshortened messages; None if the function does not shorten messages.
        self._whole_ids = frozenset(map(id, messages)) if any(map(settings.get, description.cuts)) else None
        #: For each call of the counter: the number of messages, the last of them, and their tokens.
        self._counts: list[tuple[int, Any, int]] = []

    def count(self, messages: list[Any]) -> int:
        """Return the result of the caller's counter, and remember it unless the last message was shortened."""
        tokens = self._counter(messages)
        if messages and (self._whole_ids is None or id(messages[-1]) in self._whole_ids):
            self._counts.append((len(messages), messages[-1], tokens))
        return tokens

    @property
    def reason(self) -> DecisionReason:
        """Why messages are dropped: the limit is a number of messages if the counter returns 1 per message."""
        several = [(count, tokens) for count, _, tokens in self._counts if count > 1]
        counts_messages = self._counter is len or (several and all(count == tokens for count, tokens in several))
        return DecisionReason.OUTSIDE_WINDOW if counts_messages else DecisionReason.OVER_BUDGET

    def explain(self, result: Sequence[Any]) -> tuple[list[Verdict], int | None, OverflowCause]:
        """Return verdicts, and if no message fit, the tokens that were needed and the cause of the overflow.

        A message that did not fit has no verdict, because the reason of the step applies to it. The tokens needed are
        None if the limit was not exceeded.
        """
        result_ids = set(map(id, result))
        # With its setting, the function keeps a system message at the start, and counts it separately. The other
        # messages share the rest of the limit.
        first = self._messages[0]
        is_kept = self._last and self._settings.get(self._description.system) and id(first) in result_ids
        system = first if is_kept and self._description.role(first) == "system" else None
        rest = self._messages if system is None else self._messages[1:]
        system_tokens = next((tokens for _, message, tokens in self._counts if message is system), 0)
        counts = [(count, tokens) for count, message, tokens in self._counts if message is not system]
        limit = max(0, self.limit - system_tokens)
        # The function counts all candidates first, and then fewer. Messages that are no candidates were dropped
        # before by another rule, such as `end_on`.
        candidate_count = counts[0][0] if counts else 0
        fitting_count = max((count for count, tokens in counts if tokens <= limit), default=0)
        candidates = rest[:candidate_count][::-1] if self._last else rest[:candidate_count]
        despite_room = [
            message
            for message in (*candidates[:fitting_count], *rest[candidate_count:])
            if id(message) not in result_ids
        ]
        verdicts = [Verdict(despite_room, DecisionOutcome.DROPPED, DecisionReason.POLICY)] if despite_room else []
        over_limit = candidates[fitting_count:]
        if over_limit and self._whole_ids is not None and not result_ids <= self._whole_ids:  # a shortened message fit
            verdicts.append(Verdict([over_limit[0]], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED))
            verdicts.append(Verdict(over_limit[1:], DecisionOutcome.DROPPED, self.reason))
        excessive = [tokens for _, tokens in counts if tokens > limit]
        is_emptied = len(result) <= (system is not None)
        needed = min(excessive) + system_tokens if is_emptied and excessive else None
        return verdicts, needed, OverflowCause.FRAMEWORK if fitting_count else OverflowCause.NEWEST_ATOM

    def begin(self, instrumentation: Instrumentation) -> Reduction:
        description = self._description
        find_call = partial(description.find_call, instrumentation)
        reduction = Reduction(instrumentation, StepReport(description.policy, self._messages), find_call=find_call)
        # The call is found now, and not only for the result, because its model may be the one that counts.
        call = reduction.resolve_model_call()
        if call is not None and ismethod(self._counter):
            call.model = call.model or description.model_of(self._counter.__self__)
        return reduction

    def record(self, reduction: Reduction, result: Sequence[Any]) -> None:
        limit, in_messages = self.limit, self.reason is DecisionReason.OUTSIDE_WINDOW
        flags = {name: self._settings[name] for name in self._description.flags if name in self._settings}
        config = {"max_messages" if in_messages else "max_tokens": limit, **flags}
        reduction.report = replace(reduction.report, config=config)
        (verdicts, needed, cause), step = self.explain(result), reduction.open()
        if needed is not None and step is not None:
            step.overflow(budget=limit, needed=needed, cause=cause, unit="items" if in_messages else "tokens")
        budget = None if in_messages else limit
        reduction.report = replace(reduction.report, verdicts=verdicts, reason=self.reason, budget=budget)
        reduction.done(result, always=True)


def trims(description: CountedTrim, *, last: bool) -> Wrap:
    """Return the hook of a function that trims, and that keeps the last messages or the first ones.

    If the function calls another instrumented one to do its work, only the outer call is recorded.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @wraps(original)
        def trim(messages: Any, *args: Any, **settings: Any) -> Any:
            # The outer of two instrumented functions passes the inner one `_Trim.count` as the counter.
            is_inner = isinstance(getattr(settings.get(description.counter), "__self__", None), _Trim)
            is_complete = not args and settings.keys() >= {description.counter, description.limit}
            if is_inner or not is_complete or not messages or not instrumentation.is_enabled():
                return original(messages, *args, **settings)
            before = messages if isinstance(messages, list) else list(messages)
            trimming, reduction = _Trim(description, before, settings, last=last), None
            if reducing() is None:  # else a reducer trims the messages that its summarizer gets
                with instrumentation.suppress_errors():
                    reduction = trimming.begin(instrumentation)
            try:
                result = original(before, **{**settings, description.counter: trimming.count})
            except BaseException as error:
                with instrumentation.suppress_errors():
                    if reduction is not None:
                        reduction.failed(error)
                raise
            with instrumentation.suppress_errors():
                if reduction is not None:
                    trimming.record(reduction, result)
                elif (outer := reducing()) is not None and (summary := outer.summary) is not None:
                    # If the summarizer gets no messages, the summary records an overflow with these numbers.
                    summary.needed, summary.limit = trimming.explain(result)[1], trimming.limit
            return result

        return trim

    return wrap


_TRIM: Final = CountedTrim(
    "trim_messages",
    limit="max_tokens",
    counter="token_counter",
    flags=("include_system", "allow_partial"),
    cuts=("allow_partial", "partial_strategy"),
    system="include_system",
    role=attrgetter("type"),
    find_call=GRAPH_CONTEXT.call_for_reducer,
    model_of=lambda owner: model_of(owner) if hasattr(owner, "get_num_tokens_from_messages") else None,
)
#: Hooks of ``_last_max_tokens``, and of ``_first_max_tokens``, which the former calls with the messages reversed.
last_max_tokens, first_max_tokens = trims(_TRIM, last=True), trims(_TRIM, last=False)


hide_frames(globals())
