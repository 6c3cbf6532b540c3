"""AutoGen 0.7: the instrumentor, and model contexts that apply policies to an agent's messages.

Importing this package does not import AutoGen. The first access to a model context does.
"""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of
from otel_assembly.instrumentation.autogen.hooks import AutoGenInstrumentor

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
