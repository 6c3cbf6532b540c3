"""Assemblies that somebody else's code runs: told what went in and what came out, and recorded as ours are.

A framework's reducer is watched, never asked to change: `ObservedAssembler.begin` opens an assembly, each `step` is one
reducer or policy of it, and `end` tells the record. Nothing here raises, and nothing that goes wrong here reaches the
agent: what fails is counted, and that assembly is left out.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.context import Context
from otel_assembly.ledger.record import Record
from otel_assembly.observe.assembly import ObservedAssembly
from otel_assembly.observe.conversations import ObservedLedgers
from otel_assembly.observe.prepared import PreparedAssembly
from otel_assembly.observe.step import ObservedStep, current_step
from otel_assembly.observe.unsampled import UnmeasuredAssembly
from otel_assembly.recorder import Projection, Whose, default_recorder
from otel_assembly.tokens import TokenMeter, counter_for
from otel_assembly.tokens.models import prepare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.recorder import Recorder, Recording
    from otel_assembly.tokens import TokenCounter

__all__ = ["ObservedAssembler", "ObservedAssembly", "ObservedStep", "PreparedAssembly", "current_step"]

_METERS: Final = 32
_VIEWS: Final = 32


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
            recording = self._recording(name, model, Whose(agent_name, self.framework, conversation_id), started_ns)
            if recording is None:
                return None
            return self.assembly(
                recording,
                conversation,
                events,
                prompts=prompts,
                tools=tools,
                name=name,
                model=model,
                unknown_input=unknown_input,
            )
        except Exception as error:  # noqa: BLE001  # who only looks on must not be felt
            self.failed(recording, error)
            return None

    def prepare(
        self,
        *,
        agent_name: str | None = None,
        model: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
    ) -> PreparedAssembly | None:
        """An assembly begins of whose model call nothing is known yet: what a reducer does for it can be told already.

        Whose it is, what came in, the prompts and the tools are said at its end.

        Returns:
            None where nobody listens.
        """
        try:
            recording = self._recording(None, model, Whose(agent_name, self.framework, conversation_id), started_ns)
        except Exception as error:  # noqa: BLE001
            self.failed(None, error)
            return None
        return None if recording is None else PreparedAssembly(self, recording, model)

    def _recording(self, name: str | None, model: str | None, whose: Whose, started_ns: int | None) -> Recording | None:
        return self.recorder.begin(name, model, whose, started_ns if started_ns is not None else time.time_ns())

    def assembly(
        self,
        recording: Recording,
        conversation: Any,
        events: Sequence[Any],
        *,
        prompts: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        model: str | None = None,
        unknown_input: bool = False,
    ) -> ObservedAssembly:
        """The assembly of which a recording has begun, with the arguments of `begin`.

        Raises:
            DescribeError: An event cannot be read.
        """
        if not recording.measured:
            self._ledgers.turn(conversation)
            return UnmeasuredAssembly(self, recording)
        ledger = self._ledgers.of(conversation)
        meter = self.meter(model)
        with ledger.lock:
            ledger_input = ledger.open(events)
            turn = ledger.turn()
        self._ledgers.grown(conversation)
        record = Record(
            assembly_id=os.urandom(16).hex(),
            name=name,
            model=model,
            turn=turn,
            ledger=ledger,
            ledger_input=ledger_input,
            context=Context(tools=tools),
            meter=meter,
            prompts_in=tuple(prompts),
            observed=True,
            unknown=unknown_input,
        )
        return ObservedAssembly(self, record, recording, ledger_input.given)

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
            meter, ledger = self.meter(model), self._views_of(view).of(conversation)
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

    def expect(self) -> None:
        """Begin to read what will count where no model says otherwise: the framework is here, and will be used."""
        prepare(self._counter or counter_for())

    def _views_of(self, view: str) -> ObservedLedgers:
        ledgers = self._views.get(view)
        if ledgers is None:
            ledgers = self._views[view] = ObservedLedgers()
            while len(self._views) > _VIEWS:
                del self._views[next(iter(self._views))]
        return ledgers

    def meter(self, model: str | None) -> TokenMeter:
        """What counts for a model."""
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
