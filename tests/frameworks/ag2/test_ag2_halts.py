"""Alerts that reach the model, and halts, whoever puts them on an AG2 stream."""

from __future__ import annotations

from ag2_package import MemoryStream, Model, ag2, alert, answer, ask, call, events, history_of, part, policies


def halts(telemetry, name):
    return (
        [span.name for span in telemetry.spans if span.events_named("assembly.halt")]
        if name is None
        else [event.attributes for event in telemetry.span(name).events_named("assembly.halt")]
    )


async def test_an_alert_is_told_once_on_the_span_of_its_policy(telemetry):
    agent = ag2.Agent("support", config=Model("one", "two"), assembly=[policies.AlertPolicy()])
    stream = MemoryStream()
    await history_of(stream, ask("first"), answer("one"), alert("Slow.", "warning"), alert("Slower.", "critical"))
    await agent.ask("next", stream=stream)
    told = telemetry.span("apply_policy alert").events_named("assembly.alert")
    assert [
        (span.attributes["assembly.alert.severity"], span.attributes["assembly.alert.message"]) for span in told
    ] == [
        ("warning", "Slow."),
        ("critical", "Slower."),
    ]
    await agent.ask("and now", stream=stream)
    assert telemetry.span("apply_policy alert").events_named("assembly.alert") == []
    assert telemetry.metric("assembly.alerts.delivered", alert_severity="warning", alert_source="watch") == 1
    assert telemetry.metric("assembly.halts", agent_name="support") == 0


async def test_one_fatal_alert_halts_once_on_the_assembly_and_on_the_run(telemetry):
    model = Model("never")
    agent = ag2.Agent("support", config=model, assembly=[policies.AlertPolicy(), policies.ConversationPolicy()])
    stream = MemoryStream()
    await history_of(stream, alert("Leaking data.", "fatal"))
    reply = await agent.ask("hi", stream=stream)
    assert "HALTED" in reply.body
    assert model.sent == []
    assert halts(telemetry, None) == ["assemble_context", "invoke_agent support"]
    for name in ("assemble_context", "invoke_agent support"):
        assert halts(telemetry, name) == [
            {"assembly.halt.reason": "FATAL: Leaking data.", "assembly.halt.source": "watch"}
        ]
        assert telemetry.span(name).attributes["error.type"] == "assembly_halt"
        assert telemetry.span(name).attributes["assembly.halts.emitted"] == 1
    assert telemetry.span("apply_policy alert").attributes["assembly.halts.emitted"] == 1
    assert telemetry.metric("assembly.halts", agent_name="support") == 1


async def test_a_halt_that_an_observer_sends_itself_is_told(telemetry):
    async def stop(event: events.ToolResultsEvent, context: ag2.Context) -> None:
        await context.send(events.HaltEvent(reason="Enough.", source="guard"))

    def look() -> str:
        """Look."""
        return "found"

    agent = ag2.Agent(
        "support",
        config=Model(call("look"), "two"),
        tools=[look],
        observers=[ag2.observer(events.ToolResultsEvent, stop)],
        assembly=[policies.ConversationPolicy()],
    )
    await agent.ask("hi")
    assert halts(telemetry, None) == ["invoke_agent support"]
    assert halts(telemetry, "invoke_agent support") == [
        {"assembly.halt.reason": "Enough.", "assembly.halt.source": "guard"}
    ]
    assert telemetry.metric("assembly.halts", agent_name="support") == 1


async def test_a_halt_that_is_passed_on_to_another_stream_is_told_once(telemetry):
    halt = events.HaltEvent(reason="Enough.", source="somebody")
    with telemetry.tracer().start_as_current_span("work"):
        for stream in (MemoryStream(), MemoryStream()):
            await stream.send(halt, part("context").ConversationContext(stream))
    assert halts(telemetry, "work") == [{"assembly.halt.reason": "Enough.", "assembly.halt.source": "somebody"}]


async def test_a_halt_is_on_ag2s_own_span_of_the_run(telemetry):
    middleware = part("middleware.builtin.telemetry").TelemetryMiddleware(
        tracer_provider=telemetry.tracer_provider, agent_name="support", model_name="gpt-4o"
    )
    agent = ag2.Agent("support", config=Model("x"), middleware=[middleware], assembly=[policies.AlertPolicy()])
    stream = MemoryStream()
    await history_of(stream, alert("Leaking data.", "fatal"))
    await agent.ask("hi", stream=stream)
    assert sorted(halts(telemetry, None)) == ["assemble_context", "invoke_agent support"]
    assert telemetry.span("invoke_agent support").scope != "otel_assembly"


async def test_without_a_run_a_halt_has_a_span_of_its_own_that_is_linked_to_the_last_assembly(telemetry):
    stream = MemoryStream()
    agent = ag2.Agent("support", config=Model("one"), assembly=[policies.ConversationPolicy()])
    await agent.ask("hi", stream=stream)
    await stream.send(events.HaltEvent(reason="r", source="s"), part("context").ConversationContext(stream))
    halt, assembly = telemetry.span("halt"), telemetry.span("assemble_context")
    assert [(link.trace_id, link.span_id) for link in halt.links] == [(assembly.trace_id, assembly.span_id)]
    assert halt.attributes == {
        "assembly.halts.emitted": 1,
        "assembly.framework": "ag2",
        "error.type": "assembly_halt",
        "gen_ai.agent.name": "support",
        "gen_ai.conversation.id": str(stream.id),
    }
    assert halts(telemetry, None) == ["halt"]
    assert telemetry.metric("assembly.halts", agent_name="support", framework="ag2") == 1


async def test_without_a_run_and_without_an_assembly_a_halt_has_a_span_of_its_own(telemetry):
    stream = MemoryStream()
    await stream.send(events.HaltEvent(reason="r", source="s"), part("context").ConversationContext(stream))
    assert [span.name for span in telemetry.spans] == ["halt"]
    assert telemetry.metric("assembly.halts", framework="ag2") == 1
