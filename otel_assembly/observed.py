"""Assemblies that somebody else's code runs: told what went in and what came out, and recorded as ours are.

A framework's reducer is watched, never asked to change: `ObservedAssembler.begin` opens an assembly, each `step` is one
reducer or policy of it, and `end` tells the record. Nothing here raises, and nothing that goes wrong here reaches the
agent: what fails is counted, and that assembly is left out.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly.alignment import equal
from otel_assembly.budget.compaction import Attempt, CompactionOutcome
from otel_assembly.changes import ordinal_runs
from otel_assembly.context import Context
from otel_assembly.decision import DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.ending import failed, succeeded
from otel_assembly.matched import match
from otel_assembly.observed_ledgers import ObservedLedgers
from otel_assembly.record import CALLER, Record, Step, StepCompaction
from otel_assembly.recorder import Projection, Whose, default_recorder
from otel_assembly.tokens import TokenMeter, counter_for
from otel_assembly.view import to_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from contextvars import Token
    from types import TracebackType

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Verdict
    from otel_assembly.ledger import Ledger
    from otel_assembly.recorder import Recorder, Recording
    from otel_assembly.tokens import TokenCounter
    from otel_assembly.view import Run

_METERS: Final = 32
_VIEWS: Final = 32

_STEP: Final[ContextVar[ObservedStep | None]] = ContextVar("otel_assembly_observed_step", default=None)


def current_step() -> ObservedStep | None:
    """The step that is running here: where what it calls, a summariser, can be told of."""
    return _STEP.get()


class ObservedAssembler:
    """What one framework's reducers do, by conversation.

    Args:
        framework: The framework's name, as on its spans (``assembly.framework``).
        recorder: Where the record of each assembly goes; by default where everything else goes.
        counter: Counts instead of the model's tokenizer.
    """

    def __init__(
        self, framework: str, *, recorder: Recorder | None = None, counter: TokenCounter | None = None
    ) -> None:
        self.framework = framework
        self._recorder = recorder
        self._counter = counter
        self._ledgers = ObservedLedgers()
        self._views: dict[str, ObservedLedgers] = {}
        self._meters: dict[str | None, TokenMeter] = {}

    @property
    def recorder(self) -> Recorder:
        """Where records go."""
        return self._recorder if self._recorder is not None else default_recorder()

    def begin(
        self,
        conversation: Any,
        events: Sequence[Any],
        *,
        prompts: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        agent_name: str | None = None,
        model: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
        unknown_input: bool = False,
    ) -> ObservedAssembly | None:
        """An assembly begins.

        Args:
            conversation: Whose ledger it is: an object that lives as long as the conversation, or an id of it. None:
                a conversation of this one assembly.
            events: What came in, in the framework's own types; it is read here, so that what is changed in it later
                does not show.
            prompts: The system-level texts in front of them.
            tools: The schemas of the tools that the model is offered, where they are known.
            name: Tells assemblers of one program apart.
            agent_name: The agent's name.
            model: The model that will be called, whose tokenizer counts.
            conversation_id: The conversation's real id, if it has one.
            started_ns: When it began, if that was earlier.
            unknown_input: What came in cannot be known, and `events` and `prompts` are what will be sent. The span then
                says so (``assembly.diff``), and neither it, nor a step's, nor a metric has a number of what came in or
                left: what was in an earlier prompt and is not in this one left for a reason that nobody knows.

        Returns:
            None where nobody listens.
        """
        recording: Recording | None = None
        try:
            whose = Whose(agent_name, self.framework, conversation_id)
            began = started_ns if started_ns is not None else time.time_ns()
            recording = self.recorder.begin(name, model, whose, began)
            if recording is None:
                return None
            ledger = self._ledgers.of(conversation)
            if not recording.measured:
                ledger.turn()
                return UnmeasuredAssembly(self, recording)
            meter = self._meter(model)
            with ledger.lock:
                opening = ledger.open(events)
                turn = ledger.turn()
            self._ledgers.grown(conversation)
            record = Record(
                assembly_id=os.urandom(16).hex(),
                name=name,
                model=model,
                turn=turn,
                ledger=ledger,
                opening=opening,
                context=Context(tools=tools),
                meter=meter,
                prompts_in=tuple(prompts),
                observed=True,
                unknown=unknown_input,
            )
        except Exception as error:  # noqa: BLE001  # who only looks on must not be felt
            self.failed(recording, error)
            return None
        return ObservedAssembly(self, record, recording, opening.given)

    def failed(self, recording: Recording | None, error: Exception) -> None:
        """Something of ours went wrong: that assembly is left out, and the agent goes on."""
        with suppress(Exception):  # what tells of failures may be what is broken
            if recording is not None:
                recording.abandon()
            self.recorder.failed(f"instrumentation.{self.framework}", error)

    def declined(self, policy: str, agent_name: str | None = None) -> None:
        """A reducer looked whether there was anything to do, and there was not: a count, and no span.

        Args:
            policy: Its name, of low cardinality, as its span would have it.
            agent_name: The agent's name.
        """
        try:
            self.recorder.declined(policy, agent_name, self.framework)
        except Exception as error:  # noqa: BLE001
            self.failed(None, error)

    def project(
        self,
        view: str,
        conversation: Any,
        *,
        envelopes_in: int,
        events: Sequence[Any] = (),
        envelopes_out: int | None = None,
        agent_name: str | None = None,
        model: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        """What one agent gets to see of what a network of agents has said was worked out: a ``project_view`` span.

        It is told once that is done, and is no assembly: what becomes of these events is told by the one that follows.

        Args:
            view: The view's name, of low cardinality.
            conversation: As for `begin`; its events are counted once, however often a view of it is told of.
            envelopes_in: Envelopes that the view was made of.
            events: The events that came out, in the framework's own types. Their number and their tokens are told, and
                nothing that they say.
            envelopes_out: Envelopes of which something came out, where that is known.
            agent_name: The agent who gets to see it.
            model: The model whose tokenizer counts.
            conversation_id: The conversation's real id, if it has one.
            started_ns: When it began; by default now.
            error: What was raised instead.
        """
        whose = Whose(agent_name, self.framework, conversation_id)

        def measure() -> tuple[int, int, str, str]:
            meter, ledger = self._meter(model), self._views_of(view).of(conversation)
            with ledger.lock:
                seen = ledger.open(events).view
                table = seen.history.table(meter)
                table.each(seen)
                method = "estimated" if meter.method == "exact" and seen.history.any_media(seen) else meter.method
                return len(seen), table.sum(seen), method, meter.encoding

        began = started_ns if started_ns is not None else time.time_ns()
        projection = Projection(view, model, whose, began, envelopes_in, envelopes_out, error, measure)
        try:
            self.recorder.projected(projection)
        except Exception as problem:  # noqa: BLE001
            self.failed(None, problem)

    def _views_of(self, view: str) -> ObservedLedgers:
        ledgers = self._views.get(view)
        if ledgers is None:
            ledgers = self._views[view] = ObservedLedgers()
            while len(self._views) > _VIEWS:
                del self._views[next(iter(self._views))]
        return ledgers

    def _meter(self, model: str | None) -> TokenMeter:
        meter = self._meters.get(model)
        if meter is None:
            meter = self._meters[model] = TokenMeter(self._counter or counter_for(model))
            while len(self._meters) > _METERS:
                del self._meters[next(iter(self._meters))]
        return meter

    def forget(self) -> None:
        """Let go of every conversation."""
        self._ledgers = ObservedLedgers()
        self._views = {}


class ObservedAssembly:
    """One assembly of a framework, while it runs."""

    __slots__ = ("_assembler", "_broken", "events", "record", "recording")

    def __init__(self, assembler: ObservedAssembler, record: Record, recording: Recording, events: list[Any]) -> None:
        self._assembler = assembler
        self.record = record
        self.recording = recording
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
        record = self.record
        last = record.steps[-1] if record.steps else None
        prompts = last.prompts_out if last is not None else record.prompts_in
        frame = last.frame_out if last is not None else record.opening.frame
        view = last.view_out if last is not None else record.opening.view
        step = Step(
            policy=policy,
            index=len(record.steps),
            kind=kind,
            config=config or {},
            prompts_in=prompts,
            prompts_out=prompts,
            sources=last.sources if last is not None else (CALLER,) * len(prompts),
            frame_in=frame,
            view_in=view,
            frame_out=frame,
            view_out=view,
        )
        record.steps.append(step)
        around: AbstractContextManager[None] = nullcontext()
        try:
            around = self.recording.policy(policy, step.index, started_ns)
        except Exception as problem:  # noqa: BLE001
            self.fail(problem)
        return ObservedStep(self, step, around)

    def end(self, error: BaseException | None = None) -> None:
        """The assembly came to its end; with an error, nothing was sent."""
        record, recording = self.record, self.recording
        if self._broken:
            with suppress(Exception):
                recording.abandon()
            return
        try:
            if error is not None:
                failed(record, recording, error)
            else:
                succeeded(record, recording)
        except Exception as problem:  # noqa: BLE001
            self._assembler.failed(recording, problem)

    def fail(self, problem: Exception) -> None:
        """What is known of this assembly is not to be told."""
        self._broken = True
        self._assembler.failed(None, problem)


class UnmeasuredAssembly(ObservedAssembly):
    """One that nobody is told the numbers of: it is counted as a turn, and tells of alerts and overflows."""

    __slots__ = ()

    def __init__(self, assembler: ObservedAssembler, recording: Recording) -> None:
        self._assembler = assembler
        self.recording = recording
        self.events = []
        self._broken = False

    @property
    def id(self) -> str:
        """None: it has no span that anybody could look for."""
        return ""

    def step(
        self,
        policy: str,
        *,
        kind: str | None = None,
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> ObservedStep:
        """One policy or reducer, of which nothing is told but what went wrong."""
        return _UnmeasuredStep(self)

    def end(self, error: BaseException | None = None) -> None:
        """It came to its end."""
        try:
            self.recording.abandon()
        except Exception as problem:  # noqa: BLE001
            self._assembler.failed(None, problem)


class ObservedStep:
    """One policy or reducer of an observed assembly, while it runs."""

    __slots__ = ("_assembly", "_attempts", "_current", "_step", "_time")

    def __init__(self, assembly: ObservedAssembly, step: Step, time_of: AbstractContextManager[None]) -> None:
        self._assembly = assembly
        self._step = step
        self._time = time_of
        self._attempts: list[Attempt] = []
        self._current: Token[ObservedStep | None] | None = None

    def __enter__(self) -> Self:
        self._time.__enter__()
        self._current = _STEP.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
                _STEP.reset(self._current)
        self._step.error = error
        self._time.__exit__(kind, error, trace)

    def out(
        self,
        events: Sequence[Any] | None = None,
        *,
        prompts: Sequence[str] | None = None,
        reason: DecisionReason = DecisionReason.POLICY,
        verdicts: Sequence[Verdict] = (),
        budget: int | None = None,
        fixed: int | None = None,
        alerts: Sequence[AlertFacts] = (),
        halts: int = 0,
        reported: int | None = None,
    ) -> None:
        """Say what came out.

        What is in it that lost the other half of its pair, a tool's result without the call or the other way round, is
        found here, and told as ``assembly.pairs.broken``.

        Args:
            events: The events; None where they are those that came in.
            prompts: The prompts; None where they are those that came in.
            reason: Why an event left of which no verdict speaks.
            verdicts: Why, by event; a verdict on an event that did not leave is not heeded.
            budget: The limit that was held, in tokens.
            fixed: Tokens of what could not be dropped.
            alerts: Alerts that were delivered to the model.
            halts: Halts that were emitted.
            reported: How many events the framework itself says that it left out, in the text that it puts in their
                place or elsewhere; told beside what is really not there.
        """
        step, assembly = self._step, self._assembly
        try:
            if events is not None:
                record = assembly.record
                index = record.opening.frame.places if step.view_in is record.opening.view else None
                with record.ledger.lock:
                    inputs = assembly.events
                    if len(inputs) > len(step.view_in):  # another assembly of the conversation put more behind them
                        inputs = inputs[: len(step.view_in)]
                    given = inputs if type(events) is list and _unchanged(inputs, events) else list(events)
                    match(
                        step,
                        inputs,
                        given,
                        verdicts,
                        record.ledger,
                        otherwise=reason,
                        rereads=True,
                        index=index,
                    )
                assembly.events = given
            if prompts is not None:
                step.prompts_out = tuple(prompts)
                step.sources = _sources(step)
            step.budget, step.fixed = budget, fixed
            step.alerts, step.halts = tuple(alerts), halts
            step.reported = reported
            if assembly.record.unknown:
                step.groups = step.held = ()
            if step.made:
                step.compactions = tuple(_compactions(step, self._attempts, assembly.record.ledger))
        except Exception as problem:  # noqa: BLE001
            assembly.fail(problem)

    def overflow(
        self, *, budget: int, needed: int, cause: OverflowCause = OverflowCause.FRAMEWORK, unit: str = "tokens"
    ) -> None:
        """A limit could not hold."""
        self._step.overflow = Overflow(budget, needed, cause, unit)
        if self._assembly.record.overflow is None:
            self._assembly.record.overflow = self._step.overflow

    def compacting(self, compactor: str, *, kind: str = "summary", target: int = 0, tokens_in: int = 0) -> _Compacting:
        """Around one attempt to compact, such as a summariser's model call: a ``compact_block`` span.

        What is yielded is the `Attempt`; the block fills in `tokens_out`, and `outcome` where it came to nothing.
        """
        attempt = Attempt(compactor, len(self._attempts) + 1, target, tokens_in)
        self._attempts.append(attempt)
        watch = self._assembly.recording.watch(kind)
        return _Compacting(attempt, watch(attempt))

    def count(self, text: str) -> int:
        """Tokens of a text, by what counts for this assembly."""
        return self._assembly.record.meter.prompt(text)


class _UnmeasuredStep(ObservedStep):
    __slots__ = ()

    def __init__(self, assembly: UnmeasuredAssembly) -> None:
        self._assembly = assembly
        self._current = None

    def __enter__(self) -> Self:
        self._current = _STEP.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            with suppress(ValueError):
                _STEP.reset(self._current)

    def out(
        self,
        events: Sequence[Any] | None = None,
        *,
        prompts: Sequence[str] | None = None,
        reason: DecisionReason = DecisionReason.POLICY,
        verdicts: Sequence[Verdict] = (),
        budget: int | None = None,
        fixed: int | None = None,
        alerts: Sequence[AlertFacts] = (),
        halts: int = 0,
        reported: int | None = None,
    ) -> None:
        """Alerts are told of, whoever counts."""
        if alerts:
            try:
                self._assembly.recording.signal(alerts, None)
            except Exception as problem:  # noqa: BLE001
                self._assembly.fail(problem)

    def overflow(
        self, *, budget: int, needed: int, cause: OverflowCause = OverflowCause.FRAMEWORK, unit: str = "tokens"
    ) -> None:
        """So are overflows."""
        try:
            self._assembly.recording.signal((), Overflow(budget, needed, cause, unit))
        except Exception as problem:  # noqa: BLE001
            self._assembly.fail(problem)

    def compacting(self, compactor: str, *, kind: str = "summary", target: int = 0, tokens_in: int = 0) -> _Compacting:
        """No span."""
        return _Compacting(Attempt(compactor, 1, target, tokens_in), nullcontext())

    def count(self, text: str) -> int:
        """Nobody is told of it: nothing is counted."""
        return 0


class _Compacting:
    __slots__ = ("_around", "_attempt")

    def __init__(self, attempt: Attempt, around: AbstractContextManager[Any]) -> None:
        self._attempt = attempt
        self._around = around

    def __enter__(self) -> Attempt:
        self._around.__enter__()
        return self._attempt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        attempt = self._attempt
        if error is None:
            attempt.outcome = attempt.outcome or CompactionOutcome.COMPACTED
        elif isinstance(error, TimeoutError):
            attempt.outcome = CompactionOutcome.TIMED_OUT
            attempt.error_type = type(error).__name__
        elif isinstance(error, Exception):
            attempt.outcome = CompactionOutcome.RAISED
            attempt.error_type = type(error).__name__
        elif not isinstance(error, asyncio.CancelledError):
            attempt.error_type = type(error).__name__
        self._around.__exit__(None, None, None)


def _unchanged(inputs: list[Any], events: list[Any]) -> bool:
    if len(inputs) != len(events) or not inputs:
        return False
    return inputs[0] is events[0] and inputs[-1] is events[-1] and equal(inputs, events)


def _sources(step: Step) -> tuple[str, ...]:
    """A prompt that came in keeps its source; a new one is the step's."""
    known: dict[str, list[str]] = {}
    for prompt, source in zip(reversed(step.prompts_in), reversed(step.sources), strict=True):
        known.setdefault(prompt, []).append(source)
    return tuple(held.pop() if (held := known.get(prompt)) else step.policy for prompt in step.prompts_out)


def _compactions(step: Step, attempts: Sequence[Attempt], ledger: Ledger) -> Sequence[StepCompaction]:
    """What was made of others: of leaves alone, also where a summary was compacted once more."""
    gone = [group for group in step.groups if group.outcome is DecisionOutcome.COMPACTED]
    if not gone or (not attempts and (len(step.made) > 1 or step.made[0][1] in ledger.leaves)):
        return ()
    runs = sorted(run for group in gone for run in ordinal_runs(group.view, group.frame))
    leaves = tuple(_leaves(runs, ledger))
    if len(step.made) == 1:
        ledger.remember_leaves(step.made[0][1], leaves)
    return [StepCompaction(leaves, step.made[0][1], tuple(attempts))] if attempts else ()


def _leaves(runs: Sequence[Run], ledger: Ledger) -> list[Run]:
    found: set[int] = set()
    for first, last in runs:
        found.update(range(first, last + 1))
    for item in found & ledger.leaves.keys():
        found.discard(item)
        for first, last in ledger.leaves[item]:
            found.update(range(first, last + 1))
    return [(start, stop - 1) for start, stop in to_runs(sorted(found))]
