"""The model calls of one run of an agent: what prepares them, and what one of them has of another."""

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
    """What prepares a call that is made after it, as a `Run` for `within`: where it raises, no model is called.

    Args:
        instrumentation: Where it is reported.
        call: The call; None where what runs is for no call at all.
        variables: What other context variables are in it.
        returned: Called with what it returns.
        expected_errors: Exceptions that mean no harm: the call is not made, and that is all.
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

    def returned(self, answer: Any) -> None:
        """It has returned this."""
        if self._told is not None:
            self._told(answer)

    def end(self, error: BaseException | None = None) -> None:
        """It is over; only if it raised, so is the call."""
        if self._call is not None and error is not None:
            with self._instrumentation.suppress_errors():
                self._call.end(None if isinstance(error, self._spares) else error)


class SequentialCalls:
    """The calls of runs in which each call is prepared by itself, one after another.

    A call is known by the object that the framework hands from where it is prepared to where it is made.

    Args:
        framework: The framework's name.
        expected_errors: As for `Preparing`.
    """

    def __init__(self, framework: str, expected_errors: tuple[type[BaseException], ...] = ()) -> None:
        self._spares = expected_errors
        self._run: ContextVar[_Turn | None] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self._prepared: IdentityWeakMap[ModelCall] = IdentityWeakMap()

    def run(self, instrumentation: Instrumentation, name: str, conversation_id: str | None = None) -> ContextBoundRun:
        """One run of an agent: as it ends, none of its calls is made any more."""
        turn = _Turn()
        return ContextBoundRun(
            instrumentation, name, {self._run: turn}, conversation_id=conversation_id, ends=turn.begins
        )

    def prepares(self, instrumentation: Instrumentation, by: Any, begun: Callable[[], ModelCall]) -> Preparing:
        """Something prepares a call: one that is prepared here already, or another.

        What works for a reducer, such as a summariser's agent, is that reducer's affair, and prepares none.

        Args:
            instrumentation: Where it is reported.
            by: What the call will be known by.
            begun: Makes the call.
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
        """The call that is known by this; None where a reducer asks."""
        return None if by is None or REDUCTION.get() is not None else self._prepared.get(by)

    def replaced_by_plugin(self, made: Callable[[], Sequence[Any] | ClientRequest]) -> None:
        """A plug-in of ours made this of the call prepared last; a `ClientRequest` if prompts are known too."""
        turn = self._run.get()
        call = turn.last if turn is not None else None
        if call is not None:
            with call.instrumentation.suppress_errors():
                out = made()
                sent = out if isinstance(out, ClientRequest) else ClientRequest(out)
                call.replaced_by_plugin(sent.messages, prompts=sent.prompts)


class _Turn:
    """Whose turn it is in one run: the call that was prepared last, which may have been given up."""

    last: ModelCall | None = None

    def begins(self, call: ModelCall | None = None) -> None:
        """Another call is prepared, or none any more: the one before is not made any more, if it was not."""
        if self.last is not None:
            self.last.end()
        self.last = call


class MultiCallRun(LazyRun):
    """One run: what is reduced in it before a call, or between two, stays reduced for all calls that follow.

    It has a span of ours only where its first turn has none to stand in. What reduces outside of any call waits for
    its next one, by `waits`.

    Args:
        instrumentation: Where it is reported.
        name: The agent's name.
        conversation_id: The conversation's real id, if it has one.
        variable: What holds it as it goes on, and the run around it before.

    Attributes:
        call: The call that is prepared, or made.
        waits: For whom that waits which is reduced outside of any call.
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
        """What runs in this block belongs to the run."""
        with context_value(self._variable, self), context_value(CALL, None), super().current():
            yield

    def begins(self, agent_name: str | None) -> ModelCall:
        """A call of this agent is prepared; the one before is not made any more, if it was not."""
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
        """No call is made any more of what was prepared."""
        if self.call is not None:
            self.call.end()

    def turn(self) -> ContextBoundRun:
        """One turn: its call, and its tools."""
        return _OneTurn(self)


class _OneTurn(ContextBoundRun):
    """One turn of a run, whose span is open in it."""

    is_run = False

    def __init__(self, of: MultiCallRun) -> None:
        super().__init__(of.instrumentation, None, {}, ends=of.over)
        self._of = of

    @contextmanager
    def current(self) -> Iterator[None]:
        """What runs in this block belongs to the run."""
        with self._of.with_span():
            yield


class CallsFromSharedStart:
    """The calls of runs that begin with what was loaded, and reduced, once for all calls of the run.

    It is told of each of them, for none is sent what has left.

    Args:
        framework: The framework's name.
    """

    def __init__(self, framework: str) -> None:
        self._run: ContextVar[_Started | None] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self._prepared: IdentityWeakMap[_Started] = IdentityWeakMap()

    @property
    def invoking_agent(self) -> InvokingAgent | None:
        """Who asks in the run whose model is called here; None outside of any."""
        run = self._run.get()
        return run.first.invoking_agent if run is not None else None

    def prepares(
        self, instrumentation: Instrumentation, invoking_agent: InvokingAgent, by: Callable[[Any], Any]
    ) -> Preparing:
        """A run is prepared: what is loaded and reduced for it is done in this.

        Args:
            instrumentation: Where it is reported.
            invoking_agent: Who asks; the run is the conversation where there is no other.
            by: What the run will be known by where its model is called, of what this returns.
        """
        run = _Started(instrumentation, invoking_agent)
        keep = self._prepared.put
        return Preparing(instrumentation, run.first, {self._run: None}, returned=lambda made: keep(by(made), run))

    def run(self, instrumentation: Instrumentation, by: Any, invoking_agent: InvokingAgent) -> ContextBoundRun:
        """A run calls its model, once or in rounds; one that was not prepared begins here."""
        run = self._prepared.pop(by) or _Started(instrumentation, invoking_agent)
        return ContextBoundRun(instrumentation, None, {self._run: run, CALL: None}, ends=run.first.end)

    def begins(self, held: Sequence[Any]) -> ModelCall | None:
        """A call of the run that holds these messages; None where they are none of a run's."""
        run = self._run.get()
        return run.begins(held) if run is not None else None


class _Started:
    """One run: its first call, for which that is done, and what the others begin with."""

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
