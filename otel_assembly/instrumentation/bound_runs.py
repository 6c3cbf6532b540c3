"""Runs that set context variables, and start an ``invoke_agent`` span if no span is current."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.context_variables import SUMMARIZED
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS
from otel_assembly.instrumentation.instrumented import context_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextvars import ContextVar

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.instrumented import Instrumentation


class ContextBoundRun(TrackedRun):
    """A run of an agent, or a part of one, in which context variables have certain values.

    Args:
        name: The agent's name; None for a part of a run, which has no span.
        variables: The values of context variables during the run.
        conversation_id: The conversation's id in the framework, if it has one.
        on_end: Called at the end of the run, before its span ends.

    Attributes:
        is_run: Whether this is a run, and not only a part of one. At the end of a run, the calls of summarizers that no
            model call recorded are recorded.
    """

    is_run = True

    def __init__(
        self,
        instrumentation: Instrumentation,
        name: str | None,
        variables: Mapping[ContextVar[Any], Any],
        *,
        conversation_id: str | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self._variables = variables
        self._on_end = on_end
        self._summarized: list[InvokingAgent] = []
        self._opened = instrumentation.begin_run(name, conversation_id=conversation_id) if name is not None else None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Set the context variables, and make the span current, in this block."""
        with ExitStack() as stack:
            if self.is_run and SUMMARIZED.get() is None:  # only the outermost run records what is pending
                stack.enter_context(context_value(SUMMARIZED, self._summarized))
            for variable, value in self._variables.items():
                stack.enter_context(context_value(variable, value))
            if self._opened is not None:
                stack.enter_context(self._opened.current())
            yield

    def end(self, error: BaseException | None = None) -> None:
        if self._on_end is not None:
            with self._instrumentation.suppress_errors():
                self._on_end()
        if self._summarized:
            with (
                self._instrumentation.suppress_errors(),
                self._opened.current() if self._opened is not None else nullcontext(),
            ):
                DEFERRED_REDUCTIONS.run_ended(self._instrumentation, self._summarized)
        if self._opened is not None:
            self._opened.end(error)
