"""What the reducers of all frameworks have in common."""

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

#: The step that reports what no hook explains of what a model is called with.
FRAMEWORK: Final = "framework"
#: Where the words of a class's name begin.
_WORDS: Final = re.compile("(?<=[a-z0-9])(?=[A-Z])")


def orphaned(stays: Sequence[Any], events: Sequence[Any]) -> list[Verdict]:
    """Why what a reducer's own rule keeps did not come out: calls and results that had lost their other half."""
    if len(events) >= len(stays) and all(map(is_, reversed(stays), reversed(events))):
        return []
    out = set(map(id, events))
    lost: dict[DecisionReason, list[Any]] = {
        DecisionReason.ORPHANED_TOOL_RESULT: [],
        DecisionReason.ORPHANED_TOOL_CALL: [],
        DecisionReason.ORPHANED_REASONING: [],
    }
    results, calls, reasoning = lost.values()
    for event in stays:
        if id(event) not in out:
            facts = describe(event)
            (results if facts.closes else calls if facts.opens else reasoning).append(event)
    return [Verdict(gone, DecisionOutcome.DROPPED, reason) for reason, gone in lost.items() if gone]


def name_of(reducer: Any) -> str:
    """The name that a reducer gives itself, else its class's."""
    name = getattr(reducer, "name", None)
    return name if isinstance(name, str) and name else type(reducer).__name__


def no_summary(answer: Any, read: Iterable[Any]) -> CompactionOutcome | None:
    """Why a summariser's answer is no summary of the messages that it has read; None where it is one."""
    text = answer if isinstance(answer, str) else ""
    if not text.strip():
        return CompactionOutcome.EMPTY
    if is_error_text(text, "\n".join(describe(message).text for message in read)):
        return CompactionOutcome.ERROR_TEXT
    return None


def without_summaries(
    before: Sequence[Any], after: Sequence[Any], text_of: Callable[[Any], str | None]
) -> list[Verdict]:
    """Why messages are lost, where what was made for them is no summary of them.

    Args:
        before: The messages that were compacted.
        after: What is left of them, with what was made.
        text_of: The text of a summary; None of any other message.
    """
    held, stays = set(map(id, before)), set(map(id, after))
    gone = [message for message in before if id(message) not in stays]
    made = [text for message in after if id(message) not in held and (text := text_of(message)) is not None]
    lost = bool(made) and all(no_summary(text, gone) for text in made)
    return [Verdict(gone, DecisionOutcome.DROPPED, DecisionReason.POLICY_ERROR)] if lost else []


def is_ours(one: Any) -> bool:
    """Whether this is a plug-in of ours, which tells of its assemblies by itself."""
    return bool(getattr(one, "otel_assembly_plugin", False))


def is_in(met: type, packages: Iterable[str]) -> bool:
    """Whether a class is defined in one of these packages, or modules."""
    return any(f"{met.__module__}.".startswith(f"{package}.") for package in packages)


def is_own(reducer: Any, packages: Iterable[str]) -> bool:
    """Whether a reducer is one that the framework brings, by the packages that it consists of."""
    return is_in(type(reducer), packages)


def policy_name(
    reducer: Any,
    packages: Iterable[str],
    *endings: str,
    names: Mapping[str, str] = {},  # never written to
) -> str:
    """A name of low cardinality: a program's own reducer is called as it is there; the framework's by what it does.

    Args:
        reducer: An object, or a function.
        packages: As for `is_own`.
        endings: What the names of the framework's classes end in, the outermost first.
        names: Those of some of its classes that say less.
    """
    name = str(getattr(reducer, "__name__", type(reducer).__name__))
    if not is_own(reducer, packages):
        return name
    if name in names:
        return names[name]
    for ending in endings:
        name = name.removesuffix(ending)
    return _WORDS.sub("_", name).lower()


def settings_of(reducer: Any, leaves_out: Collection[str] = ()) -> Mapping[str, int | float]:
    """The numbers that a reducer holds by public names."""
    names: Any = getattr(reducer, "__dict__", None) or getattr(type(reducer), "__slots__", ())
    held = {name: getattr(reducer, name, None) for name in names if name[0] != "_" and name not in leaves_out}
    return {name: value for name, value in held.items() if isinstance(value, int | float)}


def limit_of(held_by: Any, *names: str) -> int | None:
    """The first of these that is a whole number, of what a reducer has for attributes, or a mapping for keys."""
    held = (held_by.get(name) if isinstance(held_by, dict) else getattr(held_by, name, None) for name in names)
    return next((limit for limit in held if type(limit) is int), None)


def left_for(before: Iterable[Any], after: Iterable[Any], why: Callable[[Any], DecisionReason | None]) -> list[Verdict]:
    """Why each message left, by what is known of it; of those of which nothing is known, the step itself says it."""
    kept, gone = set(map(id, after)), defaultdict[Any, list[Any]](list)
    for message in before:
        if id(message) not in kept:
            gone[why(message)].append(message)
    return [Verdict(messages, outcome_of(known), known) for known, messages in gone.items() if known is not None]


def outcome_of(reason: DecisionReason) -> DecisionOutcome:
    """What became of what left for this reason: it is in a summary, or gone."""
    compacted = reason is DecisionReason.COMPACTED
    return DecisionOutcome.COMPACTED if compacted else DecisionOutcome.DROPPED
