"""Telemetry that is down, broken or missing: the same prompt, no exception, one warning, and a count."""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import cache

import pytest
from counting import WordCounter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    invoke_agent,
)
from otel_assembly.recorder import NullRecorder, using_recorder
from otel_assembly.telemetry import AlertSignal, OpenTelemetryRecorder, TelemetrySettings, conventions_registry
from otel_assembly.testing import RecordedTelemetry, conversation

TURNS = [
    conversation("ask", "note", "answer"),
    conversation("ask", "note", "answer", "call a", "result a", "alert"),
    conversation("ask", "note", "answer", "call a", "result a", "alert", "fatal", "answer", "ask"),
]
BOTH = TelemetrySettings(alert_signal=AlertSignal.BOTH)


class BrokenError(Exception):
    pass


def fail(*args, **kwargs):
    raise BrokenError("the backend says: secret")


async def prompts_of(recorder):
    """What a conversation's assemblies send, its overflow included."""
    assembler = Assembler(
        [AlertPolicy(), ConversationPolicy(), SlidingWindowPolicy(3, transparent=True), TokenBudgetPolicy(80)],
        on_halt="return",
        counter=WordCounter(),
        recorder=recorder,
    )
    context = Context(agent_name="desk")
    sent = [tuple(await assembler.assemble(["be kind"], events, context)) for events in TURNS]
    with pytest.raises(ContextOverflowError):
        await assembler.assemble(["be kind " * 90], TURNS[0], context)
    return sent


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "otel_assembly")
    return lambda: [r.getMessage() for r in caplog.records if "telemetry of context assembly" in r.getMessage()]


class Raising(SpanProcessor):
    """Raises at one point, or for one name of span."""

    def __init__(self, point, name=""):
        self._point, self._name = point, name

    def on_start(self, span, parent_context=None):
        if self._point == "on_start" and span.name.startswith(self._name):
            fail()

    def on_end(self, span):
        if self._point == "on_end" and span.name.startswith(self._name):
            fail()


class RaisingExporter(SpanExporter):
    def export(self, spans):
        fail()


@pytest.mark.parametrize("name", ["", "assemble_context", "apply_policy", "apply_policy sliding_window"])
@pytest.mark.parametrize("point", ["on_start", "on_end"])
async def test_a_raising_span_processor_costs_no_prompt(point, name, warnings):
    telemetry = RecordedTelemetry(settings=BOTH)
    telemetry.tracer_provider.add_span_processor(Raising(point, name))
    assert await prompts_of(telemetry.recorder) == await prompts_of(NullRecorder())
    (warning,) = warnings()
    assert warning.startswith("telemetry of context assembly failed in span (BrokenError); the agent is not affected")
    assert telemetry.metric("assembly.telemetry.errors", component="span") > 1
    assert telemetry.metric("assembly.duration").count == 4
    assert [log.name for log in telemetry.logs] == [
        "assembly.alert",
        "assembly.alert",
        "assembly.halt",
        "assembly.overflow",
    ]


async def test_an_assembly_whose_span_could_not_start_leaves_its_policies_in_the_callers_trace(warnings):
    telemetry = RecordedTelemetry()
    telemetry.tracer_provider.add_span_processor(Raising("on_start", "assemble_context"))
    with telemetry.tracer().start_as_current_span("request"):
        await Assembler([ConversationPolicy()], recorder=telemetry.recorder).assemble([], TURNS[0], Context())
    assert telemetry.tree() == "request\n  apply_policy conversation"
    assert len(warnings()) == 1


async def test_what_a_failing_span_could_not_tell_the_next_one_tells():
    telemetry = RecordedTelemetry()
    processor = Raising("on_start", "assemble_context")
    telemetry.tracer_provider.add_span_processor(processor)
    assembler, context = Assembler([SlidingWindowPolicy(1)], recorder=telemetry.recorder), Context()
    await assembler.assemble([], conversation("ask", "answer", "ask"), context)
    processor._point = "never"
    await assembler.assemble([], conversation("ask", "answer", "ask", "answer"), context)
    assert sorted(telemetry.span("assemble_context").arrived) == ["0", "1", "2", "3"]
    assert sorted(telemetry.span("apply_policy sliding_window").dropped_reasons) == ["0", "1"]


async def test_a_raising_exporter_costs_no_prompt(caplog):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(RaisingExporter()))
    recorder = OpenTelemetryRecorder(tracer_provider=provider, settings=BOTH)
    assert await prompts_of(recorder) == await prompts_of(NullRecorder())


async def test_a_program_that_was_packed_without_the_registry_has_its_spans_and_metrics(monkeypatch, warnings):
    for kind in ("attributes", "events", "metrics", "spans", "_file"):
        monkeypatch.setattr(conventions_registry, kind, fail)
    telemetry = RecordedTelemetry(settings=BOTH)
    assert await prompts_of(telemetry.recorder) == await prompts_of(NullRecorder())
    assert warnings() == []
    assert [span.name for span in telemetry.spans].count("assemble_context") == 4
    assert len(telemetry.logs) == 4
    assert sum(point.value.count for point in telemetry.metrics["assembly.duration"]) == 4


class BrokenMeterProvider(MeterProvider):
    """Its instruments raise; or it already raises when one is asked for."""

    def __init__(self, point):
        super().__init__([InMemoryMetricReader()], shutdown_on_exit=False)
        self._point = point

    def get_meter(self, *args, **kwargs):
        if self._point == "get_meter":
            fail()
        meter = super().get_meter(*args, **kwargs)
        if self._point == "create":
            meter.create_counter = fail
        if self._point == "record":
            counter, histogram = meter.create_counter, meter.create_histogram

            def raising(make, method):
                def made(*args, **kwargs):
                    instrument = make(*args, **kwargs)
                    setattr(instrument, method, fail)
                    return instrument

                return made

            meter.create_counter, meter.create_histogram = raising(counter, "add"), raising(histogram, "record")
        return meter


@pytest.mark.parametrize("point", ["get_meter", "create", "record"])
async def test_a_raising_meter_costs_no_prompt_and_no_span(point, warnings):
    telemetry = RecordedTelemetry(settings=BOTH)
    recorder = OpenTelemetryRecorder(
        tracer_provider=telemetry.tracer_provider, meter_provider=BrokenMeterProvider(point), settings=BOTH
    )
    assert await prompts_of(recorder) == await prompts_of(NullRecorder())
    assert len(warnings()) == 1
    assert len(telemetry.spans_named("assemble_context")) == 4
    assert telemetry.span("assemble_context").attributes["assembly.overflowed"] is True
    assert telemetry.violations() == []


async def test_one_raising_instrument_costs_no_other(warnings):
    telemetry = RecordedTelemetry()
    telemetry.recorder.emitter.prepare()
    telemetry.recorder.emitter.metrics._record["assembly.duration"] = fail
    await prompts_of(telemetry.recorder)
    assert telemetry.metric("assembly.input.tokens").count == 4
    assert telemetry.metric("assembly.telemetry.errors", component="metrics") == 4
    assert len(warnings()) == 1


async def test_a_raising_logger_costs_no_prompt_and_no_span_event(warnings):
    telemetry = RecordedTelemetry(settings=BOTH)
    telemetry.recorder.emitter.prepare()
    telemetry.recorder.emitter.logger.emit = fail
    assert await prompts_of(telemetry.recorder) == await prompts_of(NullRecorder())
    assert telemetry.metric("assembly.telemetry.errors", component="events") == 4
    assert len(telemetry.spans_named("apply_policy alert")[2].events_named("assembly.alert")) == 1
    assert len(telemetry.spans_named("assemble_context")[2].events_named("assembly.halt")) == 1
    assert len(warnings()) == 1


class BrokenProviders:
    def get_tracer(self, *args, **kwargs):
        fail()

    get_logger = get_tracer


async def test_providers_that_raise_cost_their_own_signal_alone(warnings):
    telemetry = RecordedTelemetry()
    recorder = OpenTelemetryRecorder(
        tracer_provider=BrokenProviders(),
        meter_provider=telemetry.meter_provider,
        logger_provider=BrokenProviders(),
        settings=BOTH,
    )
    assert await prompts_of(recorder) == await prompts_of(NullRecorder())
    assert telemetry.metric("assembly.duration").count == 4
    assert len(warnings()) == 2


async def test_a_broken_run_goes_on(warnings):
    telemetry = RecordedTelemetry()
    telemetry.tracer_provider.add_span_processor(Raising("on_start", "invoke_agent"))
    with telemetry.as_default(), invoke_agent("desk"):
        await Assembler([]).assemble([], TURNS[0], Context())
    assert telemetry.tree() == "assemble_context"
    telemetry = RecordedTelemetry()
    telemetry.tracer_provider.add_span_processor(Raising("on_end", "invoke_agent"))
    with telemetry.as_default(), invoke_agent("desk"):
        await Assembler([]).assemble([], TURNS[0], Context())
    assert len(warnings()) == 2


async def test_a_counter_that_fails_on_what_only_telemetry_counts_costs_no_prompt(warnings):
    class Failing(WordCounter):
        def count(self, text):
            fail()

    telemetry = RecordedTelemetry()
    assembler = Assembler([ConversationPolicy()], counter=Failing(), recorder=telemetry.recorder)
    assembly = await assembler.assemble([], TURNS[0], Context())
    assert len(assembly.events) == 2
    assert telemetry.metric("assembly.telemetry.errors", component="totals") == 1
    assert len(warnings()) == 1


PROGRAM = """
import asyncio, json, logging, sys
{before}
logging.basicConfig(level=logging.WARNING)
from otel_assembly import *
from otel_assembly.testing import conversation
from otel_assembly.tokens import CharacterCounter

async def main():
    chain = [AlertPolicy(), ConversationPolicy(), SlidingWindowPolicy(2, transparent=True)]
    assembler = Assembler(chain, on_halt="return", counter=CharacterCounter(4))
    context = Context(agent_name="desk")
    with invoke_agent("desk"):
        for words in (["ask", "answer"], ["ask", "answer", "alert", "ask", "fatal"]):
            prompts, events = await assembler.assemble(["be kind"], conversation(*words), context)
            print(json.dumps([prompts, [event.id for event in events]]))

asyncio.run(main())
{after}
"""

SDK = """
from opentelemetry import trace, metrics, _logs
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider())
_logs.set_logger_provider(LoggerProvider())
"""


@cache
def program(before="", after="", **environment):
    code = PROGRAM.format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PATH": "", **environment}
    )
    assert done.returncode == 0, done.stderr
    return done


def test_without_the_sdk_and_with_it_disabled_the_prompts_are_the_same():
    recorded = program(SDK)
    assert "assemble_context" in recorded.stderr
    without = program(
        "sys.modules['opentelemetry.sdk'] = None",
        "assert not any(m.startswith('opentelemetry.sdk.') for m in sys.modules)",
    )
    disabled = program(SDK, OTEL_SDK_DISABLED="true")
    unconfigured = program()
    assert without.stdout == disabled.stdout == unconfigured.stdout == recorded.stdout
    for quiet in (without, disabled, unconfigured):
        assert quiet.stderr == ""


def test_a_provider_that_cannot_be_loaded_is_one_warning():
    broken = program(OTEL_PYTHON_TRACER_PROVIDER="no_such_provider")
    assert broken.stdout == program().stdout
    assert broken.stderr.count("telemetry of context assembly failed") == 1
    assert broken.stderr.count("Failed to load configured provider") == 1


async def test_suppressed_instrumentation_is_obeyed(recorder):
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    with suppress_instrumentation(), invoke_agent("desk"):
        await Assembler([ConversationPolicy()]).assemble([], TURNS[0], Context())
    assert (recorder.spans, recorder.metrics) == ([], {})


async def test_a_recorder_of_ones_own_is_asked_instead():
    class Mine(NullRecorder):
        begun = 0

        def begin(self, *args):
            Mine.begun += 1

    with using_recorder(Mine()):
        await Assembler([]).assemble([], TURNS[0], Context())
        await Context().send(conversation("fatal")[0])
    assert Mine.begun == 1
