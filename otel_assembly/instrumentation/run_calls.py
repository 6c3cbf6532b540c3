"""Functions of a framework that prepare a model call, and runs in which each call is prepared by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.context_variables import CALL, LAST_PREPARED, REDUCTION
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import ContextVar

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
        expected_errors: As for `Preparing`.
    """

    def __init__(self, expected_errors: tuple[type[BaseException], ...] = ()) -> None:
        self._spares = expected_errors
        self._prepared: IdentityWeakMap[ModelCall] = IdentityWeakMap()

    def run(self, instrumentation: Instrumentation, name: str, conversation_id: str | None = None) -> ContextBoundRun:
        """Return a run of an agent. At its end, a call that was prepared but not made ends, too."""
        turn = _Turn()
        return ContextBoundRun(
            instrumentation,
            name,
            {LAST_PREPARED: {**LAST_PREPARED.get(), self: turn}},
            conversation_id=conversation_id,
            ends=turn.begins,
        )

    def prepares(self, instrumentation: Instrumentation, by: Any, begun: Callable[[], ModelCall]) -> Preparing:
        """Return the run of a function that prepares a call: the call that is being prepared, or a new one.

        A function that runs inside a reducer, such as the agent of a summarizer, prepares no call.

        Args:
            instrumentation: Records the call.
            by: The object that identifies the call.
            begun: Creates the call.
        """
        call, turn = CALL.get(), LAST_PREPARED.get().get(self)
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
        turn = LAST_PREPARED.get().get(self)
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
