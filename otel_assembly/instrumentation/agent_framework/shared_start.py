"""Model calls of runs whose history is loaded and reduced once, for all calls of the run."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import ModelCall
from otel_assembly.instrumentation.run_calls import Preparing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation


class CallsFromSharedStart:
    """The calls of runs whose history is loaded and reduced once, for all calls of the run.

    The reductions are recorded as steps of each call, because each call is sent the reduced history.

    Args:
        framework: The framework's name.
    """

    def __init__(self, framework: str) -> None:
        self._run: ContextVar[_Started | None] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self._prepared: IdentityWeakMap[_Started] = IdentityWeakMap()

    @property
    def invoking_agent(self) -> InvokingAgent | None:
        """The invoking agent of the current run; None outside any run."""
        run = self._run.get()
        return run.first.invoking_agent if run is not None else None

    def prepares(
        self, instrumentation: Instrumentation, invoking_agent: InvokingAgent, by: Callable[[Any], Any]
    ) -> Preparing:
        """Return the run of a function that loads and reduces the history for a run.

        Args:
            instrumentation: Records the run.
            invoking_agent: The agent; if it has no conversation, the run is the conversation.
            by: Returns the object that identifies the run when its model is called, from the function's result.
        """
        run = _Started(instrumentation, invoking_agent)
        keep = self._prepared.put
        return Preparing(instrumentation, run.first, {self._run: None}, returned=lambda made: keep(by(made), run))

    def run(self, instrumentation: Instrumentation, by: Any, invoking_agent: InvokingAgent) -> ContextBoundRun:
        """Return a run that calls its model, once or several times; it was prepared before, or starts here."""
        run = self._prepared.pop(by) or _Started(instrumentation, invoking_agent)
        return ContextBoundRun(instrumentation, None, {self._run: run, CALL: None}, ends=run.first.end)

    def begins(self, held: Sequence[Any]) -> ModelCall | None:
        """Return a new call of the run that contains these messages; None if no run does."""
        run = self._run.get()
        return run.begins(held) if run is not None else None


class _Started:
    """One run: its first call, which has the reductions, and the state with which the other calls start."""

    def __init__(self, instrumentation: Instrumentation, invoking_agent: InvokingAgent) -> None:
        known = (
            invoking_agent if invoking_agent.conversation is not None else invoking_agent._replace(conversation=self)
        )
        self.first = ModelCall(instrumentation, known)
        self._others: ModelCall | None = None

    def begins(self, held: Sequence[Any]) -> ModelCall | None:
        begun = self.first if self._others is None else self._others.fork()
        if begun.out and locate(held, begun.out) is None:
            return None
        self._others = self._others or begun.fork()
        return begun
