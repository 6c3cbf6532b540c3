"""Runs of graphs, where in one something runs, and which call of a model that works for.

LangGraph runs its nodes in contexts of their own: a call is known by its messages (see `prepared_calls`), and a node
hands one on by returning what was let out. A run of an agent that was made by LangChain's factories has its span from
the start. Any other graph gets one when a model is called in it, or something reduces a context, and none otherwise.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.conversation import Asker, Openings
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.late_runs import LateRun
from otel_assembly.instrumentation.prepared_calls import Place, PreparedCalls, PreparedOutside
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall, Sent

_UNNAMED: Final = "LangGraph"
#: The functions that call the model in the graphs of LangChain's factories.
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_react_agent.<locals>.call_model"})
#: Checkpointers whose threads are theirs alone: the same id in another one is another conversation.
_IN_MEMORY: Final = frozenset({"InMemorySaver", "MemorySaver"})


def current_config() -> Any:
    """The configuration of the runnable that is running here."""
    module: Any = sys.modules.get("langchain_core.runnables.config")
    return module.var_child_runnable_config.get() if module is not None else None


def _setting(config: Any, name: str) -> str | None:
    settings: Mapping[str, Any] = (config or {}).get("configurable") or {}
    value = settings.get(name)
    return None if value is None else str(value)


def thread_of(config: Any) -> str | None:
    """The thread that a configuration names."""
    return _setting(config, "thread_id")


def _step_of(config: Any) -> int:
    """The number of the step of its graph that a configuration was made for; 0 outside of any."""
    return int(((config or {}).get("metadata") or {}).get("langgraph_step") or 0)


class GraphRun(LateRun):
    """One run of a graph.

    Attributes:
        scope: Tells apart threads that have the same id.
        model_node: The node that calls the model, in an agent of LangChain's factories.
        calls: The calls of a model that are prepared in it.
    """

    def __init__(self, instrumentation: Instrumentation, graph: Any, config: Any) -> None:
        self.model_node, outer = _model_node(graph), GRAPH_RUN.get()
        super().__init__(
            instrumentation,
            graph.name or _UNNAMED,
            thread_of(config) or thread_of(graph.config) or thread_of(current_config()),
            parent=outer,
            at_once=self.model_node is not None,
        )
        saver = getattr(graph, "checkpointer", None)
        self.scope = f"{self.name}/{id(saver):x}" if type(saver).__name__ in _IN_MEMORY else self.name
        around = outer.calls if outer is not None else None
        self.calls: PreparedCalls = PreparedCalls(around, _step_of(config) or _step_of(current_config()))

    @contextmanager
    def current(self) -> Iterator[None]:
        """One step of it."""
        with bound(GRAPH_RUN, self), super().current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """It came to its end, and so does what waited in it for a model call that never came."""
        self.calls.end()
        super().end(error)


GRAPH_RUN: Final[ContextVar[GraphRun | None]] = ContextVar("otel_assembly_graph_run", default=None)


def _model_node(graph: Any) -> str | None:
    for name in ("model", "agent", "model_request"):
        called = getattr(getattr(graph.nodes.get(name), "bound", None), "func", None)
        if getattr(called, "__qualname__", "") in _MODEL_NODES:
            return name
    return None


def _run(instrumentation: Instrumentation, graph: Any, /, *args: Any, **kwargs: Any) -> GraphRun:
    return GraphRun(instrumentation, graph, argument(args, kwargs, 1, "config"))


#: Around ``Pregel.stream`` and ``astream``, which ``invoke`` and ``ainvoke`` read too.
run = within(_run)

#: Calls that are prepared outside of any graph, and conversations without a thread.
OUTSIDE, _OPENED = PreparedOutside(), Openings(attrgetter("type"))
#: Where in a graph something runs.
PLACE: Final[ContextVar[Place | None]] = ContextVar("otel_assembly_langchain_place", default=None)


def here(config: Any = None) -> Place:
    """Where a configuration says that something runs; by default the one that is in force here.

    Who asks a model is a node, at its place in nested graphs.
    """
    config = config if _setting(config, "checkpoint_ns") else current_config()
    run, task, known = GRAPH_RUN.get(), _setting(config, "checkpoint_ns") or "", PLACE.get()
    run = None if run is None or run.ended else run
    if known is not None and known.run is run and known.key == task:
        return known
    *around, node = [part.split(":", 1)[0] for part in task.split("|")]
    thread = thread_of(config)
    if run is None:
        return Place(OUTSIDE, task, _step_of(config), None, Asker(thread, "", None, thread), "", _OPENED)
    asker = Asker(thread, "/".join([f"{run.scope}\0", *around, ""]), run.name, thread)
    return Place(run.calls, task, _step_of(config), run, asker, node, _OPENED)


def prepared(
    instrumentation: Instrumentation, messages: Sequence[Any], since_ns: int, node: str | None = None
) -> tuple[ModelCall, Sequence[Any] | None]:
    """The call that a reducer works for which runs here, as `Place.prepares`."""
    return here().prepares(instrumentation, messages, since_ns, node)


def tell(instrumentation: Instrumentation, sent: Sent) -> ModelCall:
    """A model is sent these messages: it is the end of the call that was prepared for them, or of one nothing was."""
    messages = list(sent.messages)
    front = next((at for at, message in enumerate(messages) if message.type != "system"), len(messages))
    call = here().sends(instrumentation, messages, front)
    known = set(map(id, call.out))
    while front and id(messages[front - 1]) in known:
        front -= 1
    call.receives(sent._replace(messages=messages[front:], prompts=[str(one.text) for one in messages[:front]]))
    return call


@contextmanager
def behind_plugin(came: Sequence[Any], out: Sequence[Any]) -> Iterator[None]:
    """A plug-in of ours has made an assembly of its own: in this block the model is called with what that let out."""
    place = here()
    if place.run is not None and place.run.instrumentation.listening():
        with place.run.instrumentation.contained():
            place = place.behind_plugin(place.run.instrumentation, came, out)
    with bound(PLACE, place):
        yield
