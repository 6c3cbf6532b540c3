"""Runs of agents whose framework calls models through the providers' clients, and the reductions in these runs."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS
from otel_assembly.instrumentation.provider_clients.conversations import ConversationRun, NamedConversation
from otel_assembly.instrumentation.provider_clients.fingerprints import message_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.step_report import StepReport

#: The innermost run of an agent.
_AGENT_RUN: Final[ContextVar[AgentRun | None]] = ContextVar("otel_assembly_agent_run", default=None)


class AgentRun(ConversationRun):
    """A run of an agent.

    Args:
        conversation_id: Returns the conversation's id in the framework, which may get it when the run has begun; None
            if it has none.

    Attributes:
        invoking_agent: The agent for which the framework's reducers run; the next model call in the run records them.
        history: The same agent, for reducers of the history with which the run starts; each call in the run records
            them, because all of them have the reduced history.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        runner: object,
        agent: str,
        conversation_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(NamedConversation(conversation_id(), agent, conversation_id), instrumentation)
        self.instrumentation = instrumentation
        self.runner = runner
        self.invoking_agent = InvokingAgent(self, "calls", agent)
        self.history = InvokingAgent(self, "history", agent)

    @contextmanager
    def current(self) -> Iterator[None]:
        with context_value(_AGENT_RUN, self), super().current():
            yield

    def take_framework_reductions(self, messages: Sequence[Any]) -> tuple[list[Any], list[StepReport]]:
        """Return the messages of a call before the run's reducers removed some, and the reports of these reducers."""
        history_reports = DEFERRED_REDUCTIONS.take(self.history)
        call_reports = DEFERRED_REDUCTIONS.take(self.invoking_agent)
        for report in history_reports:  # the later calls of the run record these reports, too
            DEFERRED_REDUCTIONS.put(self.history, report.repeated())
        # The framework has converted its messages for the client, and `undo` needs the objects of the request.
        sent = {message_keys(message).fingerprint: message for message in messages}
        for report in (*history_reports, *call_reports):
            before = [sent.get(message_keys(message).fingerprint, message) for message in report.before]
            after = [sent.get(message_keys(message).fingerprint, message) for message in report.after or ()]
            DEFERRED_REDUCTIONS.put(self.invoking_agent, replace(report, before=before, after=after))
        return DEFERRED_REDUCTIONS.undo(self.invoking_agent, messages)


def current_agent_run() -> AgentRun | None:
    return _AGENT_RUN.get()


hide_frames(globals())
