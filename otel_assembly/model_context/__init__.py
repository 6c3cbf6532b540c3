"""AutoGen's model contexts, safe by default; AutoGen is not needed.

The same classes on AutoGen's own base, for agents of AgentChat, are those of `otel_assembly.instrumentation.autogen`.
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
