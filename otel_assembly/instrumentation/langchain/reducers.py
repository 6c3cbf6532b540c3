"""What a middleware or a node of LangChain does to messages, and the summaries that LangChain's own makes of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.runs import PLACES
from otel_assembly.instrumentation.middleware_calls import MiddlewareReduction
from otel_assembly.instrumentation.reducers import is_ours, settings_of
from otel_assembly.instrumentation.summaries import read_by_summariser, summarises

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: LangChain's own middleware that reduces, by the names of its classes, and how its steps are called.
_NAMED: Final = {
    ("langchain.agents.middleware.summarization", "SummarizationMiddleware"): "summarization",
    ("langchain.agents.middleware.context_editing", "ContextEditingMiddleware"): "context_editing",
}
#: Numbers that LangGraph keeps of each node.
_NODE_SETTINGS: Final = frozenset({"explode_args", "recurse", "trace", "func_accepts"})
#: LangMem's node that summarizes, by module and class: its step has the name that the node was given.
_SUMMARIZING_NODE: Final = ("langmem.short_term.summarization", "SummarizationNode")


def done_by(
    instrumentation: Instrumentation, owner: Any, before: Sequence[Any], invoking_agent: str | None = None
) -> MiddlewareReduction:
    """What a middleware, or a node, does to the messages.

    Args:
        instrumentation: Where it is reported.
        owner: The middleware; or the name of a node.
        before: What it takes in.
        invoking_agent: The node that asks the model that it works for, where that is not the one that runs here.
    """
    kind, run = type(owner), PLACES.run.get()
    known = owner.name if is_summarizing_node(owner) else _NAMED.get((kind.__module__, kind.__qualname__))
    return MiddlewareReduction(
        instrumentation,
        known or (owner if isinstance(owner, str) else kind.__name__),
        before,
        summarises=any((one.__module__, one.__qualname__) in {*_NAMED, _SUMMARIZING_NODE} for one in kind.__mro__),
        kind="reduction" if known else None,
        config=_settings(owner) if known else {},
        finds=partial(PLACES.prepared, instrumentation, node=invoking_agent),
        agent_name=run.name if run is not None else None,
    )


def is_summarizing_node(owner: Any) -> bool:
    """Whether this is LangMem's node that summarizes, or derives from it."""
    return any((base.__module__, base.__qualname__) == _SUMMARIZING_NODE for base in type(owner).__mro__)


def is_observed(owner: Any) -> bool:
    """Whether this is middleware whose changes are reported, and not a plug-in of ours, which reports by itself."""
    module: Any = sys.modules.get("langchain.agents.middleware.types")
    base: Any = getattr(module, "AgentMiddleware", None)
    return isinstance(base, type) and isinstance(owner, base) and not is_ours(owner)


def _settings(owner: Any) -> dict[str, Any]:
    """The settings of LangChain's own reducers, of which only numbers are told."""
    found: dict[str, Any] = {}
    own = is_summarizing_node(owner)
    for one in (owner, *getattr(owner, "edits", ())[:1]):
        found |= settings_of(one, _NODE_SETTINGS if own else ())
    for name in ("keep", "trigger"):
        limits = getattr(owner, name, None)
        for limit in limits if isinstance(limits, list) else [limits]:
            pairs = limit.items() if isinstance(limit, Mapping) else [limit] if isinstance(limit, tuple) else ()
            found |= {f"{name}_{unit}": value for unit, value in pairs}
    return found


def _summariser(middleware: Any, *_: Any, **__: Any) -> str:
    return type(getattr(middleware, "summarizer", None) or middleware.model).__name__


#: Around ``SummarizationMiddleware._create_summary`` and ``_acreate_summary``; and around its
#: ``_trim_messages_for_summary``, after which the summariser is called.
create_summary = summarises(lambda _, messages_to_summarize=(), *__, **___: messages_to_summarize)
trim_for_summary = read_by_summariser(_summariser)
