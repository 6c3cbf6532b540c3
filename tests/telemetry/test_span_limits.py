"""The attributes of spans are the same whether the SDK checks them one by one or not, and within the SDK's limits."""

from __future__ import annotations

import pytest
from counting import WordCounter
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_assembly import Assembler, Context, ConversationPolicy, SlidingWindowPolicy, TokenBudgetPolicy
from otel_assembly.telemetry import OpenTelemetryRecorder, conventions
from otel_assembly.testing import conversation

RANDOM = {conventions.ID, conventions.PREVIOUS_ID, conventions.LEDGER_ID}
WORDS = ["ask: one two", "note", "answer", "call a", "result a", "ask: three", "answer", "ask: four"]


async def spans_with(limits):
    """Return the spans of three turns that drop messages."""
    exported = InMemorySpanExporter()
    provider = TracerProvider(span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    recorder = OpenTelemetryRecorder(tracer_provider=provider)
    chain = [ConversationPolicy(), SlidingWindowPolicy(4), TokenBudgetPolicy(80)]
    assembler = Assembler(chain, name="main", counter=WordCounter(), recorder=recorder)
    context = Context(agent_name="desk")
    for length in (5, 7, 8):
        await assembler.assemble(["be kind"], conversation(*WORDS[:length]), context)
    return exported.get_finished_spans()


def attributes_of(spans):
    return [
        (span.name, [item for item in span.attributes.items() if item[0] not in RANDOM], span.dropped_attributes)
        for span in spans
    ]


@pytest.mark.usefixtures("quiet_sdk")
async def test_attributes_that_the_sdk_checks_are_those_that_it_does_not_check():
    unchecked = await spans_with(SpanLimits())
    checked = await spans_with(SpanLimits(max_span_attribute_length=100_000))
    assert attributes_of(unchecked) == attributes_of(checked)
    assert any(conventions.DROPPED_ITEMS in span.attributes for span in unchecked)
    values = [value for span in unchecked for value in span.attributes.values()]
    assert {type(value) for value in values} <= {str, int, float, bool, tuple}


async def test_texts_are_cut_at_the_limit_of_the_sdk():
    spans = await spans_with(SpanLimits(max_span_attribute_length=4))
    assert {span.attributes[conventions.TOKENS_METHOD] for span in spans if span.name == "assemble_context"} == {"exac"}


async def test_a_span_has_no_more_attributes_than_the_sdk_allows():
    spans = await spans_with(SpanLimits(max_span_attributes=10))
    assert {len(span.attributes) for span in spans} == {10}
    assert all(span.dropped_attributes > 0 for span in spans)
