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
        self.counter: Callable[[Any], int] = settings[description.counter]
        #: The ids of the unshortened messages; None if the function does not shorten messages.
        self._whole_ids = frozenset(map(id, messages)) if any(map(settings.get, description.cuts)) else None
        #: For each call of the counter: the number of messages, the last of them, and their tokens.
        self._counts: list[tuple[int, Any, int]] = []

    def count(self, messages: list[Any]) -> int:
        """Return the result of the caller's counter, and remember it unless the last message was shortened."""
        tokens = self.counter(messages)
        if messages and (self._whole_ids is None or id(messages[-1]) in self._whole_ids):
            self._counts.append((len(messages), messages[-1], tokens))
        return tokens

    def explain(self, result: Sequence[Any], reason: DecisionReason) -> tuple[list[Verdict], int | None, OverflowCause]:
        """Return verdicts, and if no message fit, the tokens that were needed and the cause of the overflow.

        A message that did not fit has no verdict, because the step's own `reason` applies to it. The tokens needed are
        None if the limit was not exceeded.
        """
        result_ids, system, rest = set(map(id, result)), None, self._messages
        keeps_first = self._last and self._settings.get(self._description.system) and id(rest[0]) in result_ids
        if keeps_first and self._description.role(rest[0]) == "system":
            system, rest = rest[0], rest[1:]
        # The function counts a kept system message separately; the other messages share the rest of the limit.
        counts, system_counts = list[tuple[int, int]](), list[int]()
        for count, last_message, tokens in self._counts:  # loops, because comprehensions are calls
            if system is not None and last_message is system:
                system_counts.append(tokens)
            else:
                counts.append((count, tokens))
        system_tokens = system_counts[0] if system_counts else 0
        limit = max(0, self.limit - system_tokens)
        fitting_count, excessive = 0, list[int]()
        for count, tokens in counts:
            if tokens <= limit:
                fitting_count = max(fitting_count, count)
            else:
                excessive.append(tokens)
        # The function counts all candidates first, and then fewer. Messages that are no candidates were dropped
        # before by another rule, such as `end_on`.
        candidate_count = counts[0][0] if counts else 0
        candidates = rest[:candidate_count][::-1] if self._last else rest[:candidate_count]
        verdicts = []
        despite_room = [
            message
            for message in (*candidates[:fitting_count], *rest[candidate_count:])
            if id(message) not in result_ids
        ]
        if despite_room:
            verdicts.append(Verdict(despite_room, DecisionOutcome.DROPPED, DecisionReason.POLICY))
        over_limit = candidates[fitting_count:]
        if over_limit and self._whole_ids is not None and not result_ids <= self._whole_ids:  # a shortened message fit
            verdicts.append(Verdict([over_limit[0]], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED))
            verdicts.append(Verdict(over_limit[1:], DecisionOutcome.DROPPED, reason))
        is_emptied = len(result) <= (system is not None)
        needed = min(excessive) + system_tokens if excessive and is_emptied else None
        return verdicts, needed, OverflowCause.FRAMEWORK if fitting_count else OverflowCause.NEWEST_ATOM

    def record(self, reduction: Reduction, result: Sequence[Any]) -> None:
        several = [(count, tokens) for count, _, tokens in self._counts if count > 1]
        # A counter that returns 1 per message makes the limit a number of messages.
        in_messages = self.counter is len or (bool(several) and all(count == tokens for count, tokens in several))
        reason = DecisionReason.OUTSIDE_WINDOW if in_messages else DecisionReason.OVER_BUDGET
        verdicts, needed, cause = self.explain(result, reason)
        config = {"max_messages" if in_messages else "max_tokens": self.limit}
        for name in self._description.flags:
            if name in self._settings:
                config[name] = self._settings[name]
        budget = None if in_messages else self.limit
        reduction.report = replace(reduction.report, config=config, verdicts=verdicts, reason=reason, budget=budget)
        step = reduction.open()
        if needed is not None and step is not None:
            step.overflow(budget=self.limit, needed=needed, cause=cause, unit="items" if in_messages else "tokens")
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
            is_complete = settings.keys() >= {description.counter, description.limit}
            if args or is_inner or not messages or not is_complete or not instrumentation.is_enabled():
                return original(messages, *args, **settings)
            before = messages if isinstance(messages, list) else list(messages)
            trimming, reduction = _Trim(description, before, settings, last=last), None
            if reducing() is None:  # else a reducer trims the messages that its summarizer gets
                with instrumentation.suppress_errors():
                    find_call = partial(description.find_call, instrumentation)
                    begun = Reduction(instrumentation, StepReport(description.policy, before), find_call=find_call)
                    call = begun.resolve_model_call()  # now, because the counter may name the call's model
                    if call is not None and ismethod(trimming.counter):
                        call.model = call.model or description.model_of(trimming.counter.__self__)
                    reduction = begun
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
                    _, summary.needed, _ = trimming.explain(result, DecisionReason.OVER_BUDGET)
                    summary.limit = trimming.limit
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
