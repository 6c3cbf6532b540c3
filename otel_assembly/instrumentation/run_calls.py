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
        self._on_return = returned
        self._expected_errors = expected_errors

    def on_result(self, answer: Any) -> None:
        if self._on_return is not None:
            self._on_return(answer)

    def end(self, error: BaseException | None = None) -> None:
        """End the call if the function raised."""
        if self._call is not None and error is not None:
            with self._instrumentation.suppress_errors():
                self._call.end(None if isinstance(error, self._expected_errors) else error)


class SequentialCalls:
    """The calls of runs in which each call is prepared by itself, one after another.

    A call is identified by an object that the framework passes from the function that prepares the call to the client.

    Args:
        expected_errors: As for `Preparing`.
    """

    def __init__(self, expected_errors: tuple[type[BaseException], ...] = ()) -> None:
        self._expected_errors = expected_errors
        self._prepared: IdentityWeakMap[ModelCall] = IdentityWeakMap()

    def run(self, instrumentation: Instrumentation, name: str, conversation_id: str | None = None) -> ContextBoundRun:
        """Return a run of an agent. At its end, a call that was prepared but not made ends, too.

        During the run, `LAST_PREPARED` has the run's `_Turn` for this object; those of other runs around it stay.
        """
        turn = _Turn()
        return ContextBoundRun(
            instrumentation,
            name,
            {LAST_PREPARED: {**LAST_PREPARED.get(), self: turn}},
            conversation_id=conversation_id,
            on_end=turn.end_last_call,
        )

    def prepares(self, instrumentation: Instrumentation, by: Any, create: Callable[[], ModelCall]) -> Preparing:
        """Return the run of a function that prepares a call: the call that is being prepared, or a new one.

        The call is then identified by the object `by`. A function that runs inside a reducer, such as the agent of a
        summarizer, prepares no call.
        """
        call, turn = CALL.get(), LAST_PREPARED.get().get(self)
        if turn is None or turn.last_call is not call:
            call = None  # the current call belongs to an outer run
        if call is None and reducing() is None:
            call = self._prepared.put(by, create())
            if turn is not None:
                turn.end_last_call()
                turn.last_call = call
        return Preparing(instrumentation, call, expected_errors=self._expected_errors)

    def of(self, by: Any) -> ModelCall | None:
        """Return the call that this object identifies; None inside a reducer."""
        return None if by is None or REDUCTION.get() is not None else self._prepared.get(by)

    def replaced_by_plugin(self, made: Callable[[], Sequence[Any] | ClientRequest]) -> None:
        """Continue the call that was prepared last after a plug-in of this library; see `ModelCall`.

        `made` returns the plug-in's output, as messages or as a request with system prompts.
        """
        turn = LAST_PREPARED.get().get(self)
        call = turn.last_call if turn is not None else None
        if call is not None:
            with call.instrumentation.suppress_errors():
                out = made()
                sent = out if isinstance(out, ClientRequest) else ClientRequest(out)
                call.replaced_by_plugin(sent.messages, prompts=sent.prompts)


class _Turn:
    """The call of a run that was prepared last; the framework may never make it."""

    last_call: ModelCall | None = None

    def end_last_call(self) -> None:
        """End the call without a model call, if it is still open: another one is prepared, or the run ends."""
        if self.last_call is not None:
            self.last_call.end()
        self.last_call = None
