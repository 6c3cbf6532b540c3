"""The rules of each provider's API for messages, and the fields that clients add to a request.

Each rule is documented by the provider or enforced by its API. Only this module contains such rules.

The provider of a prompt is determined by, in this order:

1. ``Context(provider=...)``, which a program sets, or a framework's plug-in that knows the client
   (`provider_named`, `provider_of_client`);
2. the format of the messages, if it is unique to one provider (`EventFacts.provider`);
3. the name of the model (`provider_of_model`).

An unknown provider has the rules in `NO_RULES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_assembly._internal.class_cache import cached_by_class

if TYPE_CHECKING:
    from collections.abc import Container, Mapping


class Provider(StrEnum):
    """A provider's API, through which models are called."""

    CHAT = "chat"  # OpenAI's Chat Completions, and every server with the same interface
    RESPONSES = "responses"  # OpenAI's Responses
    ANTHROPIC = "anthropic"  # Messages
    BEDROCK = "bedrock"  # Converse
    GEMINI = "gemini"  # generateContent


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """The rules of one provider's API for the messages of a request.

    Attributes:
        alternates: True if the API rejects two consecutive messages of the same role.
        is_user_first: True if the first message must be a user's request. A user message with only tool results is no
            request, because the API requires their calls before it.
        plain_call_ids: True if ids of tool calls can contain only letters, digits, ``_`` and ``-``.
        longest_call_id: The most characters of an id of a tool call; 0 if no limit is known.
        sends_names: True if a message can include the name of its speaker.
    """

    alternates: bool = False
    is_user_first: bool = False
    plain_call_ids: bool = False
    longest_call_id: int = 0
    sends_names: bool = False


#: The result that is sent for a call without a result, because providers reject such a call.
NO_RESULT_YET: Final = "[no result yet]"
#: The user message in front of a leading assistant message, because Anthropic's API requires a user message first.
OPENING: Final = "[Earlier messages were left out]"

#: The rules of an unknown provider. Names are counted, because its client may send them.
NO_RULES: Final = ProviderRules(sends_names=True)


RULES: Final[Mapping[Provider, ProviderRules]] = {
    # "string too long. Expected a string with maximum length 40" for `tool_calls[].id` (400).
    Provider.CHAT: ProviderRules(longest_call_id=40, sends_names=True),
    Provider.RESPONSES: ProviderRules(),
    # Anthropic merges consecutive messages of one role, Gemini accepts them. Anthropic's reference: "the first message
    # must always use the user role". Gemini's error (400): "ensure that function call turn comes immediately after a
    # user turn or after a function response turn". Anthropic's error (400): "tool_use.id: String should match pattern
    # '^[a-zA-Z0-9_-]+$'".
    Provider.ANTHROPIC: ProviderRules(is_user_first=True, plain_call_ids=True),
    Provider.GEMINI: ProviderRules(is_user_first=True),
    # Converse's errors: "A conversation must alternate between user and assistant roles" and "A conversation must start
    # with a user message" (ValidationException).
    Provider.BEDROCK: ProviderRules(alternates=True, is_user_first=True),
}

#: Providers by their names in OpenTelemetry's ``gen_ai.provider.name``, clients and frameworks.
_NAMES: Final[Mapping[str, Provider]] = {
    **{provider.value: provider for provider in Provider},
    "openai": Provider.CHAT,
    "azure.ai.openai": Provider.CHAT,
    "claude": Provider.ANTHROPIC,
    "anthropic_vertex": Provider.ANTHROPIC,
    "aws.bedrock": Provider.BEDROCK,
    "amazon_bedrock": Provider.BEDROCK,
    "aws_bedrock": Provider.BEDROCK,
    "bedrock_converse": Provider.BEDROCK,
    "gcp.gemini": Provider.GEMINI,
    "gcp.gen_ai": Provider.GEMINI,
    "gcp.vertex_ai": Provider.GEMINI,
    "google": Provider.GEMINI,
    "google-gla": Provider.GEMINI,
    "google-vertex": Provider.GEMINI,
    "google_genai": Provider.GEMINI,
    "google_vertexai": Provider.GEMINI,
    "vertex_ai": Provider.GEMINI,
}
#: Bedrock's model ids have the vendor in front of a dot (``us.amazon.nova-pro-v1:0``), or are ARNs.
_BEDROCK_MODEL: Final = re.compile(
    r"(?:^|[./:])(?:ai21|amazon|anthropic|cohere|deepseek|meta|mistral|nvidia|openai|qwen|stability|writer)\.[a-z]"
    r"|arn:aws[\w-]*:bedrock:|(?:^|/)bedrock[/:]"
)
_MODELS: Final = ((re.compile("claude"), Provider.ANTHROPIC), (re.compile("gemini"), Provider.GEMINI))


def provider_named(name: str | None) -> Provider | None:
    """Return the provider of a name such as ``anthropic``, ``aws.bedrock`` or ``google_genai``.

    Args:
        name: The name in OpenTelemetry's ``gen_ai.provider.name``, a client or a framework.

    Returns:
        None if the name is empty or unknown.
    """
    return _NAMES.get(name.lower()) if name else None


@lru_cache(maxsize=256)
def provider_of_model(model: str | None) -> Provider | None:
    """Return the provider of a model by its name, such as Anthropic for ``claude-sonnet-4-5``.

    Args:
        model: The name, with or without a prefix such as ``us.``, ``models/`` or ``vertex_ai/``.

    Returns:
        None if the name does not identify a provider.
    """
    name = (model or "").lower()
    if _BEDROCK_MODEL.search(name):
        return Provider.BEDROCK
    return next((provider for pattern, provider in _MODELS if pattern.search(name)), None)


#: OpenAI and Anthropic document ``^[a-zA-Z0-9_-]{1,64}$`` for tool names, and reject a history with other names.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REFUSED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME: Final = 64
_NO_NAME: Final = "unnamed"


def tool_name(name: str) -> str:
    """Return a tool name that providers accept. Models can generate invalid names, which providers reject in a history.

    Invalid characters become ``_``. Names are truncated to 64 characters. An empty name becomes ``unnamed``.
    """
    if _NAME.fullmatch(name):
        return name
    return _REFUSED.sub("_", name)[:_LONGEST_NAME] or _NO_NAME


def call_id(given: str, provider: Provider, used: Container[str] = ()) -> str:
    """Return an id for a tool call that a provider accepts: the original id, changed if it breaks the provider's rules.

    Args:
        given: The original id, from the model or another provider.
        provider: The provider that will receive the call.
        used: Ids of other calls; the returned id is none of them.
    """
    rules = RULES[provider]
    base = (_REFUSED.sub("_", given) if rules.plain_call_ids else given) or "call"
    longest = rules.longest_call_id or len(base)
    call, number = base[:longest], 2
    while call in used:
        suffix = f"_{number}"
        call = base[: longest - len(suffix)] + suffix if rules.longest_call_id else base + suffix
        number += 1
    return call


@lru_cache(maxsize=256)
def rules_for(provider: str | None, form: str, model: str | None) -> ProviderRules:
    """Return the rules of the provider that will be called; `NO_RULES` if it is unknown.

    Args:
        provider: The provider's name. If it is set, the other arguments are ignored.
        form: The provider that the format of the messages identifies, or an empty string.
        model: The model's name, which is used if `form` does not identify a provider.
    """
    known = provider_named(provider) if provider else provider_named(form) or provider_of_model(model)
    return NO_RULES if known is None else RULES[known]


#: Patterns for the lower-case module and class names of clients, in providers' packages and frameworks.
_CLIENTS: Final = (
    (re.compile("bedrock"), Provider.BEDROCK),
    (re.compile("anthropic|claude"), Provider.ANTHROPIC),
    (re.compile(r"gemini|genai|google_ai|vertex_?ai|models\.google\b"), Provider.GEMINI),
)


def provider_of_client(client: object) -> Provider | None:
    """Return the provider of a client or a framework's model, by the names of its class and module.

    Args:
        client: An object such as an `anthropic.AsyncAnthropic` or a LangChain ``ChatBedrockConverse``.

    Returns:
        None if the names do not identify a provider, as for OpenAI-compatible clients.
    """
    return _provider_of_class(type(client))


@cached_by_class
def _provider_of_class(kind: type) -> Provider | None:
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}".lower()
        matched = next((provider for pattern, provider in _CLIENTS if pattern.search(name)), None)
        if matched is not None:
            return matched
    return None


#: Clients that do not send the names of speakers, by module and class (source: the frameworks' code). The API of some
#: of them does not support names.
_NAMELESS_CLIENTS: Final = re.compile(
    r"anthropic|bedrock|claude|gemini|genai|ollama|vertex_?ai"
    r"|^agentscope\.(?:formatter|model)\._(?:dashscope|deepseek|minimax|openai_response|volcengine|xai)"
    r"|^agent_framework(?:_(?!openai)|_openai\._chat_client|.*(?:_responses|_assistants)_client)"
    r"|^autogen_ext\.models\.(?:azure|llama_cpp|semantic_kernel)"
    r"|^haystack_integrations\.components\.generators\.(?:cohere|google)"
    r"|^langchain_(?:cohere|google|groq|mistralai)"
    r"|^semantic_kernel\.connectors\.ai\.(?:azure_ai_inference|google|hugging_face|mistral_ai)"
)
#: Clients of OpenAI's Responses API. Only Haystack's sends names.
_RESPONSES_CLIENTS: Final = re.compile(
    r"openai_?response|openai\S*responses|responses(?:_chat)?_?(?:client|model)|azure_responses"
    r"|^agent_framework_openai\._chat_client"
)
_NAMES_IN_RESPONSES: Final = re.compile(r"^haystack\.")
#: Clients of Cohere, which wrap the text of a tool result in a JSON object.
_COHERE_CLIENTS: Final = re.compile(r"^haystack_integrations\.components\.generators\.cohere|^langchain_cohere")
#: AgentScope's formatters that send the tool's name with each tool result, but no names of speakers.
_NAMES_OF_TOOLS: Final = re.compile(r"^agentscope\.formatter\._(?:dashscope|deepseek|ollama|volcengine)")
#: AgentScope's formatters for several agents add the name of each speaker to the text.
_NAMES_IN_TEXT: Final = "MultiAgentFormatter"
#: AgentScope's formatters that send a name with every message, including the system prompt.
_NAMES_PROMPTS: Final = (
    "agentscope.formatter._openai_formatter.OpenAIChatFormatter",
    "agentscope.formatter._moonshot_formatter.MoonshotChatFormatter",
)


@dataclass(frozen=True, slots=True)
class ClientRules:
    """What a client adds to the messages of a request, for counting its tokens.

    Attributes:
        names: True if the client sends the names of speakers.
        prompt_name: The name that the client sends with a system prompt; empty if it sends none.
        items: True if each tool call is a separate item, as in OpenAI's Responses API.
        result_wrapper: The JSON around the text of a tool result, as in Gemini's clients; empty if there is none.
        result_names: True if the client sends the tool's name with each tool result, even if it sends no other names.
    """

    names: bool = True
    prompt_name: str = ""
    items: bool = False
    result_wrapper: str = ""
    result_names: bool = False


def rules_of_client(client: object) -> ClientRules | None:
    """Return what a client adds to messages, by its class.

    Args:
        client: The client, or a framework's model, chat generator or service.

    Returns:
        None if the class is unknown. In this case, use `rules_of_unknown_client` with the model's name.
    """
    if getattr(client, "_include_name_in_message", None) is False:  # AutoGen's setting of that name
        return NO_NAMES
    formatter = getattr(client, "formatter", None)  # AgentScope's models have one
    kind = type(client if formatter is None else formatter)
    return _rules_of_class(kind)


def rules_of_unknown_client(model: str | None) -> ClientRules:
    """Return what the client of a model probably adds to messages, by the model's name."""
    provider = provider_of_model(model)
    if provider is Provider.GEMINI:
        return GEMINI_CLIENT
    return _ANY_CLIENT if (NO_RULES if provider is None else RULES[provider]).sends_names else NO_NAMES


_ANY_CLIENT: Final = ClientRules()
NO_NAMES: Final = ClientRules(names=False)
#: Clients of OpenAI's Responses API: tool calls are separate items.
RESPONSES_CLIENT: Final = ClientRules(names=False, items=True)
#: Clients of Gemini, which requires an object as a tool result: they put the text under one key.
GEMINI_CLIENT: Final = ClientRules(names=False, result_wrapper='{"result": ""}', result_names=True)


@cached_by_class
def _rules_of_class(kind: type) -> ClientRules | None:
    names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if names[0].startswith(_NAMES_PROMPTS):
        return ClientRules(prompt_name="system")
    if kind.__qualname__.endswith(_NAMES_IN_TEXT):
        return _ANY_CLIENT
    lowered = [name.lower() for name in names]
    if any(map(_RESPONSES_CLIENTS.search, lowered)):
        return ClientRules(names=any(map(_NAMES_IN_RESPONSES.search, lowered)), items=True)
    if _provider_of_class(kind) is Provider.GEMINI:
        return GEMINI_CLIENT
    if any(map(_COHERE_CLIENTS.search, lowered)):
        return ClientRules(names=False, result_wrapper=GEMINI_CLIENT.result_wrapper)
    if any(map(_NAMELESS_CLIENTS.search, lowered)):
        return ClientRules(names=False, result_names=any(map(_NAMES_OF_TOOLS.search, lowered)))
    return _ANY_CLIENT if any("openai" in name.lower() for name in names) else None
