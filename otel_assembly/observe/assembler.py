"""Assemblies that somebody else's code runs: the caller says what went in and what came out, and they are recorded.

A framework's reducer is watched, never asked to change: `ObservedAssembler.begin` opens an assembly, each `step` is one
reducer or policy of it, and `end` records it. Nothing here raises, and nothing that goes wrong here reaches the
agent: what fails is counted, and that assembly is left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep, current_step
from otel_assembly.observe.conversations import ObservedConversations
from otel_assembly.recorder import Projection, Whose
from otel_assembly.tokens import counter_for
from otel_assembly.tokens.models import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from otel_assembly.observe.assembly import AssemblyInput

__all__ = ["ObservedAssembler", "ObservedAssembly", "ObservedStep", "current_step"]


class ObservedAssembler(ObservedConversations):
    """What one framework's reducers do, by conversation.

    Args:
        framework: The framework's name, as on its spans (``assembly.framework``).
        recorder: Where the record of each assembly goes; by default where everything else goes.
        counter: Counts instead of the model's tokenizer.
    """

    def begin(
        self,
        conversation: Any,
        events: Sequence[Any],
        *,
        agent_name: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
        **given: Unpack[AssemblyInput],
    ) -> ObservedAssembly | None:
        """An assembly begins.

        Args:
            conversation: Whose ledger it is: an object that lives as long as the conversation, or an id of it. None:
                a conversation of this one assembly.
            events: What came in, in the framework's own types; it is read here, so that what is changed in it later
                does not show.
            agent_name: The agent's name.
            conversation_id: The conversation's real id, if it has one.
            started_ns: When it began, if that was earlier.
            given: What came in beside the events, as `AssemblyInput` says.

        Returns:
            None where no provider is configured.
        """
        assembly = self.prepare(
            name=given.get("name"),
            agent_name=agent_name,
            model=given.get("model"),
            conversation_id=conversation_id,
            started_ns=started_ns,
        )
        if assembly is None:
            return None
        opened = assembly.open(conversation, events, **given)
        if not opened:
            assembly.end()
        return assembly if opened else None

    def prepare(
        self,
        *,
        name: str | None = None,
        agent_name: str | None = None,
        model: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
    ) -> ObservedAssembly | None:
        """An assembly begins of whose model call nothing is known yet: what a reducer does for it is recorded already.

        Whose it is, what came in, the prompts and the tools are said by `ObservedAssembly.open`.

        Returns:
            None where no provider is configured.
        """
        whose = Whose(agent_name, self.framework, conversation_id)
        began = started_ns if started_ns is not None else time.time_ns()
        try:
            recording = self.recorder.begin(name, model, whose, began)
        except Exception as error:  # noqa: BLE001  # an observer must not be felt
            self.failed(None, error)
            return None
        return None if recording is None else ObservedAssembly(self, recording, model)

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

        It is recorded once that is done, and is no assembly: the one that follows says what becomes of these events.

        Args:
            view: The view's name, of low cardinality.
            conversation: As for `begin`; its events are counted once, however often a view of it is recorded.
            envelopes_in: Envelopes that the view was made of.
            events: The events that came out, in the framework's own types. Their number and their tokens are reported,
                and nothing that they say.
            envelopes_out: Envelopes of which something came out, where that is known.
            agent_name: The agent who gets to see it.
            model: The model whose tokenizer counts.
            conversation_id: The conversation's real id, if it has one.
            started_ns: When it began; by default now.
            error: What was raised instead.
        """
        whose = Whose(agent_name, self.framework, conversation_id)

        def measure() -> tuple[int, int, str, str]:
            meter, ledger = self.meter(model), self.view_ledger(view, conversation)
            with ledger.lock:
                seen = ledger.open(events).view
                table = seen.history.table(meter)
                table.exact(seen)
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
