"""The APIs of providers that make model calls, found by a request's path or by the name of a client's function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.provider_clients import answers, requests
from otel_assembly.messages.provider_rules import NO_NAMES, RESPONSES_CLIENT, ClientRules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.instrumentation.provider_clients.answers import AnswerCollector
    from otel_assembly.instrumentation.provider_clients.requests import ProviderAnswer, ProviderRequest


class ProviderAPI(NamedTuple):
    """One API of a provider that makes model calls.

    Attributes:
        read_request: Reads a request's body, or a call's arguments by their names, and the request's path; returns
            None if they have an unknown form.
        read_answer: Reads an answer that the client returns; returns None if it is unknown, or a stream.
        collector: Creates the collector of a streamed answer.
        client_rules: What the API's clients add to the messages of a request, for counting its tokens.
    """

    name: str
    read_request: Callable[[Any, str], ProviderRequest | None]
    read_answer: Callable[[Any], ProviderAnswer | None]
    collector: Callable[[], AnswerCollector]
    client_rules: ClientRules = NO_NAMES


_CHAT: Final = ProviderAPI(
    "chat_completions", requests.read_chat, answers.read_chat_answer, answers.ChatCollector, ClientRules()
)
_COMPLETIONS: Final = ProviderAPI(
    "completions", requests.read_completion, answers.read_chat_answer, answers.ChatCollector
)
_RESPONSES: Final = ProviderAPI(
    "responses", requests.read_responses, answers.read_responses_answer, answers.ResponsesCollector, RESPONSES_CLIENT
)
_COMPACT: Final = _RESPONSES._replace(name="responses_compact")
_MESSAGES: Final = ProviderAPI(
    "messages", requests.read_messages, answers.read_messages_answer, answers.MessagesCollector
)
_GENERATE_CONTENT: Final = ProviderAPI(
    "generate_content",
    requests.read_generate_content,
    answers.read_generate_content_answer,
    answers.GenerateContentCollector,
    ClientRules(names=False, result_names=True),
)
_CONVERSE: Final = ProviderAPI(
    "converse", requests.read_converse, answers.read_converse_answer, answers.ConverseCollector
)
_INVOKE_MODEL: Final = ProviderAPI(
    "invoke_model", requests.read_invoke_model, answers.read_invoke_model_answer, answers.InvokeModelCollector
)

_OLLAMA: Final = _CHAT._replace(read_answer=answers.read_ollama_answer, collector=answers.OllamaCollector)
_MISTRAL: Final = _CHAT._replace(collector=answers.MistralCollector)
_COHERE: Final = _CHAT._replace(read_answer=answers.read_cohere_answer, collector=answers.CohereCollector)

#: The APIs of each library by the end of a request's path.
_PATHS: Final[Mapping[str, Mapping[str, ProviderAPI]]] = {
    "openai": {
        "/chat/completions": _CHAT,
        "/completions": _COMPLETIONS,
        "/responses": _RESPONSES,
        "/responses/compact": _COMPACT,
    },
    "anthropic": {"/v1/messages": _MESSAGES, "/v1/complete": _COMPLETIONS},
    "groq": {"/chat/completions": _CHAT},
    "ollama": {"/api/chat": _OLLAMA, "/api/generate": _OLLAMA._replace(read_request=requests.read_completion)},
    "google_genai": {":generateContent": _GENERATE_CONTENT, ":streamGenerateContent": _GENERATE_CONTENT},
}
#: The APIs by the name of botocore's operation or of a client's function.
_OPERATIONS: Final[Mapping[str, ProviderAPI]] = {
    "Converse": _CONVERSE,
    "ConverseStream": _CONVERSE,
    "InvokeModel": _INVOKE_MODEL,
    "InvokeModelWithResponseStream": _INVOKE_MODEL,
    "completion": _CHAT,
    "acompletion": _CHAT,
    "text_completion": _COMPLETIONS,
    "atext_completion": _COMPLETIONS,
    "responses": _RESPONSES,
    "aresponses": _RESPONSES,
    "mistralai.chat": _MISTRAL,
    "cohere.chat": _COHERE,
}
#: Parts of the ids of Bedrock's models that generate no text; their requests can look like those of other models.
_OTHER_MODELS: Final = ("embed", "rerank", "image", "stability.", "canvas", "reel")


def api_of_path(library: str, method: object, path: object) -> ProviderAPI | None:
    """Return the API of an HTTP request of a client library; None if it calls no model. The path may be a URL."""
    if not isinstance(path, str) or not isinstance(method, str) or method.lower() != "post":
        return None
    path = "/" + path.partition("?")[0].strip("/")
    return next((api for suffix, api in _PATHS.get(library, {}).items() if path.endswith(suffix)), None)


def api_of_operation(operation: object, params: Any = None) -> ProviderAPI | None:
    """Return the API of an operation of botocore, or of a client's function; None if it makes no model call."""
    api = _OPERATIONS.get(operation) if isinstance(operation, str) else None
    model = params.get("modelId") if isinstance(params, dict) else None
    if api is _INVOKE_MODEL and isinstance(model, str) and any(part in model for part in _OTHER_MODELS):
        return None
    return api
