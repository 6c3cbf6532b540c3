"""An attribute of an unknown kind or type costs itself, and is said of its span; no reader fails on it."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_assembly import Assembler, AssemblyError, Context, ContextAssembler, History, Task
from otel_assembly.chain import chain_from_config
from otel_assembly.cli import render_tree
from otel_assembly.explain import Explainer, detail_lines, headline
from otel_assembly.page import page_model, render_page
from otel_assembly.telemetry import conventions_registry as registry
from otel_assembly.telemetry import read_ledgers, read_line, span_tree
from otel_assembly.testing import RecordedTelemetry, conversation

#: Not the version of the format: spans of another version are refused.
OURS = sorted(registry.attributes().keys() - {"assembly.format.version"})
SAYS = conversation("ask", "answer: " + "word " * 30, "ask", "answer", "ask", "answer: " + "word " * 90, "ask")
CHAINS = [
    ["conversation", {"sliding_window": {"max_events": 4}}, {"token_budget": {"max_tokens": 60}}],
    [{"budget": {"window": 90, "output_reserve": 10, "step_tokens": 0, "compact": "extractive", "summary_tokens": 20}}],
    [{"budget": {"window": 60, "output_reserve": 10, "step_tokens": 0}}],
]


@cache
def recorded_apart():
    """The spans of turns under each chain of policies and of an allocator's, of which some sent nothing."""
    telemetry, apart = RecordedTelemetry(), []
    for play in (*(partial(play_chain, chain) for chain in CHAINS), play_allocator):
        asyncio.run(play(telemetry.recorder))
        apart.append(telemetry.spans)
        telemetry.clear()
    telemetry.shutdown()
    return apart


def recorded():
    """All of those spans, one conversation's after the other's."""
    return [span for spans in recorded_apart() for span in spans]


async def play_chain(chain, recorder):
    assembler = Assembler(chain_from_config({"policies": chain}).policies, recorder=recorder)
    history, context = History(), Context()
    for cut in (1, 3, 5, 6):
        history.extend(SAYS[len(history) : cut])
        with suppress(AssemblyError):
            await assembler.assemble(("be kind",), history, context)


async def play_allocator(recorder):
    floors = {"evidence": 0, "memory": 0, "summary": 0}
    assembler = ContextAssembler(
        system="be kind",
        window=60,
        output_reserve=20,
        floors=floors,
        scopes=lambda user, task: {"public"},
        recorder=recorder,
    )
    context = Context()
    for query in ("where", "where " * 90):
        with suppress(AssemblyError):
            await assembler.assemble(Task(query=query), None, context)


def everything_of(spans):
    """What each reader says of the spans; none of them fails."""
    problems = []
    told = []
    for ledger in read_ledgers(spans, allocations=True, on_problem=problems.append).values():
        problems += ledger.problems
        for turn in range(max((turn.number for turn in ledger.turns), default=-1) + 1):
            if turn > 8:
                break
            explainer = Explainer(ledger, turn)
            with suppress(AssemblyError):  # a turn that is not there
                explainer.absent()
            answers = [explainer.explain(item) for item in list(ledger.items)[:4]]
            told += [(headline(answer), list(detail_lines(answer)), json.dumps(answer.as_json())) for answer in answers]
    render_page(page_model(spans, title="t"))
    told.append(render_tree(span_tree(spans), width=80, color=False, content=True))
    return problems


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["0", "3-1", "m0", "0-2", "[", "[1]", '{"window": "x"}', '{"window": -3}', "9" * 5000, 10**15]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)
_CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), _JSON), min_size=1, max_size=4)


def read_with(changes):
    """What each reader says of the spans, some of whose attributes are others."""
    spans = list(recorded())
    for which, attribute, value in changes:
        span = spans[which % len(spans)]
        held = dict(span.attributes)
        held[sorted(held)[attribute % len(held)] if attribute % 3 else OURS[attribute % len(OURS)]] = value
        spans[which % len(spans)] = replace(span, attributes=held)
    return everything_of(spans)


@pytest.mark.parametrize("sources", [False, [False], ["x"], [0]])
def test_sources_that_are_no_items_are_invalid(sources):
    spans = [
        replace(span, attributes={**span.attributes, "assembly.arrived.sources": sources})
        if "assembly.arrived.sources" in span.attributes
        else span
        for span in recorded()
    ]
    assert spans != recorded()
    everything_of(spans)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(_CHANGES)
def test_no_value_of_any_attribute_makes_a_reader_fail(changes):
    read_with(changes)


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(_CHANGES)
def test_none_of_a_thousand_values_makes_a_reader_fail(changes):
    read_with(changes)


VALUES = [None, [], {}, {"a": [1]}, "?", 1.5, True, [None], [[1]], ["?"], -(10**18), 10**18]


def read_with_each_attribute(spans_with, first):
    """What each reader does where one attribute after the other is anything, in the spans that are given for it."""
    names = sorted({name for span in recorded() for name in span.attributes if name in OURS})
    for at, name in enumerate(names):
        value = VALUES[(at + first * 5) % len(VALUES)]
        everything_of(
            [
                replace(s, attributes={**s.attributes, name: value}) if name in s.attributes else s
                for s in spans_with(name)
            ]
        )


def shortest_with(name):
    """The spans of the shortest conversation that has the attribute."""
    return min((spans for spans in recorded_apart() if any(name in span.attributes for span in spans)), key=len)


def test_each_attribute_may_be_anything():
    read_with_each_attribute(shortest_with, 0)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1, 2])
def test_each_attribute_may_be_anything_in_every_conversation(first):
    read_with_each_attribute(lambda name: recorded(), first)


def test_an_attribute_that_is_left_out_is_named_with_its_span():
    span = next(span for span in recorded() if span.name == "assemble_context")
    odd = replace(span, attributes={**span.attributes, "assembly.kind.tokens": {"secret": 1}})
    others = [item for item in recorded() if item is not span]
    (problem,) = everything_of([odd, *others])
    assert (
        problem == f"span {span.span_id} (assemble_context): assembly.kind.tokens has an invalid value and is ignored"
    )


def test_an_unknown_kind_is_another():
    spans = [
        replace(span, attributes={**span.attributes, "assembly.arrived.kinds": ["secret", 7]})
        if len(span.attributes.get("assembly.arrived.kinds", ())) == 2
        else span
        for span in recorded()
    ]
    ledger = next(iter(read_ledgers(spans).values()))
    assert [item.kind for item in ledger.items.values()][:3] == ["request", "other", "other"]
    assert "an unknown kind in assembly.arrived.kinds is read as 'other'" in ledger.problems[0]
    assert re.match(r"span [0-9a-f]{16} \(assemble_context\): ", ledger.problems[0])
    assert not [problem for problem in ledger.problems if "secret" in problem]
    assert Explainer(ledger, 1).explain("1").kind == "other"


def test_a_policy_whose_lists_cannot_be_read_counts_as_one_that_is_missing():
    spans = [
        replace(span, attributes={**span.attributes, "assembly.dropped.reasons": 7.5, "assembly.dropped.items": {}})
        if span.name == "apply_policy sliding_window"
        else span
        for span in recorded()
    ]
    ledger = next(iter(read_ledgers(spans).values()))
    assert "turn 2: 1 of its 3 policies have no span" in ledger.problems
    answer = Explainer(ledger, 2).explain("0")
    assert (answer.outcome, answer.reason) == ("dropped", None)


def test_a_ledger_that_cannot_be_named_is_told_of_by_its_span():
    problems = []
    spans = [
        replace(span, attributes={**span.attributes, "assembly.ledger.id": ["x"]})
        if "assembly.ledger.id" in span.attributes
        else span
        for span in recorded()
    ]
    everything_of(spans)
    read_ledgers([replace(spans[0], attributes={"assembly.turn": "x"})], on_problem=problems.append)
    assert problems == [f"span {spans[0].span_id} ({spans[0].name}): assembly.turn has an invalid value and is ignored"]


@given(_JSON)
def test_any_value_in_a_line_costs_that_attribute_alone(value):
    attributes = [{"key": "odd", "value": value}, {"key": "fine", "value": {"intValue": "3"}}]
    span = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "n", "attributes": attributes}
    line = read_line(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())
    assert line.spans[0].attributes["fine"] == 3
