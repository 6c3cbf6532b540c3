"""Runs whose ``invoke_agent`` span starts with the first assembly in them.

They are for functions of which only some calls are runs of an agent, such as a chain that need not call a model.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from opentelemetry import trace

from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.context_variables import SUMMARIZED
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS
from otel_assembly.instrumentation.instrumented import context_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun


class LazyRun(TrackedRun):
    """A run whose span starts when something is recorded in it. If a span is current already, none is added.

    Args:
        conversation_id: The conversation's id in the framework, if it has one.
        parent: The enclosing run; its span starts first.
        at_once: Whether the span starts with the run's first step, even if nothing is recorded in it.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        name: str,
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
                if self._at_once or _in_a_span():
                    self._open()
        summarized = context_value(SUMMARIZED, self._summarized) if SUMMARIZED.get() is None else nullcontext()
        with summarized, self.inside():
            yield

    @contextmanager
    def with_span(self) -> Iterator[None]:
        """Start the run's span, if it has not started, and make it the parent of spans that start in this block."""
        self._open()
        with self.inside_unless_traced():
            yield

    def inside_unless_traced(self) -> AbstractContextManager[None]:
        """Make the run current in this block, unless a span is current, which then belongs to the run."""
        return nullcontext() if _in_a_span() else self.inside()

    def end(self, error: BaseException | None = None) -> None:
        self.ended = True
        if self._summarized:
            with self.instrumentation.suppress_errors(), self.with_span():
                DEFERRED_REDUCTIONS.run_ended(self.instrumentation, self._summarized)
        if self._opened is not None:
            self._opened.end(error)

    def _open(self) -> None:
        if self._opened is None:
            with self._around():
                self._opened = self.begin()

    def begin(self) -> OpenRun | None:
        """Start the span; None if nothing is recorded."""
        return self.instrumentation.begin_run(self.name, conversation_id=self.conversation_id)

    def _around(self) -> AbstractContextManager[None]:
        """Return the enclosing run's context, in which the span of this run has to start."""
        return self.parent.with_span() if self.parent is not None else nullcontext()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make the run's span current in this block, if it has started."""
        if self._opened is None:
            yield
        else:
            with self._around(), self._opened.current():
                yield


def _in_a_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid
