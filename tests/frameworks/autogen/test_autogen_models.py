"""The model whose tokenizer counts is the one that AutoGen's client calls."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_ext.models.cache import ChatCompletionCache
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
