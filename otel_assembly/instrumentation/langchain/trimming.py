"""``trim_messages``, however and whenever it was imported: its two inner functions are what every way leads to."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.langchain.models import counting_model
from otel_assembly.instrumentation.langchain.observation import FOR_A_SUMMARY, TRIM_MESSAGES, ReducerCall
from otel_assembly.instrumentation.langchain.summaries import SUMMARISING
from otel_assembly.instrumentation.wrapping import bound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedStep

#: What the two functions are always given, by name.
_KEYS: Final = frozenset({"max_tokens", "token_counter"})
_INSIDE: Final[ContextVar[bool]] = ContextVar("otel_assembly_trimming", default=False)


class _Counting:
    """The caller's token counter, whose answers are noted as it is asked; it is never asked more often for it."""

    __slots__ = ("_counter", "_originals", "said")

    def __init__(self, counter: Callable[[Any], int], originals: frozenset[int] | None) -> None:
        self._counter = counter
        #: Where messages may be cut, those that are whole.
        self._originals = originals
        #: How many messages were counted, the last of them, and the tokens.
        self.said: list[tuple[int, Any, int]] = []

    def __call__(self, messages: list[Any]) -> int:
        tokens = self._counter(messages)
        if messages and (self._originals is None or id(messages[-1]) in self._originals):
            self.said.append((len(messages), messages[-1], tokens))
        return tokens


class Trim:
    """What one trim did, read from what went in, what came out, and what was counted on the way.

    Attributes:
        verdicts: Why each message left.
        needed: What would have had to fit for the result not to be empty, in what the counter counts; None where it
            is not empty, or not for want of room.
    """

    def __init__(
        self,
        given: Sequence[Any],
        result: Sequence[Any],
        settings: Mapping[str, Any],
        said: Sequence[tuple[int, Any, int]],
        *,
        last: bool,
    ) -> None:
        system = given[0] if last and settings.get("include_system") and result and result[0] is given[0] else None
        if system is not None and system.type != "system":
            system = None
        start = 0 if system is None else 1
        taken = next((tokens for _, message, tokens in said if message is system), 0)
        counts = [(count, tokens) for count, message, tokens in said if message is not system]
        limit = max(0, settings["max_tokens"] - taken)
        whole = start + (counts[0][0] if counts else 0)
        fits = max((count for count, tokens in counts if tokens <= limit), default=0)
        within = range(whole - fits, whole) if last else range(start, start + fits)
        beyond = range(whole - fits - 1, start - 1, -1) if last else range(start + fits, whole)
        out = {id(message) for message in result}
        elsewhere = [given[at] for at in (*within, *range(whole, len(given))) if id(given[at]) not in out]
        self.verdicts = [Verdict(elsewhere, DecisionOutcome.DROPPED, DecisionReason.POLICY)] if elsewhere else []
        if beyond and _is_cut(settings, out, given):
            over = [given[at] for at in beyond[1:]]
            self.verdicts += [
                Verdict([given[beyond[0]]], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED),
                Verdict(over, DecisionOutcome.DROPPED, _over(settings)),
            ]
        too_much = [tokens for _, tokens in counts if tokens > limit]
        empty = len(result) <= start and bool(too_much)
        self.needed = min(too_much) + taken if empty else None
        self.cause = OverflowCause.FRAMEWORK if fits else OverflowCause.NEWEST_ATOM


def _is_cut(settings: Mapping[str, Any], out: set[int], given: Sequence[Any]) -> bool:
    """Whether a message is in the result of which only a part fitted."""
    return _cuts(settings) and not out <= set(map(id, given))


def _cuts(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("allow_partial") or settings.get("partial_strategy"))


def _over(settings: Mapping[str, Any]) -> DecisionReason:
    return DecisionReason.OUTSIDE_WINDOW if _by_count(settings) else DecisionReason.OVER_BUDGET


def _by_count(settings: Mapping[str, Any]) -> bool:
    """Whether the limit is a number of messages."""
    return settings.get("token_counter") is len


def last_max_tokens(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around what trims from the front."""
    return _around(original, instrumentation, last=True)


def first_max_tokens(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around what trims from the end, by which the other one works too."""
    return _around(original, instrumentation, last=False)


def _around(original: Callable[..., Any], instrumentation: Instrumentation, *, last: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def trim(messages: Any, *args: Any, **settings: Any) -> Any:
        if not instrumentation.listening() or args:
            return original(messages, *args, **settings)
        if _INSIDE.get() or not messages or not settings.keys() >= _KEYS:
            return original(messages, **settings)
        given = messages if isinstance(messages, list) else list(messages)
        counting = _Counting(settings["token_counter"], frozenset(map(id, given)) if _cuts(settings) else None)
        summarising = SUMMARISING.get() if FOR_A_SUMMARY.get() else None
        edit = None if FOR_A_SUMMARY.get() else _edit(instrumentation, given, settings)
        step = edit.open() if edit is not None else None
        if edit is not None and edit.preparation is not None:
            with instrumentation.contained():
                edit.preparation.supposes(counting_model(settings["token_counter"]))
        try:
            with bound(_INSIDE, True), step if step is not None else nullcontext():
                result = original(given, **{**settings, "token_counter": counting})
        except BaseException as error:
            if edit is not None:
                edit.gave_up(error)
            raise
        with instrumentation.contained():
            trim = Trim(given, result, settings, counting.said, last=last)
            if summarising is not None:
                summarising.trimmed = trim.needed, settings["max_tokens"]
            elif edit is not None and step is not None:
                _tell(edit, step, trim, result, settings)
        if edit is not None:
            edit.end()  # where that could not be told
        return result

    return trim


def _edit(instrumentation: Instrumentation, given: list[Any], settings: Mapping[str, Any]) -> ReducerCall | None:
    edit: ReducerCall | None = None
    with instrumentation.contained():
        edit = ReducerCall(instrumentation, TRIM_MESSAGES, given, kind="reduction", config=lambda: _config(settings))
        edit.reason = _over(settings)
    return edit


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    limit = "max_messages" if _by_count(settings) else "max_tokens"
    told = {name: settings[name] for name in ("include_system", "allow_partial") if name in settings}
    return {limit: settings["max_tokens"], **told}


def _tell(
    edit: ReducerCall, step: ObservedStep, trim: Trim, result: Sequence[Any], settings: Mapping[str, Any]
) -> None:
    budget = settings["max_tokens"]
    if trim.needed is not None:
        unit = "items" if _by_count(settings) else "tokens"
        step.overflow(budget=budget, needed=trim.needed, cause=trim.cause, unit=unit)
    edit.verdicts, edit.explained = trim.verdicts, True
    edit.tell(result, budget=None if _by_count(settings) else budget)
