"""Records the model calls of programs that use a provider's client without a framework.

The instrumentors of the clients, such as ``openai`` and ``litellm``, share these modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of

if TYPE_CHECKING:  # what programs use of these names; `__all__` has all of them
    from otel_assembly.instrumentation.provider_clients.conversations import conversation as conversation
    from otel_assembly.instrumentation.provider_clients.instrumentors import (
        AnthropicInstrumentor as AnthropicInstrumentor,
    )
    from otel_assembly.instrumentation.provider_clients.instrumentors import BedrockInstrumentor as BedrockInstrumentor
    from otel_assembly.instrumentation.provider_clients.instrumentors import CohereInstrumentor as CohereInstrumentor
    from otel_assembly.instrumentation.provider_clients.instrumentors import (
        GoogleGenAIInstrumentor as GoogleGenAIInstrumentor,
    )
    from otel_assembly.instrumentation.provider_clients.instrumentors import GroqInstrumentor as GroqInstrumentor
    from otel_assembly.instrumentation.provider_clients.instrumentors import MistralInstrumentor as MistralInstrumentor
    from otel_assembly.instrumentation.provider_clients.instrumentors import OllamaInstrumentor as OllamaInstrumentor
    from otel_assembly.instrumentation.provider_clients.instrumentors import OpenAIInstrumentor as OpenAIInstrumentor
    from otel_assembly.instrumentation.provider_clients.program_reductions import record_reduction as record_reduction

#: The modules are imported on first use: a program that only names conversations needs few of them.
_MODULE_OF: Final = modules_of(
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
)
__getattr__, __dir__ = lazy_attributes(__name__, _MODULE_OF)

__all__ = sorted(_MODULE_OF)
