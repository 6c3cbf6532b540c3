"""Changes that a provider makes to a request: an event on the span of the request's assembly."""

from __future__ import annotations

import gc

import pytest
from client_calls import assemblies
from provider_bodies import OUTPUT, message_body, response_body

from otel_assembly.cli import render_tree
from otel_assembly.telemetry import span_tree

EVENT = "assembly.provider_edit"
TEXT = {"type": "text", "text": "At gate 14."}
CLEARED = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 8, "cleared_input_tokens": 50_000}
FORGOTTEN = {"type": "clear_thinking_20251015", "cleared_thinking_turns": 3, "cleared_input_tokens": 1_500}
DROPPED = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "model_binding_mismatch"}
SUMMARY = {"type": "compaction", "content": "The bag is at gate 14."}
MANAGED = {
    "betas": ["context-management-2025-06-27"],
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
}
COMPACTION = {"type": "compaction", "id": "cmp1", "encrypted_content": "c2VjcmV0"}
MODES = pytest.mark.parametrize("how", ["whole", "streamed", "async whole", "async streamed"])


def messages_events(body):
    """Return the events of a stream that Anthropic sends for a message."""
    blocks, management = body["content"], body.pop("context_management", None)
    begun = {**body, "content": [], "stop_reason": None, "usage": {"input_tokens": 7, "output_tokens": 1}}
    events = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(blocks):
        if block["type"] == "compaction":
            start, delta = {"type": "compaction", "content": None}, {"type": "compaction_delta"}
            delta["content"] = block["content"]
        else:
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}}
    end |= {"usage": {"output_tokens": 2}, "context_management": management}
    return [*events, end, {"type": "message_stop"}]


async def ask_anthropic(clients, server, how, question, body, **settings):
    arguments = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": [{"role": "user", "content": question}]}
    arguments |= settings
    if "streamed" in how:
        server.streams(messages_events(body), named=True, done=False)
        arguments["stream"] = True
    else:
        server.answers(body)
    if "async" not in how:
        answer = clients.anthropic.beta.messages.create(**arguments)
        return [*answer] if "streamed" in how else answer
    async with clients.anthropic_async as client:
        answer = await client.beta.messages.create(**arguments)
        return [event async for event in answer] if "streamed" in how else answer


async def ask_openai(clients, server, how, question, body, **settings):
    if "streamed" in how:
        settings["stream"] = True
        begun = {"type": "response.created", "sequence_number": 0, "response": {**body, "output": []}}
        server.streams([begun, {"type": "response.completed", "sequence_number": 1, "response": body}], named=True)
    else:
        server.answers(body)
    if "async" not in how:
        answer = clients.openai.responses.create(model="gpt-4o", input=question, **settings)
        return [*answer] if "streamed" in how else answer
    async with clients.openai_async as client:
        answer = await client.responses.create(model="gpt-4o", input=question, **settings)
        return [event async for event in answer] if "streamed" in how else answer


def edits_of(telemetry):
    (span,) = assemblies(telemetry)
    return [dict(event.attributes) for event in span.events if event.name == EVENT]


@MODES
async def test_what_anthropic_cleared_is_an_event_of_the_assembly(clients, server, telemetry, question, how):
    body = message_body([TEXT], context_management={"applied_edits": [CLEARED, FORGOTTEN]})
    await ask_anthropic(clients, server, how, question, body, **MANAGED)
    prefix = "assembly.provider.edit."
    assert edits_of(telemetry) == [
        {
            f"{prefix}type": "clear_tool_uses_20250919",
            f"{prefix}cleared_tokens": 50_000,
            f"{prefix}cleared_tool_uses": 8,
        },
        {
            f"{prefix}type": "clear_thinking_20251015",
            f"{prefix}cleared_tokens": 1_500,
            f"{prefix}cleared_thinking_turns": 3,
        },
    ]
    (span,) = assemblies(telemetry)
    assert span.attributes["assembly.provider.allowed_edits"] == ["clear_tool_uses_20250919"]
    assert telemetry.violations() == []


@MODES
async def test_a_summary_that_anthropic_returns_is_an_event(clients, server, telemetry, question, how):
    edits = {"context_management": {"edits": [{"type": "compact_20260112"}]}, "betas": ["compact-2026-01-12"]}
    await ask_anthropic(clients, server, how, question, message_body([SUMMARY, TEXT]), **edits)
    assert edits_of(telemetry) == [{"assembly.provider.edit.type": "compaction"}]


@MODES
async def test_a_compaction_item_of_openai_is_an_event(clients, server, telemetry, question, how):
    body = response_body([COMPACTION, OUTPUT], truncation="auto")
    compaction = [{"type": "compaction", "compact_threshold": 10_000}]
    await ask_openai(clients, server, how, question, body, truncation="auto", context_management=compaction)
    assert edits_of(telemetry) == [{"assembly.provider.edit.type": "compaction"}]
    (span,) = assemblies(telemetry)
    assert span.attributes["assembly.provider.allowed_edits"] == ["truncation", "compaction"]
    assert telemetry.violations() == []


async def test_a_request_that_allows_edits_may_have_none(clients, server, telemetry, question):
    await ask_openai(clients, server, "whole", question, response_body([OUTPUT], truncation="auto"), truncation="auto")
    (span,) = assemblies(telemetry)
    assert span.attributes["assembly.provider.allowed_edits"] == ["truncation"]
    assert edits_of(telemetry) == []


def test_openais_compaction_of_a_conversation_is_an_event(clients, server, telemetry, question):
    server.answers({**response_body([COMPACTION]), "object": "response.compaction"})
    clients.openai.responses.compact(model="gpt-4o", input=question)
    assert edits_of(telemetry) == [{"assembly.provider.edit.type": "compaction"}]


async def test_reasoning_that_a_provider_removed_without_being_asked_is_on_the_model_call(
    clients, server, telemetry, question
):
    """The span of the assembly has ended then, because the request allowed no edit."""
    tracer = telemetry.tracer("opentelemetry.instrumentation.openai")
    removed = {"id": "rs1", "type": "reasoning", "action": "removed", "reason": "model_mismatch"}
    body = response_body([OUTPUT], input_transformations=[removed, {**removed, "id": "rs2"}])
    with tracer.start_as_current_span("chat gpt-4o", attributes={"gen_ai.operation.name": "chat"}):
        await ask_openai(clients, server, "whole", question, body)
    (event,) = telemetry.span("chat gpt-4o").events
    assert (event.name, dict(event.attributes)) == (
        EVENT,
        {
            "assembly.provider.edit.type": "reasoning_removed",
            "assembly.provider.edit.reason": "model_mismatch",
            "assembly.provider.edit.cleared_blocks": 2,
        },
    )
    assert edits_of(telemetry) == []


async def test_without_a_span_for_it_the_edit_is_a_log_record(clients, server, telemetry, question):
    body = message_body([TEXT], input_transformations=[DROPPED])
    await ask_anthropic(clients, server, "whole", question, body)
    (log,) = telemetry.logs_named(EVENT)
    assert log.attributes["assembly.provider.edit.type"] == "thinking_dropped"


async def test_a_failed_request_that_allows_edits_has_an_assembly(clients, telemetry, question):
    client = clients.openai.with_options(base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(Exception, match="Connection"):
        client.responses.create(model="gpt-4o", input=question, truncation="auto")
    assert len(assemblies(telemetry)) == 1


async def test_a_stream_that_is_never_read_leaves_its_assembly(clients, server, telemetry, question):
    server.streams([{"type": "response.created", "sequence_number": 0, "response": response_body([])}], named=True)
    stream = clients.openai.responses.create(model="gpt-4o", input=question, truncation="auto", stream=True)
    assert assemblies(telemetry) == []
    stream.response.close()
    del stream
    gc.collect()
    assert len(assemblies(telemetry)) == 1


async def test_the_tree_shows_the_edit_in_a_line(clients, server, telemetry, question):
    body = message_body([TEXT], context_management={"applied_edits": [CLEARED]})
    await ask_anthropic(clients, server, "whole", question, body, **MANAGED)
    shown = " ".join(render_tree(span_tree(telemetry.spans), width=120, color=False).split())
    assert "edited by the provider clear_tool_uses_20250919: 50,000 tokens, 8 tool uses" in shown
