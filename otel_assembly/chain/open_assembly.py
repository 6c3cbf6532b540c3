"""A running assembly, of an `Assembler` or of an observed framework.

`OpenAssembly` has a record, to which its steps are added in order. A built-in policy decides on a view of the step's
input. It returns a part of that view, and verdicts on the other events. If the verdicts are consistent with the output,
they become the step's item groups. The cost depends on the number of the views' ranges, not on the number of events. At
the end, telemetry reads the record, and the ledger stores a snapshot, with which the next assembly is compared.

`policy_contract` applies policies that receive lists, and checks outputs and verdicts that cannot be used as they are.
`step_diff` compares such outputs, and those of a framework's reducers, with the step's input.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from inspect import isawaitable
from operator import attrgetter
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly._internal.registry import Registry
from otel_assembly._internal.slices import LISTED
from otel_assembly.chain.policy_contract import (
    apply_to_lists,
    changed_input_error,
    compare_output,
    copy_containers,
    prompts_of,
    restore,
    type_text,
)
from otel_assembly.chain.step_diff import EXITS, echoes_stand_in, write_compactions, write_new_history
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome
from otel_assembly.errors import PolicyContractError
from otel_assembly.history.view import Edited, View, difference, reader
from otel_assembly.ledger.record import totals_of
from otel_assembly.ledger.snapshot import ItemGroup, PendingUsage, Step
from otel_assembly.matching.sequence_diff import SequenceDiff
from otel_assembly.messages.provider_rules import rules_of_unknown_client
from otel_assembly.policies.base import literals_of, waits
from otel_assembly.recorder import NULL_RECORDING
from otel_assembly.tokens import CalibratedCounter, TokenMeter, counter_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly._internal import sync_calls
    from otel_assembly._internal.slices import Slices
    from otel_assembly.chain.policy_contract import MessageCopies
    from otel_assembly.context import Context
    from otel_assembly.decision import Verdict
    from otel_assembly.ledger.figures import Totals
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.record import Record
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike
    from otel_assembly.recorder import Recorder, Recording
    from otel_assembly.tokens import MessageFraming, TokenCounter, prices
else:
    prices, sync_calls = LazyModule("otel_assembly.tokens.prices"), LazyModule("otel_assembly._internal.sync_calls")

logger: Final = logging.getLogger("otel_assembly")
#: The types of settings other than texts that are recorded.
_RECORDED: Final = (int, NoneType, float, Enum)
#: The most models with a token meter.
_MODELS: Final = 32
_COLUMN: Final = attrgetter("column")
_LENGTH: Final = attrgetter("length")


class AssemblerBase:
    """The recorder and the token meters of an `Assembler` or an `ObservedAssembler`."""

    def __init__(self, recorder: Recorder | None, counter: TokenCounter | None, framing: MessageFraming) -> None:
        self.framing = framing
        self._recorder = recorder
        self._counter = counter
        self._meters: Registry[tuple[ClientRules, str | None], TokenMeter] = Registry(_MODELS)
        self._last_meter: tuple[tuple[str | None, ClientRules | None], TokenMeter] | None = None

    @property
    def recorder(self) -> Recorder:
        """The recorder that receives the records."""
        return self._recorder if self._recorder is not None else DEFAULT.recorder

    def meter(self, model: str | None, client: ClientRules | None = None) -> TokenMeter:
        """Return the token meter of a model; `client` is what its client adds to messages, None if unknown."""
        arguments = model, client
        if self._last_meter is None or self._last_meter[0] != arguments:
            counter = self._counter if self._counter is not None else counter_for(model)
            rules = client or rules_of_unknown_client(model)
            # A framework's model name may be another type than a string.
            key = rules, None if self._counter is not None else f"{model}"
            meter = self._meters.of(key, lambda: self._new_meter(counter, rules))
            self._last_meter = arguments, meter
        return self._last_meter[1]

    def _new_meter(self, counter: TokenCounter, rules: ClientRules) -> TokenMeter:
        return TokenMeter(counter, self.framing.for_client(rules, counter.count))


@dataclass(slots=True, eq=False)
class OpenAssembly:
    """A running assembly: begins its steps, applies policies to them, and ends.

    Attributes:
        record: The assembly's steps, with the input and output of each.
        recording: Writes the record to spans and metrics; `NULL_RECORDING` if no provider is configured.
        in_place: Whether the caller is synchronous, so that this object must not wait for an event loop.
    """

    record: Record
    recording: Recording
    in_place: bool = False

    def begin_step(self, policy: str, kind: str | None, config: Mapping[str, Any]) -> Step:
        """Add a step whose input, and so far also its output, is the output of the previous step."""
        steps = self.record.steps
        before = steps[-1].after if steps else self.record.start
        step = Step(policy, len(steps), kind, config, before, before, earlier=tuple(steps))
        steps.append(step)
        return step

    async def apply(self, policy: AssemblyPolicy, step: Step) -> None:
        """Apply a policy, and record its result in `step`. If the policy raises, only its halts are recorded."""
        context = self.record.context
        halts = len(context.emitted)
        try:
            run = _call_decide if _has_decide(type(policy)) else apply_to_lists
            outcome = await run(policy, step, context, in_place=self.in_place)
        finally:
            step.halts = len(context.emitted) - halts
        same = outcome.prompts is step.before.prompts
        prompts, alerts = step.before.prompts if same else prompts_of(step, outcome.prompts), tuple(outcome.alerts)
        with self.record.ledger.lock:
            _write_output(policy, step, outcome, self.record.ledger)
            if outcome.compactions:
                write_compactions(step, outcome.compactions, self.record.ledger)
        if not same:
            step.set_prompts(prompts)
        step.alerts = alerts
        step.budget, step.fixed, step.overflow = outcome.budget, outcome.fixed, outcome.overflow
        step.report = outcome.report
        step.framing, step.separators, step.around_in = outcome.framing, outcome.separators, outcome.around_in

    def close(self, error: BaseException | None = None, *, stays: bool = False) -> None:
        """End the assembly: write spans and metrics, and store a snapshot of the output in the ledger.

        After an error, nothing is sent, and the ledger's last snapshot stays. If the output `stays` in use, because a
        framework failed to maintain a stored history, all numbers are recorded, but no comparison with the previous
        prompt. If a step changed the input before that error, the next assembly is compared with the output.
        """
        record = self.record
        if stays:
            record.maintenance_error = error
        elif error is not None:
            record.error = error
            record.end_chain()
        with record.ledger.lock:
            for _ in self._close():
                pass

    async def close_in_slices(self) -> None:
        """End the assembly as `close` does; a large record is written in slices, between which other tasks run.

        If the task is cancelled, the remaining slices are done without pauses.
        """
        ledger = self.record.ledger
        if self.in_place:
            with ledger.lock:
                ledger.serial_slices.finish()
                self.close()
        elif ledger.serial_slices.queue or (self.recording.measured and len(self.record.ledger_input.view) > LISTED):
            await ledger.serial_slices.do(self._close(), whole=True)
        else:
            self.close()

    def _close(self) -> Slices[None]:
        record, recording = self.record, self.recording
        ledger, source, counter = record.ledger, record.ledger_input, record.meter.counter
        if recording.measured:
            self._set_end()
        record.last = ledger.last
        is_kept = record.error is None
        if record.maintenance_error is not None:
            is_kept = any(step.exits or step.created or step.moved for step in record.steps)
        is_counted = is_kept and (recording.measured or isinstance(counter, CalibratedCounter))
        totals = self.totals() if is_counted else None
        if recording is not NULL_RECORDING:
            yield from recording.finish(record)
        if is_kept:
            if record.named is not None:
                record.named.assemblies += 1
            ledger.last = record.snapshot()
        if totals is not None:
            generation = counter.generation
            ledger.pending_usage = PendingUsage(source.numbered, source.view.end, totals.tokens_out, generation)

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

    The policy receives an immutable view. Of the events that it reads, dicts are checked for changes in place.
    """
    copies: MessageCopies = {}
    before, has_dicts = reader.get(), step.before.view.history.of_dicts
    try:
        if has_dicts or before is not None:
            reader.set(partial(copy_containers, copies) if has_dicts else None)
        outcome = policy.decide(step.before.prompts, step.before.view, context)
        if type(outcome) is CoroutineType or isawaitable(outcome):
            outcome = sync_calls.run_blocking(outcome) if in_place and waits(policy, context) else await outcome
    finally:
        if has_dicts or before is not None:
            reader.set(before)
        changed = restore(copies) if copies else ()
    if changed:
        raise changed_input_error(step, changed)
    if not isinstance(outcome, Outcome):
        raise PolicyContractError(step.policy, step.index, f"decided {type_text(outcome)}, expected an Outcome")
    return outcome


def _write_output(policy: AssemblyPolicy, step: Step, outcome: Outcome, ledger: Ledger) -> None:
    """Write the output events to `step`: from consistent verdicts, else by comparing the output with the input."""
    events: Any = outcome.events
    verdicts, view = outcome.decisions, step.before.view
    if events is view and not verdicts:
        return
    if isinstance(events, View) and events.history is view.history:
        if (not events.is_slice or echoes_stand_in(events)) and _write_verdicts(step, events, verdicts):
            step.set_events(events)
            return
    elif isinstance(events, Edited) and events.view.history is view.history:
        kept = events.view.pick_positions(position for position in events.positions if position is not None)
        if _write_verdicts(step, kept, verdicts, events.view):
            indexes = [None if position is None else view.index_of(position) for position in events.positions]
            diff = SequenceDiff(view.length, 0, 0, indexes)
            write_new_history(step, view, list(events), diff, ledger, has_copies=False)
            return
    compare_output(policy, step, outcome, ledger)


def _write_verdicts(step: Step, kept: View, verdicts: Sequence[Verdict], edited: View | None = None) -> bool:
    """Write verdicts as the step's item groups, if each verdict has a view and is consistent with the output.

    Items that left without a verdict have the reason ``policy``. `kept` has the input events in the output, and
    `edited`, if events were replaced, also the replaced ones. If the result is False, nothing is written.
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
        groups.append(ItemGroup(view, step.before.numbered, verdict.outcome, verdict.reason))
    with kept.history.lock:  # no item may change its class in between
        rest = _rest(step.before.view, parts)
    retained = edited if edited is not None else kept
    if rest is None:
        return False
    for group in pinned:
        if not all(map(retained.holds, group.view.minus(retained).positions())):
            return False
    if rest:
        exits += [
            ItemGroup(view, step.before.numbered, DecisionOutcome.DROPPED, DecisionReason.POLICY) for view in rest
        ]
    step.exits, step.pinned = tuple(exits), tuple(pinned)
    return True


def _rest(whole: View, parts: Sequence[View]) -> list[View] | None:
    """Return the items of a view that no part has, as views; None if parts overlap or have other items."""
    history, rest, columns = whole.history, list[View](), {*map(_COLUMN, parts)}
    if columns == {whole.column}:
        sources = [(whole.column, whole.ranges)]
    elif whole.whole and whole.end == len(history) and columns <= {*history.classes}:
        # Each event is in exactly one class, so columns of different classes are disjoint.
        sources = [(column, [(0, len(column.positions))]) for column in history.classes if column.positions]
    else:
        sources, left = [], whole
        for part in parts:
            left = left.minus(part)
        rest = [left] if left.length else []
    for column, ranges in sources:
        for part in parts:
            if part.column is column:
                ranges = difference(ranges, part.ranges)
        if ranges:
            rest.append(View(history, column, ranges))
    # The lengths differ if an item is in two parts, or in a part and not in the view.
    return rest if sum(map(_LENGTH, (*rest, *parts))) == whole.length else None
