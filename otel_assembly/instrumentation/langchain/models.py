"""Which model a chat model calls: its tokenizer counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Where chat models of LangChain keep the name of the model that they call.
_NAMES: Final = ("model_name", "model", "model_id")
#: So many runnables stand around a model, at most.
_AROUND: Final = 8


def model_of(model: Any, settings: Mapping[str, Any] | None = None) -> str | None:
    """The name of the model that a chat model calls, where one is said.

    Args:
        model: A chat model, or a runnable around one: bound to settings, with fall-backs, or configurable.
        settings: Those of the call, which may name another model.
    """
    for _ in range(_AROUND):
        held = getattr(model, "__dict__", {})
        said = _said(settings) or _said(held.get("_default_config"))
        inner = held.get("bound", held.get("runnable"))
        if said is not None or inner is None:
            return said or next((name for key in _NAMES if isinstance(name := getattr(model, key, None), str)), None)
        model, settings = inner, held.get("kwargs")
    return None


def _said(settings: Mapping[str, Any] | None) -> str | None:
    name = settings.get("model") if settings else None
    return name if isinstance(name, str) else None


def counting_model(count: Callable[..., Any]) -> str | None:
    """The model that a reducer counts with, where it counts with a chat model: it is trimmed for that one."""
    model = getattr(count, "__self__", None)
    return model_of(model) if hasattr(model, "get_num_tokens_from_messages") else None
