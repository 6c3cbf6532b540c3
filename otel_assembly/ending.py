"""How an assembly ends, whoever ran it: its record is told, and its ledger remembers what the next one needs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from otel_assembly.ledger import Bill
from otel_assembly.tokens import CalibratedCounter
from otel_assembly.totals import totals_of

if TYPE_CHECKING:
    from otel_assembly.record import Record
    from otel_assembly.recorder import Recording
    from otel_assembly.totals import Totals

logger = logging.getLogger("otel_assembly")


def succeeded(record: Record, recording: Recording | None) -> None:
    """The assembly came to a good end."""
    ledger = record.ledger
    with ledger.lock:
        record.last, record.baseline = ledger.last, ledger.recorded
        record.departed = dict(ledger.departed)
        counter = record.meter.counter
        # What is sent is counted before it is noted how much has been counted: both are told together.
        measured = recording is not None and recording.measured
        totals = numbers(record) if measured or isinstance(counter, CalibratedCounter) else None
        record.counts = len(record.opening.view.history.table(record.meter).order)
        if recording is not None:
            recording.finish(record)
        ledger.last = record.snapshot(record.last)
        if recording is not None and recording.recorded:
            same = record.baseline is record.last
            ledger.recorded = ledger.last if same else record.snapshot(record.baseline)
            ledger.departed.clear()
        if totals is not None:
            frame, seen = record.opening.frame, record.opening.view.end
            ledger.awaits_bill = Bill(frame, seen, totals.tokens_out, counter.generation)


def failed(record: Record, recording: Recording | None, error: BaseException) -> None:
    """Nothing is sent: the ledger's items stay as they were."""
    record.error = error
    if recording is not None:
        record.last, record.baseline = record.ledger.last, record.ledger.recorded
        recording.finish(record)


def numbers(record: Record) -> Totals | None:
    """The numbers of an assembly that is done; a counter that fails must not undo it."""
    try:
        record.count_where_it_came_in()
        return totals_of(record)
    except Exception as error:  # noqa: BLE001  # as above
        logger.warning("the tokens of an assembly could not be counted: %s", type(error).__name__)
        return None
