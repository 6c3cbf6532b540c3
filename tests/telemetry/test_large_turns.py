"""Turns in which thousands of items leave: nothing of it is lost, in a file or over gRPC."""

from __future__ import annotations

import asyncio

import pytest
from counting import WordCounter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_assembly import Assembler, Context, History, ModelRequest, SlidingWindowPolicy
from otel_assembly.telemetry import (
    Arrays,
    OpenTelemetryRecorder,
    SpanFileExporter,
    StoredSpan,
    TelemetrySettings,
    conventions,
    read_ledgers,
    read_spans,
)

pytestmark = pytest.mark.usefixtures("quiet_sdk")

FOUR_MIB = 4 * 1024 * 1024
SCATTERED = 5_000


class EveryOther:
    name = "every_other"

    async def apply(self, prompts, events, context):
        return prompts, events[1::2]


def assemble_once(exporter, events, policies=None):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    recorder = OpenTelemetryRecorder(tracer_provider=provider, settings=TelemetrySettings())
    assembler = Assembler(policies or [EveryOther()], counter=WordCounter(), recorder=recorder)
    asyncio.run(assembler.assemble([], events, Context()))
    provider.shutdown()


def asks(count):
    return [ModelRequest(id=str(index), content="hi") for index in range(count)]


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind)


def stored(span):
    return StoredSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes={pair.key: plain(pair.value) for pair in span.attributes},
    )


def assert_all_recoverable(spans):
    (ledger,) = read_ledgers(spans).values()
    assert ledger.problems == []
    assert list(ledger.turn(0).kept) == list(map(str, range(1, 2 * SCATTERED, 2)))
    exits = ledger.exits(0)
    assert list(exits) == list(map(str, range(0, 2 * SCATTERED, 2)))
    assert {(exit_.policy, exit_.reason) for exit_ in exits.values()} == {("every_other", "policy")}
    assert len(ledger.items) == 2 * SCATTERED


def test_five_thousand_scattered_drops_are_all_in_the_file(tmp_path):
    assemble_once(SpanFileExporter(tmp_path / "spans.jsonl"), asks(2 * SCATTERED))
    assert_all_recoverable(list(read_spans(tmp_path / "spans.jsonl")))


def test_five_thousand_scattered_drops_all_arrive_over_grpc_in_small_spans_and_batches(receiver):
    exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{receiver.port}", insecure=True, timeout=600)
    assemble_once(exporter, asks(2 * SCATTERED))
    assert_all_recoverable([stored(span) for span in receiver.spans()])
    for request in receiver.requests:
        assert request.ByteSize() < FOUR_MIB
    for span in receiver.spans():
        arrays = sum(p.value.ByteSize() for p in span.attributes if p.value.HasField("array_value"))
        assert arrays <= conventions.MAX_ARRAY_BYTES <= 16 * 1024


@pytest.mark.slow
def test_the_first_sight_of_a_hundred_thousand_events_is_no_batch_that_a_receiver_refuses(receiver):
    exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{receiver.port}", insecure=True, timeout=600)
    assemble_once(exporter, History(asks(100_000)), [SlidingWindowPolicy(10)])
    (ledger,) = read_ledgers(map(stored, receiver.spans())).values()
    assert ledger.problems == []
    assert (len(ledger.items), list(ledger.turn(0).kept)) == (100_000, list(map(str, range(99_990, 100_000))))
    assert max(request.ByteSize() for request in receiver.requests) < FOUR_MIB


def test_a_batch_of_nothing_but_full_spans_stays_under_four_mib():
    span_without_arrays = 1_000
    assert 512 * (conventions.MAX_ARRAY_BYTES + span_without_arrays) < FOUR_MIB


def test_spans_of_lists_start_in_the_order_in_which_they_are_to_be_read(tmp_path):
    assemble_once(SpanFileExporter(tmp_path / "spans.jsonl"), asks(2_000))
    spans = list(read_spans(tmp_path / "spans.jsonl"))
    by_parent = {}
    for span in spans:
        if span.name == "list_items":
            by_parent.setdefault(span.parent_id, []).append(span.start_ns)
    assert len(by_parent) == 1
    for starts in by_parent.values():
        assert len({start // 1_000 for start in starts}) == len(starts) > 2


@pytest.mark.parametrize("limit", [1, 30, 100, 1_000, 10_000])
def test_arrays_are_cut_at_the_same_entry_and_nothing_is_lost(limit):
    arrays = Arrays()
    alone = [str(index) for index in range(50)]
    items, tokens = [f"é{index}" for index in range(70)], [index - 1 for index in range(70)]
    arrays.add(["alone"], [alone])
    arrays.add(["empty"], [[]])
    arrays.add(["items", "tokens"], [items, tokens])
    chunks = list(arrays.chunks(limit))
    for chunk in chunks:
        assert len(chunk.get("items", [])) == len(chunk.get("tokens", []))
        assert "empty" not in chunk
    assert [item for chunk in chunks for item in chunk.get("alone", [])] == alone
    assert [item for chunk in chunks for item in chunk.get("items", [])] == items
    assert [token for chunk in chunks for token in chunk.get("tokens", [])] == tokens


def test_no_arrays_are_one_empty_chunk():
    assert list(Arrays().chunks()) == [{}]
    assert not Arrays()
