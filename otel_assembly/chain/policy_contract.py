"""Policies whose word is not enough: given lists, or dicts that they read, they may change them; or say what is not so.

What was changed in place is put back and refused, and so is an output that is not what a policy returns. Of events that
are no part of what went in, and of verdicts that their events do not bear out, it is found out what was done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from inspect import isawaitable
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakSet

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.chain.step_diff import match, match_part
from otel_assembly.decision import Outcome
from otel_assembly.errors import DescribeError, PolicyContractError
from otel_assembly.history.edited import Edited, EventList

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly._internal import sync_calls
    from otel_assembly.context import Context
    from otel_assembly.decision import Verdict
    from otel_assembly.history.view import View
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.policies.base import AssemblyPolicy

    #: Messages that a policy has read, by their `id()`: each container in them with a copy; only dicts and lists.
    Seen: TypeAlias = dict[int, list[tuple[Any, Any]]]
else:
    sync_calls = LazyModule("otel_assembly._internal.sync_calls")

logger: Final = logging.getLogger("otel_assembly")
#: Classes of policies of which a warning has said that a verdict was not true.
_warned: Final[WeakSet[type]] = WeakSet()


async def apply_to_lists(policy: AssemblyPolicy, step: Step, context: Context, *, in_place: bool) -> Outcome:
    """What a policy returns that is given lists; it is made sure that it changed neither them nor what is in them."""
    prompts, events = list(step.prompts_in), EventList(step.view_in)
    given = list(events)
    seen: Seen = {}
    if step.view_in.history.of_dicts:
        for event in given:
            remember(seen, event)
    try:
        result: Any = policy.apply(prompts, events, context)
        if isawaitable(result):
            result = sync_calls.run_blocking(result) if in_place else await result
    finally:
        changed = restore(seen)
    if changed:
        raise refuse(policy, step, changed)
    if prompts != list(step.prompts_in) or len(events) != len(given) or not all(map(is_, events, given)):
        raise PolicyContractError(
            policy.name, step.index, "changed the list that it was given; return a new list instead"
        )
    if not isinstance(result, tuple) or len(result) != 2 or not all(map(_is_sequence, result)):
        raise PolicyContractError(
            policy.name, step.index, f"returned {shape(result)}, expected (prompts, events): two sequences"
        )
    return Outcome(result[0], step.view_in if result[1] is events else result[1])


def remember(seen: Seen, event: Any) -> Any:
    """Keep what a message holds, and hand it on; what is in other types of events is not watched."""
    if isinstance(event, dict | list) and id(event) not in seen:
        seen[id(event)] = _containers(event)
    return event


def _containers(value: Any) -> list[tuple[Any, Any]]:
    """A container and those in it, each with a copy."""
    found: list[tuple[Any, Any]] = [(value, dict(value) if isinstance(value, dict) else list(value))]
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            found += _containers(part)
    return found


def restore(seen: Seen) -> set[int]:
    """Undo changes in place; which messages there were any in, by their `id()`."""
    changed: set[int] = set()
    for message, containers in seen.items():
        for container, was in containers:
            if container != was:
                container.clear()
                (container.update if isinstance(container, dict) else container.extend)(was)
                changed.add(message)
    return changed


def refuse(policy: AssemblyPolicy, step: Step, changed: Iterable[int]) -> PolicyContractError:
    """What is raised where messages were changed in place; it names the first one."""
    index = next(index for index, event in enumerate(step.view_in) if id(event) in changed)
    return PolicyContractError(
        policy.name,
        step.index,
        f"changed event {index} of its input in place (it was put back); return a changed copy instead",
    )


def prompts_of(policy: AssemblyPolicy, step: Step, prompts: Any) -> tuple[str, ...]:
    """Prompts that a policy returned.

    Raises:
        PolicyContractError: They are something else.
    """
    if not (_is_sequence(prompts) and all(isinstance(one, str) for one in prompts)):
        raise PolicyContractError(policy.name, step.index, "returned prompts that are not a sequence of strings")
    return tuple(prompts)


def compare(
    policy: AssemblyPolicy, step: Step, events: Any, part: View | None, verdicts: Sequence[Verdict], ledger: Ledger
) -> None:
    """Find out what a policy did, and write it down in `step`.

    Args:
        policy: The policy.
        step: The step.
        events: What it returned.
        part: That, where it is a part of what went in and reads as it did there.
        verdicts: What it says of the rest; of these, the true ones are heeded.
        ledger: The conversation's ledger.

    Raises:
        PolicyContractError: They are no events.
    """
    if not _is_sequence(events):
        raise PolicyContractError(
            policy.name, step.index, f"returned events that are a {type(events).__name__}, expected a sequence"
        )
    true = match_part(step, part, verdicts) if part is not None else None
    edited = isinstance(events, Edited) and events.view.history is step.view_in.history
    if true is False or edited:
        _warn(policy)
    if true is not None:
        return
    try:
        match(step, list(step.view_in), list(events), verdicts, ledger)
    except DescribeError as error:
        raise PolicyContractError(policy.name, step.index, f"returned an event that cannot be read: {error}") from error


def _warn(policy: AssemblyPolicy) -> None:
    if type(policy) not in _warned:
        _warned.add(type(policy))
        logger.warning(
            "policy %r gave a verdict that its events do not bear out; what left without a true one has the reason "
            "'policy' (said once for each class)",
            policy.name,
        )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def shape(value: Any) -> str:
    """What a policy returned, in words: its type."""
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__
