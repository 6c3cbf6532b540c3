"""What AG2's mappers leave out of a provider's request is dropped in the assembly, too."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress

import pytest
from ag2_package import PACKAGE, MemoryStream, ag2, answer, ask, call, events, history_of

NOWHERE = "http://127.0.0.1:9"
SETTINGS = {
    "openai OpenAIConfig": {"base_url": f"{NOWHERE}/v1", "max_retries": 0},
    "openai OpenAIResponsesConfig": {"base_url": f"{NOWHERE}/v1", "max_retries": 0},
    "anthropic AnthropicConfig": {"base_url": NOWHERE, "max_retries": 0},
    "gemini GeminiConfig": {},
}


class Serializer:
    """Writes data of a message's part as AG2's own does."""

    @staticmethod
    def encode(data):
        return json.dumps(data).encode()


def request_of(provider, config, messages):
    """What AG2's own mapper of this provider makes of these events, as text."""
    mappers = importlib.import_module(f"{PACKAGE}.config.{provider}.mappers")
    if config == "OpenAIResponsesConfig":
        return str(mappers.events_to_responses_input(messages, Serializer))
    if provider == "openai":
        return str(mappers.convert_messages([], messages, Serializer))
    return str(mappers.convert_messages(messages, Serializer))


def result(call_id, text):
    made = events.ToolResultEvent.from_call(events.ToolCallEvent(id=call_id, name="look", arguments="{}"), text)
    return events.ToolResultsEvent([made])


@pytest.mark.parametrize("name", SETTINGS)
async def test_the_output_is_what_the_mapper_of_the_provider_converts(name, telemetry, monkeypatch):
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", NOWHERE)
    provider, config = name.split()
    made = getattr(pytest.importorskip(f"{PACKAGE}.config", reason="this release has none"), config, None)
    if made is None:
        pytest.skip(f"this release of AG2 has no {config}")
    history = [
        ask("first-request"),
        events.ModelMessage("own-turn"),
        answer("first-answer"),
        result("gone", "orphaned-result"),
        events.ModelResponse(tool_calls=events.ToolCallsEvent([call("lonely-call", "{}")])),
        ask("second-request"),
    ]
    stream = MemoryStream()
    await history_of(stream, *history)
    agent = ag2.Agent("support", config=made(model="gpt-4o", api_key="none", **SETTINGS[name]))
    with suppress(Exception):  # nobody answers
        await agent.ask("last-request", stream=stream)
    kept = await stream.history.get_events()
    request = request_of(provider, config, [*history, ask("last-request")])
    marked = ("first-request", "own-turn", "first-answer", "orphaned-result", "lonely-call", "second-request")
    absent = {mark for mark in marked if mark not in request}
    assert "own-turn" in absent
    assembly = telemetry.spans_named("assemble_context")[-1]
    assert len(kept) - assembly.attributes["assembly.events.out"] == len(absent)
    (step,) = assembly.children
    assert step.attributes["assembly.policy.name"] == "framework"
    assert step.attributes["assembly.dropped.count"] == len(absent)
