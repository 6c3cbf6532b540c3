"""An agent's run in Jaeger: its tree, its attributes, its alerts and halts, and which searches find it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import urlencode

import jaeger_api
import pytest
from jaeger_api import STORAGE_SEARCHES, SUPPORT_AGENT, Trace, events, parent_of, search, tags
from local_stack import wait_until

from otel_assembly.cli import main

SUPPORT, PLANNER = "jaeger-support-agent", "jaeger-planner"
POLICIES = [
    "apply_policy alert",
    "apply_policy conversation",
    "apply_policy sliding_window",
    "apply_policy token_budget",
]


@pytest.fixture(scope="module")
def agents(stack, tmp_path_factory):
    """Both agents have run, one after the other, and all that they made is in Jaeger."""
    folder, endpoint = tmp_path_factory.mktemp("agents"), f"http://{stack.collector.otlp_grpc}"
    said = jaeger_api.run_agent(folder, SUPPORT_AGENT, endpoint, SUPPORT).stdout
    assert "HALTED" in said
    said = jaeger_api.run_agent(folder, Path(__file__).with_name("allocating_agent.py"), endpoint, PLANNER).stdout
    assert said.count("sent") == 4
    for service, runs in ((SUPPORT, 5), (PLANNER, 4)):
        wait_until(
            lambda service=service, runs=runs: _whole(stack.jaeger, service, runs),
            seconds=60,
            what=f"{runs} whole traces of {service} in Jaeger",
        )


def _whole(jaeger, service, runs):
    """A run's own span ends last, and is sent last: with it, the trace is whole."""
    traces = [Trace(data) for data in search(jaeger, service)]
    ended = [trace for trace in traces if any(name.startswith("invoke_agent ") for name, _ in trace.tree())]
    return len(ended) == runs and all(len(trace.tree()) == 1 for trace in traces)


@pytest.fixture
def support(stack, agents):
    """The support agent's traces, the first one first."""
    return _traces(stack, SUPPORT)


@pytest.fixture
def planner(stack, agents):
    return _traces(stack, PLANNER)


def _traces(stack, service):
    found = [Trace(data) for data in search(stack.jaeger, service)]
    return sorted(found, key=lambda trace: trace.spans[0]["startTime"])


# What a trace is


def test_an_ask_is_one_trace_with_an_assembly_for_each_model_call(support):
    for trace, assemblies in zip(support, (1, 2, 3, 2, 2), strict=True):
        policies = [(name, []) for name in POLICIES]
        assert trace.tree() == [("invoke_agent support", [("assemble_context", policies)] * assemblies)]


def test_the_turns_of_a_conversation_are_counted_across_its_traces(support):
    assemblies = [span for trace in support for span in trace.named("assemble_context")]
    assert [tags(span)["assembly.turn"] for span in assemblies] == [("int64", turn) for turn in range(10)]
    assert len({tags(span)["gen_ai.conversation.id"] for span in assemblies}) == 1
    previous = [tags(span).get("assembly.previous.id") for span in assemblies]
    assert previous == [None, *(tags(span)["assembly.id"] for span in assemblies[:-1])]


def test_attributes_keep_their_types_but_for_arrays_which_are_texts(support):
    found = tags(support[-1].named("assemble_context")[0])
    assert found["assembly.overflowed"] == ("bool", True)
    assert found["assembly.budget.limit"] == ("int64", 600)
    assert found["assembly.budget.utilization"][0] == "float64"
    assert found["assembly.framework"] == ("string", "ag2")
    assert found["gen_ai.agent.name"] == ("string", "support")
    form, kept = found["assembly.kept.items"]
    assert (form, json.loads(kept)) == ("string", ["21-29"])
    form, numbers = found["assembly.kind.tokens"]
    assert form == "string"
    assert sum(json.loads(numbers)) == found["assembly.tokens.out"][1]


def test_what_went_in_came_out_or_is_accounted_for_on_every_span(support, planner):
    for trace in [*support, *planner]:
        for span in trace.spans:
            if span["operationName"].split()[0] in {"assemble_context", "apply_policy"}:
                count = {name: value for name, (form, value) in tags(span).items() if form == "int64"}
                came = count["assembly.events.in"] + count["assembly.events.injected"]
                went = count["assembly.dropped.count"] + count["assembly.compacted.count"]
                assert came == count["assembly.events.out"] + went, span["operationName"]


def test_the_answer_in_otlp_has_arrays_as_arrays_and_the_same_spans(stack, support):
    trace = support[-1]
    answer = stack.jaeger.get(f"/api/v3/traces/{trace.id}")["result"]
    spans = [
        span
        for resource in answer["resourceSpans"]
        for scope in resource["scopeSpans"]
        if scope["scope"]["name"] == "otel_assembly"
        for span in scope["spans"]
    ]
    assert {span["spanId"] for span in spans} == {span["spanID"] for span in trace.spans}
    window = next(span for span in spans if span["name"] == "apply_policy sliding_window")
    attributes = {attribute["key"]: attribute["value"] for attribute in window["attributes"]}
    reasons = [value["stringValue"] for value in attributes["assembly.dropped.reasons"]["arrayValue"]["values"]]
    assert reasons[:2] == ["outside_window", "orphaned_tool_call"]
    halted = next(span for span in spans if span["name"] == "invoke_agent support")
    assert halted["status"] == {"code": 2, "message": "the conversation was halted"}


# Alerts, halts, overflows


def test_an_overflow_is_an_error_with_its_size_on_the_policy_and_on_the_assembly(support):
    trace = support[-1]
    assembly, policy = trace.named("assemble_context")[0], trace.named("apply_policy token_budget")[0]
    for span in (assembly, policy):
        found = tags(span)
        assert found["otel.status_code"] == ("string", "ERROR")
        assert found["error"] == ("bool", True)
        assert found["error.type"] == ("string", "context_overflow")
        said = "the context does not fit its budget: 1,023 tokens over 600"
        assert found["otel.status_description"] == ("string", said)
        over = found["assembly.overflow.tokens"]
        assert over == ("int64", 1023)
        assert events(span)["assembly.overflow"] == {
            "assembly.overflow.cause": "framework",
            "assembly.overflow.tokens": over[1],
        }


def test_an_alert_stands_on_the_policy_that_showed_it_to_the_model(support):
    (warned,) = [s for t in support for s in t.spans if events(s).get("assembly.alert", {}).get(SEVERITY) == "warning"]
    assert warned["operationName"] == "apply_policy alert"
    assert tags(warned)["assembly.alerts.delivered"] == ("int64", 1)
    assert "otel.status_code" not in tags(warned)


SEVERITY = "assembly.alert.severity"


def test_a_halt_is_an_error_on_its_assembly_and_on_the_run(support):
    trace = support[-1]
    (run,) = trace.named("invoke_agent support")
    halting = trace.named("assemble_context")[-1]
    for span in (run, halting):
        assert tags(span)["otel.status_code"] == ("string", "ERROR")
        assert tags(span)["error.type"] == ("string", "assembly_halt")
        assert events(span)["assembly.halt"]["assembly.halt.source"] == "refund-limit"
        assert tags(span)["assembly.halts.emitted"] == ("int64", 1)
    alert = trace.named("apply_policy alert")[-1]
    assert events(alert)["assembly.alert"][SEVERITY] == "fatal"
    assert "assembly_halt" not in {tags(s).get("error.type", ("", ""))[1] for t in support[:-1] for s in t.spans}


# The allocator, and the model call


def test_the_allocator_s_blocks_stand_under_it_in_the_order_in_which_they_were_decided(planner):
    blocks = ["allocate_block system", "allocate_block query", "allocate_block recent", "allocate_block older"]
    first, *_, sent, overflowed = planner
    assert _allocated(first) == blocks[:2]
    assert [name for name in _allocated(sent) if name in blocks] == _allocated(sent)
    allocation = sent.named("allocate_budget")[0]
    assert next(s for s in sent.spans if s["spanID"] == parent_of(allocation))["operationName"] == "apply_policy budget"
    found = tags(allocation)
    assert found["assembly.budget.used"][1] + found["assembly.budget.remaining"][1] == found["assembly.budget.limit"][1]
    spent = [tags(span)["assembly.tokens.out"][1] for span in sent.spans if "allocate_block" in span["operationName"]]
    assert 0 < sum(spent) <= found["assembly.budget.used"][1]
    assert tags(overflowed.named("allocate_budget")[0])["error.type"] == ("string", "context_overflow")


def _allocated(trace):
    ((_, under_run),) = trace.tree()
    (assembly,) = [under for name, under in under_run if name == "assemble_context"]
    (budget,) = [under for name, under in assembly if name == "apply_policy budget"]
    ((name, blocks),) = budget
    assert name == "allocate_budget"
    return [block for block, _ in blocks]


def test_the_model_call_names_its_assembly_and_links_to_it(planner):
    *sent, overflowed = planner
    assert not overflowed.named("chat gpt-4o")
    for number, trace in enumerate(sent):
        (assembly,), (call,) = trace.named("assemble_context"), trace.named("chat gpt-4o")
        assert tags(call)["assembly.id"] == tags(assembly)["assembly.id"]
        assert parent_of(call) == parent_of(assembly)
        linked = [ref["spanID"] for ref in call["references"] if ref["refType"] == "FOLLOWS_FROM"]
        assert linked == [assembly["spanID"]]
        assert call["startTime"] >= assembly["startTime"] + assembly["duration"]
        reduced = tags(assembly)["assembly.dropped.count"][1] > 0
        assert tags(call).get("gen_ai.conversation.compacted") == (("bool", True) if reduced else None), number


# Searching


@pytest.mark.parametrize("name", jaeger_api.SEARCHES)
def test_a_search_of_the_guide_finds_what_it_says(stack, agents, name):
    query, count = jaeger_api.SEARCHES[name]
    assert len(search(stack.jaeger, SUPPORT, **query)) == count


@pytest.mark.parametrize("name", STORAGE_SEARCHES)
def test_in_memory_a_search_for_errors_events_by_name_or_two_spans_finds_nothing(stack, agents, name):
    query, by_storage = STORAGE_SEARCHES[name]
    assert len(search(stack.jaeger, SUPPORT, **query)) == by_storage["memory"] == 0


def test_a_conversation_is_found_by_its_id(stack, support, planner):
    conversation = tags(support[0].named("assemble_context")[0])["gen_ai.conversation.id"][1]
    assert len(search(stack.jaeger, SUPPORT, tags={"gen_ai.conversation.id": conversation})) == 5
    assert len(search(stack.jaeger, PLANNER, tags={"gen_ai.conversation.id": "trip-7"})) == 4


# Reading it back


def test_explain_answers_from_jaeger_where_the_first_request_went(stack, agents, capsys):
    arguments = ["explain", "--jaeger", stack.jaeger.url, "--service", SUPPORT, "--turn", "6", "--item", "0"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "Item 0 (request" in said
    assert "is not in the prompt of turn 6" in said
    assert "sliding_window" in said
    assert "to keep it" in said


def test_explain_answers_from_jaeger_what_would_have_kept_an_item_of_the_allocator(stack, agents, capsys):
    arguments = ["explain", "--jaeger", stack.jaeger.url, "--conversation", "trip-7", "--turn", "2", "--item", "0"]
    assert main([*arguments, "--service", PLANNER]) == 0
    said = capsys.readouterr().out
    assert "is not in the prompt of turn 2" in said
    assert "over_budget" in said
    assert "to keep it" in said


def test_view_draws_the_conversation_from_jaeger(stack, agents, tmp_path, capsys):
    page = tmp_path / "support.html"
    assert main(["view", "--jaeger", stack.jaeger.url, "--service", SUPPORT, "-o", str(page)]) == 0
    assert "10 turns" in capsys.readouterr().out
    assert "refund-limit" in page.read_text(encoding="utf-8")


# Service performance monitoring


@pytest.fixture(scope="module")
def monitored(stack, agents):
    """What the page "Monitor" shows is there: a rate needs two samples."""

    def asked(what, **more):
        # One process that has ended makes a rate of nothing: look over the hour, as the page can.
        query = {"service": SUPPORT, "groupByOperation": "true", "spanKind": "internal", **more}
        query |= {"ratePer": 600_000, "step": 5_000, "lookback": 600_000, "endTs": int(time.time() * 1000)}
        metrics = stack.jaeger.get(f"/api/metrics/{what}?{urlencode(query)}")["metrics"]
        found = {}
        for metric in metrics:
            values = [point["gaugeValue"]["doubleValue"] for point in metric["metricPoints"]]
            numbers = [float(value) for value in values if value != "NaN"]
            labels = {label["name"]: label["value"] for label in metric["labels"]}
            if numbers:
                found[labels["operation"]] = numbers[-1]
        return found

    wait_until(lambda: len(asked("calls")) >= 6, seconds=90, what="calls of six operations", every=1)
    return asked


def test_the_monitor_shows_the_rate_of_each_span_name(monitored):
    rates = monitored("calls")
    assert {"assemble_context", "invoke_agent support", *POLICIES} == set(rates)
    assert rates["assemble_context"] == pytest.approx(2 * rates["invoke_agent support"], rel=0.01)
    assert rates["assemble_context"] > 0


def test_the_monitor_shows_latencies_in_milliseconds(monitored):
    latencies = monitored("latencies", quantile=0.95)
    assert 0 < latencies["apply_policy conversation"] <= latencies["invoke_agent support"] < 5_000


def test_the_monitor_shows_the_share_of_errors(monitored):
    errors = monitored("errors")
    assert errors["invoke_agent support"] == pytest.approx(0.2, abs=0.01)
    assert "apply_policy sliding_window" not in errors


def test_the_monitor_is_empty_for_servers_which_is_what_it_shows_first(monitored):
    assert monitored("calls", spanKind="server") == {}


def test_the_monitor_s_numbers_are_those_of_prometheus(stack, monitored):
    calls = stack.prometheus.query(f'traces_span_metrics_calls_total{{service_name="{SUPPORT}"}}')
    counted = sum(float(call["value"][1]) for call in calls if call["metric"]["span_name"] == "assemble_context")
    assert counted == 10
    bucket = f'traces_span_metrics_duration_milliseconds_bucket{{service_name="{SUPPORT}",le="+Inf"}}'
    timed = {series["metric"]["span_name"] for series in stack.prometheus.query(bucket)}
    assert timed == set(monitored("calls"))


def test_a_point_of_the_metrics_from_spans_leads_to_its_trace(stack, monitored):
    durations = f'traces_span_metrics_duration_milliseconds_bucket{{service_name="{SUPPORT}"}}'
    found = stack.prometheus.exemplars(durations)
    traces = {exemplar["labels"]["trace_id"] for each in found for exemplar in each["exemplars"]}
    assert traces
    assert all(stack.jaeger.get(f"/api/traces/{trace}")["data"] for trace in traces)
