"""Model calls of runs whose history is loaded and reduced once, for all calls of the run."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import ModelCall
from otel_assembly.instrumentation.run_types import ContextBoundRun, Preparing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation


class CallsFromSharedStart:
    """The calls of runs whose history is loaded and reduced once, for all calls of the run.

    The reductions are recorded as steps of each call, because each call is sent the reduced history.
    """

    def __init__(self, framework: str) -> None:
        self._run: ContextVar[_SharedStart | None] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self._prepared: IdentityWeakMap[_SharedStart] = IdentityWeakMap()

    @property
    def invoking_agent(self) -> InvokingAgent | None:
        """The invoking agent of the current run; None outside any run."""
        run = self._run.get()
        return run.first.invoking_agent if run is not None else None

    def preparing(
        self, instrumentation: Instrumentation, invoking_agent: InvokingAgent, identify: Callable[[Any], Any]
    ) -> Preparing:
        """Return the run of a function that loads and reduces the history for a run of an agent.

        `identify` returns the object that identifies the agent's run when its model is called, from the function's
        result. While the function runs, no run is current: a model that it calls does not get an outer run's history.
        """
        run = _SharedStart(instrumentation, invoking_agent)
        return Preparing(
            instrumentation,
            run.first,
            {self._run: None},
            returned=lambda result: self._prepared.put(identify(result), run),
        )

    def run(self, instrumentation: Instrumentation, key: Any, invoking_agent: InvokingAgent) -> ContextBoundRun:
        """Return a run that calls its model, once or several times; `preparing` has begun it, or it begins here."""
        run = self._prepared.pop(key) or _SharedStart(instrumentation, invoking_agent)
        return ContextBoundRun(instrumentation, None, {self._run: run, CALL: None}, on_end=run.first.end)

    def next_call(self, messages: Sequence[Any]) -> ModelCall | None:
        """Return the next call of the current run; None without a run, or if the messages are not from it."""
        run = self._run.get()
        return run.next_call(messages) if run is not None else None


class _SharedStart:
    """One run: its first call, which has the reductions, and a copy of its start, from which the others are forked."""

    def __init__(self, instrumentation: Instrumentation, invoking_agent: InvokingAgent) -> None:
        if invoking_agent.conversation is None:
            invoking_agent = invoking_agent._replace(conversation=self)
        self.first = ModelCall(instrumentation, invoking_agent)
        #: The first call as it was before any middleware; None until it is made.
        self._start: ModelCall | None = None

    def __del__(self) -> None:  # the run was prepared, but its model never called
        self.first.end()

    def next_call(self, messages: Sequence[Any]) -> ModelCall | None:
        """Return the next call; None if the messages do not contain the reduced history, so that it is another's."""
        call = self.first if self._start is None else self._start.fork()
        if call.out and locate(messages, call.out) is None:
            return None
        self._start = self._start or call.fork()
        return call
