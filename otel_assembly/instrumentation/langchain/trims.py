"""LangChain's ``trim_messages``, seen however it was imported: every way leads to two functions."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.langchain.model_calls import model_of
from otel_assembly.instrumentation.langchain.runs import prepared
from otel_assembly.instrumentation.reductions import REDUCTION, Reduction
from otel_assembly.instrumentation.summaries import SUMMARY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation

#: What the two functions are always given, by name.
_KEYS: Final = frozenset({"max_tokens", "token_counter"})
_FLAGS: Final = ("include_system", "allow_partial")


class _Trim:
    """One trim, read from what goes in, what comes out, and what the caller's token counter answers on the way.

    The counter is never asked more often for it.
    """

    def __init__(self, given: Sequence[Any], settings: Mapping[str, Any], *, last: bool) -> None:
        self._given = given
        self._settings = settings
        self._last = last
        self._counter: Callable[[Any], int] = settings["token_counter"]
        cuts = settings.get("allow_partial") or settings.get("partial_strategy")
        #: Where messages may be cut, those that are whole.
        self._whole = frozenset(map(id, given)) if cuts else None
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
        rest, out = self._given, set(map(id, result))
        kept = self._last and self._settings.get("include_system") and id(rest[0]) in out and rest[0].type == "system"
        system, rest = (rest[0], rest[1:]) if kept else (None, rest)
        taken = next((tokens for _, message, tokens in self._counts if message is system), 0)
        counts = [(count, tokens) for count, message, tokens in self._counts if message is not system]
        limit = max(0, self._settings["max_tokens"] - taken)
        fits = max((count for count, tokens in counts if tokens <= limit), default=0)
        counted = counts[0][0] if counts else 0  # what is behind those was taken by ``end_on``
        order = rest[:counted][::-1] if self._last else rest[:counted]
        others = [one for one in (*order[:fits], *rest[counted:]) if id(one) not in out]
        verdicts = [Verdict(others, DecisionOutcome.DROPPED, DecisionReason.POLICY)] if others else []
        if order[fits:] and self._whole is not None and not out <= self._whole:  # a part of one fitted
            verdicts.append(Verdict([order[fits]], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED))
            verdicts.append(Verdict(order[fits + 1 :], DecisionOutcome.DROPPED, self.reason))
        too_much = [tokens for _, tokens in counts if tokens > limit]
        needed = min(too_much) + taken if len(result) <= bool(kept) and too_much else None
        return verdicts, needed, OverflowCause.FRAMEWORK if fits else OverflowCause.NEWEST_ATOM

    def tell(self, reduction: Reduction, result: Sequence[Any]) -> None:
        """Report what became of the messages."""
        limit, items = self._settings["max_tokens"], self.in_items
        flags = {name: self._settings[name] for name in _FLAGS if name in self._settings}
        reduction.config = {"max_messages" if items else "max_tokens": limit, **flags}
        (verdicts, needed, cause), step = self.left(result), reduction.open()
        if needed is not None and step is not None:
            step.overflow(budget=limit, needed=needed, cause=cause, unit="items" if items else "tokens")
        reduction.done(result, always=True, verdicts=verdicts, reason=self.reason, budget=None if items else limit)


def trim_messages(original: Callable[..., Any], instrumentation: Instrumentation, *, last: bool) -> Callable[..., Any]:
    """In the place of what trims from the front (``last``), or from the end, by which the other one works too."""

    @functools.wraps(original)
    def trim(messages: Any, *args: Any, **settings: Any) -> Any:
        listens = not args and instrumentation.listening()
        inside = isinstance(getattr(settings.get("token_counter"), "__self__", None), _Trim)
        if not listens or inside or not messages or not settings.keys() >= _KEYS:
            return original(messages, *args, **settings)
        given = messages if isinstance(messages, list) else list(messages)
        trimming, summarises, reduction = _Trim(given, settings, last=last), REDUCTION.get(), None
        if summarises is None or summarises.over:  # else it is what a summariser reads
            with instrumentation.contained():
                reduction = _begin(instrumentation, given, settings["token_counter"])
        try:
            result = original(given, **{**settings, "token_counter": trimming.count})
        except BaseException as error:
            with instrumentation.contained():
                if reduction is not None:
                    reduction.failed(error)
            raise
        with instrumentation.contained():
            if reduction is not None:
                trimming.tell(reduction, result)
            elif (summary := SUMMARY.get()) is not None:
                summary.needed, summary.limit = trimming.left(result)[1], settings["max_tokens"]
        return result

    return trim


def _begin(instrumentation: Instrumentation, given: Sequence[Any], counter: Any) -> Reduction:
    reduction = Reduction(instrumentation, "trim_messages", given, finds=partial(prepared, instrumentation))
    model, call = getattr(counter, "__self__", None), reduction.works_for()
    if call is not None and hasattr(model, "get_num_tokens_from_messages"):
        call.knows(model=model_of(model))  # trimmed for that one
    return reduction
