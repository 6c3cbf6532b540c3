"""Functions that the hooks of all frameworks' reducers share: names, settings and limits of reducers, and verdicts."""

from __future__ import annotations

import re
from collections import defaultdict
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.budget.compact_errors import is_error_text
from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

#: The name of the step with the changes of a client request that no hook accounts for.
FRAMEWORK: Final = "framework"
#: The places between two words of a class name.
_WORDS: Final = re.compile("(?<=[a-z0-9])(?=[A-Z])")


def orphaned(kept: Sequence[Any], after: Sequence[Any]) -> list[Verdict]:
    """Return verdicts for messages that a reducer's rule keeps (`kept`) and its output lacks (`after`).

    The reducer dropped them because a part is missing: a tool call, its result, or the item that follows reasoning.
    """
    if len(after) >= len(kept) and all(map(is_, reversed(kept), reversed(after))):
        return []
    after_ids = set(map(id, after))
    dropped: dict[DecisionReason, list[Any]] = {
        DecisionReason.ORPHANED_TOOL_RESULT: [],
        DecisionReason.ORPHANED_TOOL_CALL: [],
        DecisionReason.ORPHANED_REASONING: [],
    }
    results, calls, reasoning = dropped.values()
    for event in kept:
        if id(event) not in after_ids:
            facts = describe(event)
            (results if facts.closes else calls if facts.opens else reasoning).append(event)
    return [Verdict(events, DecisionOutcome.DROPPED, reason) for reason, events in dropped.items() if events]


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
    values = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for name in names)
    return next((limit for limit in values if type(limit) is int), None)


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
