"""LangGraph's runs: whose run it is that is going on here, and the one span that holds it together.

A run of an agent that was made by LangChain's factories has its span from the start. Any other graph gets one when
something in it reduces a context, and none otherwise; where a span is current already, none is added.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.runs import followed
from otel_assembly.instrumentation.wrapping import argument, bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.instrumentation.langchain.preparing import Preparation
    from otel_assembly.telemetry.run import OpenRun

_UNNAMED: Final = "LangGraph"
#: The functions that call the model in the graphs of LangChain's factories.
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_react_agent.<locals>.call_model"})
#: Checkpointers whose threads are theirs alone: the same id in another one is another conversation.
_IN_MEMORY: Final = frozenset({"InMemorySaver", "MemorySaver"})


class GraphRun:
    """One run of a graph, from its first step to its last."""

    def __init__(self, instrumentation: Instrumentation, graph: Any, config: Any) -> None:
        self.instrumentation = instrumentation
        self.name: str = graph.name or _UNNAMED
        self.thread_id = thread_of(config) or thread_of(graph.config) or thread_of(current_config())
        saver = getattr(graph, "checkpointer", None)
        #: Tells apart threads that have the same id.
        self.scope = f"{self.name}/{id(saver):x}" if type(saver).__name__ in _IN_MEMORY else self.name
        #: The message that its state opens with, where it has no thread.
        self.opening: Any = None
        #: The ledgers of the conversation that this run is a part of, by who asks, where it has no thread.
        self.ledgers: dict[str, Any] | None = None
        #: The model calls that reducers prepare here, and whether the run is over.
        self.preparations: list[Preparation] = []
        self.lock = new_lock()
        self.ended = False
        #: The step of the graph around this one in which it runs.
        self.superstep = superstep_of(config) or superstep_of(current_config())
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
                self.open()

    def preparing(self) -> bool:
        """Whether a model call is being prepared, here or in a run around this one."""
        return bool(self.preparations) or (self.parent is not None and self.parent.preparing())

    def open(self) -> None:
        """Open the run, and its span where none is current."""
        if self._opened is None:
            with self._parent():
                self._opened = self.instrumentation.begin_run(self.name, conversation_id=self.thread_id)

    def _parent(self) -> AbstractContextManager[None]:
        if self.parent is None:
            return nullcontext()
        self.parent.open()
        return self.parent.joined()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """What runs in this block belongs to the run, unless a span is current that a node opened in it."""
        if self._opened is None or _in_a_span():
            yield
        else:
            with self._parent(), self._opened.current():
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
                with self._parent(), self._opened.current():
                    yield

    def end(self, error: BaseException | None = None) -> None:
        """The run came to its end, and so does what waited in it for a model call that never came."""
        self.ended = True
        for preparation in [*self.preparations]:
            with self.instrumentation.contained():
                preparation.end()
        if self._opened is not None:
            self._opened.end(error)


GRAPH_RUN: Final[ContextVar[GraphRun | None]] = ContextVar("otel_assembly_graph_run", default=None)


@contextmanager
def in_the_run() -> Iterator[GraphRun | None]:
    """The run that something is told in: what opens in this block stands under its span."""
    run = GRAPH_RUN.get()
    if run is None:
        yield None
        return
    run.open()
    with run.joined():
        yield run


def current_config() -> Any:
    """The configuration of the runnable that is running here."""
    module: Any = sys.modules.get("langchain_core.runnables.config")
    return module.var_child_runnable_config.get() if module is not None else None


def thread_of(config: Any) -> str | None:
    """The thread that a configuration names."""
    settings: Mapping[str, Any] = (config or {}).get("configurable") or {}
    thread = settings.get("thread_id")
    return None if thread is None else str(thread)


def path_of(config: Any) -> str:
    """Where in nested graphs something runs, by the names of the nodes around it."""
    return "/".join(part.split(":", 1)[0] for part in _namespace(config).split("|")[:-1])


def superstep_of(config: Any) -> int:
    """The number of the step of its graph that a configuration was made for; 0 outside of any."""
    return int(((config or {}).get("metadata") or {}).get("langgraph_step") or 0)


def _namespace(config: Any) -> str:
    settings: Mapping[str, Any] = (config or {}).get("configurable") or {}
    return str(settings.get("checkpoint_ns") or "")


class Place(NamedTuple):
    """Where in a graph something runs.

    Attributes:
        run: The run; None outside of any.
        thread: The thread.
        path: The names of the nodes around its graph.
        node: The node.
        task: What tells this execution of the node from any other.
        superstep: The number of the graph's step.
    """

    run: GraphRun | None
    thread: str | None
    path: str
    node: str
    task: str
    superstep: int

    @classmethod
    def here(cls, config: Any = None) -> Place:
        """Where a configuration says that something runs; by default the one that is in force here."""
        config = config if _namespace(config) else current_config()
        run, task = GRAPH_RUN.get(), _namespace(config)
        if run is not None and run.ended:
            run = None
        node = task.rsplit("|", 1)[-1].split(":", 1)[0]
        return cls(run, thread_of(config), path_of(config), node, task, superstep_of(config))

    def asker(self, node: str) -> str:
        """What tells a node of this graph, as one who asks a model, from any other asker of the conversation."""
        return "\0".join((self.run.scope, self.path, node)) if self.run is not None else ""


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


def stream(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``Pregel.stream``, which ``invoke`` reads too."""

    @functools.wraps(original)
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        items = original(self, *args, **kwargs)
        run = _run_of(instrumentation, self, args, kwargs) if instrumentation.listening() else None
        return items if run is None else followed(run, items)

    return stream


def astream(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``Pregel.astream``, which ``ainvoke`` reads too."""

    @functools.wraps(original)
    def astream(self: Any, *args: Any, **kwargs: Any) -> Any:
        items = original(self, *args, **kwargs)
        run = _run_of(instrumentation, self, args, kwargs) if instrumentation.listening() else None
        return items if run is None else followed(run, items)

    return astream


def _run_of(instrumentation: Instrumentation, graph: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A run as `followed` takes it: by its `current` and its `end`."""
    run: GraphRun | None = None
    with instrumentation.contained():
        run = GraphRun(instrumentation, graph, argument(args, kwargs, 1, "config"))
    return run  # noqa: RET504  # None, where that failed
