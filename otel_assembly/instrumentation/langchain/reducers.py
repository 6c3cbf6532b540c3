"""Which middleware is a reducer that we know, and what of its settings is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.observation import CONTEXT_EDITING, SUMMARIZATION, ReducerCall

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumentor import Instrumentation

_NAMED: Final = {
    ("langchain.agents.middleware.summarization", "SummarizationMiddleware"): SUMMARIZATION,
    ("langchain.agents.middleware.context_editing", "ContextEditingMiddleware"): CONTEXT_EDITING,
}
_SETTINGS: Final = ("trim_tokens_to_summarize", "max_tokens_before_summary", "messages_to_keep")


def is_watched(owner: Any) -> bool:
    """Whether this is middleware whose changes are told, and not a plug-in of ours, which tells by itself."""
    module: Any = sys.modules.get("langchain.agents.middleware.types")
    base: Any = getattr(module, "AgentMiddleware", None)
    return isinstance(base, type) and isinstance(owner, base) and not getattr(owner, "otel_assembly_plugin", False)


def edit_of(instrumentation: Instrumentation, owner: Any, messages: Sequence[Any], **known: Any) -> ReducerCall:
    """What a middleware is going to do to messages."""
    kind = type(owner)
    policy = _NAMED.get((kind.__module__, kind.__qualname__))
    if policy is None:
        return ReducerCall(instrumentation, kind.__name__, messages, **known)
    return ReducerCall(
        instrumentation, policy, messages, kind="reduction", config=lambda: _settings(owner), expected=True, **known
    )


def _settings(owner: Any) -> dict[str, Any]:
    """The settings of LangChain's own reducers that are numbers."""
    found = {name: getattr(owner, name) for name in _SETTINGS if isinstance(getattr(owner, name, None), int)}
    keep = getattr(owner, "keep", None)
    if isinstance(keep, tuple):
        found[f"keep_{keep[0]}"] = keep[1]
    trigger = getattr(owner, "trigger", None)
    for clause in trigger if isinstance(trigger, list) else [trigger]:
        found.update({f"trigger_{unit}": value for unit, value in _clause(clause)})
    for edit in getattr(owner, "edits", ())[:1]:
        for name in ("trigger", "keep", "clear_at_least", "clear_tool_inputs"):
            if isinstance(getattr(edit, name, None), int):
                found[name] = getattr(edit, name)
    return found


def _clause(clause: Any) -> list[tuple[str, Any]]:
    if isinstance(clause, Mapping):
        return list(clause.items())
    return [clause] if isinstance(clause, tuple) else []
