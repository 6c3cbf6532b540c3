"""The instrumentors of the providers' clients: for each client, the functions that its requests pass through.

LiteLLM's instrumentor, which also wraps names that programs have imported, is in a folder of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, in_class, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.provider_clients import hooks as wrappers
else:
    wrappers = LazyWrappers("otel_assembly.instrumentation.provider_clients.hooks")

_REQUESTS: Final = "requests to models"
_MISTRAL_METHODS: Final = "Chat.complete Chat.complete_async Chat.stream Chat.stream_async"


class OpenAIInstrumentor(AssemblyInstrumentor):
    """Instruments the requests of OpenAI's client: Chat Completions, Responses and streams, also to Azure."""

    framework = "openai"
    requires = ("openai >= 1.66",)
    hooks: ClassVar = in_module(
        "openai._base_client", ("SyncAPIClient.post AsyncAPIClient.post", wrappers.openai_post, _REQUESTS)
    )


class AnthropicInstrumentor(AssemblyInstrumentor):
    """Instruments the requests of Anthropic's client: Messages and streams, also to Bedrock and Vertex AI."""

    framework = "anthropic"
    requires = ("anthropic >= 0.49",)
    hooks: ClassVar = in_module(
        "anthropic._base_client",
        ("SyncAPIClient.request AsyncAPIClient.request", wrappers.anthropic_request, _REQUESTS),
        # From 2.0 on, `request` opens the client's own span and calls `_request` in it.
        ("SyncAPIClient._request AsyncAPIClient._request", wrappers.anthropic_inner_request, _REQUESTS, ">= 2"),
    )


class GoogleGenAIInstrumentor(AssemblyInstrumentor):
    """Instruments the requests of Google's client to Gemini models, also on Vertex AI."""

    framework = "google_genai"
    requires = ("google-genai >= 1.60",)
    hooks: ClassVar = in_class(
        "google.genai._api_client",
        "BaseApiClient",
        ("request async_request request_streamed async_request_streamed", wrappers.google_request, _REQUESTS),
    )


class BedrockInstrumentor(AssemblyInstrumentor):
    """Instruments the requests to models of Bedrock Runtime: Converse, ConverseStream and InvokeModel."""

    framework = "botocore"
    requires = ("botocore >= 1.35",)
    hooks: ClassVar = in_module("botocore.client", ("BaseClient._make_api_call", wrappers.bedrock_request, _REQUESTS))


class GroqInstrumentor(AssemblyInstrumentor):
    """Instruments the requests of Groq's client: chat completions, whole or streamed."""

    framework = "groq"
    requires = ("groq >= 0.13",)
    hooks: ClassVar = in_module(
        "groq._base_client", ("SyncAPIClient.request AsyncAPIClient.request", wrappers.groq_request, _REQUESTS)
    )


class OllamaInstrumentor(AssemblyInstrumentor):
    """Instruments the requests of Ollama's client: `chat` and `generate`, whole or streamed."""

    framework = "ollama"
    requires = ("ollama >= 0.5.2",)
    hooks: ClassVar = in_module(
        "ollama._client", ("Client._request AsyncClient._request", wrappers.ollama_request, _REQUESTS)
    )


class MistralInstrumentor(AssemblyInstrumentor):
    """Instruments `complete` and `stream` of Mistral's client, also the functions that parse an answer."""

    framework = "mistralai"
    requires = ("mistralai >= 1.9",)
    hooks: ClassVar = [
        *in_module("mistralai.client.chat", (_MISTRAL_METHODS, wrappers.mistral_chat, _REQUESTS, ">= 2")),
        *in_module("mistralai.chat", (_MISTRAL_METHODS, wrappers.mistral_chat, _REQUESTS, "< 2")),
    ]


class CohereInstrumentor(AssemblyInstrumentor):
    """Instruments `chat` and `chat_stream` of the second version of Cohere's API."""

    framework = "cohere"
    requires = ("cohere >= 5.15",)
    hooks: ClassVar = in_module(
        "cohere.v2.client",
        ("V2Client.chat V2Client.chat_stream", wrappers.cohere_chat, _REQUESTS),
        ("AsyncV2Client.chat AsyncV2Client.chat_stream", wrappers.cohere_chat, _REQUESTS),
    )
