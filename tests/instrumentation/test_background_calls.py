"""What a client has started runs on when the client has answered: calls that are made there are calls of their own."""

from __future__ import annotations

import asyncio

import pytest

from otel_assembly.instrumentation import ClientRequest, Instrumentation, client

HELLO = [{"role": "user", "content": "hello"}]
ASIDE = [{"role": "user", "content": word} for word in ("by", "the", "way")]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


def told(telemetry):
    return [span.attributes["assembly.events.out"] for span in telemetry.spans_named("assemble_context")]


async def answering(messages):
    return "fine"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_a_client_has_started_and_not_waited_for_is_a_call_of_its_own(
    streams, instrumentation, assembly_telemetry
):
    hook, started, answered = client(lambda messages: ClientRequest(messages)), [], asyncio.Event()
    inner = hook(answering, instrumentation)

    async def later():
        await answered.wait()
        return await inner(ASIDE)

    async def starting(messages):
        await inner(messages)  # the client behind it is no call of its own
        started.append(asyncio.create_task(later()))
        return "fine"

    async def starting_words(messages):
        yield await starting(messages)

    if streams:
        assert [word async for word in hook(starting_words, instrumentation)(HELLO)] == ["fine"]
    else:
        assert await hook(starting, instrumentation)(HELLO) == "fine"
    assert told(assembly_telemetry) == [1]
    answered.set()
    assert await started[0] == "fine"
    assert told(assembly_telemetry) == [1, 3]
