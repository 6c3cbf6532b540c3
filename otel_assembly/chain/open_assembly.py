"""One assembly while it runs, whoever runs it: our `Assembler`, or a framework that is observed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.slices import LISTED
from otel_assembly.ledger.record import totals_of
from otel_assembly.ledger.snapshot import PendingUsage, Step
from otel_assembly.tokens import CalibratedCounter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly._internal.slices import Slices
    from otel_assembly.ledger.figures import Totals
    from otel_assembly.ledger.record import Record
    from otel_assembly.recorder import Recording

logger = logging.getLogger("otel_assembly")


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

    def succeeded(self) -> None:
        """What the last step let out is sent: the record is projected, and the ledger keeps what the next one needs."""
        with self.record.ledger.lock:
            for _ in self._succeeding():
                pass

    async def succeeded_in_slices(self) -> None:
        """As `succeeded`, in slices where much is told; done to its end, whoever is cancelled."""
        in_turn = self.record.ledger.in_turn
        if in_turn.asked or (self.recording.measured and len(self.record.ledger_input.view) > LISTED):
            await in_turn.do(self._succeeding(), whole=True)
        else:
            self.succeeded()

    def _succeeding(self) -> Slices[None]:
        record, recording = self.record, self.recording
        ledger, counter = record.ledger, record.meter.counter
        record.last = ledger.last
        totals = self.totals() if recording.measured or isinstance(counter, CalibratedCounter) else None
        yield from self._finish()
        ledger.last = record.snapshot()
        if totals is not None:
            numbered, seen = record.ledger_input.numbered, record.ledger_input.view.end
            ledger.pending_usage = PendingUsage(numbered, seen, totals.tokens_out, counter.generation)

    def failed(self, error: BaseException) -> None:
        """Nothing is sent: the ledger's items stay as they were."""
        record = self.record
        record.error = error
        record.totals = record.kinds = None  # of a prompt that might have been sent
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
        with ledger.lock:
            record.last = ledger.last
            for _ in self._finish():
                pass

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
