"""One assembly while it runs, whoever runs it: our `Assembler`, or a framework that is observed."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.ledger.ledger_diff import exits_from_the_prompt
from otel_assembly.ledger.snapshot import PendingUsage, Step
from otel_assembly.ledger.totals import totals_of
from otel_assembly.tokens import CalibratedCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_assembly.history.history import History
    from otel_assembly.ledger.record import Record, Totals
    from otel_assembly.recorder import Recording
    from otel_assembly.tokens import TokenMeter

logger = logging.getLogger("otel_assembly")

#: Of what leaves in one assembly without ever having been counted, so many bytes of text are counted, the newest first:
#: about a tenth of a second. Beyond it the tokens are a lower bound.
_MOST_BYTES: Final = 512 * 1024
#: Of what one step hands to the next, so many items are looked at, the newest first. Beyond it the same.
_MOST_BETWEEN: Final = 256


class OpenAssembly:
    """One assembly while it runs: its steps begin here, one after the other, and so does its end.

    Attributes:
        record: What each step took in and let out.
        recording: What telemetry makes of it; `NULL_RECORDING` where no provider is configured.
    """

    __slots__ = ("record", "recording")

    def __init__(self, record: Record, recording: Recording) -> None:
        self.record = record
        self.recording = recording

    def begin_step(self, policy: str, kind: str | None, config: Mapping[str, Any]) -> Step:
        """The next step: it takes in what the one before it let out, and has changed nothing of it yet."""
        record = self.record
        prompts, numbered, view = record.prompts_out, record.numbered_out, record.view_out
        step = Step(
            policy=policy,
            index=len(record.steps),
            kind=kind,
            config=config,
            prompts_in=prompts,
            prompts_out=prompts,
            sources=record.sources,
            numbered_in=numbered,
            view_in=view,
            numbered_out=numbered,
            view_out=view,
        )
        record.steps.append(step)
        return step

    def succeeded(self) -> None:
        """What the last step let out is sent: the record is projected, and the ledger keeps what the next one needs."""
        record, recording = self.record, self.recording
        ledger, counter = record.ledger, record.meter.counter
        with ledger.lock:
            record.last, record.baseline = ledger.last, ledger.recorded
            record.departed = dict(ledger.departed)
            # What is sent is counted before it is noted how much has been counted: both are reported together.
            if recording.measured and ledger.observed:
                _count_what_left(record)
            totals = self.totals() if recording.measured or isinstance(counter, CalibratedCounter) else None
            record.counts = len(record.ledger_input.view.history.table(record.meter).order)
            recording.finish(record)
            ledger.last = record.snapshot(record.last)
            if recording.recorded:
                same = record.baseline is record.last
                ledger.recorded = ledger.last if same else record.snapshot(record.baseline)
                ledger.departed.clear()
            if totals is not None:
                numbered, seen = record.ledger_input.numbered, record.ledger_input.view.end
                ledger.pending_usage = PendingUsage(numbered, seen, totals.tokens_out, counter.generation)

    def failed(self, error: BaseException) -> None:
        """Nothing is sent: the ledger's items stay as they were."""
        record = self.record
        record.error = error
        record.totals = record.kinds = None  # of a prompt that might have been sent
        record.last, record.baseline = record.ledger.last, record.ledger.recorded
        self.recording.finish(record)

    def spared(self, error: BaseException) -> None:
        """It failed, and what came in stays as it was: the record is projected whole, and compared with no prompt.

        Where a step has done something before that, the next assembly goes on from there.
        """
        record, ledger = self.record, self.record.ledger
        record.spared = error
        if any(step.exits or step.created or step.moved for step in record.steps):
            self.succeeded()
            return
        with ledger.lock:
            record.last, record.baseline = ledger.last, ledger.recorded
            record.departed = dict(ledger.departed)
            self.recording.finish(record)

    def totals(self) -> Totals | None:
        """The numbers of an assembly that is done; a counter that fails must not undo it."""
        try:
            self.record.count_where_it_came_in()
            return totals_of(self.record)
        except Exception as error:  # noqa: BLE001  # as above
            logger.warning("the tokens of an assembly could not be counted: %s", type(error).__name__)
            return None


def _count_what_left(record: Record) -> None:
    """Count what left, and what stood between two steps: another's reducers counted nothing with our counter."""
    source, room = record.ledger_input.numbered, _MOST_BYTES
    for step in record.steps:
        for group in exits_from_the_prompt(record, step):
            positions: Iterable[int] = group.view.backward()
            if group.numbered is not source:
                positions = reversed(list(source.item_ids.find(group.numbered.of(group.view))))
            room = _count(source.history, positions, record.meter, room)
            if room < 0:
                return
            if group.numbered is not source:
                record.count(group.view)
        between = step.view_out
        if step is not record.steps[-1] and not between.history.table(record.meter).complete(between):
            room = _count(between.history, islice(between.backward(), _MOST_BETWEEN), record.meter, room)
            if room < 0:
                return


def _count(history: History, positions: Iterable[int], meter: TokenMeter, room: int) -> int:
    """Count items while the bytes of those that are not counted yet are no more than `room`; what is left of it."""
    table, wanted = history.table(meter), list(positions)
    for position, counted in zip(wanted, table.peek(wanted), strict=True):
        if not counted:
            room -= history.size(position)
            if room < 0:
                break
            table.tokens(position)
    return room
