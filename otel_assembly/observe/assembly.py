"""One assembly of a framework, while it runs: its steps, one after the other, and its end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from otel_assembly.chain.open_assembly import OpenAssembly
from otel_assembly.observe.step import ObservedStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.ledger.record import Record
    from otel_assembly.observe.assembler import ObservedAssembler
    from otel_assembly.recorder import PolicyTime, Recording


class ObservedAssembly(OpenAssembly):
    """One assembly of a framework, while it runs."""

    __slots__ = ("_assembler", "_broken", "events")

    def __init__(self, assembler: ObservedAssembler, record: Record, recording: Recording, events: list[Any]) -> None:
        super().__init__(record, recording)
        self._assembler = assembler
        #: What the next step takes in: the framework's own list, whose objects need not be those first seen.
        self.events = events
        self._broken = False

    @property
    def id(self) -> str:
        """The assembly's id, as on its span."""
        return self.record.assembly_id

    def step(
        self,
        policy: str,
        *,
        kind: str | None = None,
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> ObservedStep:
        """One policy or reducer: a context manager around what it does, which says there what came out.

        Where an exception leaves the block, the step failed; where nothing was said, it changed nothing. It must not
        be held open across the ``yield`` of a generator.

        Args:
            policy: Its name, of low cardinality.
            kind: ``injection`` or ``reduction``, where that is known.
            config: Its settings; numbers, bools and enums of them are told.
            started_ns: When it began, if that was before the block is entered.
        """
        time_of: PolicyTime | None = None
        try:
            time_of = self.recording.policy(policy, len(self.record.steps), started_ns)
        except Exception as problem:  # noqa: BLE001
            self.fail(problem)
        return self.take(policy, kind, config or {}, time_of)

    def take(
        self,
        policy: str,
        kind: str | None,
        config: Mapping[str, Any],
        time_of: PolicyTime | None,
        attempts: Sequence[Attempt] = (),
    ) -> ObservedStep:
        """A step whose time, and whose attempts to compact, are told of already."""
        return ObservedStep(self, self.begin_step(policy, kind, config), time_of, attempts)

    def tokens(self) -> int | None:
        """Tokens of the prompt as the last step left it; None where nobody counts."""
        record = self.record
        view = record.view_out
        record.count(view)
        return record.tokens(record.prompts_out, view)

    def end(
        self,
        error: BaseException | None = None,
        *,
        stays: bool = False,
        called: bool = True,
        over_ns: int | None = None,
    ) -> None:
        """The assembly came to its end; with an error, nothing was sent.

        Args:
            error: What went wrong.
            stays: Whether what came in stays as the last step left it, whatever went wrong: it was care of a history,
                such as its compaction, and no prompt of a model call that fails with it.
            called: Whether a model is called with it now.
            over_ns: When it was over, if that was earlier.
        """
        record, recording = self.record, self.recording
        record.called, record.ended_ns = called, over_ns
        if self._broken:
            with suppress(Exception):
                recording.abandon()
            return
        try:
            if error is None:
                self.succeeded()
            elif stays:
                self.spared(error)
            else:
                self.failed(error)
        except Exception as problem:  # noqa: BLE001
            self._assembler.failed(recording, problem)

    def fail(self, problem: Exception) -> None:
        """What is known of this assembly is not to be told."""
        self._broken = True
        self._assembler.failed(None, problem)
