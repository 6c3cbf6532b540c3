"""Reductions by LangChain's middleware and by graph nodes, and hooks of `SummarizationMiddleware`'s summaries."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT
from otel_assembly.instrumentation.langchain.summaries import summarizer_input_hook, summary_hook
from otel_assembly.instrumentation.middleware_calls import MiddlewareReduction
from otel_assembly.instrumentation.reducers import is_ours, settings_of
from otel_assembly.instrumentation.reductions import Reduction
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: LangChain's own middleware that reduces, by module and class, with the name of its steps.
_POLICY_NAMES: Final = {
    ("langchain.agents.middleware.summarization", "SummarizationMiddleware"): "summarization",
    ("langchain.agents.middleware.context_editing", "ContextEditingMiddleware"): "context_editing",
}
#: Numeric attributes that LangGraph sets on each node, which are no settings of a reducer.
_NODE_ATTRIBUTES: Final = frozenset({"explode_args", "recurse", "trace", "func_accepts"})
#: LangMem's node that summarizes, by module and class; its steps have the node's name.
_SUMMARIZING_NODE: Final = ("langmem.short_term.summarization", "SummarizationNode")


class _SummarizerReduction(MiddlewareReduction):
    """The changes by a middleware or node of `_may_summarize`; a model that it calls is its summarizer."""

    running = Reduction.running  # `MiddlewareReduction` excludes model calls from the reduction


def begin_reduction(
    instrumentation: Instrumentation, owner: Any, before: Sequence[Any], model_node: str | None = None
) -> MiddlewareReduction:
    """Return the `Reduction` of a middleware or a node that is about to run; the caller runs it and records its output.

    The step of a reducer of LangChain or LangMem has the name from `_own_name` and the settings of the reducer. Any
    other middleware or node need not be a reducer, so its step has the kind None. Unless such a step is already open,
    it is recorded only if the messages change: a run without changes is not counted, and an error is not recorded. The
    owner is the middleware, LangMem's summarizing node, or the name of any other node. `model_node` is the node that
    will call the model, if that is not the current node.
    """
    cls, run, own_name = type(owner), GRAPH_CONTEXT.run.get(), _own_name(owner)
    if own_name:
        report = StepReport(own_name, before, kind="reduction", config=_settings(owner))
    else:
        report = StepReport(owner if isinstance(owner, str) else cls.__name__, before, kind=None)
    reduction_type = _SummarizerReduction if _may_summarize(cls) else MiddlewareReduction
    return reduction_type(
        instrumentation,
        report,
        find_call=partial(GRAPH_CONTEXT.call_for_reducer, instrumentation, node=model_node),
        agent_name=run.name if run is not None else None,
    )


def _own_name(owner: Any) -> str | None:
    """Return the name of the step of a reducer that LangChain or LangMem defines; None for any other owner.

    A subclass of LangChain's middleware is another owner: the program can have changed what it does.
    """
    if is_summarizing_node(owner):
        node_name: str | None = owner.name
        return node_name
    return _POLICY_NAMES.get((type(owner).__module__, type(owner).__qualname__))


def _may_summarize(cls: type) -> bool:
    """Return True if a model that an instance calls is its summarizer: for these three classes and their subclasses.

    `ContextEditingMiddleware` calls no model itself, but an edit of the program's that it runs can do so.
    """
    summarizers = {*_POLICY_NAMES, _SUMMARIZING_NODE}
    return any((base.__module__, base.__qualname__) in summarizers for base in cls.__mro__)


def is_summarizing_node(owner: Any) -> bool:
    """Return True for LangMem's `SummarizationNode` and its subclasses."""
    return any((base.__module__, base.__qualname__) == _SUMMARIZING_NODE for base in type(owner).__mro__)


def is_observed(owner: Any) -> bool:
    """Return True for middleware, except for otel-assembly's own plug-in, which records its assemblies itself."""
    module: Any = sys.modules.get("langchain.agents.middleware.types")
    base: Any = getattr(module, "AgentMiddleware", None)
    return isinstance(base, type) and isinstance(owner, base) and not is_ours(owner)


def _settings(owner: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    is_node = is_summarizing_node(owner)
    for holder in (owner, *getattr(owner, "edits", ())[:1]):  # `ContextEditingMiddleware` has its settings in `edits`
        settings |= settings_of(holder, _NODE_ATTRIBUTES if is_node else ())
    # `SummarizationMiddleware` has limits such as ("tokens", 4000), alone, in a list, or as a dict.
    for name in ("keep", "trigger"):
        limits = getattr(owner, name, None)
        for limit in limits if isinstance(limits, list) else [limits]:
            pairs = limit.items() if isinstance(limit, Mapping) else [limit] if isinstance(limit, tuple) else ()
            settings |= {f"{name}_{unit}": value for unit, value in pairs}
    return settings


def _model_class(middleware: Any, *_: Any, **__: Any) -> str:
    return type(getattr(middleware, "summarizer", None) or middleware.model).__name__


#: Hook of ``SummarizationMiddleware._create_summary`` and ``_acreate_summary``.
create_summary = summary_hook(lambda _, messages_to_summarize=(), *__, **___: messages_to_summarize)
#: Hook of ``SummarizationMiddleware._trim_messages_for_summary``, whose result the summarizing model gets.
trim_for_summary = summarizer_input_hook(_model_class)
