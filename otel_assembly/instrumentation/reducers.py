"""Functions that the hooks of all frameworks' reducers share: names, settings and limits of reducers, and verdicts.

Of any reducer the instrumentation sees the input and the output. For a built-in one, such as a sliding window, a
`ReducerSpec` adds its settings, its limit, and why it drops messages. Each framework has a table of specs by class
name, which `known_of` searches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.budget.compact_errors import is_error_text
from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.instrumentation.reductions import Reduction

T = TypeVar("T")

#: The places between two words of a class name.
_WORDS: Final = re.compile("(?<=[a-z0-9])(?=[A-Z])")


def orphaned(kept: Sequence[Any], after: Sequence[Any]) -> list[Verdict]:
    """Return verdicts for messages that a reducer's rule keeps (`kept`) and its output lacks (`after`).

    The reducer dropped them because a part is missing: a tool call, its result, or the item that follows reasoning.
    """
    if len(after) >= len(kept) and all(map(is_, reversed(kept), reversed(after))):
        return []
    return left_for(kept, after, _orphan_reason)


def _orphan_reason(event: Any) -> DecisionReason:
    facts = describe(event)
    if facts.closes:
        return DecisionReason.ORPHANED_TOOL_RESULT
    return DecisionReason.ORPHANED_TOOL_CALL if facts.opens else DecisionReason.ORPHANED_REASONING


def name_of(reducer: Any) -> str:
    """Return the reducer's ``name`` if it is a string that is not empty, or else the name of its class."""
    name = getattr(reducer, "name", None)
    return name if isinstance(name, str) and name else type(reducer).__name__


def no_summary(answer: Any, messages: Iterable[Any]) -> CompactionOutcome | None:
    """Return why a summarizer's answer to messages is no summary: it is empty or an error text; None if it is one."""
    text = answer if isinstance(answer, str) else ""
    if not text.strip():
        return CompactionOutcome.EMPTY
    if is_error_text(text, "\n".join(describe(message).text for message in messages)):
        return CompactionOutcome.ERROR_TEXT
    return None


def is_ours(candidate: Any) -> bool:
    """Return whether an object is a plug-in of this library, which records its own assemblies."""
    return bool(getattr(candidate, "otel_assembly_plugin", False))


def is_in(cls: type, packages: Iterable[str]) -> bool:
    """Return whether a class is defined in one of these packages or modules."""
    return any(f"{cls.__module__}.".startswith(f"{package}.") for package in packages)


def is_own(reducer: Any, packages: Iterable[str]) -> bool:
    """Return whether the framework, which consists of these packages, defines the reducer's class."""
    return is_in(type(reducer), packages)


def policy_name(
    reducer: Any,
    packages: Iterable[str],
    *endings: str,
    names: Mapping[str, str] = {},  # never written to
    lambda_name: str = "<lambda>",
) -> str:
    """Return the name of a reducer's step, of low cardinality.

    It is the name of the class or function if the program defines it, and `lambda_name` for a lambda. For the
    framework's own reducers, which are defined in `packages`, it is the name in `names`, or else the class name without
    the `endings`, in snake case. The endings are removed one after another.
    """
    name = str(getattr(reducer, "__name__", type(reducer).__name__))
    if name == "<lambda>":
        return lambda_name
    if not is_own(reducer, packages):
        return name
    if name in names:
        return names[name]
    for ending in endings:
        name = name.removesuffix(ending)
    return _WORDS.sub("_", name).lower()


def settings_of(reducer: Any, exclude: Collection[str] = ()) -> Mapping[str, int | float]:
    """Return the numbers and booleans among a reducer's public attributes, without the excluded names."""
    names: Any = getattr(reducer, "__dict__", None) or getattr(type(reducer), "__slots__", ())
    values = {name: getattr(reducer, name, None) for name in names if name[0] != "_" and name not in exclude}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def limit_of(source: Any, *names: str) -> int | None:
    """Return the first attribute, or key of a dict, among these names that is an integer; None if there is none."""
    for name in names:
        limit = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
        if type(limit) is int:
            return limit
    return None


def left_for(before: Iterable[Any], after: Iterable[Any], why: Callable[[Any], DecisionReason | None]) -> list[Verdict]:
    """Return one verdict per reason for the messages that a reducer removed.

    `why` returns the reason of a removed message. If it returns None, the message gets no verdict, but the step's own
    reason.
    """
    after_ids, removed = set(map(id, after)), defaultdict[Any, list[Any]](list)
    for message in before:
        if id(message) not in after_ids:
            removed[why(message)].append(message)
    return [Verdict(messages, outcome_of(reason), reason) for reason, messages in removed.items() if reason is not None]


def outcome_of(reason: DecisionReason) -> DecisionOutcome:
    """Return the outcome of a removed message: compacted if a summary contains it, or else dropped."""
    compacted = reason is DecisionReason.COMPACTED
    return DecisionOutcome.COMPACTED if compacted else DecisionOutcome.DROPPED


def _value_of(setting: Callable[..., Any] | str, reducer: Any, *messages: Any) -> Any:
    """Return a setting of a `ReducerSpec`: the result of its function, or the value of its attribute."""
    return setting(reducer, *messages) if callable(setting) else getattr(reducer, setting, None)


def known_of(cls: type, table: Mapping[str, T], packages: Collection[str]) -> T | None:
    """Return the entry for a class, or for its nearest base class, that the framework defines; None if there is none.

    The table has the names of the framework's classes as keys. A class is the framework's if it is defined in
    `packages`.
    """
    names = (base.__name__ for base in cls.__mro__ if is_in(base, packages))
    return next((table[name] for name in names if name in table), None)


@dataclass(frozen=True, slots=True)
class ReducerSpec:
    """The description of one of a framework's built-in reducers.

    A function in `keeps`, `limit` or `reported` takes the reducer, its input and its output.

    Attributes:
        policy: The name of the reducer's step, of low cardinality.
        kind: ``reduction`` or ``injection``; None if it is not known.
        reason: Why the reducer drops messages.
        settings: The recorded settings, by name: the attribute of the reducer, or a function of the reducer.
        keeps: Returns the messages that the reducer's rule keeps. If the output lacks one of them, the reducer dropped
            it because the other half of its tool pair is missing.
        limit: The attribute with the reducer's limit, or a function that returns it. A limit in tokens is recorded as
            the budget. The limit was exceeded if the output is empty (tokens), or longer than the limit (items).
        unit: The unit of the limit: ``tokens`` or ``items``.
        reported: Returns the number of dropped messages that the reducer states, for example in its output; None if
            it states none.
    """

    policy: str = ""
    kind: str | None = "reduction"
    reason: DecisionReason = DecisionReason.POLICY
    settings: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    keeps: Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None
    limit: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | str | None = None
    unit: str = "tokens"
    reported: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | None = None

    def config(self, reducer: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the reducer's settings, without those that cannot be read."""
        values = {name: _value_of(setting, reducer) for name, setting in self.settings.items()}
        return {name: value for name, value in values.items() if value is not None}

    def done(
        self,
        reduction: Reduction,
        reducer: Any,
        after: Sequence[Any],
        *,
        prompts: Sequence[str] | None = None,
        alerts: Sequence[AlertFacts] = (),
    ) -> None:
        """Record the step of one reduction, with an overflow if the output exceeds the reducer's limit.

        A built-in reducer's step is recorded even if it changed nothing. `prompts` are the system prompts after the
        reducer; None if it did not change them. `alerts` are those that the reducer delivered to the model.
        """
        arguments = reducer, reduction.before, after
        limit = None if self.limit is None else _value_of(self.limit, *arguments)
        orphans = () if self.keeps is None else orphaned(self.keeps(*arguments), after)
        is_too_long = self.unit == "items" and len(after) > max(0, limit or 0)
        is_emptied = self.unit == "tokens" and reduction.before and not after and not orphans
        if limit is not None and (is_too_long or is_emptied) and (step := reduction.open()) is not None:
            needed, cause = len(after), OverflowCause.FRAMEWORK
            if is_emptied:  # the framework counted more tokens than the limit, even if our tokenizer counts fewer
                needed = max(limit + 1, sum(map(step.count, describe(reduction.before[-1]).texts)))
                cause = OverflowCause.NEWEST_ATOM
            step.overflow(budget=limit, needed=needed, cause=cause, unit=self.unit)
        reduction.report = replace(
            reduction.report,
            prompts=prompts,
            reason=self.reason,
            # Verdicts of a summarizer's hook concern the same messages, and say more.
            verdicts=reduction.report.verdicts or orphans,
            budget=limit if self.unit == "tokens" else None,
            alerts=alerts,
            reported=None if self.reported is None else self.reported(*arguments),
        )
        reduction.done(after, always=True)


hide_frames(globals())
