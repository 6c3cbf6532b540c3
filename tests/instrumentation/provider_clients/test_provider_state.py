"""Conversations that the provider stores: a request has only the new messages, and the assembly has all of them."""

from __future__ import annotations

import itertools

import pytest
from client_calls import assemblies
from provider_bodies import OUTPUT, OUTPUT_TEXT, response_body

NUMBERS = itertools.count()


def output(number):
    text = {**OUTPUT_TEXT, "text": f"This is the answer number {number}."}
    return {**OUTPUT, "id": f"msg_{number}", "content": [text]}


async def ask(clients, server, how, question, **settings):
    """Send one request of the Responses API, and return the id of its answer."""
    number = next(NUMBERS)
    body = response_body([output(number)], id=f"resp_state_{number}")
    if "streamed" in how:
        settings["stream"] = True
        begun = {"type": "response.created", "sequence_number": 0, "response": {**body, "output": []}}
        server.streams([begun, {"type": "response.completed", "sequence_number": 1, "response": body}], named=True)
    else:
        server.answers(body)
    if "async" in how:
        answer = await clients.openai_async.responses.create(model="gpt-4o", input=question, **settings)
        return [event.response.id async for event in answer][-1] if "streamed" in how else answer.id
    answer = clients.openai.responses.create(model="gpt-4o", input=question, **settings)
    return [event.response.id for event in answer][-1] if "streamed" in how else answer.id


async def create(clients, server, how, items=()):
    """Create a conversation that the provider stores, and return its id."""
    server.answers({"id": f"conv_{next(NUMBERS)}", "object": "conversation", "created_at": 1, "metadata": {}})
    if "async" in how:
        return (await clients.openai_async.conversations.create(items=items)).id
    return clients.openai.conversations.create(items=items).id


def message(text):
    return {"type": "message", "role": "user", "content": text}


@pytest.mark.parametrize("how", ["sync whole", "sync streamed", "async whole", "async streamed"])
@pytest.mark.parametrize("names", ["previous_response_id", "conversation"])
async def test_a_chain_of_three_responses_has_all_messages(clients, server, telemetry, how, names):
    async with clients.openai_async:
        stored = {names: await create(clients, server, how)} if names == "conversation" else {}
        for question in ("Where is my bag?", "And my coat?", "Thank you."):
            response_id = await ask(clients, server, how, question, **stored)
            if names == "previous_response_id":
                stored = {names: response_id}
    assert [request["input"] for request in server.requests[-3:]] == ["Where is my bag?", "And my coat?", "Thank you."]
    first, *later = [span.attributes for span in assemblies(telemetry)]
    assert first.get("assembly.provider.held_events") == (0 if names == "conversation" else None)
    assert [attributes["assembly.provider.held_events"] for attributes in later] == [2, 4]
    assert [attributes["assembly.events.in"] for attributes in later] == [3, 5]
    assert [attributes["assembly.events.out"] for attributes in later] == [3, 5]
    assert [attributes["assembly.dropped.count"] for attributes in later] == [0, 0]
    assert len({attributes["assembly.ledger.id"] for attributes in (first, *later)}) == 1
    assert telemetry.violations() == []


async def test_items_that_the_program_puts_into_a_conversation_are_held(clients, server, telemetry):
    conversation = await create(clients, server, "sync", items=[message("I fly to Oslo."), message("Seat 3.")])
    await ask(clients, server, "sync whole", "Where is my bag?", conversation=conversation)
    server.answers({"object": "list", "data": [], "first_id": "i", "last_id": "i", "has_more": False})
    clients.openai.conversations.items.create(conversation, items=[message("It is blue.")])
    await ask(clients, server, "sync whole", "And my coat?", conversation=conversation)
    found = [span.attributes for span in assemblies(telemetry)]
    assert [attributes["assembly.provider.held_events"] for attributes in found] == [2, 5]
    assert [attributes["assembly.events.in"] for attributes in found] == [3, 6]


async def test_the_first_messages_of_a_conversation_of_another_process_are_unknown(clients, server, telemetry):
    for question in ("Where is my bag?", "And my coat?"):
        await ask(clients, server, "sync whole", question, conversation="conv_elsewhere")
    assert [span.attributes.get("assembly.input.unknown") for span in assemblies(telemetry)] == [True, True]


async def test_a_response_of_another_process_leaves_the_input_unknown(clients, server, telemetry):
    first = await ask(clients, server, "sync whole", "And my coat?", previous_response_id="resp_elsewhere")
    await ask(clients, server, "sync whole", "Thank you.", previous_response_id=first)
    for span in assemblies(telemetry):
        assert span.attributes["assembly.input.unknown"] is True
        assert "assembly.provider.held_events" not in span.attributes


async def test_two_branches_of_one_response_hold_the_same_messages(clients, server, telemetry):
    first = await ask(clients, server, "sync whole", "Where is my bag?")
    for question in ("And my coat?", "And my hat?"):
        await ask(clients, server, "sync whole", question, previous_response_id=first)
    _, *later = [span.attributes for span in assemblies(telemetry)]
    assert [attributes["assembly.provider.held_events"] for attributes in later] == [2, 2]
    assert [attributes["assembly.events.out"] for attributes in later] == [3, 3]
