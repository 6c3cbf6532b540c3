"""Every call that AG2 makes of a model has its assembly, whatever program makes it; the program is as without us."""

from __future__ import annotations

import importlib.util

import pytest
from ag2_package import PACKAGE, MemoryStream, ag2, alert, history_of, part, policies
from ag2_programs import PROGRAMS
from ag2_received import Log, assert_every_call_is_told

from otel_assembly import SlidingWindowPolicy
from otel_assembly.instrumentation.ag2 import AssembledPolicy

if importlib.util.find_spec(f"{PACKAGE}.network"):
    from ag2_channels import PROGRAMS as OF_CHANNELS

    PROGRAMS |= OF_CHANNELS


@pytest.mark.parametrize("name", PROGRAMS)
async def test_every_call_has_its_assembly_which_says_what_the_client_received(name, telemetry):
    log = Log(telemetry)
    await PROGRAMS[name](log)
    assert log.calls
    assert_every_call_is_told(log)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_does_and_prints_what_it_does_without_us(name, assembly_telemetry, request, capsys):
    without = Log()
    came_to = await PROGRAMS[name](without)
    printed = capsys.readouterr()
    telemetry = request.getfixturevalue("telemetry")
    told = Log(telemetry)
    assert await PROGRAMS[name](told) == came_to
    assert capsys.readouterr() == printed
    assert sorted(call.plain for call in told.calls) == sorted(call.plain for call in without.calls)
    assert told.summaries == without.summaries


async def test_a_call_that_is_tried_again_behind_a_plugin_has_its_assembly_too(telemetry):
    log = Log(telemetry)
    agent = ag2.Agent(
        "support",
        "You help.",
        config=log.model("one", ConnectionError(), "two"),
        assembly=[AssembledPolicy([SlidingWindowPolicy(3)])],
    )
    stream = MemoryStream()
    retry = part("middleware.builtin.llm_retry").RetryMiddleware(max_retries=1)
    for text in ("first", "second"):
        await agent.ask(text, stream=stream, middleware=[retry])
    spans = {span.span_id: span.attributes for span in telemetry.spans_named("assemble_context")}
    assert len(spans) == len(log.calls) == 3
    for received in log.calls:
        told = spans[received.assembly]
        assert told["assembly.events.out"] == len(received.events)
        assert told["assembly.tokens.out"] == received.tokens


async def test_a_model_that_a_plugins_policy_asks_is_a_part_of_the_plugins_assembly(telemetry):
    log = Log(telemetry)
    writer = ag2.Agent("writer", config=log.model("looked at", name="gpt-4o-mini"))

    class Asks:
        name = "asks"

        async def apply(self, prompts, events, context):
            return [*prompts, (await writer.ask("look", stream=MemoryStream())).body], events

    agent = ag2.Agent("support", config=log.model("one"), assembly=[AssembledPolicy([Asks()])])
    await agent.ask("first")
    (told,) = telemetry.spans_named("assemble_context")
    assert told.attributes["assembly.tokens.out"] == log.calls[1].tokens


async def test_alerts_and_halts_of_a_call_that_is_tried_again_are_told_once(telemetry):
    log = Log(telemetry)
    retry = part("middleware.builtin.llm_retry").RetryMiddleware(max_retries=1)
    agent = ag2.Agent("support", config=log.model(ConnectionError(), "two"), assembly=[policies.AlertPolicy()])
    stream = MemoryStream()
    await history_of(stream, alert("Slow."))
    await agent.ask("first", stream=stream, middleware=[retry])
    assert_every_call_is_told(log)
    told = [span.events_named("assembly.alert") for span in telemetry.spans_named("apply_policy alert")]
    assert [len(message) for message in told] == [1, 0]
    assert telemetry.metric("assembly.alerts.delivered", alert_severity="warning", alert_source="watch") == 1


async def test_a_compaction_is_told_apart_from_the_prompt_of_a_model_call(telemetry):
    log = Log(telemetry)
    await PROGRAMS["compacts_and_aggregates"](log)
    called = {received.assembly for received in log.calls}
    others = [span for span in telemetry.spans_named("assemble_context") if span.span_id not in called]
    assert {span.attributes["assembly.name"] for span in others} == {"compaction", "aggregation"}
    assert {span.children[0].name.removeprefix("apply_policy ") for span in others} == {"compaction", "aggregation"}
