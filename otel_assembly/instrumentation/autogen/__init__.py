"""AutoGen 0.7: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from typing import Any

from otel_assembly.instrumentation.autogen.hooks import AutoGenInstrumentor

_PLUGIN = ("AssembledChatCompletionContext", "AssembledContextConfig")


def __getattr__(name: str) -> Any:
    if name in _PLUGIN:
        from otel_assembly.instrumentation.autogen import plugin  # imports AutoGen

        return getattr(plugin, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLUGIN})


__all__ = ["AssembledChatCompletionContext", "AutoGenInstrumentor"]  # the plug-in is loaded when asked for
