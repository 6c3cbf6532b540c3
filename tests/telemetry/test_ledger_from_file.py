"""The ledger, read back from the exported OTLP JSON lines alone, is what truly happened."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from assembling import Coin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from random_runs import REFRAMING, Run, played, runs

from otel_assembly.telemetry import (
    AlertSignal,
    OpenTelemetryRecorder,
    SpanFileExporter,
    TelemetrySettings,
    read_ledgers,
    read_spans,
    violations,
)
from otel_assembly.testing import RecordedTelemetry, conversation

MODEST = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(autouse=True)
def no_word_of_skipped_policies(caplog):
    caplog.set_level("ERROR", "otel_assembly")


def exported(run, sampler=ALWAYS_ON):
    """Play a run; what is in the file then, and the truth."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spans.jsonl"
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(SpanFileExporter(path), schedule_delay_millis=60_000))
        recorder = OpenTelemetryRecorder(tracer_provider=provider, settings=TelemetrySettings())
        truth = asyncio.run(played(run, recorder))
        provider.shutdown()
        return list(read_spans(path)) if path.exists() else [], truth


def told(ledger, turn):
    return {
        item: (exit_.outcome, exit_.reason, exit_.policy, exit_.index) for item, exit_ in ledger.exits(turn).items()
    }


def offered(truth, turn):
    """Why things are out, of what a turn speaks of: what was offered, and what its policies put in."""
    there = {*turn.offered, *(item for step in turn.steps for item in step.injected)}
    return {item: why for item, why in truth.exits[turn.number].items() if item in there}


def read(spans):
    ledgers = list(read_ledgers(spans).values())
    assert len(ledgers) <= 1
    return ledgers[0] if ledgers else None


@MODEST
@given(run=runs())
def test_every_turn_says_by_itself_what_was_offered_kept_and_out_and_why(run):
    spans, truth = exported(run)
    ledger = read(spans)
    assert ledger.problems == []
    assert [turn.number for turn in ledger.turns if turn.sent] == truth.turns
    for turn in ledger.turns:
        alone = read([span for span in spans if span.trace_id == turn.trace_id]).turn(turn.number)
        assert list(alone.offered) == list(turn.offered)
        if turn.sent:
            assert list(alone.kept) == truth.kept[turn.number]
            assert told(ledger, turn.number) == offered(truth, turn)
            assert set(alone.absent()) == offered(truth, turn).keys()
    for span in spans:
        assert violations(span.name, span.attributes, [(e.name, e.attributes) for e in span.events]) == []


@MODEST
@given(run=runs())
def test_of_sampled_turns_as_much_is_known_as_of_all(run):
    spans, truth = exported(run, Coin(run.sampled))
    ledger = read(spans)
    for turn in ledger.turns if ledger is not None else ():
        if turn.sent:
            assert list(turn.kept) == truth.kept[turn.number]
            assert told(ledger, turn.number) == offered(truth, turn)
            assert {*turn.kept, *turn.offered} <= ledger.items.keys()
    assert ledger is None or ledger.problems == []


@MODEST
@given(run=runs(), data=st.data())
def test_what_was_lost_on_the_way_is_said_to_be_unknown_and_nothing_is_guessed(run, data):
    spans, truth = exported(run)
    lost = data.draw(st.sets(st.integers(0, max(0, len(spans) - 1)), max_size=3))
    ledger = read([span for index, span in enumerate(spans) if index not in lost])
    if ledger is None:
        return
    for turn in ledger.turns:
        if turn.sent:
            assert list(turn.kept) == truth.kept[turn.number]
            assert told(ledger, turn.number).keys() == offered(truth, turn).keys()
            for item, why in told(ledger, turn.number).items():
                assert why[1] is None or why == truth.exits[turn.number][item]


@MODEST
@given(run=runs(), sampled=st.booleans())
def test_every_item_has_its_tokens_in_the_file(run, sampled):
    spans, truth = exported(run, Coin(run.sampled) if sampled else ALWAYS_ON)
    ledger = read(spans)
    for turn in ledger.turns if ledger is not None else ():
        if turn.sent:
            known = {item: ledger.tokens(turn.number, item) for item in (*turn.kept, *turn.absent())}
            assert None not in known.values()
            # A shortened copy has other tokens than what arrived, and so has an echo that lost its call.
            if turn.number == truth.turns[-1] and run.as_history and not REFRAMING & dict(run.chain).keys():
                assert {item: truth.tokens.get(item) for item in known} == known


def test_what_a_foreign_policy_puts_in_another_order_has_its_tokens_too():
    spans, truth = exported(a_run([("newest", 1)], ["ask", "ask"]))
    ledger = read(spans)
    assert truth.kept[0] == ["1", "0"]
    assert [ledger.tokens(0, item) for item in ("0", "1")] == [6, 6]


@MODEST
@given(run=runs())
def test_whatever_happens_every_span_metric_and_log_record_is_within_the_contract(run):
    telemetry = RecordedTelemetry(settings=TelemetrySettings(alert_signal=AlertSignal.BOTH))
    asyncio.run(played(run, telemetry.recorder))
    assert telemetry.violations() == []
    assert "assembly.telemetry.errors" not in telemetry.metrics
    telemetry.shutdown()


def a_run(chain, *turns, **more):
    events = conversation(*turns[-1])
    defaults = {"edits": [""] * len(turns), "sampled": [True] * len(turns), "as_history": True}
    return Run(chain, events, [len(turn) for turn in turns], **{**defaults, **more})


WORDS = ["ask", "answer", "note", "ask", "answer", "ask", "call a", "result a", "answer"]


def test_an_exit_is_told_again_when_another_policy_is_the_cause():
    run = a_run([("drop_answers", 1), ("window", 2)], WORDS[:4], WORDS[:5], WORDS)
    spans, truth = exported(run)
    ledger = read(spans)
    assert {turn: told(ledger, turn) for turn in (0, 1, 2)} == truth.exits
    assert ledger.problems == []


def test_a_lost_assembly_costs_the_others_nothing():
    run = a_run([("window", 2)], WORDS[:4], WORDS[:6], WORDS)
    spans, truth = exported(run)
    _, second, _ = (span for span in spans if span.name == "assemble_context")
    ledger = read([span for span in spans if span is not second and span.parent_id != second.span_id])
    assert [turn.number for turn in ledger.turns] == [0, 2]
    assert list(ledger.turn(2).kept) == truth.kept[2]
    assert told(ledger, 2) == truth.exits[2]
    assert ledger.tokens(2, "4") is None
    assert ledger.since(2, "0") == (2, False)


def test_a_turn_that_overflowed_sent_nothing():
    run = a_run([("window", 6), ("strict_budget", 1)], WORDS[:1], WORDS[:2], WORDS[:3])
    run.events = conversation("ask", "answer: " + "word " * 90, "ask")
    spans, _ = exported(run)
    ledger = read(spans)
    assert [(turn.number, turn.sent, list(turn.kept)) for turn in ledger.turns] == [
        (0, True, ["0"]),
        (1, False, []),
        (2, True, ["2"]),
    ]
    assert ledger.problems == []


def test_two_ledgers_in_one_file_are_kept_apart():
    one, _ = exported(a_run([("window", 2)], WORDS[:4]))
    other, _ = exported(a_run([("window", 3)], WORDS[:4]))
    kept = {tuple(ledger.turn(0).kept) for ledger in read_ledgers(one + other).values()}
    assert kept == {("2", "3"), ("1", "2", "3")}
