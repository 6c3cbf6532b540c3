"""Runs of LangGraph graphs (`Pregel.stream`, `Pregel.astream`), and the position of the current code in such a run.

A run of an agent that `create_agent` or `create_react_agent` built gets its span at the start. The run of any other
graph gets a span when a model is called or messages are reduced in it, and otherwise none.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.instrumented import argument, context_value
from otel_assembly.instrumentation.langchain.prepared_calls import GraphContext, PreparedCalls, Where
from otel_assembly.instrumentation.run_types import LazyRun
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_assembly.instrumentation.instrumented import Instrumentation


class PreparedRun(LazyRun):
    """One run of a graph or a chain, for `run_hook`.

    Args:
        graph_context: The framework's runs and positions; contains the current run.
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
        with context_value(self._graph_context.run, self), super().current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """End the run, and the prepared calls for which no model was called."""
        self.calls.end()
        super().end(error)


#: The functions that call the model in the graphs of LangChain's factories.
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_react_agent.<locals>.call_model"})
#: LangGraph's name for a graph without a name.
_UNNAMED: Final = "LangGraph"
#: Checkpointers and message histories that keep conversations in their own memory: the same conversation id in two of
#: them means two conversations.
_IN_MEMORY: Final = frozenset({"InMemorySaver", "MemorySaver", "InMemoryChatMessageHistory", "ChatMessageHistory"})
#: The keys of a config's ``configurable`` that can contain the conversation id of a message history.
_CONVERSATION_KEYS: Final = ("thread_id", "session_id", "conversation_id")

#: The parallel branches that contain the current code, as in `Where.branches`.
BRANCHES: Final[ContextVar[Mapping[Any, Any]]] = ContextVar("otel_assembly_langchain_branches", default={})  # noqa: B039  # never written to


def current_config() -> Any:
    """Return the `RunnableConfig` of the runnable that is running; None outside of any."""
    module: Any = sys.modules.get("langchain_core.runnables.config")
    return module.var_child_runnable_config.get() if module is not None else None


def _settings(config: Any) -> Mapping[str, Any]:
    """Return the ``configurable`` of a `RunnableConfig`, with ids and the position in a graph; empty without any."""
    return (config or {}).get("configurable") or {}


def thread_of(config: Any) -> str | None:
    thread_id = _settings(config).get("thread_id")
    return None if thread_id is None else str(thread_id)


def conversation_of(config: Any) -> str | None:
    """Return the conversation id in a config: a graph's thread id, or the session id of a message history."""
    settings = _settings(config)
    for key in _CONVERSATION_KEYS if "message_history" in settings else ("thread_id",):
        if settings.get(key) is not None:
            return str(settings[key])
    return None


def _step_of(config: Any) -> int:
    """Return the number of the graph step that a config belongs to; 0 outside of any graph."""
    return int(((config or {}).get("metadata") or {}).get("langgraph_step") or 0)


def _locate(config: Any = None) -> Where:
    """Return the position that a config describes; by default, or if `config` is no node's, the current config."""
    settings = _settings(config) if config else {}
    if not settings.get("checkpoint_ns"):
        config = current_config()
        settings = _settings(config)
    # The execution of a node: "node:uuid", joined by "|" for nested graphs.
    task, history = str(settings.get("checkpoint_ns") or ""), settings.get("message_history")
    nodes = [part.split(":", 1)[0] for part in task.split("|")]
    store = f"/{id(history):x}" if type(history).__name__ in _IN_MEMORY else ""
    return Where(task, nodes, _step_of(config), conversation_of(config), BRANCHES.get(), store)


#: In LangChain's and LangGraph's runs, the invoking agent of a model call is a graph node.
GRAPH_CONTEXT: Final = GraphContext("langchain", attrgetter("type"), lambda message: str(message.text), _locate)


def _model_node(graph: Any) -> str | None:
    """Return the name of the node that calls the model, if one of LangChain's factories built the graph; else None."""
    for name in ("model", "agent", "model_request"):
        function = getattr(getattr(graph.nodes.get(name), "bound", None), "func", None)
        if getattr(function, "__qualname__", "") in _MODEL_NODES:
            return name
    return None


def _begin_run(instrumentation: Instrumentation, graph: Any, /, *args: Any, **kwargs: Any) -> PreparedRun:
    """Begin the run of a graph. A subgraph gets its conversation from the outer graph's config."""
    config, outer_config = argument(args, kwargs, 1, "config"), current_config()
    name, saver = graph.name or _UNNAMED, getattr(graph, "checkpointer", None)
    if name == _UNNAMED:  # an unnamed graph inside a node of another graph gets the node's name
        task = str(_settings(outer_config).get("checkpoint_ns") or "")  # as in `_locate`
        name = task.rpartition("|")[2].partition(":")[0] or name
    return PreparedRun(
        GRAPH_CONTEXT,
        instrumentation,
        name,
        conversation_of(config) or thread_of(graph.config) or conversation_of(outer_config),
        scope=f"{name}/{id(saver):x}" if type(saver).__name__ in _IN_MEMORY else None,
        is_named=name != _UNNAMED,
        step=_step_of(config) or _step_of(outer_config),
        model_node=_model_node(graph),
    )


#: Hook of ``Pregel.stream`` and ``astream``, which ``invoke`` and ``ainvoke`` call too.
run = run_hook(_begin_run)
