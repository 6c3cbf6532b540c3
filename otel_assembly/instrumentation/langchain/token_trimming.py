"""Trims to a limit in the caller's own count, whose answers on the way say what of the messages had no room."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, wraps
from inspect import ismethod
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.instrumentation.summaries import SUMMARY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall


@dataclass(frozen=True, slots=True)
class CountedTrim:
    """What is known of a function that trims messages, its first argument; it is given all others by name.

    Attributes:
        policy: Its name, of low cardinality.
        limit: The argument that is the limit.
        counter: The one that counts messages.
        flags: Those that are reported beside the limit.
        cuts: Those by any of which a message may be cut.
        system: The one by which a system message in front stays.
        role: Whose a message is.
        finds: The call that it works for, from the `Instrumentation`, and then as `Reduction` takes it.
        model_of: The name of the model whose method the counter is; None where it is none of a model's.
    """

    policy: str
    limit: str
    counter: str
    flags: Sequence[str]
    cuts: Sequence[str]
    system: str
    role: Callable[[Any], str]
    finds: Callable[[Instrumentation, Sequence[Any], int], tuple[ModelCall, Sequence[Any] | None]]
    model_of: Callable[[Any], str | None]


class _Trim:
    """One trim, read from what goes in, what comes out, and what the caller's counter answers on the way.

    The counter is never asked more often for it.
    """

    def __init__(self, reads: CountedTrim, given: Sequence[Any], settings: Mapping[str, Any], *, last: bool) -> None:
        self._given = given
        self._settings = settings
        self._last = last
        self._reads = reads
        self.limit: int = settings[reads.limit]
        self._counter: Callable[[Any], int] = settings[reads.counter]
        #: Where messages may be cut, those that are whole.
        self._whole = frozenset(map(id, given)) if any(map(settings.get, reads.cuts)) else None
        #: How many messages were counted, the last of them, and the tokens.
        self._counts: list[tuple[int, Any, int]] = []

    def count(self, messages: list[Any]) -> int:
        """Ask the caller's counter."""
        tokens = self._counter(messages)
        if messages and (self._whole is None or id(messages[-1]) in self._whole):
            self._counts.append((len(messages), messages[-1], tokens))
        return tokens

    @property
    def in_items(self) -> bool:
        """Whether the limit is a number of messages."""
        several = [(count, tokens) for count, _, tokens in self._counts if count > 1]
        return self._counter is len or (bool(several) and all(count == tokens for count, tokens in several))

    @property
    def reason(self) -> DecisionReason:
        """Why messages left that had no room."""
        return DecisionReason.OUTSIDE_WINDOW if self.in_items else DecisionReason.OVER_BUDGET

    def left(self, result: Sequence[Any]) -> tuple[list[Verdict], int | None, OverflowCause]:
        """Why each message left; what would have had to fit for the result not to be empty, and why nothing did."""
        rest, out, reads = self._given, set(map(id, result)), self._reads
        kept = self._last and bool(self._settings.get(reads.system)) and id(rest[0]) in out
        kept = kept and reads.role(rest[0]) == "system"
        system, rest = (rest[0], rest[1:]) if kept else (None, rest)
        taken = next((tokens for _, message, tokens in self._counts if message is system), 0)
        counts = [(count, tokens) for count, message, tokens in self._counts if message is not system]
        limit = max(0, self.limit - taken)
        fits = max((count for count, tokens in counts if tokens <= limit), default=0)
        counted = counts[0][0] if counts else 0  # what is behind those was taken by another rule
        order = rest[:counted][::-1] if self._last else rest[:counted]
        others = [one for one in (*order[:fits], *rest[counted:]) if id(one) not in out]
        verdicts = [Verdict(others, DecisionOutcome.DROPPED, DecisionReason.POLICY)] if others else []
        if order[fits:] and self._whole is not None and not out <= self._whole:  # a part of one fitted
            verdicts.append(Verdict([order[fits]], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED))
            verdicts.append(Verdict(order[fits + 1 :], DecisionOutcome.DROPPED, self.reason))
        too_much = [tokens for _, tokens in counts if tokens > limit]
        needed = min(too_much) + taken if len(result) <= kept and too_much else None
        return verdicts, needed, OverflowCause.FRAMEWORK if fits else OverflowCause.NEWEST_ATOM

    def begin(self, instrumentation: Instrumentation) -> Reduction:
        """It begins: for the model that counts, if one does."""
        reads, given = self._reads, self._given
        reduction = Reduction(instrumentation, reads.policy, given, finds=partial(reads.finds, instrumentation))
        call = reduction.resolve_model_call()
        if call is not None and ismethod(self._counter):
            call.set_model_info(model=reads.model_of(self._counter.__self__))
        return reduction

    def tell(self, reduction: Reduction, result: Sequence[Any]) -> None:
        """Report what became of the messages."""
        limit, items = self.limit, self.in_items
        flags = {name: self._settings[name] for name in self._reads.flags if name in self._settings}
        reduction.config = {"max_messages" if items else "max_tokens": limit, **flags}
        (verdicts, needed, cause), step = self.left(result), reduction.open()
        if needed is not None and step is not None:
            step.overflow(budget=limit, needed=needed, cause=cause, unit="items" if items else "tokens")
        reduction.done(result, always=True, verdicts=verdicts, reason=self.reason, budget=None if items else limit)


def trims(reads: CountedTrim, *, last: bool) -> Wrap:
    """The hook of a function that trims from the front, and keeps the last messages; or from the end.

    One that another one works by is a part of that.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @wraps(original)
        def trim(messages: Any, *args: Any, **settings: Any) -> Any:
            listens = not args and instrumentation.is_enabled()
            inside = isinstance(getattr(settings.get(reads.counter), "__self__", None), _Trim)
            if not listens or inside or not messages or not settings.keys() >= {reads.counter, reads.limit}:
                return original(messages, *args, **settings)
            given = messages if isinstance(messages, list) else list(messages)
            trimming, reduction = _Trim(reads, given, settings, last=last), None
            if reducing() is None:  # else it is what a summariser reads
                with instrumentation.suppress_errors():
                    reduction = trimming.begin(instrumentation)
            try:
                result = original(given, **{**settings, reads.counter: trimming.count})
            except BaseException as error:
                with instrumentation.suppress_errors():
                    if reduction is not None:
                        reduction.failed(error)
                raise
            with instrumentation.suppress_errors():
                if reduction is not None:
                    trimming.tell(reduction, result)
                elif (summary := SUMMARY.get()) is not None:
                    summary.needed, summary.limit = trimming.left(result)[1], trimming.limit
            return result

        return trim

    return wrap


hide_frames(globals())
