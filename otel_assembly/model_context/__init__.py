"""Model contexts as in AutoGen, which by default never separate a tool call from its results.

The AutoGen package is not required. For agents of AutoGen's AgentChat, use the classes of the same names in
`otel_assembly.instrumentation.autogen`, which derive from AutoGen's base class.
"""

from otel_assembly.model_context.component import ComponentModel
from otel_assembly.model_context.contexts import (
    BufferedChatCompletionContext,
    BufferedChatCompletionContextConfig,
    ChatCompletionContext,
    HeadAndTailChatCompletionContext,
    HeadAndTailChatCompletionContextConfig,
    TokenLimitedChatCompletionContext,
    TokenLimitedChatCompletionContextConfig,
    UnboundedChatCompletionContext,
    UnboundedChatCompletionContextConfig,
)
from otel_assembly.model_context.messages import (
    AssistantMessage,
    ChatCompletionContextState,
    FunctionCall,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    Image,
    LLMMessage,
    SystemMessage,
    UserMessage,
)

__all__ = [
    "AssistantMessage",
    "BufferedChatCompletionContext",
    "BufferedChatCompletionContextConfig",
    "ChatCompletionContext",
    "ChatCompletionContextState",
    "ComponentModel",
    "FunctionCall",
    "FunctionExecutionResult",
    "FunctionExecutionResultMessage",
    "HeadAndTailChatCompletionContext",
    "HeadAndTailChatCompletionContextConfig",
    "Image",
    "LLMMessage",
    "SystemMessage",
    "TokenLimitedChatCompletionContext",
    "TokenLimitedChatCompletionContextConfig",
    "UnboundedChatCompletionContext",
    "UnboundedChatCompletionContextConfig",
    "UserMessage",
]
