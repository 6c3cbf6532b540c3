"""Runs whose span is opened only when something is told in them, for what may be no run of an agent at all."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from opentelemetry import trace

from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, SUMMARIZED
from otel_assembly.instrumentation.instrumented import context_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun


class LazyRun:
    """One run, a `Run` as `within` takes it; where a span is current already, none is added.

    Args:
        instrumentation: Where it is reported.
        name: The agent's name.
        conversation_id: The conversation's real id, if it has one.
        parent: The run around this one, whose span is opened first.
        at_once: Whether its span is opened with its first step, whatever is told in it.
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
        """One step of it."""
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
        """Something in it is told: what opens in this block stands under its span."""
        self._open()
        with self.inside_unless_traced():
            yield

    def inside_unless_traced(self) -> AbstractContextManager[None]:
        """What runs in this block belongs to the run, unless a span is current that was opened in it."""
        return nullcontext() if _in_a_span() else self.inside()

    def end(self, error: BaseException | None = None) -> None:
        """The run came to its end."""
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
        """Open its span; None where nothing is recorded."""
        return self.instrumentation.begin_run(self.name, conversation_id=self.conversation_id)

    def _around(self) -> AbstractContextManager[None]:
        return self.parent.with_span() if self.parent is not None else nullcontext()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What runs in this block belongs to the run, as far as that has begun."""
        if self._opened is None:
            yield
        else:
            with self._around(), self._opened.current():
                yield


def _in_a_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid
