"""The kinds of runs that `run_hook` tracks: of an agent, of a part of its run, and of what prepares a model call."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.context_variables import CALL, LAST_PREPARED, REDUCTION, SUMMARIZED
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS, ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from contextvars import ContextVar

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun


class LazyRun(TrackedRun):
    """A run whose ``invoke_agent`` span starts when something is recorded in it; none if a span is current already.

    It is for functions of which only some calls are runs of an agent, such as a chain that need not call a model.

    Args:
        name: The agent's name; None for a part of a run, which has no span.
        conversation_id: The conversation's id in the framework, if it has one.
        parent: The enclosing run; its span starts first.
        at_once: Whether the span starts with the run's first step, even if nothing is recorded in it.

    Attributes:
        is_run: Whether this is a run, and not only a part of one. At the end of the outermost run, the calls of
            summarizers that no model call recorded are recorded.
    """

    is_run = True

    def __init__(
        self,
        instrumentation: Instrumentation,
        name: str | None,
        conversation_id: str | None = None,
        *,
        parent: LazyRun | None = None,
        at_once: bool = False,
    ) -> None:
        self.instrumentation = instrumentation
        self.name = name
        self.conversation_id = conversation_id
        self.parent = parent
        self.ended = False
        self._at_once = at_once
        self._began = False
        self._opened: OpenRun | None = None
        self._summarized: list[InvokingAgent] = []

    @contextmanager
    def current(self) -> Iterator[None]:
        if not self._began:
            self._began = True
            with self.instrumentation.suppress_errors():
                if self._at_once or trace.get_current_span().get_span_context().is_valid:
                    self._open()
        is_outermost = self.is_run and SUMMARIZED.get() is None
        with context_value(SUMMARIZED, self._summarized) if is_outermost else nullcontext(), self.inside():
            yield

    def with_span(self) -> AbstractContextManager[None]:
        """Start the run's span, if it has not started, and make it the parent of spans that start in this block."""
        self._open()
        return self.inside_unless_traced()

    def inside_unless_traced(self) -> AbstractContextManager[None]:
        """Make the run current in this block, unless a span is current, which then belongs to the run."""
        return nullcontext() if trace.get_current_span().get_span_context().is_valid else self.inside()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make the run's span current in this block, if it has started."""
        if self._opened is None:
            yield
            return
        with self.parent.with_span() if self.parent is not None else nullcontext(), self._opened.current():
            yield

    def _open(self) -> None:
        if self._opened is None:
            with self.parent.with_span() if self.parent is not None else nullcontext():
                self._opened = self.begin()

    def begin(self) -> OpenRun | None:
        """Start the span; None if nothing is recorded."""
        if self.name is None:
            return None
        return self.instrumentation.begin_run(self.name, conversation_id=self.conversation_id)

    def end(self, error: BaseException | None = None) -> None:
        self.ended = True
        if self._summarized:
            with self.instrumentation.suppress_errors():
                self._open()
                with self.inside():
                    DEFERRED_REDUCTIONS.run_ended(self.instrumentation, self._summarized)
        if self._opened is not None:
            self._opened.end(error)


class ContextBoundRun(LazyRun):
    """A run of an agent, or a part of one, in which context variables have certain values.

    Its span starts with its first step, so a stream that is never read has no run.

    Args:
        variables: The values of context variables during the run.
        on_end: Called at the end of the run, before its span ends.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        name: str | None,
        variables: Mapping[ContextVar[Any], Any],
        *,
        conversation_id: str | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(instrumentation, name, conversation_id, at_once=True)
        self._variables = variables
        self._on_end = on_end

    @contextmanager
    def current(self) -> Iterator[None]:
        """Set the context variables, and make the span current, in this block."""
        with ExitStack() as stack:
            for variable, value in self._variables.items():
                stack.enter_context(context_value(variable, value))
            stack.enter_context(super().current())
            yield

    def end(self, error: BaseException | None = None) -> None:
        if self._on_end is not None:
            with self.instrumentation.suppress_errors():
                self._on_end()
        super().end(error)


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
            with self.instrumentation.suppress_errors():
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

        During the run, `LAST_PREPARED` has the run's `_LastCall` for this object; those of other runs around it stay.
        """
        last = _LastCall()
        return ContextBoundRun(
            instrumentation,
            name,
            {LAST_PREPARED: {**LAST_PREPARED.get(), self: last}},
            conversation_id=conversation_id,
            on_end=last.end,
        )

    def preparing(self, instrumentation: Instrumentation, key: Any, create: Callable[[], ModelCall]) -> Preparing:
        """Return the run of a function that prepares a call, which the object `key` then identifies.

        Inside a function that already prepares a call of this run, it is that call; otherwise a new one, which ends the
        run's last one. A function that runs inside a reducer, such as the agent of a summarizer, prepares no call.
        """
        last = LAST_PREPARED.get().get(self)
        prepared = last.call if last is not None else self._prepared.get(key)  # outside of a run, there is no `last`
        call = prepared if prepared is CALL.get() else None  # else the current call belongs to an outer run
        if call is None and reducing() is None:
            call = self._prepared.put(key, create())
            if last is not None:
                last.end()
                last.call = call
        return Preparing(instrumentation, call, expected_errors=self._expected_errors)

    def of(self, key: Any) -> ModelCall | None:
        """Return the call that this object identifies; None inside a reducer."""
        return None if key is None or REDUCTION.get() is not None else self._prepared.get(key)

    def replaced_by_plugin(self, read_output: Callable[[], Sequence[Any] | ClientRequest]) -> None:
        """Continue the call that was prepared last after a plug-in of this library; see `ModelCall`.

        `read_output` returns the plug-in's output, as messages or as a request with system prompts.
        """
        last = LAST_PREPARED.get().get(self)
        call = last.call if last is not None else None
        if call is not None:
            with call.instrumentation.suppress_errors():
                output = read_output()
                request = output if isinstance(output, ClientRequest) else ClientRequest(output)
                call.replaced_by_plugin(request.messages, prompts=request.prompts)


class _LastCall:
    """The call of a run that was prepared last; the framework may never make it."""

    call: ModelCall | None = None

    def end(self) -> None:
        """End the call without a model call, if it is still open: another one is prepared, or the run ends."""
        if self.call is not None:
            self.call.end()
        self.call = None
