"""``otel-assembly explain`` on an airline's prompt: ten items that are out, each kept by the window that is named."""

from __future__ import annotations

import pytest
from block_sets import Allocated
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_assembly import Block, BlockItem, allocate
from otel_assembly.telemetry import SpanFileExporter
from otel_assembly.testing import RecordedTelemetry, conversation

PASSAGES = [
    "Checked bags may weigh 23 kg in economy and 32 kg in business.",
    "A bag that is late is delivered to the passenger's address at no cost within 48 hours.",
    "Claims for a lost bag are made within 21 days, with the receipt of the bag tag.",
    "Musical instruments travel in the cabin if they fit the overhead locker.",
    "Bicycles need a reservation, which costs 60 for each direction.",
]
BLOCKS = [
    Block("rules", 1, "You are the service desk of an airline. Be brief.", cuttable=False),
    Block("question", 3, "My bag did not arrive in Oslo. What now?", cuttable=False),
    Block("evidence", 5, [BlockItem(t, rank=n) for n, t in enumerate(PASSAGES, 1)], cuttable=True, min_tokens=20),
    Block(
        "memory",
        6,
        [
            BlockItem("Flies to Oslo every month.", score=0.4),
            BlockItem("Prefers answers in English.", score=0.9, profile=True),
            BlockItem("Once asked about a window seat in row twelve.", score=0.1),
            BlockItem("Travels with a violin.", score=0.2),
        ],
        cuttable=True,
        min_tokens=12,
    ),
    Block(
        "recent",
        8,
        conversation(
            "ask: I landed",
            "answer: Where did you start?",
            "ask: In Vienna, with a stop",
            "answer: Thanks.",
            "ask: And?",
        ),
        cuttable=True,
    ),
]


@pytest.fixture
def traces(tmp_path):
    path = tmp_path / "spans.jsonl"
    telemetry = RecordedTelemetry()
    telemetry.tracer_provider.add_span_processor(SimpleSpanProcessor(SpanFileExporter(path)))
    with telemetry.as_default():
        allocate(BLOCKS, 130, 40)
    telemetry.shutdown()
    return path


def test_ten_items_of_a_prompt_are_kept_by_the_window_that_is_named(run, traces):
    allocated = Allocated(BLOCKS, 130)
    out = [item for group in run("explain", "--traces", traces, "--turn", 0, "--json").json for item in group["items"]]
    assert len(out) >= 10
    for item in out:
        said = run("explain", "--traces", traces, "--turn", 0, "--item", item, "--json")
        assert said.status == 0
        (change,) = said.json["raises"]
        assert (change["policy"], change["parameter"]) == ("allocator", "window")
        assert item in allocated.kept(change["to"])
        if not change["at_most"]:
            assert item not in allocated.kept(change["to"] - 1)
    assert f"allocator with window={change['to']}" in " ".join(
        run("explain", "--traces", traces, "--turn", 0, "--item", item).out.split()
    )
