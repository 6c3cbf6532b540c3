"""Runs of graphs, where in one something runs, and which call of a model that works for.

LangGraph runs its nodes in contexts of their own: a call is known by its messages (see `prepared_calls`), and a node
hands one on by returning what was let out. A run of an agent that was made by LangChain's factories has its span from
the start. Any other graph gets one when a model is called in it, or something reduces a context, and none otherwise.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.langchain.prepared_calls import GraphContext, Where
from otel_assembly.instrumentation.langchain.prepared_runs import PreparedRun
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The functions that call the model in the graphs of LangChain's factories.
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_react_agent.<locals>.call_model"})
#: The name of a graph that was given none.
_UNNAMED: Final = "LangGraph"
#: Checkpointers and histories whose conversations are theirs alone: in another one, an id is another conversation's.
IN_MEMORY: Final = frozenset({"InMemorySaver", "MemorySaver", "InMemoryChatMessageHistory", "ChatMessageHistory"})
#: The configuration's keys that name a conversation, of LangGraph and of histories.
_CONVERSATION_KEYS: Final = ("thread_id", "session_id", "conversation_id")

#: The parallel branches around what runs here, as `Where` has them.
BRANCHES: Final[ContextVar[Mapping[Any, Any]]] = ContextVar("otel_assembly_langchain_branches", default={})  # noqa: B039  # never written to


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


def conversation_of(config: Any) -> str | None:
    """The conversation that a configuration names: the thread of a graph, or the session of a message history."""
    if "message_history" not in ((config or {}).get("configurable") or {}):
        return thread_of(config)
    return next((value for key in _CONVERSATION_KEYS if (value := _setting(config, key)) is not None), None)


def _store_of(config: Any) -> str:
    """What tells a message history from others in which there may be a conversation of the same id."""
    history = ((config or {}).get("configurable") or {}).get("message_history")
    return f"/{id(history):x}" if type(history).__name__ in IN_MEMORY else ""


def _step_of(config: Any) -> int:
    """The number of the step of its graph that a configuration was made for; 0 outside of any."""
    return int(((config or {}).get("metadata") or {}).get("langgraph_step") or 0)


def _where(config: Any = None) -> Where:
    """By a configuration; by default the one that is in force here."""
    config = config if _setting(config, "checkpoint_ns") else current_config()
    task = _setting(config, "checkpoint_ns") or ""
    nodes = [part.split(":", 1)[0] for part in task.split("|")]
    return Where(task, nodes, _step_of(config), conversation_of(config), BRANCHES.get(), _store_of(config))


#: Who asks a model is a node, at its place in nested graphs.
PLACES: Final = GraphContext("langchain", attrgetter("type"), lambda message: str(message.text), _where)


def _model_node(graph: Any) -> str | None:
    for name in ("model", "agent", "model_request"):
        called = getattr(getattr(graph.nodes.get(name), "bound", None), "func", None)
        if getattr(called, "__qualname__", "") in _MODEL_NODES:
            return name
    return None


def _run(instrumentation: Instrumentation, graph: Any, /, *args: Any, **kwargs: Any) -> PreparedRun:
    config, around = argument(args, kwargs, 1, "config"), current_config()
    name, saver = graph.name or _UNNAMED, getattr(graph, "checkpointer", None)
    is_named = name != _UNNAMED
    if not is_named:  # a graph in a node of another one is known by that node
        task = _setting(around, "checkpoint_ns") or ""
        name = task.rpartition("|")[2].partition(":")[0] or name
        is_named = name != _UNNAMED
    return PreparedRun(
        PLACES,
        instrumentation,
        name,
        conversation_of(config) or thread_of(graph.config) or conversation_of(around),
        scope=f"{name}/{id(saver):x}" if type(saver).__name__ in IN_MEMORY else None,
        is_named=is_named,
        step=_step_of(config) or _step_of(around),
        model_node=_model_node(graph),
    )


#: Around ``Pregel.stream`` and ``astream``, which ``invoke`` and ``ainvoke`` read too.
run = run_hook(_run)
