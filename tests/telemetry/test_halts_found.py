"""Every halt can be found: on which spans it stands, what they say, and by which searches they are found."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ConversationPolicy,
    HaltedError,
    HaltEvent,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    attach,
    invoke_agent,
)
from otel_assembly.events import Usage
from otel_assembly.recorder import using_recorder
from otel_assembly.runtime import Stream, TokenMonitor
from otel_assembly.telemetry import AlertSignal, TelemetrySettings
from otel_assembly.testing import RecordedTelemetry, conversation

pytestmark = pytest.mark.usefixtures("quiet_sdk")

HALT = HaltEvent(reason="enough", source="stop")


def found(telemetry):
    """The spans that the documented search finds, and those that carry the event."""
    searched = [span.name for span in telemetry.spans if span.attributes.get("assembly.halts.emitted") == 1]
    return searched, [span.name for span in telemetry.spans if span.events_named("assembly.halt")]


def says_halted(span, **attributes):
    assert (span.status, span.status_message) == ("ERROR", "the conversation was halted")
    assert span.attributes["error.type"] == "assembly_halt"
    for name, value in attributes.items():
        assert span.attributes[name.replace("__", ".")] == value


async def test_the_guides_halt_between_two_turns_has_a_span_of_its_own(recorder):
    stream = Stream()
    context = Context(agent_name="support", stream=stream)
    with attach(stream, [TokenMonitor(10, 20, alert_severity="fatal")], context):
        await stream.send(ModelRequest(content="Where?"))
        await Assembler([ConversationPolicy()]).assemble([], stream.history, context)
        await stream.send(ModelResponse(content="There.", usage=Usage(input_tokens=30)))
    assert found(recorder) == (["halt"], ["halt"])
    halt, assembly = recorder.span("halt"), recorder.span("assemble_context")
    says_halted(halt, gen_ai__agent__name="support", assembly__halts__emitted=1)
    assert [(link.trace_id, link.span_id) for link in halt.links] == [(assembly.trace_id, assembly.span_id)]
    assert halt.parent_id is None
    (event,) = halt.events
    assert halt.start_ns <= event.time_ns <= halt.end_ns
    assert recorder.metric("assembly.halts", agent_name="support") == 1


async def test_before_the_first_assembly_the_agent_is_known_from_the_context(recorder):
    stream = Stream()
    context = Context(agent_name="support", framework="ours", conversation_id=None, stream=stream)
    await stream.send(HALT)
    says_halted(recorder.span("halt"), gen_ai__agent__name="support", assembly__framework="ours")
    assert recorder.span("halt").links == []
    assert recorder.metric("assembly.halts", agent_name="support", framework="ours") == 1
    assert context.guard.halted


async def test_a_halt_of_a_conversation_that_is_known_by_its_id(recorder):
    history = History(conversation("ask"))
    await Assembler([]).assemble([], list(history), Context(conversation_id="found-by-id", agent_name="support"))
    gc.collect()
    await Context(conversation_id="found-by-id").send(HALT)
    halt = recorder.span("halt")
    says_halted(halt, gen_ai__agent__name="support", gen_ai__conversation__id="found-by-id")
    assert [link.span_id for link in halt.links] == [recorder.span("assemble_context").span_id]


async def test_a_halt_that_nobody_knows_anything_of(recorder):
    Context().guard.observe(HALT)
    says_halted(recorder.span("halt"))
    assert recorder.metric("assembly.halts") == 1


async def test_who_sends_is_who_is_halted(recorder):
    stream = Stream()
    clerk = Context(agent_name="clerk", stream=stream)
    Context(agent_name="boss", stream=stream)
    await clerk.send(HALT)
    says_halted(recorder.span("halt"), gen_ai__agent__name="clerk")
    assert recorder.metric("assembly.halts", agent_name="clerk") == 1


async def test_inside_an_assembly_it_is_on_that_and_on_the_run(recorder):
    with invoke_agent("support"), pytest.raises(HaltedError):
        await Assembler([AlertPolicy()]).assemble([], conversation("ask", "fatal"), Context())
    searched, carry = found(recorder)
    assert sorted(carry) == ["assemble_context", "invoke_agent support"]
    assert sorted(searched) == ["apply_policy alert", "assemble_context", "invoke_agent support"]
    for name in carry:
        says_halted(recorder.span(name), assembly__halts__emitted=1)
    assert recorder.metric("assembly.halts", agent_name="support") == 1


async def test_beside_an_assembly_it_is_on_the_running_span_and_on_the_run(recorder):
    with invoke_agent("support"), recorder.tracer().start_as_current_span("execute_tool search"):
        await Context().send(HALT)
    searched, carry = found(recorder)
    assert sorted(carry) == sorted(searched) == ["execute_tool search", "invoke_agent support"]
    for name in carry:
        says_halted(recorder.span(name), assembly__halts__emitted=1)


async def test_two_conversations_that_are_halted_on_one_span_are_two_halts(recorder):
    with recorder.tracer().start_as_current_span("batch"):
        for _ in range(2):
            await Context().send(HALT)
    says_halted(recorder.span("batch"), assembly__halts__emitted=2)
    assert len(recorder.span("batch").events) == 2


async def test_after_the_run_and_in_a_thread_it_has_a_span_of_its_own(recorder):
    stream = Stream(History(conversation("ask")))
    context, kept = Context(agent_name="support", stream=stream), []
    with invoke_agent("support"):
        await Assembler([]).assemble([], stream.history, context)
        kept.append(otel_context.get_current())
    token = otel_context.attach(kept[0])  # as a task that the run left behind has it
    try:
        await stream.send(HALT)
    finally:
        otel_context.detach(token)
    halt, run = recorder.span("halt"), recorder.span("invoke_agent support")
    says_halted(halt, gen_ai__agent__name="support")
    assert (run.status, run.events, halt.trace_id) == ("UNSET", [], run.trace_id)

    other = Stream(History(conversation("ask")))
    await Assembler([]).assemble([], other.history, Context(agent_name="clerk", stream=other))
    thread = threading.Thread(target=lambda: asyncio.run(other.send(HALT)))
    thread.start()
    thread.join()
    says_halted(recorder.span("halt"), gen_ai__agent__name="clerk")
    assert recorder.metric("assembly.halts", agent_name="clerk") == 1


async def test_under_a_callers_span_in_another_process_it_belongs_to_that_trace(recorder):
    remote = SpanContext(trace_id=7, span_id=9, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    token = otel_context.attach(trace.set_span_in_context(NonRecordingSpan(remote)))
    try:
        await Context(agent_name="support").send(HALT)
    finally:
        otel_context.detach(token)
    halt = recorder.span("halt")
    says_halted(halt, gen_ai__agent__name="support")
    assert (int(halt.trace_id, 16), int(halt.parent_id, 16)) == (7, 9)


async def test_it_is_told_where_its_conversation_was_told(recorder):
    own = RecordedTelemetry()
    stream = Stream(History(conversation("ask")))
    context = Context(agent_name="support", stream=stream)
    await Assembler([], recorder=own.recorder).assemble([], stream.history, context)
    await stream.send(HALT)
    assert [span.name for span in own.spans] == ["assemble_context", "halt"]
    assert own.metric("assembly.halts", agent_name="support") == 1
    assert recorder.spans == []


async def test_where_everything_is_told_elsewhere_by_then_it_is_told_there(recorder):
    stream = Stream(History(conversation("ask")))
    await Assembler([]).assemble([], stream.history, Context(agent_name="support", stream=stream))
    telemetry = RecordedTelemetry()
    with using_recorder(telemetry.recorder):
        await stream.send(HALT)
    says_halted(telemetry.span("halt"), gen_ai__agent__name="support")
    assert [span.name for span in recorder.spans] == ["assemble_context"]


async def test_in_log_records_it_can_be_found_too_and_the_span_says_so_without_the_event():
    telemetry = RecordedTelemetry(settings=TelemetrySettings(alert_signal=AlertSignal.LOG_EVENT))
    stream = Stream(History(conversation("ask")))
    await Assembler([], recorder=telemetry.recorder).assemble([], stream.history, Context(stream=stream))
    await stream.send(HALT)
    halt = telemetry.span("halt")
    says_halted(halt, assembly__halts__emitted=1)
    (log,) = telemetry.logs_named("assembly.halt")
    assert (log.trace_id, log.span_id, halt.events) == (halt.trace_id, halt.span_id, [])


async def test_sampled_out_it_is_counted_and_logged_once():
    settings = TelemetrySettings(alert_signal=AlertSignal.BOTH)
    telemetry = RecordedTelemetry(settings=settings, sampler=ALWAYS_OFF)
    with pytest.raises(HaltedError):
        await Assembler([AlertPolicy()], recorder=telemetry.recorder).assemble([], conversation("fatal"), Context())
    stream = Stream(History(conversation("ask")))
    await Assembler([], recorder=telemetry.recorder).assemble([], stream.history, Context(stream=stream))
    await stream.send(HALT)
    assert telemetry.spans == []
    assert len(telemetry.logs_named("assembly.halt")) == 2
    assert telemetry.metric("assembly.halts") == 2


async def test_a_tokeniser_that_fails_hides_no_halt(recorder):
    class Broken:
        name, method, generation = "broken", "exact", 0

        def count(self, text):
            raise RuntimeError

    with invoke_agent("support"), pytest.raises(HaltedError):
        await Assembler([AlertPolicy()], counter=Broken()).assemble([], conversation("fatal"), Context())
    searched, carry = found(recorder)
    assert sorted(carry) == ["assemble_context", "invoke_agent support"]
    assert set(carry) <= set(searched)
    assert recorder.metric("assembly.halts", agent_name="support") == 1
    recorder.clear()  # the assembly's numbers are missing


async def test_what_is_remembered_of_a_conversation_goes_with_it(recorder):
    import weakref

    stream = Stream(History(conversation("ask")))
    gone = weakref.ref(stream.history)
    await Assembler([AlertPolicy()]).assemble([], stream.history, Context(stream=stream))
    alert = ObserverAlert(source="watch", severity="fatal", message="fire")
    await stream.send(alert)
    del stream
    gc.collect()
    assert gone() is None
