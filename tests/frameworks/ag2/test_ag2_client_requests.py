"""What AG2's mappers leave out of a provider's request is dropped in the assembly, too."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from importlib.util import find_spec

import pytest
from ag2_package import PACKAGE, MemoryStream, ag2, answer, ask, call, events, history_of

NOWHERE = "http://127.0.0.1:9"
SETTINGS = {
    "openai OpenAIConfig": {"api_key": "none", "base_url": f"{NOWHERE}/v1", "max_retries": 0},
    "openai OpenAIResponsesConfig": {"api_key": "none", "base_url": f"{NOWHERE}/v1", "max_retries": 0},
    "anthropic AnthropicConfig": {"api_key": "none", "base_url": NOWHERE, "max_retries": 0},
    "gemini GeminiConfig": {"api_key": "none"},
    "bedrock BedrockConfig": {
        "endpoint_url": NOWHERE,
        "region_name": "us-east-1",
        "aws_access_key_id": "none",
        "aws_secret_access_key": "none",
        "max_retries": 0,
    },
    "dashscope DashScopeConfig": {"api_key": "none", "base_url": NOWHERE},
    "mistral MistralConfig": {"api_key": "none", "server_url": NOWHERE},
    "ollama OllamaConfig": {"host": NOWHERE},
    "xai XAIConfig": {"api_key": "none", "api_host": "127.0.0.1:9", "timeout": 1.0},
    "zai ZAIConfig": {"api_key": "none", "base_url": NOWHERE, "max_retries": 0},
}
#: The SDKs of these providers. Those of Mistral and Bedrock are too large for every environment of this project.
_SDKS = {
    "bedrock": "aiobotocore",
    "dashscope": "dashscope",
    "mistral": "mistralai",
    "ollama": "ollama",
    "xai": "xai_sdk",
    "zai": "zai",
}
INSTALLED = [name for name in SETTINGS if find_spec(_SDKS.get(name.split()[0], "json"))]
#: Providers whose clients have no mapper of system prompts beside that of messages.
_PROMPTS_APART = ("anthropic", "bedrock", "gemini")


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
    given = (messages,) if provider in _PROMPTS_APART else ([], messages)
    return str(mappers.convert_messages(*given, Serializer))


def config_of(provider, config):
    """AG2's class of this configuration; the test is skipped in a release without it."""
    pytest.importorskip(f"{PACKAGE}.config", reason="this release has none")
    module = pytest.importorskip(f"{PACKAGE}.config.{provider}", exc_type=ImportError)
    if not hasattr(module, config):
        pytest.skip(f"this release of AG2 has no {config}")
    return getattr(module, config)


def result(call_id, text):
    made = events.ToolResultEvent.from_call(events.ToolCallEvent(id=call_id, name="look", arguments="{}"), text)
    return events.ToolResultsEvent([made])


@pytest.mark.parametrize("name", INSTALLED)
async def test_the_output_is_what_the_mapper_of_the_provider_converts(name, telemetry, monkeypatch):
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", NOWHERE)
    provider, config = name.split()
    made = config_of(provider, config)
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
    agent = ag2.Agent("support", config=made(model="gpt-4o", **SETTINGS[name]))
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


if find_spec("xai_sdk"):

    async def test_calls_of_a_turn_that_xai_itself_made_are_sent(telemetry):
        made = config_of("xai", "XAIConfig")
        chat = importlib.import_module("xai_sdk.proto").chat_pb2
        replay = importlib.import_module(f"{PACKAGE}.config.xai.events")
        called = chat.ToolCall(id="c1", function=chat.FunctionCall(name="own-call", arguments="{}"))
        message = chat.CompletionMessage(role=chat.ROLE_ASSISTANT, tool_calls=[called])
        turn = chat.GetChatCompletionResponse(outputs=[chat.CompletionOutput(message=message)])
        history = [
            ask("first-request"),
            replay.XAIAssistantEvent(proto_bytes=turn.SerializeToString()),
            events.ModelResponse(tool_calls=events.ToolCallsEvent([call("own-call", "{}")])),
            result("c1", "own-result"),
            events.ModelResponse(tool_calls=events.ToolCallsEvent([call("lonely-call", "{}")])),
        ]
        stream = MemoryStream()
        await history_of(stream, *history)
        agent = ag2.Agent("support", config=made(model="gpt-4o", **SETTINGS["xai XAIConfig"]))
        with suppress(Exception):  # nobody answers
            await agent.ask("last-request", stream=stream)
        kept = await stream.history.get_events()
        request = request_of("xai", "XAIConfig", [*history, ask("last-request")])
        assert "own-call" in request
        assert "lonely-call" not in request
        assembly = telemetry.spans_named("assemble_context")[-1]
        assert len(kept) - assembly.attributes["assembly.events.out"] == 1

    @pytest.mark.parametrize("held", [None, "resp_0"])
    async def test_what_xai_holds_is_not_known(telemetry, held):
        made = config_of("xai", "XAIConfig")
        agent = ag2.Agent("support", config=made(model="grok", previous_response_id=held, **SETTINGS["xai XAIConfig"]))
        with suppress(Exception):  # nobody answers
            await agent.ask("And now?")
        (assembly,) = telemetry.spans_named("assemble_context")
        assert assembly.attributes.get("assembly.input.unknown") == (True if held else None)
