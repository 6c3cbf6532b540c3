"""`PreparedRun`: one run of a graph or a chain, with the model calls that are being prepared in it."""

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
    """One run of a graph or a chain, for `run_hook`.

    Args:
        graph_context: The framework's runs and positions; contains the current run.
        instrumentation: The instrumentation that records the run.
        name: The agent's name.
        conversation_id: The conversation's id, if it has one.
        scope: Distinguishes conversations with the same id; by default `name`.
        step: The number of the outer run's step that contains this run.
        is_named: Whether `name` is the agent's own name. If not, the nodes that call a model give the agent's name.
        model_node: The node that calls the model, for graphs of LangChain's factories. If set, the run's span starts
            with its first step.
        at_once: Whether the run's span starts with its first step also if `model_node` is None.
        is_batch: Whether the run has several inputs, which are independent of each other.
        begins_outside: Whether its model calls may use messages that the program reduced before the run.

    Attributes:
        calls: The model calls that are being prepared in this run.
    """

    def __init__(
        self,
        graph_context: GraphContext,
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
        outer_run = graph_context.run.get()
        super().__init__(
            instrumentation, name, conversation_id, parent=outer_run, at_once=at_once or model_node is not None
        )
        self.is_batch = is_batch
        self.is_named = is_named or model_node is not None
        self.scope = name if scope is None else scope
        self.model_node = model_node
        outside = graph_context.outside if begins_outside else None
        self.calls = PreparedCalls(outer_run.calls if outer_run is not None else outside, step)
        self._graph_context = graph_context

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the current run in the block, which is one step of the run."""
        with context_value(self._graph_context.run, self), super().current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """End the run, and the prepared calls for which no model was called."""
        self.calls.end()
        super().end(error)
