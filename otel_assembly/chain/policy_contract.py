"""Check what policies do: changes of their input in place, invalid outputs, and verdicts that the output contradicts.

A policy that receives lists or dicts can change them in place. Such a change is undone, and the policy's output refused
with a `PolicyContractError`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from inspect import isawaitable
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakSet

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.chain.step_diff import write_difference, write_part
from otel_assembly.decision import Outcome
from otel_assembly.errors import DescribeError, PolicyContractError
from otel_assembly.history.view import Edited, EventList, View
from otel_assembly.matching.sequence_diff import diff_sequences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly._internal import sync_calls
    from otel_assembly.context import Context
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.policies.base import AssemblyPolicy

    #: By the `id()` of each message that a policy has read, its dicts and lists, each with a copy.
    MessageCopies: TypeAlias = dict[int, list[tuple[Any, Any]]]
else:
    sync_calls = LazyModule("otel_assembly._internal.sync_calls")

logger: Final = logging.getLogger("otel_assembly")
#: The policy classes for which the warning about a false verdict was logged.
_warned: Final[WeakSet[type]] = WeakSet()


async def apply_to_lists(policy: AssemblyPolicy, step: Step, context: Context, *, in_place: bool) -> Outcome:
    """Return the outcome of a policy's `apply`, which receives lists and must change neither them nor their events."""
    prompts, events = list(step.before.prompts), EventList(step.before.view)
    originals = list(events)
    copies: MessageCopies = {}
    if step.before.view.history.of_dicts:
        for event in originals:
            copy_containers(copies, event)
    try:
        result: Any = policy.apply(prompts, events, context)
        if isawaitable(result):
            result = sync_calls.run_blocking(result) if in_place else await result
    finally:
        changed = restore(copies)
    if changed:
        raise changed_input_error(step, changed)
    if prompts != list(step.before.prompts) or len(events) != len(originals) or not all(map(is_, events, originals)):
        problem = "changed the list that it was given; return a new list instead"
        raise PolicyContractError(step.policy, step.index, problem)
    if not isinstance(result, tuple) or len(result) != 2 or not all(map(_is_sequence, result)):
        problem = f"returned {type_text(result)}, expected (prompts, events): two sequences"
        raise PolicyContractError(step.policy, step.index, problem)
    return Outcome(result[0], step.before.view if result[1] is events else result[1])


def copy_containers(copies: MessageCopies, event: Any) -> Any:
    """Store a copy of a message's dicts and lists, and return the message. Other types of events are not copied."""
    if isinstance(event, dict | list) and id(event) not in copies:
        copies[id(event)] = _containers(event)
    return event


def _containers(value: Any) -> list[tuple[Any, Any]]:
    """Return a dict or list and those nested in it, each with a shallow copy."""
    containers: list[tuple[Any, Any]] = [(value, dict(value) if isinstance(value, dict) else list(value))]
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            containers += _containers(part)
    return containers


def restore(copies: MessageCopies) -> set[int]:
    """Undo changes of messages in place; return the `id()` of each message that was changed."""
    changed: set[int] = set()
    for message, containers in copies.items():
        for container, original in containers:
            if container != original:
                container.clear()
                (container.update if isinstance(container, dict) else container.extend)(original)
                changed.add(message)
    return changed


def changed_input_error(step: Step, changed: Iterable[int]) -> PolicyContractError:
    """Return the error for messages that a policy changed in place; it names the first one."""
    index = next(index for index, event in enumerate(step.before.view) if id(event) in changed)
    problem = f"changed event {index} of its input in place (it was put back); return a changed copy instead"
    return PolicyContractError(step.policy, step.index, problem)


def prompts_of(step: Step, prompts: Any) -> tuple[str, ...]:
    """Return the prompts that a policy returned, which must be a sequence of strings, as a tuple."""
    if not (_is_sequence(prompts) and all(isinstance(prompt, str) for prompt in prompts)):
        raise PolicyContractError(step.policy, step.index, "returned prompts that are not a sequence of strings")
    return tuple(prompts)


def compare_output(policy: AssemblyPolicy, step: Step, outcome: Outcome, ledger: Ledger) -> None:
    """Compare a policy's output events, which must be a sequence, with its input; write the difference to `step`."""
    events: Any = outcome.events
    if not _is_sequence(events):
        problem = f"returned events that are a {type(events).__name__}, expected a sequence"
        raise PolicyContractError(step.policy, step.index, problem)
    history, verdicts = step.before.view.history, outcome.decisions
    is_view = isinstance(events, View) and events.history is history
    are_true = write_part(step, events, verdicts) if is_view else None
    if are_true is None:
        inputs, outputs = list(step.before.view), list(events)
        try:
            diff = diff_sequences(inputs, outputs, read=ledger.facts_of)
            write_difference(step, inputs, outputs, diff, verdicts, ledger)
        except DescribeError as error:
            problem = f"returned an event that cannot be read: {error}"
            raise PolicyContractError(step.policy, step.index, problem) from error
    is_edited = isinstance(events, Edited) and events.view.history is history
    if (are_true is False or is_edited) and type(policy) not in _warned:
        _warned.add(type(policy))
        logger.warning(
            "policy %r returned a verdict that contradicts its output; events that it dropped without a valid verdict "
            "have the reason 'policy' (logged once for each class)",
            policy.name,
        )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def type_text(value: Any) -> str:
    """Return the type of a policy's result as text, for an error message."""
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__
