"""Runs of graphs: a run's span, and what it keeps for the model calls that are prepared in it.

A run of an agent that was made by LangChain's factories has its span from the start. Any other graph gets one when
something in it reduces a context, and none otherwise; where a span is current already, none is added.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.instrumented import bound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.conversation import LedgerKey
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun

_UNNAMED: Final = "LangGraph"
#: The functions that call the model in the graphs of LangChain's factories.
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_react_agent.<locals>.call_model"})
#: Checkpointers whose threads are theirs alone: the same id in another one is another conversation.
_IN_MEMORY: Final = frozenset({"InMemorySaver", "MemorySaver"})


class GraphRun:
    """One run of a graph, from its first step to its last."""

    def __init__(self, instrumentation: Instrumentation, graph: Any, thread_id: str | None, superstep: int) -> None:
        self.instrumentation = instrumentation
        self.name: str = graph.name or _UNNAMED
        self.thread_id = thread_id
        saver = getattr(graph, "checkpointer", None)
        #: Tells apart threads that have the same id.
        self.scope = f"{self.name}/{id(saver):x}" if type(saver).__name__ in _IN_MEMORY else self.name
        #: The message that its state opens with, where it has no thread.
        self.opening: Any = None
        #: The ledgers of the conversation that this run is a part of, by who asks, where it has no thread.
        self.ledgers: dict[str, LedgerKey] | None = None
        #: The model calls that reducers prepare here, and whether the run is over.
        self.model_calls: list[Any] = []
        self.lock = new_lock()
        self.ended = False
        #: The step of the graph around this one in which it runs.
        self.superstep = superstep
        #: The run of the graph around this one.
        self.parent: GraphRun | None = None
        #: The node that calls the model, in an agent of LangChain's factories.
        self.model_node = _model_node(graph)
        self._started = False
        self._opened: OpenRun | None = None

    def _start(self) -> None:
        """The first step is taken: an agent's run has its span from here, and others if one is current anyhow."""
        self._started = True
        with self.instrumentation.contained():
            self.parent = GRAPH_RUN.get()
            if self.parent is not None:
                self.lock = self.parent.lock
            if self.model_node is not None or _in_a_span():
                self._open()

    def prepares_model_call(self) -> bool:
        """Whether a model call is being prepared, here or in a run around this one."""
        return bool(self.model_calls) or (self.parent is not None and self.parent.prepares_model_call())

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Something in it is reported: what opens in this block stands under its span."""
        self._open()
        with self.joined():
            yield

    def _open(self) -> None:
        """Open the run, and its span where none is current."""
        if self._opened is None:
            with self._around():
                self._opened = self.instrumentation.begin_run(self.name, conversation_id=self.thread_id)

    def _around(self) -> AbstractContextManager[None]:
        return self.parent.reported() if self.parent is not None else nullcontext()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """What runs in this block belongs to the run, unless a span is current that a node opened in it."""
        if self._opened is None or _in_a_span():
            yield
        else:
            with self._around(), self._opened.current():
                yield

    @contextmanager
    def current(self) -> Iterator[None]:
        """One step of the graph."""
        if not self._started:
            self._start()
        with bound(GRAPH_RUN, self):
            if self._opened is None:
                yield
            else:
                with self._around(), self._opened.current():
                    yield

    def end(self, error: BaseException | None = None) -> None:
        """The run came to its end, and so does what waited in it for a model call that never came."""
        self.ended = True
        for model_call in [*self.model_calls]:
            with self.instrumentation.contained():
                model_call.end()
        if self._opened is not None:
            self._opened.end(error)


GRAPH_RUN: Final[ContextVar[GraphRun | None]] = ContextVar("otel_assembly_graph_run", default=None)


def _in_a_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


def _model_node(graph: Any) -> str | None:
    return next(
        (
            name
            for name in ("model", "agent", "model_request")
            if (node := graph.nodes.get(name)) is not None
            and getattr(getattr(getattr(node, "bound", None), "func", None), "__qualname__", "") in _MODEL_NODES
        ),
        None,
    )
