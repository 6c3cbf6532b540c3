"""What sends load to a Collector: agents that assemble, or requests that agents made, sent again under fresh ids.

    python -m benchmarks.stack_senders agent|replay ENDPOINT TURNS_A_SECOND SECONDS

A process each. Twenty times a second it prints the trace that it ended last, and when; at its end, what it sent. The
replay tells what the servers can take from what Python can make: its requests are those of real assemblies, byte for
byte but for ids and times.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from typing import TYPE_CHECKING

import grpc
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.workload import messages
from otel_assembly import Assembler, Context, ConversationPolicy, History, SlidingWindowPolicy, TokenBudgetPolicy
from otel_assembly.telemetry import OpenTelemetryRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICE = "bench"
SPANS_A_TURN = 4
#: The SDK's own batch.
SPANS_A_REQUEST = 512
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Turns:
    """Conversations of up to 120 messages, two more a turn, under a filter, a window and a budget: a trace a turn."""

    def __init__(self, provider: TracerProvider, meters: MeterProvider | None = None) -> None:
        recorder = OpenTelemetryRecorder(tracer_provider=provider, meter_provider=meters)
        policies = [ConversationPolicy(), SlidingWindowPolicy(80), TokenBudgetPolicy(4_000)]
        self._assembler = Assembler(policies, recorder=recorder, model="gpt-4o")
        self._tracer = provider.get_tracer(SERVICE)
        self._new = messages(4_000, seed=5)
        self._made = 0
        self._begin()

    def _begin(self) -> None:
        self._history, self._context = History(), Context(agent_name="bench")

    async def one(self) -> None:
        if len(self._history) >= 120:
            self._begin()
        for _ in range(2):
            self._history.append(self._new[self._made % len(self._new)])
            self._made += 1
        await self._assembler.assemble(["You are helpful."], self._history, self._context)


class Counting(SpanExporter):
    """Sends as the SDK's exporter does, and counts what was acknowledged."""

    def __init__(self, endpoint: str) -> None:
        self._export = _stub(endpoint)
        self.spans = self.bytes = self.failed = 0
        self.last = b""

    def export(self, spans: Sequence) -> SpanExportResult:
        request = encode_spans(spans).SerializeToString()
        try:
            self._export(request, timeout=10)
        except grpc.RpcError:
            self.failed += len(spans)
            return SpanExportResult.FAILURE
        self.spans += len(spans)
        self.bytes += len(request)
        return SpanExportResult.SUCCESS


class Last(SpanExporter):
    """The trace that ended last."""

    def __init__(self) -> None:
        self.trace = 0

    def export(self, spans: Sequence) -> SpanExportResult:
        self.trace = spans[-1].context.trace_id
        return SpanExportResult.SUCCESS


class Request:
    """A request of whole turns, with the places where ids and times stand."""

    def __init__(self, spans: Sequence) -> None:
        self._bytes = bytearray(encode_spans(spans).SerializeToString())
        self._ids = [
            (_places(self._bytes, number.to_bytes(size, "big")), size)
            for number, size in {(span.context.trace_id, 16) for span in spans}
            | {(span.context.span_id, 8) for span in spans}
        ]
        self._trace = self._bytes.find(spans[-1].context.trace_id.to_bytes(16, "big"))
        self._end = max(span.end_time for span in spans)
        # A tag of OTLP's Span, and eight bytes: start_time_unix_nano is its field 7, end_time_unix_nano its field 8.
        marks = {(b"\x39", span.start_time) for span in spans} | {(b"\x41", span.end_time) for span in spans}
        self._times = [
            (place + 1, moment)
            for tag, moment in marks
            for place in _places(self._bytes, tag + struct.pack("<Q", moment))
        ]
        self.spans = len(spans)

    def fresh(self) -> tuple[bytes, str]:
        """The request with ids that never were, ended now; and the id of its last trace."""
        made, later = self._bytes, time.time_ns() - self._end
        random = os.urandom(16 * len(self._ids))
        for number, (places, size) in enumerate(self._ids):
            for place in places:
                made[place : place + size] = random[16 * number : 16 * number + size]
        for place, moment in self._times:
            struct.pack_into("<Q", made, place, moment + later)
        return bytes(made), made[self._trace : self._trace + 16].hex()


def _places(where: bytearray, what: bytes) -> list[int]:
    found, place = [], where.find(what)
    while place >= 0:
        found.append(place)
        place = where.find(what, place + 1)
    return found


def _stub(endpoint: str) -> grpc.UnaryUnaryMultiCallable:
    return grpc.insecure_channel(endpoint).unary_unary(EXPORT)


async def recorded(requests: int) -> list[Request]:
    """So many requests of real assemblies."""
    provider, kept = TracerProvider(resource=Resource.create({"service.name": SERVICE})), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    turns = Turns(provider)
    for _ in range(requests * SPANS_A_REQUEST // SPANS_A_TURN):
        await turns.one()
    spans = kept.get_finished_spans()
    return [Request(spans[first : first + SPANS_A_REQUEST]) for first in range(0, len(spans), SPANS_A_REQUEST)]


def _ended(last: str, seen: float) -> float:
    """Print the last trace, at most twenty times a second."""
    now = time.time()
    if now - seen < 0.05:
        return seen
    print(json.dumps({"trace": last, "ended": now}), flush=True)
    return now


async def agent(endpoint: str, rate: float, seconds: float) -> dict:
    """Assemble at that rate, or as fast as it goes, and export as an agent does."""
    exporter, last = Counting(endpoint), Last()
    resource = Resource.create({"service.name": SERVICE})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    provider.add_span_processor(SimpleSpanProcessor(last))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint, insecure=True), 10_000)
    meters = MeterProvider([reader], resource=resource)
    turns, made, seen = Turns(provider, meters), 0, 0.0
    started, used = time.monotonic(), time.process_time()
    while (now := time.monotonic()) < started + seconds:
        if made >= (now - started) * rate:
            await asyncio.sleep(0.001)
            continue
        await turns.one()
        made += 1
        seen = _ended(trace.format_trace_id(last.trace), seen)
    took = time.monotonic() - started
    provider.shutdown()
    meters.shutdown()
    lost = made * SPANS_A_TURN - exporter.spans
    return _said(made, took, exporter.spans, exporter.bytes, lost, time.process_time() - used)


async def replay(endpoint: str, rate: float, seconds: float) -> dict:
    """Send recorded requests at that rate of turns, at most four at once."""
    requests, export = await recorded(8), _stub(endpoint)
    made = spans = size = failed = 0
    seen, waiting = 0.0, []
    started, used = time.monotonic(), time.process_time()
    while (now := time.monotonic()) < started + seconds:
        if made >= (now - started) * rate:
            await asyncio.sleep(0.001)
            continue
        request = requests[made // (SPANS_A_REQUEST // SPANS_A_TURN) % len(requests)]
        body, last = request.fresh()
        waiting.append((export.future(body, timeout=10), request.spans, len(body)))
        made += request.spans // SPANS_A_TURN
        seen = _ended(last, seen)
        while len(waiting) > 4 or (waiting and waiting[0][0].done()):
            taken, count, length = waiting.pop(0)
            failed, spans, size = _settled(taken, count, length, failed, spans, size)
    took = time.monotonic() - started
    for taken, count, length in waiting:
        failed, spans, size = _settled(taken, count, length, failed, spans, size)
    return _said(made, took, spans, size, failed, time.process_time() - used)


def _said(turns: int, seconds: float, spans: int, size: int, lost: int, used: float) -> dict:
    return {
        "turns": turns,
        "seconds": seconds,
        "spans": spans,
        "bytes": size,
        "lost": lost,
        "processor seconds": used,
    }


def _settled(taken: grpc.Future, count: int, length: int, failed: int, spans: int, size: int) -> tuple[int, int, int]:
    if taken.exception() is not None:
        return failed + count, spans, size
    return failed, spans + count, size + length


if __name__ == "__main__":
    kind, address, wanted, during = sys.argv[1:]
    send = {"agent": agent, "replay": replay}[kind]
    print(json.dumps(asyncio.run(send(address, float(wanted), float(during)))), flush=True)
