"""What a participant of an AG2 network gets to see of a channel."""

from __future__ import annotations

import asyncio

import pytest
from ag2_channels import consulting, delegation_through_channels, discussion, workflow
from ag2_package import Model, ag2, part, policies, said
from ag2_received import Log

network = part("network")
knowledge = part("knowledge")


async def heard(helper, *texts, view=None):
    """One agent says these texts to `helper` in a conversation, which answers each."""
    async with asyncio.timeout(500):
        hub = await network.Hub.open(
            knowledge.MemoryKnowledgeStore(), ttl_sweep_interval=0, expectation_sweep_interval=0
        )
        if view is not None:
            adapter = network.ConversationAdapter()
            adapter.default_view_policy = lambda metadata, participant: view
            hub.register_adapter(adapter)
        client = network.HubClient(network.LocalLink(hub), hub=hub)
        invoking_agent = ag2.Agent("asker", config=Model())
        first = await client.register(invoking_agent, network.Passport(name="asker"), network.Resume())
        await client.register(helper, network.Passport(name="helper"), network.Resume())
        replies = asyncio.Semaphore(0)

        async def reply(envelope):
            if envelope.event_type == network.EV_TEXT:
                replies.release()

        first.on_envelope(reply)
        channel = await first.open(type=network.CONVERSATION_TYPE, target="helper")
        for text in texts:
            await channel.send(text)
            await replies.acquire()
        await client.close()
        await hub.close()


def helping(*turns):
    return ag2.Agent("helper", config=Model(*turns), assembly=[policies.ConversationPolicy()])


async def test_each_turn_of_a_channel_is_one_trace_with_its_projection(telemetry):
    helper = helping("yes", "no", "perhaps")
    await heard(helper, "one", "two", "three")
    views = [span for span in telemetry.spans if span.name.startswith("project_view ")]  # whichever view AG2 takes
    assert [span.parent.name for span in views] == ["invoke_agent helper"] * 3
    assert [span.attributes["assembly.events.out"] for span in views] == [0, 2, 4]
    # Before 0.14, AG2 gives a view no name of whom it is for.
    assert {span.attributes.get("gen_ai.agent.name", "helper") for span in views} == {"helper"}
    assert all(span.attributes["assembly.envelopes.in"] > span.attributes["assembly.events.out"] for span in views)
    channels = {span.attributes["gen_ai.conversation.id"] for span in telemetry.spans if span.parent is None}
    assert len(channels) == 1


async def test_a_channel_is_one_conversation_though_ag2_makes_a_stream_for_each_turn(telemetry):
    helper = helping("yes", "no", "perhaps")
    await heard(helper, "one", "two", "three")
    assert "three" in said(helper.config.sent[-1])
    spans = telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1
    # What the helper itself said comes as AG2's ModelMessage, which AG2's own policy takes out.
    assert set(telemetry.span("apply_policy conversation").dropped_reasons.values()) == {"not_conversation"}
    assert telemetry.span("apply_policy network_context").attributes["assembly.policy.kind"] == "injection"


async def test_a_view_of_the_users_is_seen(telemetry):
    class Nothing:
        name = "nothing"

        async def project(self, wal, *, participant_id, channel, render_envelope, **rest):
            return []

    await heard(helping("yes"), "one", view=Nothing())
    span = telemetry.span("project_view nothing")
    assert (span.attributes["assembly.events.out"], span.attributes["assembly.tokens.out"]) == (0, 0)


async def test_turns_that_an_agents_run_has_caused_are_in_its_trace(telemetry):
    await delegation_through_channels(Log(telemetry))
    assert len({span.trace_id for span in telemetry.spans}) == 1
    first, second, third = (telemetry.span(f"invoke_agent {name}") for name in ("first", "second", "third"))
    assert (first.parent, second.parent, third.parent) == (None, first, first)
    names = [span.attributes["gen_ai.agent.name"] for span in telemetry.spans_named("assemble_context")]
    assert names == ["first", "second", "first", "third", "first"]


@pytest.mark.parametrize("program", [consulting, discussion, workflow])
async def test_turns_of_a_channel_are_in_the_trace_in_which_it_was_spoken_first(program, telemetry):
    with telemetry.tracer().start_as_current_span("meeting"):
        await program(Log(telemetry))
    assert len({span.trace_id for span in telemetry.spans}) == 1
    runs = [span for span in telemetry.spans if span.name.startswith("invoke_agent")]
    assert {span.parent.name for span in runs} == {"meeting"}


async def test_where_no_span_was_open_a_turn_is_linked_to_the_run_that_has_caused_it(telemetry):
    await discussion(Log(telemetry))
    runs = sorted(
        (span for span in telemetry.spans if span.name.startswith("invoke_agent")), key=lambda span: span.start_ns
    )
    assert [span.name for span in runs] == [f"invoke_agent {name}" for name in ("left", "right")] * 2
    assert len({span.trace_id for span in runs}) == 4
    left, _, again, _ = runs
    assert [[link.span_id for link in span.links] for span in runs] == [[], [left.span_id], [], [again.span_id]]
    assert [span.trace_id for span in telemetry.spans_named("assemble_context")] == [span.trace_id for span in runs]


async def test_ag2s_own_spans_of_turns_are_in_the_trace_of_their_cause(telemetry):
    tracing = part("middleware.builtin.telemetry").TelemetryMiddleware(
        tracer_provider=telemetry.tracer_provider, agent_name="helper", model_name="gpt-4o"
    )
    with telemetry.tracer().start_as_current_span("meeting"):
        await heard(ag2.Agent("helper", config=Model("yes"), middleware=[tracing]), "one")
    assert len({span.trace_id for span in telemetry.spans}) == 1
    assert [span.scope == "otel_assembly" for span in telemetry.spans_named("invoke_agent helper")] == [False]
