"""Which clients send names of speakers: those of frameworks by their classes, others by the name of the model."""

from __future__ import annotations

import pytest

from otel_assembly import Assembler, Context, EventFacts
from otel_assembly.messages.provider_rules import ClientRules, rules_of_client, rules_of_unknown_client
from otel_assembly.tokens import MessageFraming


def made(module, name):
    """An object of a class that a package has, which need not be here."""
    return type(name, (), {"__module__": module})()


SENT = [
    ("agent_framework_openai._chat_completion_client", "OpenAIChatCompletionClient"),
    ("agent_framework.openai._chat_client", "OpenAIChatClient"),
    ("autogen_ext.models.openai._openai_client", "OpenAIChatCompletionClient"),
    ("haystack.components.generators.chat.openai", "OpenAIChatGenerator"),
    ("langchain_openai.chat_models.base", "ChatOpenAI"),
    ("semantic_kernel.connectors.ai.open_ai.services.open_ai_chat_completion", "OpenAIChatCompletion"),
]
NOT_SENT = [
    ("agent_framework_anthropic._chat_client", "AnthropicClient"),
    ("agent_framework_bedrock._chat_client", "BedrockChatClient"),
    ("agent_framework_ollama._chat_client", "OllamaChatClient"),
    ("autogen_ext.models.anthropic._anthropic_client", "AnthropicChatCompletionClient"),
    ("autogen_ext.models.azure._azure_ai_client", "AzureAIChatCompletionClient"),
    ("autogen_ext.models.ollama._ollama_client", "OllamaChatCompletionClient"),
    ("haystack_integrations.components.generators.anthropic.chat.chat_generator", "AnthropicChatGenerator"),
    ("langchain_anthropic.chat_models", "ChatAnthropic"),
    ("langchain_aws.chat_models.bedrock_converse", "ChatBedrockConverse"),
    ("langchain_groq.chat_models", "ChatGroq"),
    ("langchain_mistralai.chat_models", "ChatMistralAI"),
    ("langchain_ollama.chat_models", "ChatOllama"),
    ("llama_index.llms.anthropic.base", "Anthropic"),
    ("semantic_kernel.connectors.ai.anthropic.services.anthropic_chat_completion", "AnthropicChatCompletion"),
    ("semantic_kernel.connectors.ai.mistral_ai.services.mistral_ai_chat_completion", "MistralAIChatCompletion"),
]


RESPONSES = [
    ("agent_framework_openai._chat_client", "OpenAIChatClient"),
    ("agent_framework.openai._responses_client", "OpenAIResponsesClient"),
    ("agentscope.model._openai_response._model", "OpenAIResponseModel"),
    ("ag2.config.openai.config", "OpenAIResponsesConfig"),
    ("llama_index.llms.openai.responses", "OpenAIResponses"),
    ("pydantic_ai.models.openai", "OpenAIResponsesModel"),
]
GEMINI = [
    ("langchain_google_genai.chat_models", "ChatGoogleGenerativeAI"),
    ("pydantic_ai.models.google", "GoogleModel"),
    ("semantic_kernel.connectors.ai.google.google_ai.services.google_ai_chat_completion", "GoogleAIChatCompletion"),
]


@pytest.mark.parametrize(("module", "name"), RESPONSES)
def test_clients_of_responses_send_calls_as_items(module, name):
    assert rules_of_client(made(module, name)) == ClientRules(names=False, items=True)


@pytest.mark.parametrize(("module", "name"), GEMINI)
def test_clients_of_gemini_put_results_into_an_object(module, name):
    rules = rules_of_client(made(module, name))
    assert not rules.names
    assert rules.result_wrapper


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("haystack_integrations.components.generators.cohere.chat.chat_generator", "CohereChatGenerator"),
        ("langchain_cohere.chat_models", "ChatCohere"),
    ],
)
def test_clients_of_cohere_put_results_into_an_object(module, name):
    rules = rules_of_client(made(module, name))
    assert not rules.names
    assert rules.result_wrapper


def test_each_call_of_responses_has_the_framing_of_a_message():
    facts = EventFacts("response", "I look.", fields=("find", "{}", "ask", "{}"), opens=("a", "b"))
    chat, items = MessageFraming(), MessageFraming(items=True)
    assert chat.message(facts) == 4 + 2 * 3
    assert items.message(facts) == 3 * 4 + 2 * 3
    assert items.message(facts._replace(text="")) == 2 * 4 + 2 * 3
    assert items.message(facts._replace(opens=())) == chat.message(facts._replace(opens=())) == 4


def test_the_object_around_a_result_is_counted_for_messages_that_have_none():
    answer = EventFacts("tool_result", "depot 04", closes=("a",))
    framing = MessageFraming(per_result=5)
    assert framing.message(answer) == 4 + 5
    assert framing.message(answer._replace(provider="gemini")) == 4


@pytest.mark.parametrize(("module", "name"), SENT)
def test_clients_that_send_names(module, name):
    assert rules_of_client(made(module, name)) == ClientRules(names=True)


@pytest.mark.parametrize(("module", "name"), NOT_SENT)
def test_clients_that_send_none(module, name):
    assert rules_of_client(made(module, name)) == ClientRules(names=False)


def test_a_subclass_sends_what_its_base_sends():
    base = type(made("langchain_anthropic.chat_models", "ChatAnthropic"))
    assert not rules_of_client(type("Mine", (base,), {"__module__": "shop"})()).names


def test_autogens_setting_is_read():
    client = made("autogen_ext.models.openai._openai_client", "OpenAIChatCompletionClient")
    client._include_name_in_message = False
    assert not rules_of_client(client).names


def test_of_an_unknown_client_the_model_decides():
    assert rules_of_client(made("shop.models", "Scripted")) is None
    assert rules_of_unknown_client("gpt-4o").names
    assert rules_of_unknown_client(None).names
    assert not rules_of_unknown_client("claude-sonnet-4-5").names
    assert not rules_of_unknown_client("gemini-2.5-pro").names
    assert not rules_of_unknown_client("us.amazon.nova-pro-v1:0").names


async def test_names_are_counted_if_they_are_sent():
    messages = [{"role": "user", "content": "Where is it?", "name": "Maria"}]

    async def tokens(**settings):
        return (await Assembler([], **settings).assemble([], messages, Context())).totals.tokens_out

    bare = [{"role": "user", "content": "Where is it?"}]
    without = (await Assembler([]).assemble([], bare, Context())).totals.tokens_out
    assert await tokens(model="gpt-4o") > without
    assert await tokens(model="claude-sonnet-4-5") == without
    assert await tokens(model="gpt-4o", framing=MessageFraming(names=False)) == without
