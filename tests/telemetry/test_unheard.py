"""Where nobody listens, or nobody records, little is done, and nothing is lost for those who do later."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import opentelemetry.trace
import pytest
from assembling import Coin
from counting import WordCounter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_assembly import AlertPolicy, Assembler, Context, ConversationPolicy, History, SlidingWindowPolicy
from otel_assembly.telemetry import AlertSignal, OpenTelemetryRecorder, TelemetrySettings, read_ledgers, recording
from otel_assembly.testing import RecordedTelemetry, conversation

pytestmark = pytest.mark.usefixtures("quiet_sdk")

API = str(Path(opentelemetry.trace.__file__).parents[1])


async def calls_into_opentelemetry(run):
    """Which functions of OpenTelemetry are called while this runs, and how often."""
    called = Counter()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(API):
            caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
            if not caller.startswith(API):
                called[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        await run()
    finally:
        sys.setprofile(None)
    return called


async def test_with_nothing_configured_an_assembly_calls_nothing_of_opentelemetry():
    assembler = Assembler(
        [AlertPolicy(), ConversationPolicy(), SlidingWindowPolicy(2)], recorder=OpenTelemetryRecorder()
    )
    history, context = History(conversation("ask", "answer", "alert", "ask")), Context(agent_name="desk")

    async def one():
        await assembler.assemble(["be kind"], history, context)

    await one()
    called = await calls_into_opentelemetry(one)
    assert called == {}


async def test_a_halt_with_nothing_configured_asks_no_more_either():
    context = Context()
    called = await calls_into_opentelemetry(lambda: context.send(conversation("fatal")[0]))
    assert context.guard.halted
    assert set(called) <= {"get_tracer_provider", "get_meter_provider", "get_logger_provider"}


async def test_a_provider_configured_later_is_noticed(monkeypatch):
    telemetry = RecordedTelemetry()
    recorder = OpenTelemetryRecorder()
    assembler = Assembler([], recorder=recorder)
    await assembler.assemble([], conversation("ask"), Context())
    assert not recorder.is_enabled()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: telemetry.tracer_provider)
    await assembler.assemble([], conversation("ask"), Context())
    assert recorder.is_enabled()
    assert telemetry.span("assemble_context").kept == ["0"]


PROJECTIONS = ("assembly_attributes", "assembly_arrays", "step_attributes", "step_arrays")


@pytest.fixture
def projected(monkeypatch):
    """How often attributes of spans were worked out."""
    called = Counter()

    def counting(name, function):
        def call(*args, **kwargs):
            called[name] += 1
            return function(*args, **kwargs)

        return call

    for name in PROJECTIONS:
        monkeypatch.setattr(recording, name, counting(name, getattr(recording, name)))
    return called


WORDS = ["ask", "alert: hot", "answer", "ask", "fatal: fire", "answer", "ask", "call a", "result a"]


async def turns(telemetry, count=3):
    assembler = Assembler(
        [AlertPolicy(), ConversationPolicy(), SlidingWindowPolicy(2)],
        on_halt="return",
        counter=WordCounter(),
        recorder=telemetry.recorder,
    )
    history, context = History(), Context(agent_name="desk", framework="ours")
    words = iter(WORDS)
    for turn in range(count):
        history.extend(conversation(*[next(words) for _ in range(2 + turn)]))
        await assembler.assemble(["be kind"], history, context)


def values(telemetry):
    """Counters, and the counts of histograms: what does not depend on a clock."""
    found = {}
    for name, points in telemetry.metrics.items():
        for point in points:
            value = point.value if isinstance(point.value, int) else point.value.count
            found[name, tuple(sorted(point.attributes.items()))] = value
    return found


async def test_where_no_span_records_metrics_and_log_events_are_whole_and_no_attributes_are_built(projected):
    settings = TelemetrySettings(alert_signal=AlertSignal.BOTH)
    heard, unheard = RecordedTelemetry(settings=settings), RecordedTelemetry(settings=settings, sampler=ALWAYS_OFF)
    await turns(unheard)
    assert projected == {}
    assert unheard.spans == []
    await turns(heard)
    assert set(projected) == set(PROJECTIONS)
    assert values(unheard) == values(heard)
    assert [log.attributes for log in unheard.logs] == [log.attributes for log in heard.logs]
    assert sorted({log.name for log in unheard.logs}) == ["assembly.alert", "assembly.halt", "assembly.overflow"]
    assert all(int(log.trace_id, 16) for log in unheard.logs)


async def test_nothing_is_lost_for_the_next_assembly_that_is_recorded():
    telemetry = RecordedTelemetry(sampler=Coin([False, False, True]))
    await turns(telemetry)
    (ledger,) = read_ledgers(telemetry.spans).values()
    assert ledger.problems == []
    (turn,) = ledger.turns
    assert (turn.number, list(turn.arrived)) == (2, [*"012345678"])
    assert {*ledger.exits(2), *turn.kept} == {*"012345678"}


async def test_a_policys_span_under_an_unsampled_assembly_is_not_sampled_either():
    telemetry = RecordedTelemetry(sampler=Coin([False]))
    await turns(telemetry, count=1)
    assert telemetry.spans == []


async def test_under_the_disabled_sdk_no_record_is_looked_at(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    recorder = OpenTelemetryRecorder(
        tracer_provider=TracerProvider(shutdown_on_exit=False),
        meter_provider=MeterProvider(shutdown_on_exit=False),
        logger_provider=LoggerProvider(shutdown_on_exit=False),
    )
    looked = Counter()
    monkeypatch.setattr(recording, "totals_of", lambda record: looked.update(["totals"]))
    await Assembler([ConversationPolicy()], recorder=recorder).assemble([], conversation("ask"), Context())
    assert not looked


async def test_sampled_out_and_unmeasured_each_event_is_counted_once_for_a_window():
    class Counting(WordCounter):
        counted = 0

        def count(self, text):
            self.counted += 1
            return super().count(text)

    counter = Counting()
    unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    recorder = OpenTelemetryRecorder(tracer_provider=unsampled)
    assembler = Assembler([ConversationPolicy(), SlidingWindowPolicy(2)], counter=counter, recorder=recorder)
    assembly = await assembler.assemble(["p"], conversation("ask", "answer", "ask"), Context())
    assert (len(assembly.events), counter.counted) == (2, 3)
    assert assembly.totals.tokens_out > 0
