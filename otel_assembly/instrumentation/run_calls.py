"""The model calls of one run of an agent: which function prepares which call, and what calls of a run share.

A framework either prepares each call by itself (`SequentialCalls`), loads and reduces the history once for all calls of
a run (`CallsFromSharedStart`), or reduces it between the calls, for all later ones (`MultiCallRun`).
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.lazy_runs import LazyRun
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import REDUCTION, reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation


class Preparing(ContextBoundRun):
    """A function of the framework that prepares a model call. If it raises, the model is not called.

    Args:
        instrumentation: Records the call.
        call: The model call; None if the function runs for no call.
        variables: The values of further context variables during the function.
        returned: Called with the function's result.
        expected_errors: Exceptions that are not failures: the call is only not made.
    """

    is_run = False

    def __init__(
        self,
        instrumentation: Instrumentation,
        call: ModelCall | None,
        variables: Mapping[ContextVar[Any], Any] = {},  # never written to
        *,
        returned: Callable[[Any], Any] | None = None,
        expected_errors: tuple[type[BaseException], ...] = (),
    ) -> None:
        super().__init__(instrumentation, None, {CALL: call, **variables})
        self._call = call
        self._told = returned
        self._spares = expected_errors

    def on_result(self, answer: Any) -> None:
        """Pass the result on."""
        if self._told is not None:
            self._told(answer)

    def end(self, error: BaseException | None = None) -> None:
        """End the call if the function raised."""
        if self._call is not None and error is not None:
            with self._instrumentation.suppress_errors():
                self._call.end(None if isinstance(error, self._spares) else error)


class SequentialCalls:
    """The calls of runs in which each call is prepared by itself, one after another.

    A call is identified by an object that the framework passes from the function that prepares the call to the client.

    Args:
        framework: The framework's name.
        expected_errors: As for `Preparing`.
    """

    def __init__(self, framework: str, expected_errors: tuple[type[BaseException], ...] = ()) -> None:
        self._spares = expected_errors
        self._run: ContextVar[_Turn | None] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self._prepared: IdentityWeakMap[ModelCall] = IdentityWeakMap()

    def run(self, instrumentation: Instrumentation, name: str, conversation_id: str | None = None) -> ContextBoundRun:
        """Return a run of an agent. At its end, a call that was prepared but not made ends, too."""
        turn = _Turn()
        return ContextBoundRun(
            instrumentation, name, {self._run: turn}, conversation_id=conversation_id, ends=turn.begins
        )

    def prepares(self, instrumentation: Instrumentation, by: Any, begun: Callable[[], ModelCall]) -> Preparing:
        """Return the run of a function that prepares a call: the call that is being prepared, or a new one.

        A function that runs inside a reducer, such as the agent of a summarizer, prepares no call.

        Args:
            instrumentation: Records the call.
            by: The object that identifies the call.
            begun: Creates the call.
        """
        call, turn = CALL.get(), self._run.get()
        if turn is None or turn.last is not call:
            call = None
        if call is None and reducing() is None:
            call = self._prepared.put(by, begun())
            if turn is not None:
                turn.begins(call)
        return Preparing(instrumentation, call, expected_errors=self._spares)

    def of(self, by: Any) -> ModelCall | None:
        """Return the call that this object identifies; None inside a reducer."""
        return None if by is None or REDUCTION.get() is not None else self._prepared.get(by)

    def replaced_by_plugin(self, made: Callable[[], Sequence[Any] | ClientRequest]) -> None:
        """Record the result of one of our plug-ins for the call that was prepared last."""
        turn = self._run.get()
        call = turn.last if turn is not None else None
        if call is not None:
            with call.instrumentation.suppress_errors():
                out = made()
                sent = out if isinstance(out, ClientRequest) else ClientRequest(out)
                call.replaced_by_plugin(sent.messages, prompts=sent.prompts)


class _Turn:
    """The call of a run that was prepared last; the framework may never make it."""

    last: ModelCall | None = None

    def begins(self, call: ModelCall | None = None) -> None:
        """Set the call that is prepared now, or None; the previous one ends."""
        if self.last is not None:
            self.last.end()
        self.last = call


class MultiCallRun(LazyRun):
    """A run in which a reduction before a call, or between two calls, applies to all later calls.

    It starts a span only if no span is current in its first turn. A reduction outside any call is deferred to the next
    call of the run.

    Args:
        instrumentation: Records the run.
        name: The agent's name.
        conversation_id: The conversation's id in the framework, if it has one.
        variable: The context variable that has this run while it runs; before, the enclosing run or None.

    Attributes:
        call: The call that is being prepared, or was made last.
        waits: The invoking agent under which reductions outside any call are deferred.
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
        self.waits = InvokingAgent(self)
        self._variable = variable
        self._start = ModelCall(instrumentation)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the run current in this block."""
        with context_value(self._variable, self), context_value(CALL, None), super().current():
            yield

    def begins(self, agent_name: str | None) -> ModelCall:
        """Start to prepare a call of this agent; the previous call ends."""
        self.over()
        self.call = call = self._start.fork()
        call.run = self
        call.invoking_agent = InvokingAgent(
            self.conversation_id or self, agent_name or "", agent_name, self.conversation_id
        )
        call.apply_deferred(self.waits)
        self._start = call.fork()
        return call

    def over(self) -> None:
        """End the call that was prepared."""
        if self.call is not None:
            self.call.end()

    def turn(self) -> ContextBoundRun:
        """Return the run of one turn: a model call and its tools."""
        return _OneTurn(self)


class _OneTurn(ContextBoundRun):
    """One turn of a `MultiCallRun`, with the run's span."""

    is_run = False

    def __init__(self, of: MultiCallRun) -> None:
        super().__init__(of.instrumentation, None, {}, ends=of.over)
        self._of = of

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the run's span current in this block."""
        with self._of.with_span():
            yield


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
