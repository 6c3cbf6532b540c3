"""One assembly while it runs, whoever runs it: our `Assembler`, or a framework that is observed.

It holds a record, on which its steps begin one after the other. A policy of ours is applied to a step: it decides on a
view of what went in, and returns a part of that with verdicts on the rest, which are taken as they are if they are
true. That costs what the views are made of, and not what they hold. In the end the record goes to telemetry, and the
ledger keeps what the next assembly needs.

Policies that are given lists, and whatever else their word is not enough for, are in `policy_contract`; events that a
policy replaced or made, in `step_edits`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import lru_cache, partial
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly._internal.slices import LISTED
from otel_assembly.chain.policy_contract import apply_to_lists, compare, prompts_of, refuse, remember, restore, shape
from otel_assembly.chain.step_diff import EXITS
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome
from otel_assembly.errors import PolicyContractError
from otel_assembly.history.broken_pairs import echoes_stand
from otel_assembly.history.edited import Edited
from otel_assembly.history.view import View, difference, joined, reader, runs_of, to_runs
from otel_assembly.ledger.record import know_window, totals_of
from otel_assembly.ledger.snapshot import ItemGroup, PendingUsage, Step
from otel_assembly.policies.base import waits
from otel_assembly.tokens import CalibratedCounter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly._internal import sync_calls
    from otel_assembly._internal.slices import Slices
    from otel_assembly.chain import step_edits
    from otel_assembly.chain.policy_contract import Seen
    from otel_assembly.context import Context
    from otel_assembly.decision import Verdict
    from otel_assembly.history.history import History
    from otel_assembly.history.view import Column, Run
    from otel_assembly.ledger.figures import Totals
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.record import Record
    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike
    from otel_assembly.recorder import Recording
    from otel_assembly.tokens import prices
else:
    step_edits, prices = LazyModule("otel_assembly.chain.step_edits"), LazyModule("otel_assembly.tokens.prices")
    sync_calls = LazyModule("otel_assembly._internal.sync_calls")

logger: Final = logging.getLogger("otel_assembly")


class OpenAssembly:
    """One assembly while it runs: its steps begin here, one after the other, and so does its end.

    Attributes:
        record: What each step took in and let out.
        recording: What telemetry makes of it; `NULL_RECORDING` where no provider is configured.
        in_place: Whether the caller is synchronous, so that nothing here may wait for an event loop.
    """

    __slots__ = ("in_place", "record", "recording")

    def __init__(self, record: Record, recording: Recording, *, in_place: bool = False) -> None:
        self.record = record
        self.recording = recording
        self.in_place = in_place

    def begin_step(self, policy: str, kind: str | None, config: Mapping[str, Any]) -> Step:
        """The next step: it takes in what the one before it let out, and has changed nothing of it yet."""
        record = self.record
        if record.steps:
            last = record.steps[-1]
            prompts, sources, numbered, view = last.prompts_out, last.sources, last.numbered_out, last.view_out
        else:
            prompts, sources = record.prompts_in, record.sources
            numbered, view = record.ledger_input.numbered, record.ledger_input.view
        step = Step(
            policy=policy,
            index=len(record.steps),
            kind=kind,
            config=config,
            prompts_in=prompts,
            prompts_out=prompts,
            sources=sources,
            numbered_in=numbered,
            view_in=view,
            numbered_out=numbered,
            view_out=view,
            earlier=tuple(record.steps),
        )
        record.steps.append(step)
        return step

    async def apply(self, policy: AssemblyPolicy, step: Step) -> None:
        """Apply a policy and write down in `step` what it did; where this raises, nothing is written but the halts.

        Raises:
            PolicyContractError: It changed its input, or returned something else than two sequences.
        """
        context = self.record.context
        halts = len(context.emitted)
        try:
            run = _decided if _decides(type(policy)) else apply_to_lists
            outcome = await run(policy, step, context, in_place=self.in_place)
        finally:
            step.halts = len(context.emitted) - halts
        same = outcome.prompts is step.prompts_in
        prompts, alerts = step.prompts_in if same else prompts_of(policy, step, outcome.prompts), tuple(outcome.alerts)
        _take_events(policy, step, outcome, self.record.ledger)
        if not same:
            step.let_out(prompts)
        step.alerts = alerts
        step.budget, step.fixed, step.overflow = outcome.budget, outcome.fixed, outcome.overflow
        step.report = outcome.report
        step.framing, step.separators, step.around_in = outcome.framing, outcome.separators, outcome.around_in
        if outcome.compactions:
            step_edits.write_compactions(step, outcome.compactions, self.record.ledger)

    def succeeded(self) -> None:
        """End the assembly, whose last step's output is sent: record it, and keep in the ledger what the next needs."""
        with self.record.ledger.lock:
            for _ in self._succeeding():
                pass

    async def succeeded_in_slices(self) -> None:
        """End the assembly as `succeeded` does; a large record is made in slices, also if the task is cancelled."""
        in_turn = self.record.ledger.in_turn
        if self.in_place:
            with self.record.ledger.lock:
                in_turn.finish()
                self.succeeded()
            return
        if in_turn.queue or (self.recording.measured and len(self.record.ledger_input.view) > LISTED):
            await in_turn.do(self._succeeding(), whole=True)
        else:
            self.succeeded()

    def _succeeding(self) -> Slices[None]:
        record, recording = self.record, self.recording
        ledger, counter = record.ledger, record.meter.counter
        if self.recording.measured:
            self._is_over()
        record.last = ledger.last
        totals = self.totals() if recording.measured or isinstance(counter, CalibratedCounter) else None
        yield from self._finish()
        if record.named is not None:
            record.named.assemblies += 1
        ledger.last = record.snapshot()
        if totals is not None:
            numbered, seen = record.ledger_input.numbered, record.ledger_input.view.end
            ledger.pending_usage = PendingUsage(numbered, seen, totals.tokens_out, counter.generation)

    def failed(self, error: BaseException) -> None:
        """Nothing is sent: the ledger's items stay as they were."""
        record = self.record
        record.error = error
        record.totals = record.kinds = None  # of a prompt that might have been sent
        if self.recording.measured:
            self._is_over()
        with record.ledger.lock:
            record.last = record.ledger.last
            for _ in self._finish():
                pass

    def spared(self, error: BaseException) -> None:
        """It failed, and what came in stays as it was: the record is projected whole, and compared with no prompt.

        Where a step has done something before that, the next assembly goes on from there.
        """
        record, ledger = self.record, self.record.ledger
        record.spared = error
        if any(step.exits or step.created or step.moved for step in record.steps):
            self.succeeded()
            return
        if self.recording.measured:
            self._is_over()
        with ledger.lock:
            record.last = ledger.last
            for _ in self._finish():
                pass

    def _is_over(self) -> None:
        """It is over; what is looked up and worked out from here on is for those who are told, and none of its time."""
        record = self.record
        record.ended_ns = record.ended_ns or time.time_ns()
        if record.model is not None:
            with suppress(Exception):  # what is called a model may be no name at all
                window = prices.known_window(record.window, record.model)
                if window is not record.window:
                    know_window(record, window)

    def _finish(self) -> Slices[None]:
        """The record is projected; what its span tells, a reader knows from here on."""
        record = self.record
        record.previous_id = record.ledger.recorded_id
        yield from self.recording.finish(record)
        if self.recording.recorded:
            record.tell()

    def totals(self) -> Totals | None:
        """The numbers of an assembly that is done; a counter that fails must not undo it."""
        try:
            return totals_of(self.record)
        except Exception as error:  # noqa: BLE001  # as above
            logger.warning("the tokens of an assembly could not be counted: %s", type(error).__name__)
            return None


def config_of(policy: PolicyLike, context: Context) -> Mapping[str, Any]:
    """The settings for a span: numbers, enums, and strings that the constructor's annotation lists (`Literal`).

    Any other string could be content. They are those that the policy goes by in this assembly.
    """
    words: Mapping[str, frozenset[Any]] = {}
    try:
        held = getattr(policy, "config_in", None)
        config = getattr(policy, "config", None) if held is None else held(context)
        settings = dict(config) if isinstance(config, Mapping) else {}
        if any(isinstance(value, str) for value in settings.values()):
            from otel_assembly.policies.base import literals_of  # not where a framework's own code runs

            words = literals_of(type(policy))
    except Exception:  # noqa: BLE001  # a span's attribute is no reason to fail
        return {}
    return {
        str(name): value
        for name, value in settings.items()
        if value is None or isinstance(value, int | float | Enum) or (value in words.get(name, ()))
    }


@lru_cache(maxsize=512)
def _decides(policy: type) -> bool:
    """Whether a policy has a `decide` that its `apply` does not override."""
    if not callable(getattr(policy, "decide", None)):
        return False
    classes = policy.__mro__
    level = {name: next((i for i, one in enumerate(classes) if name in vars(one)), -1) for name in ("decide", "apply")}
    return level["decide"] <= level["apply"]


async def _decided(policy: Any, step: Step, context: Context, *, in_place: bool) -> Outcome:
    """What a policy decides; it is given what it cannot change, but for dicts: those that it reads are watched."""
    seen: Seen = {}
    before, watches = reader.get(), step.view_in.history.of_dicts
    try:
        if watches or before is not None:
            reader.set(partial(remember, seen) if watches else None)
        outcome = policy.decide(step.prompts_in, step.view_in, context)
        if type(outcome) is CoroutineType or isawaitable(outcome):
            outcome = sync_calls.run_blocking(outcome) if in_place and waits(policy, context) else await outcome
    finally:
        if watches or before is not None:
            reader.set(before)
        changed = restore(seen) if seen else ()
    if changed:
        raise refuse(policy, step, changed)
    if not isinstance(outcome, Outcome):
        raise PolicyContractError(policy.name, step.index, f"decided {shape(outcome)}, expected an Outcome")
    return outcome


def _take_events(policy: AssemblyPolicy, step: Step, outcome: Outcome, ledger: Ledger) -> None:
    """Write down what came out: a part of what went in is taken as it is, of anything else it is found out."""
    events: Any = outcome.events
    verdicts, history = outcome.decisions, step.view_in.history
    if events is step.view_in and not verdicts:
        return
    part = events if isinstance(events, View) and events.history is history else None
    if part is not None and part.is_slice and history.echoes and not echoes_stand(history, runs_of(part)):
        part = None  # it does not read as it did there
    if part is not None and _take_verdicts(step, part, verdicts):
        step.view_out = part
        return
    if isinstance(events, Edited) and events.view.history is history:
        stays = events.view.pick_positions(position for position in events.positions if position is not None)
        if _take_verdicts(step, stays, verdicts, events.view):
            step_edits.write_edits(step, events, ledger)
            return
    compare(policy, step, events, part, verdicts, ledger)


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
    parts = [stays]
    for verdict in verdicts:
        view = verdict.events
        if not (isinstance(view, View) and view.history is stays.history):
            return False
        groups = pinned
        if verdict.outcome in EXITS:
            groups = exits
            parts.append(view)
        groups.append(ItemGroup(view, step.numbered_in, verdict.outcome, verdict.reason))
    with stays.history.lock:  # no item goes over to another class meanwhile
        rest = _rest(step.view_in, parts)
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
    """Return what of a view is in none of its parts; None if two parts share an item, or a part has another item."""
    history = whole.history
    columns: set[Column] = set()
    taken: list[Run] = []
    for part in parts:
        columns.add(part.column)
        taken += part.runs
    if columns == {whole.column}:
        taken.sort()
        return _rest_of_column(history, whole.column, whole.runs, taken)
    if whole.whole and columns <= {*history.classes} and whole.end == len(history):
        # The classes together have each event once.
        rest: list[View] = []
        for column in history.classes:
            taken = sorted([run for part in parts if part.column is column for run in part.runs])
            left = _rest_of_column(history, column, [(0, len(column))] if column.positions else [], taken)
            if left is None:
                return None
            rest += left
        return rest
    return _rest_of_items(whole, parts)


def _rest_of_column(history: History, column: Column, runs: Sequence[Run], taken: Sequence[Run]) -> list[View] | None:
    """Return what of a column's runs is not taken; None if the taken runs overlap, or are not among the runs."""
    last = -1
    for start, stop in taken:
        if start < last:
            return None
        last = stop
    covered = joined(taken)
    if covered == runs:
        return []
    if difference(covered, runs):
        return None
    left = difference(runs, covered)
    return [View(history, column, left)] if left else []


def _rest_of_items(whole: View, parts: Sequence[View]) -> list[View] | None:
    """As `_rest`, for views of columns that are not known to be disjoint."""
    taken: set[int] = set()
    for part in parts:
        count = len(taken)
        taken.update(part.positions())
        if len(taken) < count + len(part):
            return None
    left = [index for index, position in enumerate(whole.positions()) if position not in taken]
    if len(whole) - len(left) < len(taken):
        return None
    return [whole.pick(to_runs(left))] if left else []
