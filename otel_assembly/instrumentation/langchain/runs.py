"""Runs of graphs, where in one something runs, and which call of a model that works for.

LangGraph runs its nodes in contexts of their own: a call is known by its messages (see `prepared_calls`), and a node
hands one on by returning what was let out. A run of an agent that was made by LangChain's factories has its span from
the start. Any other graph gets one when a model is called in it, or something reduces a context, and none otherwise.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.prepared_calls import Places, Where
from otel_assembly.instrumentation.prepared_runs import PreparedRun
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.instrumented import Instrumentation

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


def _where(config: Any = None) -> Where:
    """By a configuration; by default the one that is in force here."""
    config = config if _setting(config, "checkpoint_ns") else current_config()
    task = _setting(config, "checkpoint_ns") or ""
    return Where(task, [part.split(":", 1)[0] for part in task.split("|")], _step_of(config), thread_of(config))


#: Who asks a model is a node, at its place in nested graphs.
PLACES: Final = Places("langchain", attrgetter("type"), lambda message: str(message.text), _where)


def _model_node(graph: Any) -> str | None:
    for name in ("model", "agent", "model_request"):
        called = getattr(getattr(graph.nodes.get(name), "bound", None), "func", None)
        if getattr(called, "__qualname__", "") in _MODEL_NODES:
            return name
    return None


def _run(instrumentation: Instrumentation, graph: Any, /, *args: Any, **kwargs: Any) -> PreparedRun:
    config, around = argument(args, kwargs, 1, "config"), current_config()
    name, saver = graph.name or "LangGraph", getattr(graph, "checkpointer", None)
    return PreparedRun(
        PLACES,
        instrumentation,
        name,
        thread_of(config) or thread_of(graph.config) or thread_of(around),
        scope=f"{name}/{id(saver):x}" if type(saver).__name__ in _IN_MEMORY else None,
        step=_step_of(config) or _step_of(around),
        model_node=_model_node(graph),
    )


#: Around ``Pregel.stream`` and ``astream``, which ``invoke`` and ``ainvoke`` read too.
run = within(_run)
