"""Records the model calls of programs that use a provider's client without a framework.

The instrumentors of the clients, such as ``openai`` and ``litellm``, share these modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of

if TYPE_CHECKING:
    from otel_assembly.instrumentation.provider_clients.answers import answer_text
    from otel_assembly.instrumentation.provider_clients.apis import api_of_operation, api_of_path
    from otel_assembly.instrumentation.provider_clients.call_inputs import input_of
    from otel_assembly.instrumentation.provider_clients.conversations import conversation
    from otel_assembly.instrumentation.provider_clients.fingerprints import message_keys
    from otel_assembly.instrumentation.provider_clients.instrumentors import (
        AnthropicInstrumentor,
        BedrockInstrumentor,
        CohereInstrumentor,
        GoogleGenAIInstrumentor,
        GroqInstrumentor,
        MistralInstrumentor,
        OllamaInstrumentor,
        OpenAIInstrumentor,
    )
    from otel_assembly.instrumentation.provider_clients.parent_calls import ParentCalls
    from otel_assembly.instrumentation.provider_clients.program_reductions import record_reduction
    from otel_assembly.instrumentation.provider_clients.recorded_calls import (
        CallPosition,
        Evidence,
        ParentMatch,
        RecordedCall,
    )
    from otel_assembly.instrumentation.provider_clients.requests import ProviderAnswer, ProviderRequest, request_body

#: The modules are imported on first use: a program that only names conversations needs few of them.
__getattr__, __dir__ = lazy_attributes(
    __name__,
    modules_of(
        {
            "answers": "answer_text",
            "apis": "api_of_operation api_of_path",
            "call_inputs": "input_of",
            "conversations": "conversation",
            "fingerprints": "message_keys",
            "instrumentors": (
                "AnthropicInstrumentor BedrockInstrumentor CohereInstrumentor GoogleGenAIInstrumentor "
                "GroqInstrumentor MistralInstrumentor OllamaInstrumentor OpenAIInstrumentor"
            ),
            "parent_calls": "ParentCalls",
            "program_reductions": "record_reduction",
            "recorded_calls": "CallPosition Evidence ParentMatch RecordedCall",
            "requests": "ProviderAnswer ProviderRequest request_body",
        }
    ),
)

__all__ = [
    "AnthropicInstrumentor",
    "BedrockInstrumentor",
    "CallPosition",
    "CohereInstrumentor",
    "Evidence",
    "GoogleGenAIInstrumentor",
    "GroqInstrumentor",
    "MistralInstrumentor",
    "OllamaInstrumentor",
    "OpenAIInstrumentor",
    "ParentCalls",
    "ParentMatch",
    "ProviderAnswer",
    "ProviderRequest",
    "RecordedCall",
    "answer_text",
    "api_of_operation",
    "api_of_path",
    "conversation",
    "input_of",
    "message_keys",
    "record_reduction",
    "request_body",
]
