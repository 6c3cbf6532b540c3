"""How one policy is applied: by what it decides, or else by what goes in and comes out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from inspect import isawaitable
from itertools import pairwise
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin
from weakref import WeakSet

from otel_assembly.chain.step_diff import EXITS, match, match_part, put_back
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome
from otel_assembly.errors import DescribeError, PolicyContractError
from otel_assembly.history.broken_pairs import echoes_stand
from otel_assembly.history.edited import Edited, EventList
from otel_assembly.history.history import ListHistory
from otel_assembly.history.view import Column, Segment, View, reader, runs_of, to_runs
from otel_assembly.ledger.snapshot import ItemGroup, ItemIds, NumberedHistory, StepCompaction, item_id_runs
from otel_assembly.policies.base import parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.context import Context
    from otel_assembly.decision import Compaction, Verdict
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike

logger: Final = logging.getLogger("otel_assembly")
#: Classes of policies of which a warning has said that a verdict was not true.
_warned: Final[WeakSet[type]] = WeakSet()


async def apply(policy: AssemblyPolicy, step: Step, context: Context, ledger: Ledger) -> None:
    """Apply a policy and write down in `step` what it did; where this raises, nothing is written but the halts.

    Raises:
        PolicyContractError: It changed its input, or returned something else than two sequences.
    """
    halts = context.halts_emitted
    try:
        outcome = await (_decided if _decides(type(policy)) else _applied)(policy, step, context)
    finally:
        step.halts = context.halts_emitted - halts
    prompts, alerts = _prompts(policy, step, outcome.prompts), tuple(outcome.alerts)
    _take_events(policy, step, outcome, ledger)
    if prompts is not step.prompts_in:
        step.let_out(prompts)
    step.alerts = alerts
    step.budget, step.fixed, step.overflow = outcome.budget, outcome.fixed, outcome.overflow
    step.report = outcome.report
    step.framing, step.separators, step.around_in = outcome.framing, outcome.separators, outcome.around_in
    if outcome.compactions:
        step.compactions = tuple(_compactions(step, outcome.compactions, ledger))


@lru_cache(maxsize=512)
def _decides(policy: type) -> bool:
    """Whether a policy has a `decide` that its `apply` does not override."""
    if not callable(getattr(policy, "decide", None)):
        return False
    classes = policy.__mro__
    level = {name: next((i for i, one in enumerate(classes) if name in vars(one)), -1) for name in ("decide", "apply")}
    return level["decide"] <= level["apply"]


async def _decided(policy: Any, step: Step, context: Context) -> Outcome:
    """What a policy decides; it is given what it cannot change, but for dicts: those that it reads are watched."""
    seen = _Seen() if step.view_in.history.of_dicts else None
    before = reader.get()
    watched = seen is not None or before is not None
    try:
        if watched:
            reader.set(seen.read if seen is not None else None)
        made = policy.decide(step.prompts_in, step.view_in, context)
        outcome = await made if isawaitable(made) else made
    finally:
        if watched:
            reader.set(before)
        changed = seen.put_back() if seen is not None else ()
    _refuse_changed(policy, step, changed)
    if not isinstance(outcome, Outcome):
        raise PolicyContractError(policy.name, step.index, f"decided {_shape(outcome)}, expected an Outcome")
    return outcome


async def _applied(policy: AssemblyPolicy, step: Step, context: Context) -> Outcome:
    """What a policy returns that is given lists; it is made sure that it changed neither them nor what is in them."""
    prompts, events = list(step.prompts_in), EventList(step.view_in)
    given = list(events)
    seen = _Seen()
    if step.view_in.history.of_dicts:
        for event in given:
            seen.read(event)
    try:
        made: Any = policy.apply(prompts, events, context)
        result = await made if isawaitable(made) else made
    finally:
        changed = seen.put_back()
    _refuse_changed(policy, step, changed)
    if prompts != list(step.prompts_in) or len(events) != len(given) or not all(map(is_, events, given)):
        raise PolicyContractError(
            policy.name, step.index, "changed the list that it was given; return a new list instead"
        )
    if not isinstance(result, tuple) or len(result) != 2 or not all(map(_is_sequence, result)):
        raise PolicyContractError(
            policy.name, step.index, f"returned {_shape(result)}, expected (prompts, events): two sequences"
        )
    return Outcome(result[0], step.view_in if result[1] is events else result[1])


class _Seen:
    """Messages that a policy has read, each with a copy of the containers in it; only of dicts and lists.

    What is in other types of events is not watched.
    """

    def __init__(self) -> None:
        self._containers: dict[int, list[tuple[Any, Any]]] = {}

    def read(self, event: Any) -> Any:
        """Remember what a message holds, and hand it on."""
        if isinstance(event, dict | list) and id(event) not in self._containers:
            self._containers[id(event)] = _containers(event)
        return event

    def put_back(self) -> set[int]:
        """Undo changes in place; which messages there were any in, by their `id()`."""
        return {message for message, containers in self._containers.items() if _put_back(containers)}


def _containers(value: Any) -> list[tuple[Any, Any]]:
    """A container and those in it, each with a copy."""
    found: list[tuple[Any, Any]] = [(value, dict(value) if isinstance(value, dict) else list(value))]
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            found += _containers(part)
    return found


def _put_back(containers: list[tuple[Any, Any]]) -> bool:
    changed = False
    for container, was in containers:
        if container != was:
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(was)
            changed = True
    return changed


def _refuse_changed(policy: AssemblyPolicy, step: Step, changed: Iterable[int]) -> None:
    if changed:
        index = next(index for index, event in enumerate(step.view_in) if id(event) in changed)
        raise PolicyContractError(
            policy.name,
            step.index,
            f"changed event {index} of its input in place (it was put back); return a changed copy instead",
        )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _shape(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__


def _prompts(policy: AssemblyPolicy, step: Step, prompts: Any) -> tuple[str, ...]:
    if prompts is step.prompts_in:
        return step.prompts_in  # type: ignore[no-any-return]  # the very tuple
    if not (_is_sequence(prompts) and all(isinstance(one, str) for one in prompts)):
        raise PolicyContractError(policy.name, step.index, "returned prompts that are not a sequence of strings")
    return tuple(prompts)


def _take_events(policy: AssemblyPolicy, step: Step, outcome: Outcome, ledger: Ledger) -> None:
    """Write down what came out: a view of what went in is taken as it is, of anything else it is found out."""
    events: Any = outcome.events
    verdicts = outcome.decisions
    if events is step.view_in and not verdicts:
        return
    if not _is_sequence(events):
        raise PolicyContractError(
            policy.name, step.index, f"returned events that are a {type(events).__name__}, expected a sequence"
        )
    if isinstance(events, View) and events.history is step.view_in.history:
        if _take_view(policy, step, events, verdicts):
            return
    elif isinstance(events, Edited) and events.view.history is step.view_in.history:
        if _take_edits(step, events, verdicts, ledger):
            return
        _warn(policy)
    try:
        match(step, list(step.view_in), list(events), verdicts, ledger)
    except DescribeError as error:
        raise PolicyContractError(policy.name, step.index, f"returned an event that cannot be read: {error}") from error


def _take_view(policy: AssemblyPolicy, step: Step, part: View, verdicts: Sequence[Verdict]) -> bool:
    """Take a part of what went in, if it is one that reads as it did there."""
    history = part.history
    if part.is_slice and history.echoes and not echoes_stand(history, runs_of(part)):
        return False
    if _take_verdicts(step, part, verdicts):
        step.view_out = part
        return True
    true = match_part(step, part, verdicts)
    if true is None:
        return False
    if not true:
        _warn(policy)
    return True


def _take_verdicts(step: Step, stays: View, verdicts: Sequence[Verdict], edited: View | None = None) -> bool:
    """Groups from verdicts, if each is on a view and true; what left and is in none of them has the reason ``policy``.

    It costs what the views are made of, intervals, and not what they hold.

    Args:
        step: The step.
        stays: What went in and comes out.
        verdicts: Why the rest does not.
        edited: Where some of that is replaced, all that stays in its place or in another's.
    """
    exits: list[ItemGroup] = []
    pinned: list[ItemGroup] = []
    for verdict in verdicts:
        view = verdict.events
        if not (isinstance(view, View) and view.history is stays.history):
            return False
        groups = exits if verdict.outcome in EXITS else pinned
        groups.append(ItemGroup(view, step.numbered_in, verdict.outcome, verdict.reason))
    with stays.history.lock:  # no item goes over to another class meanwhile
        rest = _rest(step.view_in, [stays, *[group.view for group in exits]])
    held = edited if edited is not None else stays
    if rest is None:
        return False
    for group in pinned:
        if not all(map(held.holds, group.view.minus(held).positions())):
            return False
    exits += [ItemGroup(view, step.numbered_in, DecisionOutcome.DROPPED, DecisionReason.POLICY) for view in rest]
    step.exits, step.pinned = tuple(exits), tuple(pinned)
    return True


def _rest(whole: View, parts: Sequence[View]) -> list[View] | None:
    """What of a view is in none of its parts, a view for each column; None where two share an item, or one has another.

    The history's classes of events together are all of it, so that what is in the one is compared with the others.
    """
    if _make_up(whole, parts):
        return []
    history = whole.history
    #: By column and place, how many views more (or fewer) hold what is behind it than what is in front of it.
    edges: dict[Column, dict[int, int]] = {}
    for weight, view in ((1, whole), *((-1, part) for part in parts)):
        for column, start, stop in view.current:
            at = edges.setdefault(column, {})
            at[start] = at.get(start, 0) + weight
            at[stop] = at.get(stop, 0) - weight
    if len(edges) > 1 and any(column in edges for column in history.classes):
        for position, change in edges.pop(history.all, {}).items():
            for column in history.classes:
                at, index = edges.setdefault(column, {}), column.index(position)
                at[index] = at.get(index, 0) + change
    rest: list[View] = []
    for column, at in edges.items():
        held = 0
        left: list[Segment] = []
        for start, stop in pairwise(sorted(place for place, change in at.items() if change)):
            held += at[start]
            if held not in {0, 1}:
                return None
            if held:
                left.append((column, start, stop))
        if left:
            rest.append(View(history, left))
    return rest


def _make_up(whole: View, parts: Sequence[View]) -> bool:
    """Whether views of one column make up all of an interval of it, as a straight cut and what it leaves do."""
    if len(whole.current) != 1:
        return False
    column, at, end = whole.current[0]
    segments = [segment for part in parts for segment in part.current]
    segments.sort(key=_start)
    for one, start, stop in segments:
        if one is not column or start != at:
            return False
        at = stop
    return at == end


_start: Final = itemgetter(1)


def _warn(policy: AssemblyPolicy) -> None:
    if type(policy) not in _warned:
        _warned.add(type(policy))
        logger.warning(
            "policy %r gave a verdict that its events do not bear out; what left without a true one has the reason "
            "'policy' (said once for each class)",
            policy.name,
        )


def _compactions(step: Step, compactions: Sequence[Compaction], ledger: Ledger) -> Iterator[StepCompaction]:
    """Compactions of this assembly by item id; one that came to nothing stands for nothing."""
    made = {id(event): item_id for event, item_id in step.created}
    for compaction in compactions:
        result = made.get(id(compaction.into))
        # What a summary that goes on standing stands for is known already, and is as long as the conversation.
        if result is not None and (compaction.attempts or result not in ledger.leaves):
            provenance = _ids(step, compaction.events)
            ledger.leaves.remember(result, provenance)
            yield StepCompaction(provenance, result, tuple(compaction.attempts))


def _ids(step: Step, events: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    if isinstance(events, View) and events.history is step.view_in.history:
        return tuple(item_id_runs(events, step.numbered_in))
    wanted = set(map(id, events))
    here = to_runs(index for index, event in enumerate(step.view_in) if id(event) in wanted)
    return tuple(item_id_runs(step.view_in.pick(here), step.numbered_in))


def _take_edits(step: Step, events: Edited, verdicts: Sequence[Verdict], ledger: Ledger) -> bool:
    """The output of a policy that knows which of its events came in where: nothing has to be looked for."""
    stays = events.view.pick_positions(position for position in events.positions if position is not None)
    if not _take_verdicts(step, stays, verdicts, events.view):
        return False
    before = events.view.history
    facts = (
        ledger.facts(event) if position is None else before.facts(position)
        for event, position in zip(events, events.positions, strict=True)
    )
    history = ListHistory(events, facts)
    numbered = NumberedHistory(history, ItemIds())
    known = {id(event): item_id for event, item_id in ledger.made_by(step)}
    new = [event for event, position in zip(events, events.positions, strict=True) if position is None]
    known |= {event: items[0] for event, items in put_back(step, new).items()}
    made: list[tuple[Any, int]] = []
    made_at: list[int] = []
    for place, (event, position) in enumerate(zip(events, events.positions, strict=True)):
        if position is not None:
            numbered.item_ids.extend(1, step.numbered_in.item_ids.of(position))
            continue
        item_id = known.get(id(event))
        made.append((event, ledger.take_made() if item_id is None else item_id))
        made_at.append(place)
        numbered.item_ids.extend(1, made[-1][1])
    step.numbered_out, step.view_out = numbered, history.view()
    step.created, step.created_positions = tuple(made), tuple(made_at)
    return True


def config_of(policy: PolicyLike) -> Mapping[str, Any]:
    """The settings for a span: numbers, enums, and strings that the constructor's annotation lists (`Literal`).

    Any other string could be content.
    """
    try:
        config = getattr(policy, "config", None)
        settings = dict(config) if isinstance(config, Mapping) else {}
        words = _words_of(type(policy)) if any(isinstance(value, str) for value in settings.values()) else {}
    except Exception:  # noqa: BLE001  # a span's attribute is no reason to fail
        return {}
    return {
        str(name): value
        for name, value in settings.items()
        if value is None or isinstance(value, int | float | Enum) or (value in words.get(name, ()))
    }


@lru_cache(maxsize=512)
def _words_of(policy: type) -> Mapping[str, frozenset[Any]]:
    """The strings that each parameter of a policy's constructor may be."""
    return {name: frozenset(_literals(hint)) for name, (hint, _) in parameters_of(policy).items()}


def _literals(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for part in get_args(hint) for word in _literals(part)]
