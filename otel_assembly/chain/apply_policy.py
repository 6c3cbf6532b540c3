"""How one policy is applied: ours by what they decide, anybody's by what goes in and comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from inspect import isawaitable
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.intervals import to_runs
from otel_assembly.chain.step_diff import EXITS, match
from otel_assembly.decision import Outcome, Verdict
from otel_assembly.errors import DescribeError, PolicyContractError
from otel_assembly.history.history import ListHistory
from otel_assembly.history.view import Edited, View
from otel_assembly.ledger.snapshot import ItemGroup, ItemIds, NumberedHistory, StepCompaction, item_id_runs
from otel_assembly.policies import POLICIES, DecidingPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.context import Context
    from otel_assembly.decision import Compaction, DecisionOutcome, DecisionReason
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.policies.base import AssemblyPolicy

_OURS: Final = frozenset(POLICIES.values())


def config_of(policy: AssemblyPolicy) -> Mapping[str, Any]:
    """The settings for a span; of a policy that is not ours numbers and enums only: a string could be content."""
    if isinstance(policy, DecidingPolicy) and type(policy) in _OURS:
        return policy.config
    try:
        config = getattr(policy, "config", None)
        settings = dict(config) if isinstance(config, Mapping) else {}
    except Exception:  # noqa: BLE001  # a span's attribute is no reason to fail
        return {}
    return {
        str(name): value for name, value in settings.items() if value is None or isinstance(value, int | float | Enum)
    }


async def apply(policy: AssemblyPolicy, step: Step, context: Context, ledger: Ledger) -> None:
    """Apply a policy and write down in `step` what it did; where this raises, nothing is written but the halts.

    Raises:
        PolicyContractError: It changed its input, or returned something else than two sequences.
    """
    halts = context.halts_emitted
    try:
        if isinstance(policy, DecidingPolicy) and type(policy) in _OURS:
            outcome = await policy.decide(step.prompts_in, step.view_in, context)
        else:
            outcome = await _foreign(policy, step, context)
    finally:
        step.halts = context.halts_emitted - halts
    prompts, alerts = _prompts(policy, step, outcome.prompts), tuple(outcome.alerts)
    _events(policy, step, outcome, ledger)
    step.let_out(prompts)
    step.alerts = alerts
    step.budget, step.fixed, step.overflow = outcome.budget, outcome.fixed, outcome.overflow
    step.report = outcome.report
    step.framing, step.separators, step.around_in = outcome.framing, outcome.separators, outcome.around_in
    step.compactions = tuple(_compactions(step, outcome.compactions))


async def _foreign(policy: AssemblyPolicy, step: Step, context: Context) -> Outcome:
    """Apply a policy that is not ours, and make sure that it changed nothing in place."""
    prompts, events = list(step.prompts_in), list(step.view_in)
    given = list(events)
    watched = [_containers(event) for event in given]
    decides = _decides(policy)
    decide: Any = getattr(policy, "decide", None)
    try:
        made: Any = (
            decide(step.prompts_in, step.view_in, context) if decides else policy.apply(prompts, events, context)
        )
        result = await made if isawaitable(made) else made
    finally:
        changed = [index for index, containers in enumerate(watched) if _put_back(containers)]
    if changed:
        raise PolicyContractError(
            policy.name,
            step.index,
            f"changed event {changed[0]} of its input in place (it was put back); return a changed copy instead",
        )
    if prompts != list(step.prompts_in) or len(events) != len(given) or not all(map(is_, events, given)):
        raise PolicyContractError(
            policy.name, step.index, "changed the list that it was given; return a new list instead"
        )
    if decides:
        if isinstance(result, Outcome):
            return result
        raise PolicyContractError(policy.name, step.index, f"decided {_shape(result)}, expected an Outcome")
    if not isinstance(result, tuple) or len(result) != 2 or not all(map(_is_sequence, result)):
        raise PolicyContractError(
            policy.name, step.index, f"returned {_shape(result)}, expected (prompts, events): two sequences"
        )
    return Outcome(result[0], result[1])


def _decides(policy: AssemblyPolicy) -> bool:
    """Whether a policy has a `decide` that its `apply` does not override."""
    if not callable(getattr(policy, "decide", None)):
        return False
    classes = type(policy).__mro__
    level = {name: next((i for i, one in enumerate(classes) if name in vars(one)), -1) for name in ("decide", "apply")}
    return level["decide"] <= level["apply"]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _shape(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__


def _containers(value: Any) -> list[tuple[Any, Any]]:
    """A chat message and the containers in it, each with a copy; what is in other types of events is not watched."""
    if isinstance(value, dict):
        return [(value, dict(value)), *(pair for part in value.values() for pair in _containers(part))]
    if isinstance(value, list):
        return [(value, list(value)), *(pair for part in value for pair in _containers(part))]
    return []


def _put_back(containers: list[tuple[Any, Any]]) -> bool:
    """Undo changes in place; whether there were any."""
    changed = False
    for container, was in containers:
        if container != was:
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(was)
            changed = True
    return changed


def _prompts(policy: AssemblyPolicy, step: Step, prompts: Any) -> tuple[str, ...]:
    if not _is_sequence(prompts) or not all(isinstance(prompt, str) for prompt in prompts):
        raise PolicyContractError(policy.name, step.index, "returned prompts that are not a sequence of strings")
    return tuple(prompts)


def _events(policy: AssemblyPolicy, step: Step, outcome: Outcome, ledger: Ledger) -> None:
    events: Any = outcome.events
    if not _is_sequence(events):
        raise PolicyContractError(
            policy.name, step.index, f"returned events that are a {type(events).__name__}, expected a sequence"
        )
    if type(policy) in _OURS and isinstance(events, View) and events.history is step.view_in.history:
        step.view_out = events
        _take_verdicts(step, outcome.decisions)
    elif type(policy) in _OURS and isinstance(events, Edited) and events.view.history is step.view_in.history:
        _take_edits(step, events, ledger)
        _take_verdicts(step, outcome.decisions)
    elif events is not step.view_in or outcome.decisions:
        try:
            match(step, list(step.view_in), list(events), outcome.decisions, ledger)
        except DescribeError as error:
            raise PolicyContractError(
                policy.name, step.index, f"returned an event that cannot be read: {error}"
            ) from error


def _compactions(step: Step, compactions: Sequence[Compaction]) -> Iterator[StepCompaction]:
    """Compactions of this assembly by item id; one that came to nothing stands for nothing."""
    compactions = [compaction for compaction in compactions if compaction.attempts]
    if not compactions:
        return
    made = {id(event): item_id for event, item_id in step.created}
    for compaction in compactions:
        result = made.get(id(compaction.into))
        if result is not None:
            yield StepCompaction(_ids(step, compaction.events), result, tuple(compaction.attempts))


def _ids(step: Step, events: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    if isinstance(events, View) and events.history is step.view_in.history:
        return tuple(item_id_runs(events, step.numbered_in))
    wanted = set(map(id, events))
    here = to_runs(index for index, event in enumerate(step.view_in) if id(event) in wanted)
    return tuple(item_id_runs(step.view_in.pick(here), step.numbered_in))


def _group(step: Step, view: View, outcome: DecisionOutcome, reason: DecisionReason) -> ItemGroup:
    return ItemGroup(view, step.numbered_in, outcome, reason)


def _take_verdicts(step: Step, verdicts: Sequence[Verdict]) -> None:
    """Groups from our own policies' verdicts, which are views and name all that left."""
    groups = [
        _group(step, verdict.events, verdict.outcome, verdict.reason)
        for verdict in verdicts
        if isinstance(verdict.events, View)
    ]
    step.exits = tuple(group for group in groups if group.outcome in EXITS)
    step.pinned = tuple(group for group in groups if group.outcome not in EXITS)


def _take_edits(step: Step, events: Edited, ledger: Ledger) -> None:
    """The output of a policy that knows which of its events came in where: nothing has to be looked for."""
    before = events.view.history
    facts = (
        ledger.facts(event) if position is None else before.facts(position)
        for event, position in zip(events, events.positions, strict=True)
    )
    history = ListHistory(events, facts)
    numbered = NumberedHistory(history, ItemIds())
    known = {id(event): item_id for event, item_id in ledger.made_by(step)}
    made: list[tuple[Any, int]] = []
    made_at: list[int] = []
    for place, (event, position) in enumerate(zip(events, events.positions, strict=True)):
        if position is not None:
            numbered.item_ids.extend(1, step.numbered_in.item_ids.of(position))
            continue
        item_id = known.get(id(event))
        made.append((event, ledger.take(1) if item_id is None else item_id))
        made_at.append(place)
        numbered.item_ids.extend(1, made[-1][1])
    step.numbered_out, step.view_out = numbered, history.view()
    step.created, step.created_positions = tuple(made), tuple(made_at)
