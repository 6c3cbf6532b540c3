"""A running assembly, of an `Assembler` or of an observed framework.

`OpenAssembly` has a record, to which its steps are added in order. A built-in policy decides on a view of the step's
input. It returns a part of that view, and verdicts on the other events. If the verdicts are consistent with the output,
they become the step's item groups. The cost depends on the number of runs in the views, not on the number of events. At
the end, telemetry reads the record, and the ledger stores a snapshot, with which the next assembly is compared.

`policy_contract` applies policies that receive lists, and checks outputs and verdicts that cannot be used as they are.
`step_edits` records events that a policy replaced or created.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache, partial
from inspect import isawaitable
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly._internal.slices import LISTED
from otel_assembly.chain.policy_contract import (
    apply_to_lists,
    changed_input_error,
    copy_containers,
    prompts_of,
    restore,
    type_text,
    write_difference,
)
from otel_assembly.chain.step_diff import EXITS
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome
from otel_assembly.errors import PolicyContractError
from otel_assembly.history.edited import Edited
from otel_assembly.history.tool_pairs import echoes_stand
from otel_assembly.history.view import View, difference, merged, reader, to_runs
from otel_assembly.ledger.record import CALLER, mark_exported, totals_of
from otel_assembly.ledger.snapshot import ItemGroup, PendingUsage, Step
from otel_assembly.policies.base import literals_of, waits
from otel_assembly.recorder import NULL_RECORDING
from otel_assembly.tokens import CalibratedCounter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly._internal import sync_calls
    from otel_assembly._internal.slices import Slices
    from otel_assembly.chain import step_edits
    from otel_assembly.chain.policy_contract import MessageCopies
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
#: The types of settings other than texts that are recorded.
_RECORDED: Final = (int, NoneType, float, Enum)


class OpenAssembly:
    """A running assembly: begins its steps, applies policies to them, and ends.

    Attributes:
        record: The assembly's steps, with the input and output of each.
        recording: Writes the record to spans and metrics; `NULL_RECORDING` if no provider is configured.
        in_place: Whether the caller is synchronous, so that this object must not wait for an event loop.
    """

    __slots__ = ("in_place", "record", "recording")

    def __init__(self, record: Record, recording: Recording, *, in_place: bool = False) -> None:
        self.record = record
        self.recording = recording
        self.in_place = in_place

    def begin_step(self, policy: str, kind: str | None, config: Mapping[str, Any]) -> Step:
        """Add a step whose input, and so far also its output, is the output of the previous step."""
        record = self.record
        if record.steps:
            last = record.steps[-1]
            prompts, sources, numbered, view = last.prompts_out, last.sources, last.numbered_out, last.view_out
        else:
            prompts, sources = record.prompts_in, (CALLER,) * len(record.prompts_in)
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
        """Apply a policy, and record its result in `step`. If the policy raises, only its halts are recorded.

        Raises:
            PolicyContractError: The policy changed its input, or did not return two sequences.
        """
        context = self.record.context
        halts = len(context.emitted)
        try:
            run = _call_decide if _has_decide(type(policy)) else apply_to_lists
            outcome = await run(policy, step, context, in_place=self.in_place)
        finally:
            step.halts = len(context.emitted) - halts
        same = outcome.prompts is step.prompts_in
        prompts, alerts = step.prompts_in if same else prompts_of(policy, step, outcome.prompts), tuple(outcome.alerts)
        _write_output(policy, step, outcome, self.record.ledger)
        if not same:
            step.set_prompts(prompts)
        step.alerts = alerts
        step.budget, step.fixed, step.overflow = outcome.budget, outcome.fixed, outcome.overflow
        step.report = outcome.report
        step.framing, step.separators, step.around_in = outcome.framing, outcome.separators, outcome.around_in
        if outcome.compactions:
            step_edits.write_compactions(step, outcome.compactions, self.record.ledger)

    def succeeded(self) -> None:
        """End the assembly, whose last output is sent: write spans and metrics, and store a snapshot in the ledger."""
        with self.record.ledger.lock:
            for _ in self._succeed():
                pass

    async def succeeded_in_slices(self) -> None:
        """End the assembly as `succeeded` does; a large record is written in slices, between which other tasks run.

        If the task is cancelled, the remaining slices are done without pauses.
        """
        serial_slices = self.record.ledger.serial_slices
        if self.in_place:
            with self.record.ledger.lock:
                serial_slices.finish()
                self.succeeded()
            return
        if serial_slices.queue or (self.recording.measured and len(self.record.ledger_input.view) > LISTED):
            await serial_slices.do(self._succeed(), whole=True)
        else:
            self.succeeded()

    def _succeed(self) -> Slices[None]:
        record, recording = self.record, self.recording
        ledger, counter = record.ledger, record.meter.counter
        if recording.measured:
            self._set_end()
        record.last = ledger.last
        totals = self.totals() if recording.measured or isinstance(counter, CalibratedCounter) else None
        if recording is not NULL_RECORDING:
            yield from self._finish()
        if record.named is not None:
            record.named.assemblies += 1
        ledger.last = record.snapshot()
        if totals is not None:
            numbered, input_end = record.ledger_input.numbered, record.ledger_input.view.end
            ledger.pending_usage = PendingUsage(numbered, input_end, totals.tokens_out, counter.generation)

    def failed(self, error: BaseException) -> None:
        """End the assembly after an error: nothing is sent, and the ledger's last snapshot stays."""
        record = self.record
        record.error = error
        record.end_chain()
        if self.recording.measured:
            self._set_end()
        with record.ledger.lock:
            record.last = record.ledger.last
            for _ in self._finish():
                pass

    def failed_maintenance(self, error: BaseException) -> None:
        """End the failed maintenance of a framework's history, such as a compaction, whose output stays in use.

        All numbers are recorded, but no comparison with the previous prompt. If a step changed the input before the
        error, the next assembly is compared with that output.
        """
        record, ledger = self.record, self.record.ledger
        record.maintenance_error = error
        if any(step.exits or step.created or step.moved for step in record.steps):
            self.succeeded()
            return
        if self.recording.measured:
            self._set_end()
        with ledger.lock:
            record.last = ledger.last
            for _ in self._finish():
                pass

    def _set_end(self) -> None:
        """Set the end time and the model's window; the assembly's duration does not include the work of telemetry."""
        record = self.record
        record.ended_ns = record.ended_ns or time.time_ns()
        if record.model is not None:
            try:
                window = prices.known_window(record.window, record.model)
            except Exception:  # noqa: BLE001  # a framework's model name may be another type than a string
                return
            if window is not record.window:
                record.window, record.totals = window, None  # the totals are computed again if they were needed

    def _finish(self) -> Slices[None]:
        """Write the record to its span and to metrics; if the span was recorded, mark its items as exported."""
        record = self.record
        record.previous_id = record.ledger.recorded_id
        yield from self.recording.finish(record)
        if self.recording.recorded:
            mark_exported(record)

    def totals(self) -> Totals | None:
        """Return the numbers of the assembly; None if the token counter raised, which must not fail the assembly."""
        try:
            return totals_of(self.record)
        except Exception as error:  # noqa: BLE001  # a user's counter can raise any exception
            logger.warning("the tokens of an assembly could not be counted: %s", type(error).__name__)
            return None


def config_of(policy: PolicyLike, context: Context) -> Mapping[str, Any]:
    """Return a policy's settings in this assembly for its span: numbers, enums, and strings of a `Literal` annotation.

    Other strings are left out, because they could be content.
    """
    settings: dict[str, Any] = {}
    try:
        config_in = getattr(policy, "config_in", None)
        config = getattr(policy, "config", None) if config_in is None else config_in(context)
        for name, value in config.items() if isinstance(config, Mapping) else ():
            is_literal = isinstance(value, str) and value in literals_of(type(policy)).get(name, ())
            if is_literal or isinstance(value, _RECORDED):
                settings[str(name)] = value
    except Exception:  # noqa: BLE001  # a missing attribute must not fail the assembly
        return {}
    return settings


@lru_cache(maxsize=512)
def _has_decide(policy: type) -> bool:
    """Return True if a policy class has `decide`, and no subclass of the class that defines it overrides `apply`."""
    if not callable(getattr(policy, "decide", None)):
        return False
    classes = policy.__mro__
    level = {name: next((i for i, cls in enumerate(classes) if name in vars(cls)), -1) for name in ("decide", "apply")}
    return level["decide"] <= level["apply"]


async def _call_decide(policy: Any, step: Step, context: Context, *, in_place: bool) -> Outcome:
    """Return the outcome of a policy's `decide`.

    The policy receives an immutable view. Only dicts in it can be changed in place, so those that it reads are checked.
    """
    copies: MessageCopies = {}
    before, has_dicts = reader.get(), step.view_in.history.of_dicts
    try:
        if has_dicts or before is not None:
            reader.set(partial(copy_containers, copies) if has_dicts else None)
        outcome = policy.decide(step.prompts_in, step.view_in, context)
        if type(outcome) is CoroutineType or isawaitable(outcome):
            outcome = sync_calls.run_blocking(outcome) if in_place and waits(policy, context) else await outcome
    finally:
        if has_dicts or before is not None:
            reader.set(before)
        changed = restore(copies) if copies else ()
    if changed:
        raise changed_input_error(policy, step, changed)
    if not isinstance(outcome, Outcome):
        raise PolicyContractError(policy.name, step.index, f"decided {type_text(outcome)}, expected an Outcome")
    return outcome


def _write_output(policy: AssemblyPolicy, step: Step, outcome: Outcome, ledger: Ledger) -> None:
    """Record the output events in `step`: from consistent verdicts, else by comparing the output with the input."""
    events: Any = outcome.events
    verdicts, history = outcome.decisions, step.view_in.history
    if events is step.view_in and not verdicts:
        return
    part = events if isinstance(events, View) and events.history is history else None
    if part is not None and part.is_slice and history.echoes and not echoes_stand(part):
        part = None  # an event restates one that was left out, so it is read differently there
    if part is not None and _write_verdicts(step, part, verdicts):
        step.view_out = part
        return
    if isinstance(events, Edited) and events.view.history is history:
        kept = events.view.pick_positions(position for position in events.positions if position is not None)
        if _write_verdicts(step, kept, verdicts, events.view):
            step_edits.write_edits(step, events, ledger)
            return
    write_difference(policy, step, events, part, verdicts, ledger)


def _write_verdicts(step: Step, kept: View, verdicts: Sequence[Verdict], edited: View | None = None) -> bool:
    """Record verdicts as the step's item groups, if each verdict has a view and is consistent with the output.

    Items that left without a verdict have the reason ``policy``. The cost depends on the number of runs in the views,
    not on the number of items.

    Args:
        step: The step.
        kept: The input events that are in the output.
        verdicts: The policy's reasons for events that left or were pinned.
        edited: The kept events, and those that other events replace in the output; None if none is replaced.

    Returns:
        False if a verdict cannot be used; then nothing is recorded.
    """
    exits: list[ItemGroup] = []
    pinned: list[ItemGroup] = []
    parts = [kept]
    for verdict in verdicts:
        view = verdict.events
        if not (isinstance(view, View) and view.history is kept.history):
            return False
        groups = pinned
        if verdict.outcome in EXITS:
            groups = exits
            parts.append(view)
        groups.append(ItemGroup(view, step.numbered_in, verdict.outcome, verdict.reason))
    with kept.history.lock:  # no item may change its class in between
        rest = _rest(step.view_in, parts)
    retained = edited if edited is not None else kept
    if rest is None:
        return False
    for group in pinned:
        if not all(map(retained.holds, group.view.minus(retained).positions())):
            return False
    if rest:
        exits += [ItemGroup(view, step.numbered_in, DecisionOutcome.DROPPED, DecisionReason.POLICY) for view in rest]
    step.exits, step.pinned = tuple(exits), tuple(pinned)
    return True


def _rest(whole: View, parts: Sequence[View]) -> list[View] | None:
    """Return the items of a view that no part has, as views; None if parts overlap or have other items."""
    history = whole.history
    columns: set[Column] = set()
    covered: list[Run] = []
    for part in parts:
        columns.add(part.column)
        covered += part.runs
    if columns == {whole.column}:
        covered.sort()
        return _rest_of_column(history, whole.column, whole.runs, covered)
    if whole.whole and columns <= {*history.classes} and whole.end == len(history):
        # Each event is in exactly one class, so columns of different classes are disjoint.
        rest: list[View] = []
        for column in history.classes:
            covered = sorted([run for part in parts if part.column is column for run in part.runs])
            left = _rest_of_column(history, column, [(0, len(column))] if column.positions else [], covered)
            if left is None:
                return None
            rest += left
        return rest
    return _rest_of_items(whole, parts)


def _rest_of_column(history: History, column: Column, runs: Sequence[Run], covered: Sequence[Run]) -> list[View] | None:
    """Return the rest of a column's runs; None if the covered runs overlap or are not among the runs."""
    last = -1
    for start, stop in covered:
        if start < last:
            return None
        last = stop
    merged_runs = merged(covered)
    if merged_runs == runs:
        return []
    if difference(merged_runs, runs):
        return None
    rest = difference(runs, merged_runs)
    return [View(history, column, rest)] if rest else []


def _rest_of_items(whole: View, parts: Sequence[View]) -> list[View] | None:
    """Do what `_rest` does, item by item, for views of columns that may not be disjoint."""
    covered: set[int] = set()
    for part in parts:
        count = len(covered)
        covered.update(part.positions())
        if len(covered) < count + len(part):
            return None
    left = [index for index, position in enumerate(whole.positions()) if position not in covered]
    if len(whole) - len(left) < len(covered):
        return None
    return [whole.pick(to_runs(left))] if left else []
