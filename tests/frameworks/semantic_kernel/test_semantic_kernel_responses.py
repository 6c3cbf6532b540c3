"""Agents of OpenAI's Responses: each request has its assembly, and the input is unknown if OpenAI holds it."""

from __future__ import annotations

import httpx
import pytest
from openai import AsyncOpenAI
from openai_server import Responses
from semantic_kernel.agents import OpenAIResponsesAgent
from semantic_kernel.functions import kernel_function


class Shop:
    @kernel_function(description="Look an order up.")
    def look(self) -> str:
        return "It is on its way."


@pytest.mark.parametrize("stored", [True, False])
async def test_requests_of_an_agent_of_responses_have_assemblies(told, stored):
    server = Responses(tool="shop-look")
    client = AsyncOpenAI(
        api_key="none", base_url="http://nowhere", http_client=httpx.AsyncClient(transport=server.transport)
    )
    agent = OpenAIResponsesAgent(
        ai_model_id="gpt-4o", client=client, name="bob", instructions="Be brief.", store_enabled=stored
    )
    agent.kernel.add_plugin(Shop(), "shop")
    answer = await agent.get_response("Where is my order?")
    await agent.get_response("And now?", thread=answer.thread)
    spans = told.spans_named("assemble_context")
    assert len(spans) == len(server.requests) == 3
    assert server.continued_from == ([None, "resp_1", "resp_2"] if stored else [None] * 3)
    known = [True if held else None for held in server.continued_from]
    assert [span.attributes.get("assembly.input.unknown") for span in spans] == known
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {span.attributes["assembly.framework"] for span in spans} == {"semantic_kernel"}
    assert [span.attributes["assembly.events.out"] for span in spans] == [
        len(request["input"]) for request in server.requests
    ]
    assert not any("assembly.pairs.broken" in span.attributes for span in spans)
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1
