"""The model whose tokenizer counts is the one that AutoGen's client calls."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import CreateResult, RequestUsage, UserMessage
from autogen_ext.models.cache import ChatCompletionCache
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_talk import model

from otel_assembly import SlidingWindowPolicy
from otel_assembly.instrumentation.autogen import AssembledChatCompletionContext


def counted(span):
    return [span.attributes.get(f"assembly.{name}") for name in ("model", "tokens.method", "tokens.encoding")]


class Called:
    """A client that calls a model by its name, as the clients of providers do."""

    @staticmethod
    def by(name):
        client = model("answer", "answer")
        client._create_args = {"model": name}
        return client


def endless():
    """A client that has a client for whatever it is asked, as those of a mocking library have."""
    client = Called.by("gpt-4")
    client.client = client
    return client


CLIENTS = [
    (lambda: Called.by("gpt-4"), ["gpt-4", "exact", "cl100k_base"]),
    (lambda: Called.by("claude-x"), ["claude-x", "estimated", "o200k_base"]),
    (lambda: ChatCompletionCache(Called.by("gpt-4")), ["gpt-4", "exact", "cl100k_base"]),
    (endless, ["gpt-4", "exact", "cl100k_base"]),
    (lambda: model("answer"), [None, "estimated", "o200k_base"]),
]


@pytest.mark.parametrize(("client", "expected"), CLIENTS, ids=["gpt-4", "claude", "cached", "endless", "unnamed"])
@pytest.mark.parametrize(
    "context",
    [
        lambda: BufferedChatCompletionContext(buffer_size=1),
        lambda: AssembledChatCompletionContext([SlidingWindowPolicy(1)]),
    ],
    ids=["instrumentor", "plug-in"],
)
async def test_the_clients_model_counts(told, client, expected, context):
    agent = AssistantAgent("desk", client(), model_context=context())
    await agent.run(task="What now?")
    spans = told.spans_named("assemble_context")
    assert spans
    for span in spans:
        assert counted(span) == expected


class Offline(OpenAIChatCompletionClient):
    """A provider's client that is never sent anything."""

    component_provider_override = None

    async def create(self, messages, **_):
        return CreateResult(finish_reason="stop", content="fine", usage=RequestUsage(1, 1), cached=False)


def offline(name):
    return Offline(model=name, api_key="none", model_info=model().model_info)


@pytest.mark.parametrize(
    ("client", "window"),
    [
        (lambda: offline("Llama-3.3-8B-Instruct"), 128_000),
        (lambda: offline("gpt-4.1"), 1_047_576),
        (lambda: ChatCompletionCache(offline("gpt-4.1")), 1_047_576),
        (lambda: offline("my-own"), None),
    ],
    ids=["by its name", "by its family's", "cached", "one that its client does not know"],
)
async def test_the_models_window_is_the_one_that_its_client_knows(told, client, window):
    await client().create([UserMessage(content="What now?", source="user")])
    assert told.span("assemble_context").attributes.get("assembly.model.window") == window


async def test_a_prompt_over_the_models_window_is_an_overflow(told):
    await AssistantAgent("desk", offline("gpt-3.5-turbo-0613")).run(task="What now? " * 6_000)
    span = told.span("assemble_context")
    assert span.attributes["assembly.overflow.cause"] == "window"
    assert span.attributes["assembly.budget.utilization"] > 1


@pytest.mark.parametrize("name", ["claude-3-haiku-20240307", "claude-3-haiku"])
@pytest.mark.parametrize(
    ("listed", "window", "over"),
    [(200_000, 200_000, False), (None, 50_000, True), (4_096, 50_000, True)],
    ids=["another list says more", "no other list knows it", "another list says less"],
)
async def test_a_prompt_that_fits_by_one_list_of_windows_is_no_overflow(told, monkeypatch, name, listed, window, over):
    """AutoGen's own says 50,000 of a model that takes 200,000."""
    monkeypatch.setattr("otel_assembly.tokens.prices.context_window", lambda model: listed)
    await AssistantAgent("desk", offline(name)).run(task="What now? " * 20_000)
    span = told.span("assemble_context").attributes
    assert span["assembly.tokens.out"] > 50_000
    assert (span["assembly.model.window"], span["assembly.overflowed"]) == (window, over)


async def test_a_model_that_is_named_for_one_call_is_the_one_that_counts(told):
    asked = [UserMessage(content="What now?", source="user")]
    await offline("gpt-4o").create(asked, extra_create_args={"model": "gpt-4.1"})
    span = told.span("assemble_context")
    assert (span.attributes["assembly.model"], span.attributes["assembly.model.window"]) == ("gpt-4.1", 1_047_576)
