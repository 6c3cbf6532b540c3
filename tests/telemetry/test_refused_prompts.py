"""A prompt that the provider refuses is an overflow, wherever that comes to light."""

from __future__ import annotations

import pytest

from otel_assembly import Assembler, Context, ConversationPolicy, invoke_agent
from otel_assembly.errors import ModelContextLengthError
from otel_assembly.recorder import NullRecorder
from otel_assembly.telemetry import AlertSignal, TelemetrySettings
from otel_assembly.testing import RecordedTelemetry, conversation

OVER = ModelContextLengthError(provider="openai", model="gpt-4", status=400, window=8192, tokens=9215)
SILENT = ModelContextLengthError(provider="openai", model="gpt-4", status=400)
ATTRIBUTES = {"assembly.overflow.cause": "provider", "assembly.overflow.tokens": 1023}


def chat(recorder, operation="chat"):
    tracer = recorder.tracer("opentelemetry.instrumentation.openai")
    return tracer.start_as_current_span(f"{operation} gpt-4", attributes={"gen_ai.operation.name": operation})


def refuse(recorder, error=OVER, context=None):
    Assembler([], recorder=recorder.recorder).observe_refusal(error, context)


def overflows(recorder, **attributes):
    return recorder.metric("assembly.budget.overflows", **attributes)


def test_it_stands_on_the_span_of_the_model_call(recorder):
    with chat(recorder):
        refuse(recorder)
    span = recorder.span("chat gpt-4")
    assert [(event.name, event.attributes) for event in span.events] == [("assembly.overflow", ATTRIBUTES)]
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "assembly.overflowed": True,
        "error.type": "context_overflow",
        **ATTRIBUTES,
    }
    assert (span.status, span.status_message) == (
        "ERROR",
        "the model's provider refused the prompt as too long: 1,023 tokens over 8,192",
    )
    assert recorder.logs == []
    assert overflows(recorder) == 1


@pytest.mark.parametrize("operation", ["execute_tool", None])
def test_elsewhere_it_is_a_log_record(recorder, operation):
    if operation is None:
        refuse(recorder)
    else:
        with chat(recorder, operation):
            refuse(recorder)
        span = recorder.span("execute_tool gpt-4")
        assert (span.events, span.status) == ([], "UNSET")
    (log,) = recorder.logs
    assert (log.name, log.attributes, log.severity) == ("assembly.overflow", ATTRIBUTES, "ERROR")
    assert overflows(recorder) == 1


def test_numbers_that_the_provider_did_not_say_are_left_out(recorder):
    with chat(recorder):
        refuse(recorder, SILENT)
    span = recorder.span("chat gpt-4")
    assert span.events[0].attributes == {"assembly.overflow.cause": "provider"}
    assert span.status_message == "the model's provider refused the prompt as too long"


def test_a_prompt_that_is_too_long_with_its_answer_is_over_by_nothing_known(recorder):
    refuse(recorder, ModelContextLengthError(provider="openai", model="m", window=8192, tokens=8000))
    assert recorder.logs[0].attributes == {"assembly.overflow.cause": "provider"}


@pytest.mark.parametrize(("signal", "events", "logs"), [("log_event", 0, 1), ("both", 1, 1), ("span_event", 1, 0)])
def test_it_is_carried_as_the_settings_say(signal, events, logs):
    telemetry = RecordedTelemetry(settings=TelemetrySettings(alert_signal=AlertSignal(signal)))
    with chat(telemetry):
        refuse(telemetry)
    assert (len(telemetry.span("chat gpt-4").events), len(telemetry.logs)) == (events, logs)
    assert telemetry.span("chat gpt-4").attributes["assembly.overflowed"] is True
    telemetry.shutdown()


async def test_it_is_counted_for_its_agent(recorder):
    assembler = Assembler([ConversationPolicy()], recorder=recorder.recorder)
    context = Context(agent_name="desk")
    await assembler.assemble([], conversation("ask"), context)
    assert overflows(recorder, agent_name="desk") == 0
    assembler.observe_refusal(OVER, context)
    assert overflows(recorder, agent_name="desk") == 1
    with recorder.as_default(), invoke_agent("counter"):
        assembler.observe_refusal(OVER)
    assert overflows(recorder, agent_name="counter") == 1


def test_where_nothing_is_recorded_nothing_happens():
    Assembler([], recorder=NullRecorder()).observe_refusal(OVER, Context())
