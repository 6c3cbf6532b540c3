"""The ledger, read back from the exported OTLP JSON lines alone, is what truly happened."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
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

MODEST = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


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


def read(spans):
    ledgers = list(read_ledgers(spans).values())
    assert len(ledgers) <= 1
    return ledgers[0] if ledgers else None


@MODEST
@given(run=runs())
def test_every_arrival_and_every_exit_is_in_the_file_once_with_tokens_and_reason(run):
    spans, truth = exported(run)
    ledger = read(spans)
    assert ledger.problems == []
    assert [turn.number for turn in ledger.turns if turn.sent] == truth.turns
    for number in truth.turns:
        assert ledger.turn(number).kept == truth.kept[number]
        assert told(ledger, number) == truth.exits[number]
    arrivals = Counter(item for turn in ledger.turns for item in turn.arrived)
    assert set(arrivals.values()) <= {1}
    if truth.turns:
        last = truth.turns[-1]
        assert set(arrivals) == set(truth.kept[last]) | set(truth.exits[last]) or not run.as_history
    for span in spans:
        assert violations(span.name, span.attributes, [(e.name, e.attributes) for e in span.events]) == []


@MODEST
@given(run=runs())
def test_what_was_not_sampled_is_carried_to_the_next_assembly_that_is(run):
    spans, truth = exported(run, Coin(run.sampled))
    ledger = read(spans)
    if ledger is None:
        return
    assert ledger.problems == []
    for turn in ledger.turns:
        if turn.sent:
            known = set(ledger.items) | set(told(ledger, turn.number))
            assert turn.kept == truth.kept[turn.number]
            assert told(ledger, turn.number) == {
                item: why for item, why in truth.exits[turn.number].items() if item in known
            }
            assert set(turn.kept) <= set(ledger.items)


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
            assert turn.kept == truth.kept[turn.number]
            for item, why in told(ledger, turn.number).items():
                assert why[1] is None or why == truth.exits[turn.number][item]
    lost_ids = {spans[index].attributes.get("assembly.id") for index in lost} - {None}
    assert not any(turn.previous_id in lost_ids for turn in ledger.turns) or ledger.problems


@MODEST
@given(run=runs(), sampled=st.booleans())
def test_every_item_of_a_prompt_has_its_tokens_in_the_file_and_once(run, sampled):
    spans, truth = exported(run, Coin(run.sampled) if sampled else ALWAYS_ON)
    ledger = read(spans)
    for turn in ledger.turns if ledger is not None else ():
        if turn.sent:
            assert [item for item in turn.kept if ledger.tokens(turn.number, item) is None] == []
            # A shortened copy has other tokens than what arrived, and so has an echo that lost its call.
            if turn.number == truth.turns[-1] and run.as_history and not REFRAMING & dict(run.chain).keys():
                for item, tokens in truth.tokens.items():
                    assert ledger.tokens(turn.number, item) in ({tokens} if item in turn.kept else {tokens, None})
    known = {}
    for turn in ledger.turns if ledger is not None else ():
        assert [item for item, tokens in turn.counted.items() if known.get(item) == tokens] == []
        known.update({item: ledger.tokens(turn.number, item) for item in [*turn.arrived, *turn.counted]})


def test_what_a_foreign_policy_puts_in_another_order_has_its_tokens_too():
    spans, truth = exported(a_run([("newest", 1)], ["ask", "ask"]))
    ledger = read(spans)
    assert truth.kept[0] == [1, 0]
    assert [ledger.tokens(0, item) for item in (0, 1)] == [6, 6]


def test_what_was_counted_late_is_told_by_the_turn_that_counted_it():
    spans, _ = exported(a_run([("window", 1), ("conversation", 1)], WORDS[:3], WORDS[:4], WORDS[:5]))
    ledger = read(spans)
    assert [[turn.arrived, turn.counted] for turn in ledger.turns] == [[[0, 1, 2], {}], [[3], {}], [[4], {}]]
    assert [ledger.tokens(2, item) for item in (3, 4)] == [6, 6]


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


def test_a_lost_assembly_leaves_the_sets_and_takes_the_reasons():
    run = a_run([("window", 2)], WORDS[:4], WORDS[:6], WORDS)
    spans, truth = exported(run)
    _, second, _ = (span for span in spans if span.name == "assemble_context")
    ledger = read([span for span in spans if span is not second and span.parent_id != second.span_id])
    assert (ledger.turn(2).previous_id, ledger.turn(2).follows) == (second.attributes["assembly.id"], False)
    assert ledger.turn(2).kept == truth.kept[2]
    assert {item for item, exit_ in ledger.exits(2).items() if exit_.reason is None} == {0, 1, 2, 3}
    assert ledger.problems[0] == "turn 2: a policy's span is missing, or the assembly that its changes are against"
    assert ledger.exit(0, 0).reason == "outside_window"


def test_a_lost_policy_is_noticed_by_its_place_in_the_chain():
    spans, truth = exported(a_run([("conversation", 1), ("window", 2)], WORDS[:4], WORDS))
    lost = next(span for span in reversed(spans) if span.name == "apply_policy sliding_window")
    ledger = read([span for span in spans if span is not lost])
    assert ledger.turn(1).kept == truth.kept[1]
    assert {exit_.reason for exit_ in ledger.exits(1).values()} <= {None, "not_conversation"}
    assert "turn 1: item 3 is not in the prompt, and no span says why" in ledger.problems


def test_a_turn_that_overflowed_leaves_the_ledger_as_it_was():
    run = a_run([("window", 6), ("strict_budget", 1)], WORDS[:1], WORDS[:2], WORDS[:3])
    run.events = conversation("ask", "answer: " + "word " * 90, "ask")
    spans, _ = exported(run)
    ledger = read(spans)
    assert [(turn.number, turn.sent, list(turn.kept)) for turn in ledger.turns] == [
        (0, True, [0]),
        (1, False, []),
        (2, True, [2]),
    ]
    assert ledger.turn(2).previous_id == ledger.turn(0).assembly_id
    assert ledger.problems == []


def test_spans_in_any_order_delivered_twice_and_with_arrays_as_text_read_the_same():
    import json
    from dataclasses import replace

    spans, _ = exported(a_run([("conversation", 1), ("window", 2)], WORDS[:3], WORDS[:6], WORDS))
    in_text = [
        replace(s, attributes={k: json.dumps(v) if isinstance(v, list) else v for k, v in s.attributes.items()})
        for s in spans
    ]
    as_told = read(spans)
    for variant in (list(reversed(spans)), spans + spans, in_text):
        again = read(variant)
        assert again.problems == []
        assert [turn.kept for turn in again.turns] == [turn.kept for turn in as_told.turns]
        assert [told(again, n) for n in range(3)] == [told(as_told, n) for n in range(3)]


def test_a_malformed_span_is_a_problem_and_no_error():
    from dataclasses import replace

    spans, _ = exported(a_run([("window", 2)], WORDS[:3], WORDS[:6]))
    broken = [
        replace(s, attributes={**s.attributes, "assembly.kept.items": ["one-two"]})
        if s.attributes.get("assembly.turn") == 1
        else s
        for s in spans
    ]
    ledger = read(broken)
    assert ledger.problems == ["turn 1: an attribute of the wrong form"]
    assert [turn.number for turn in ledger.turns] == [0]
    with pytest.raises(KeyError):
        ledger.turn(1)


def test_a_false_count_is_named():
    from dataclasses import replace

    spans, _ = exported(a_run([("window", 2)], WORDS[:4]))
    broken = [
        replace(s, attributes={**s.attributes, "assembly.events.out": 9, "assembly.dropped.count": 7})
        if s.name == "assemble_context"
        else s
        for s in spans
    ]
    assert read(broken).problems == [
        "turn 0: the assembly: 4 events in + 0 injected are not 9 out + 7 dropped + 0 compacted",
        "turn 0: 9 events out, of which 2 are listed",
    ]


def test_two_ledgers_in_one_file_are_kept_apart():
    one, _ = exported(a_run([("window", 2)], WORDS[:4]))
    other, _ = exported(a_run([("window", 3)], WORDS[:4]))
    assert {tuple(ledger.turn(0).kept) for ledger in read_ledgers(one + other).values()} == {(2, 3), (1, 2, 3)}
