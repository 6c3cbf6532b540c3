"""What it costs to look on while a framework's reducers run, against what the SDK takes for the same spans alone.

Each turn adds two messages to a conversation that a framework holds in a list; its reducers are two functions. The
floor is the OpenTelemetry SDK by itself: the same three spans with the same attributes, the same metric records, and
nothing worked out. Both run in turn, turn by turn, in one process. It is the processor time of the thread that counts,
so that a busy machine shows less; what a message takes when it is first read and counted is in no turn that counts.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_assembly import EventFacts, EventKind, describe
from otel_assembly.instrumentation import Instrumentation
from otel_assembly.telemetry import Metrics, OpenTelemetryRecorder
from otel_assembly.tokens import CharacterCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LENGTHS = (1_000, 10_000, 100_000)
TURNS = 60
WARM_UP = 15


@dataclass(eq=False)
class Message:
    """A framework's message: no copy of ours, no id."""

    number: int
    text: str


@describe.register
def _(message: Message) -> EventFacts:
    return EventFacts(EventKind.RESPONSE if message.number % 2 else EventKind.REQUEST, message.text)


def messages(start: int, count: int) -> list[Any]:
    return [Message(number, f"message {number} says a few words of text") for number in range(start, start + count)]


REDUCERS: dict[str, tuple[Any, Any]] = {
    "nothing trimmed": (lambda e: e, lambda e: e),
    "window of 50": (lambda e: e, lambda e: e[-50:]),
    "window of 90 %": (lambda e: e, lambda e: e[len(e) // 10 :]),
    "head 5 and tail 45": (lambda e: e, lambda e: e[:5] + e[-45:]),
    "every other, then 50": (lambda e: e[::2], lambda e: e[-50:]),
}


class _Discard(SpanExporter):
    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


class _Told(Metrics):
    """Instruments that remember what they were told last."""

    def __init__(self, metrics: Metrics) -> None:
        self.__dict__.update(metrics.__dict__)
        self.told: list[tuple[str, Any, float, dict[str, Any]]] = []

    def add(self, metric: Any, amount: int, attributes: dict[str, Any], context: Any = None) -> None:
        self.told.append(("add", metric, amount, attributes))
        super().add(metric, amount, attributes, context)

    def record(self, metric: Any, value: float, attributes: dict[str, Any], context: Any = None) -> None:
        self.told.append(("record", metric, value, attributes))
        super().record(metric, value, attributes, context)


def recording() -> OpenTelemetryRecorder:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Discard()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return OpenTelemetryRecorder(tracer_provider=provider, meter_provider=meters)


def sampled_out() -> OpenTelemetryRecorder:
    return OpenTelemetryRecorder(tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))


class Looker:
    """A framework with two reducers, looked upon."""

    def __init__(self, recorder: Any, reducers: tuple[Any, Any], length: int) -> None:
        self.instrumentation = Instrumentation("bench", recorder)
        self.instrumentation.observed._counter = CharacterCounter(4)
        self.reducers = reducers
        self.events = messages(0, length)

    def turn(self) -> None:
        events, (first, second) = self.events, self.reducers
        assembly = self.instrumentation.observed.begin(self, events, prompts=("be kind",), agent_name="bench")
        if assembly is None:
            second(first(events))
            return
        with assembly.step("first", kind="reduction") as step:
            made = first(events)
            step.out(made)
        with assembly.step("second", kind="reduction", config={"max": 50}) as step:
            made = second(made)
            step.out(made)
        assembly.end()

    def grow(self) -> None:
        self.events += messages(len(self.events), 2)


class Floor:
    """The SDK alone, telling what a turn of `Looker` has told."""

    def __init__(self, reducers: tuple[Any, Any]) -> None:
        memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(memory))
        meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
        recorder = OpenTelemetryRecorder(tracer_provider=provider, meter_provider=meters)
        looker = Looker(recorder, reducers, 1_000)
        for _ in range(3):
            looker.turn()
            looker.grow()
        memory.clear()
        told = recorder.emitter.metrics = _Told(recorder.emitter.metrics)
        looker.turn()
        by_name = {span.name: dict(span.attributes or {}) for span in memory.get_finished_spans()}
        self.spans = list(by_name.items())
        self.told = told.told
        self.recorder = recording()
        self.recorder.emitter.prepare()

    def turn(self) -> None:
        start, instruments = self.recorder.emitter.start_span, self.recorder.emitter.metrics
        (_, whole), *steps = sorted(self.spans, key=lambda span: span[0] != "assemble_context")
        context = trace.set_span_in_context(trace.INVALID_SPAN)
        parent = start("assemble_context", context, time.time_ns(), {})
        inside = trace.set_span_in_context(parent, context)
        children = [start(name, inside, time.time_ns(), {}) for name, _ in steps]
        for what, metric, value, attributes in self.told:
            (instruments.add if what == "add" else instruments.record)(metric, value, attributes, inside)  # type: ignore[operator]
        for child, (_, attributes) in zip(children, steps, strict=True):
            child.set_attributes(attributes)
            child.end(time.time_ns())
        parent.set_attributes(whole)
        parent.end(time.time_ns())


def _race(runners: dict[str, tuple[Callable[[], None], Callable[[], None]]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(TURNS + WARM_UP):
        for name, (run, between) in runners.items():
            started = time.thread_time()
            run()
            if turn >= WARM_UP:
                times[name].append(time.thread_time() - started)
            between()
    return times


async def report() -> list[str]:
    """A row for each pair of reducers and each length."""
    lines = [
        "two reducers of a framework, a turn that added two messages: median µs that are added, the SDK's included;",
        "in brackets the SDK alone; and the ratio",
        f"  {'':34}" + "".join(f"{length:>22,}" for length in LENGTHS),
    ]
    for name, reducers in REDUCERS.items():
        cells: list[str] = []
        for length in LENGTHS:
            looker, floor = Looker(recording(), reducers, length), Floor(reducers)
            bare = Looker(None, reducers, length)
            first, second = reducers
            runners = {
                "ours": (looker.turn, looker.grow),
                "floor": (floor.turn, lambda: None),
                "bare": (lambda b=bare, f=first, s=second: s(f(b.events)), bare.grow),
            }
            times = _race(runners)  # type: ignore[arg-type]
            ours, alone, plain = (statistics.median(times[key]) * 1e6 for key in ("ours", "floor", "bare"))
            cells.append(f"{ours - plain:8.0f} ({alone:4.0f}) {(ours - plain) / alone:4.1f}×")
        lines.append(f"  {name:34}" + "".join(f"{cell:>22}" for cell in cells))
    looker = Looker(sampled_out(), REDUCERS["window of 50"], 10_000)
    times = _race({"out": (looker.turn, looker.grow)})
    lines.append(f"  sampled out, no metrics, 10,000: {statistics.median(times['out']) * 1e6:.1f} µs")
    bare = Instrumentation("bench", OpenTelemetryRecorder())
    started = time.thread_time()
    for _ in range(100_000):
        bare.listening()
    lines.append(f"  no provider: {(time.thread_time() - started) * 10:.2f} µs")
    return lines
