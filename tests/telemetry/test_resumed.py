"""That a halted conversation goes on is told: on the span that is running, else on the next run's."""

from __future__ import annotations

import pytest

from otel_assembly import Agent, HaltEvent
from otel_assembly.telemetry import AlertSignal, TelemetrySettings, TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel

pytestmark = pytest.mark.usefixtures("quiet_sdk")

TOLD = ("assembly.resumed", {"assembly.halt.source": "guard", "assembly.resume.reason": "looked into"})


@pytest.fixture
def told(recorder):
    with recorder.as_default():
        yield recorder


async def halted(*middlewares):
    agent = Agent("helper", "", ScriptedModel("yes", "no"), middlewares=middlewares)
    await agent.session.stream.send(HaltEvent(source="guard", reason="too much"))
    return agent


def events(span):
    return [(event.name, event.attributes) for event in span.events]


async def test_the_span_that_is_running_is_told(told):
    agent = await halted()
    with told.tracer().start_as_current_span("review"):
        await agent.session.resume("looked into")
    await agent.ask("?")
    assert events(told.span("review")) == [TOLD]
    assert events(told.span("invoke_agent helper")) == []


@pytest.mark.parametrize("middlewares", [0, 1])
async def test_else_the_next_run_of_that_conversation_is_told_once(told, middlewares):
    other = Agent("other", "", ScriptedModel("hm"))
    agent = await halted(*[TracingMiddleware() for _ in range(middlewares)])
    await agent.session.resume("looked into")
    await other.ask("?")
    await agent.ask("?")
    await agent.ask("?")
    assert events(told.span("invoke_agent other")) == []
    first, second = told.spans_named("invoke_agent helper")
    assert (events(first), events(second)) == ([TOLD], [])


async def test_a_run_of_another_agent_around_it_is_not_told_of_the_next_run(told):
    agent = await halted()
    await agent.session.resume("looked into")

    async def delegate() -> str:
        return (await agent.ask("?")).content

    from otel_assembly import ModelResponse, ToolCallEvent

    model = ScriptedModel(ModelResponse(tool_calls=(ToolCallEvent(name="delegate"),)), "done")
    await Agent("outer", "", model, [delegate], middlewares=[TracingMiddleware()]).ask("?")
    assert events(told.span("execute_tool delegate")) == [TOLD]


async def test_without_a_reason_or_with_messages_kept_the_reason_is_left_out(told):
    agent = await halted()
    await agent.session.resume()
    await agent.ask("?")
    assert events(told.span("invoke_agent helper")) == [("assembly.resumed", {"assembly.halt.source": "guard"})]
    kept = RecordedTelemetry(settings=TelemetrySettings(capture_alert_message=False, alert_signal=AlertSignal.BOTH))
    with kept.as_default():
        agent = await halted()
        await agent.session.resume("quite secret")
        await agent.ask("?")
    assert events(kept.span("invoke_agent helper")) == [("assembly.resumed", {"assembly.halt.source": "guard"})]
    assert [log.attributes for log in kept.logs_named("assembly.resumed")] == [{"assembly.halt.source": "guard"}]
    kept.shutdown()


async def test_where_nobody_listens_nothing_is_kept():
    agent = await halted()
    await agent.session.resume("looked into")
    assert agent.session.guard.resumed is None
