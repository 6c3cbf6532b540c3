"""Runs in which a reduction before a call, or between two calls, applies to all later calls."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS, ModelCall
from otel_assembly.instrumentation.run_types import ContextBoundRun, LazyRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import ContextVar

    from otel_assembly.instrumentation.instrumented import Instrumentation


class MultiCallRun(LazyRun):
    """A run in which a reduction before a call, or between two calls, applies to all later calls.

    It starts a span only if no span is current in its first turn. A reduction outside any call is deferred to the next
    call of the run.

    Args:
        variable: The context variable that has this run while it runs; before, the enclosing run or None.

    Attributes:
        call: The call that is being prepared, or was made last.
        as_invoking_agent: The run itself as an invoking agent, for which reductions outside any call are deferred.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        name: str,
        conversation_id: str | None,
        variable: ContextVar[MultiCallRun | None],
    ) -> None:
        super().__init__(instrumentation, name, conversation_id, parent=variable.get())
        self.call: ModelCall | None = None
        self.as_invoking_agent = InvokingAgent(self)
        self._variable = variable
        #: Is never made. Its steps are the reductions that apply to all later calls, so each call begins as its fork.
        self._start = ModelCall(instrumentation)

    @contextmanager
    def current(self) -> Iterator[None]:
        with context_value(self._variable, self), context_value(CALL, None), super().current():
            yield

    def begin_call(self, agent_name: str | None) -> ModelCall:
        """Begin an agent's call with the run's reductions so far; end the previous one. Set the input afterwards."""
        self.end_call()
        self.call = call = self._start.fork()
        call.run = self
        call.invoking_agent = InvokingAgent(
            self.conversation_id or self, agent_name or "", agent_name, self.conversation_id
        )
        for report in DEFERRED_REDUCTIONS.take(self.as_invoking_agent):
            call.observe_messages(report.before)  # the run may have added items since the last reduction
            originals = dict(zip(map(id, report.before), call.out, strict=True))
            call.replay_deferred(replace(report.with_originals(originals), before=call.out))
        self._start = call.fork()  # without the steps that follow, such as a filter's, which apply to this call only
        return call

    def end_call(self) -> None:
        if self.call is not None:
            self.call.end()

    def turn(self) -> ContextBoundRun:
        """Return the run of one turn: a model call and its tools."""
        return _OneTurn(self)


class _OneTurn(ContextBoundRun):
    """One turn of a `MultiCallRun`, with the run's span. At its end, a call that was not made ends."""

    is_run = False

    def __init__(self, of: MultiCallRun) -> None:
        super().__init__(of.instrumentation, None, {}, on_end=of.end_call)
        self._of = of

    @contextmanager
    def current(self) -> Iterator[None]:
        with self._of.with_span():
            yield
