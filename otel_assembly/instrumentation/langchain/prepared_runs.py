"""Runs of nodes, each in a context of its own: the calls that are prepared in one are known by their messages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.langchain.prepared_calls import PreparedCalls
from otel_assembly.instrumentation.lazy_runs import LazyRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.langchain.prepared_calls import GraphContext


class PreparedRun(LazyRun):
    """One run of nodes, a `Run` as `within` takes it.

    Args:
        places: Those of its framework.
        instrumentation: Where it is reported.
        name: The agent's name.
        conversation_id: The conversation's real id, if it has one.
        scope: Tells apart conversations that have the same id; by default the name.
        step: The step of the run around this one in which this one runs.
        is_named: Whether the agent has a name of its own; else its nodes that ask a model are named instead.
        model_node: The node that calls the model, of an agent: its span is opened with its first step.
        at_once: Whether its span is opened with its first step, also without such a node.
        is_batch: Whether it runs several inputs, each for itself.
        begins_outside: Whether its calls may go on with what was prepared outside of any run, such as by the program.

    Attributes:
        calls: The calls of a model that are prepared in it.
    """

    def __init__(
        self,
        places: GraphContext,
        instrumentation: Instrumentation,
        name: str,
        conversation_id: str | None = None,
        *,
        scope: str | None = None,
        step: int = 0,
        is_named: bool = True,
        model_node: str | None = None,
        at_once: bool = False,
        is_batch: bool = False,
        begins_outside: bool = False,
    ) -> None:
        outer = places.run.get()
        super().__init__(
            instrumentation, name, conversation_id, parent=outer, at_once=at_once or model_node is not None
        )
        self.is_batch = is_batch
        self.is_named = is_named or model_node is not None
        self.scope = name if scope is None else scope
        self.model_node = model_node
        outside = places.outside if begins_outside else None
        self.calls = PreparedCalls(outer.calls if outer is not None else outside, step)
        self._places = places

    @contextmanager
    def current(self) -> Iterator[None]:
        """One step of it."""
        with context_value(self._places.run, self), super().current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """It came to its end, and so does what waited in it for a model call that never came."""
        self.calls.end()
        super().end(error)
