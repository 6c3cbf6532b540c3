"""AutoGen 0.7: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of
from otel_assembly.instrumentation.autogen.hooks import AutoGenInstrumentor

#: The plug-in imports AutoGen, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(
    __name__,
    modules_of(
        {
            "plugin": "AssembledChatCompletionContext AssembledContextConfig",
            "contexts": (
                "BufferedChatCompletionContext BufferedChatCompletionContextConfig HeadAndTailChatCompletionContext "
                "HeadAndTailChatCompletionContextConfig TokenLimitedChatCompletionContext "
                "TokenLimitedChatCompletionContextConfig UnboundedChatCompletionContext "
                "UnboundedChatCompletionContextConfig"
            ),
        }
    ),
)

__all__ = [
    "AssembledChatCompletionContext",
    "AutoGenInstrumentor",
    "BufferedChatCompletionContext",
    "BufferedChatCompletionContextConfig",
    "HeadAndTailChatCompletionContext",
    "HeadAndTailChatCompletionContextConfig",
    "TokenLimitedChatCompletionContext",
    "TokenLimitedChatCompletionContextConfig",
    "UnboundedChatCompletionContext",
    "UnboundedChatCompletionContextConfig",
]
