"""The telemetry contract: its registry agrees with itself, and its page and its checks with the registry."""

from __future__ import annotations

import enum
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_assembly import DecisionReason, Severity
from otel_assembly.budget import CompactionOutcome, Cut
from otel_assembly.cli import tree_facts
from otel_assembly.decision import DecisionOutcome, OverflowCause, PrefixBreak, PromptPart
from otel_assembly.explain import RULES
from otel_assembly.messages import EventKind
from otel_assembly.policies import INJECTION, REDUCTION
from otel_assembly.sessions import Expectation, PostOutcome
from otel_assembly.telemetry import (
    attributes,
    conventions_metrics,
    document,
    event_violations,
    metric_violations,
    span_type,
    violations,
)
from otel_assembly.telemetry import conventions as c
from otel_assembly.telemetry import conventions_registry as registry
from otel_assembly.telemetry.conventions_environment import ENVIRONMENT
from otel_assembly.telemetry.conventions_registry import Level
from otel_assembly.telemetry.instruments import INSTRUMENTS
from otel_assembly.tokens import Cost, CountMethod

ATTRIBUTES, SPANS, EVENTS, METRICS = registry.attributes(), registry.spans(), registry.events(), registry.metrics()
MODEL_CALL_STAMP = registry.model_call_stamp()
PAGE = Path(__file__).parents[2] / "docs" / "semantic-conventions.md"
TYPES = {"string", "int", "double", "boolean", "string[]", "int[]"}
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+")
OURS = "assembly."
STANDARD = {
    "gen_ai.conversation.id",
    "gen_ai.agent.name",
    "gen_ai.operation.name",
    "gen_ai.system_instructions",
    "gen_ai.conversation.compacted",
    "error.type",
    "exception.type",
    "exception.stacktrace",
}
CONTENT = {c.ARRIVED_CONTENTS, c.GEN_AI_SYSTEM_INSTRUCTIONS}
IDENTITIES = {c.ID, c.LEDGER_ID, c.PREVIOUS_ID, c.GEN_AI_CONVERSATION_ID, c.ALERT_FINGERPRINT, c.PREFIX_HASH}

CONSTANTS = {name: value for name, value in vars(c).items() if name.isupper() and isinstance(value, str)}
EVENT_CONSTANTS = {"EVENT_OVERFLOW", "EVENT_ALERT", "EVENT_HALT", "EVENT_RESUMED", "EVENT_PROVIDER_EDIT"}
ATTRIBUTE_CONSTANTS = {name: value for name, value in CONSTANTS.items() if "." in value and name not in EVENT_CONSTANTS}

ASSEMBLY = {
    c.FORMAT_VERSION: 1,
    c.ID: "5b1f",
    c.LEDGER_ID: "9c03",
    c.TURN: 2,
    c.STEPS: 1,
    c.TOKENS_IN: 900,
    c.TOKENS_OUT: 400,
    c.TOKENS_METHOD: "exact",
    c.TOKENS_ENCODING: "o200k_base",
    c.EVENTS_IN: 5,
    c.EVENTS_OUT: 3,
    c.EVENTS_INJECTED: 0,
    c.PROMPTS_IN: 1,
    c.PROMPTS_OUT: 1,
    c.PROMPT_SOURCES: ["caller"],
    c.PROMPT_TOKENS: [40],
    c.KIND_NAMES: ["prompt", "response", "tool_result", "framing"],
    c.KIND_TOKENS: [40, 31, 310, 19],
    c.BUDGET_LIMIT: 500,
    c.BUDGET_UTILIZATION: 0.8,
    c.OVERFLOWED: False,
    c.ALERTS_DELIVERED: 0,
    c.HALTS_EMITTED: 0,
    c.DROPPED_COUNT: 2,
    c.NEWLY_DROPPED_COUNT: 2,
    c.DROPPED_TOKENS: 500,
    c.COMPACTED_COUNT: 0,
    c.COMPACTED_TOKENS: 0,
    c.INJECTED_TOKENS: 0,
    c.KEPT_ITEMS: ["2-4"],
    c.ARRIVED_ITEMS: ["3", "4"],
    c.ARRIVED_KINDS: ["response", "tool_result"],
    c.ARRIVED_TOKENS: [31, 310],
    c.ARRIVED_BYTES: [118, 1204],
    c.ARRIVED_ATOMS: ["3", "3"],
    c.ARRIVED_CALLS: [1, -1],
    c.ARRIVED_SOURCES: ["", ""],
}

POLICY = {
    c.POLICY_NAME: "sliding_window",
    c.POLICY_INDEX: 0,
    c.POLICY_KIND: "reduction",
    c.POLICY_CONFIG: '{"max_events": 3}',
    **{name: ASSEMBLY[name] for name in (c.TOKENS_IN, c.TOKENS_OUT, c.EVENTS_IN, c.EVENTS_OUT, c.EVENTS_INJECTED)},
    **{name: ASSEMBLY[name] for name in (c.PROMPTS_IN, c.PROMPTS_OUT, c.ALERTS_DELIVERED, c.HALTS_EMITTED)},
    **{
        name: ASSEMBLY[name]
        for name in (c.DROPPED_COUNT, c.NEWLY_DROPPED_COUNT, c.DROPPED_TOKENS, c.COMPACTED_COUNT, c.COMPACTED_TOKENS)
    },
    c.INJECTED_TOKENS: 0,
    c.OVERFLOWED: False,
    c.DROPPED_ITEMS: ["0-1"],
    c.DROPPED_REASONS: ["outside_window"],
}

ALERT = {c.ALERT_SOURCE: "loop", c.ALERT_SEVERITY: "fatal", c.ALERT_FINGERPRINT: "a1", c.ALERT_MESSAGE: "looping"}


def without(attributes, *names):
    return {name: value for name, value in attributes.items() if name not in names}


# The registry


def test_every_constant_is_registered_and_every_registration_has_its_constant():
    assert Counter(ATTRIBUTE_CONSTANTS.values()) == Counter(list(ATTRIBUTES))
    assert all(type(value) is str for value in CONSTANTS.values())


@pytest.mark.parametrize(("constant", "name"), ATTRIBUTE_CONSTANTS.items())
def test_a_constant_is_called_as_its_attribute_is(constant, name):
    assert constant == name.removeprefix(OURS).replace(".", "_").upper()


def test_metrics_have_their_constants_too():
    constants = {name: value for name, value in vars(conventions_metrics).items() if name.isupper()}
    assert constants == {name.removeprefix(OURS).replace(".", "_").upper(): name for name in (m.name for m in METRICS)}


def test_spans_and_events_have_their_constants_too():
    said = {name: value for name, value in CONSTANTS.items() if name.startswith("SPAN_")}
    assert said == {f"SPAN_{span.verb.upper()}": span.verb for span in SPANS}
    assert {CONSTANTS[name] for name in EVENT_CONSTANTS} == {event.name for event in EVENTS}


def test_bounds_that_the_registry_names_are_those_of_the_code():
    assert f"at most {c.MAX_BLOCK_SPANS} blocks" in ATTRIBUTES[c.BLOCKS_NAMES].brief
    assert f"more than {c.MAX_BLOCK_SPANS} blocks" in {use.name: use.when for _, use in all_uses()}[c.BLOCKS_NAMES]
    for name in (c.ALERT_MESSAGE, c.HALT_REASON):
        assert f"at most {c.MAX_ALERT_MESSAGE} characters" in ATTRIBUTES[name].brief


def test_what_is_taken_off_a_span_of_an_unknown_input_is_what_the_registry_excuses():
    excused = {use.name for use in SPANS[0].attributes if use.unless == c.INPUT_UNKNOWN}
    assert set(attributes._INPUT_ATTRIBUTES) == excused


@pytest.mark.parametrize("names", [ATTRIBUTES, [e.name for e in EVENTS], [m.name for m in METRICS]])
def test_names_are_lower_case_dotted_snake_and_ours_but_for_the_standard_ones(names):
    assert len(set(names)) == len(list(names))
    for name in names:
        assert NAME.fullmatch(name), name
        assert name.startswith(OURS) or name in STANDARD, name


def test_no_attribute_is_the_namespace_of_another_but_for_the_model_and_its_window():
    names = set(ATTRIBUTES)
    assert [(a, b) for a in names for b in names if b.startswith(a + ".")] == [(c.MODEL, c.MODEL_WINDOW)]


def test_no_two_attributes_are_one_in_prometheus():
    flat = Counter(name.replace(".", "_") for name in ATTRIBUTES)
    assert [name for name, count in flat.items() if count > 1] == []


def test_types_are_of_the_six():
    for attribute in ATTRIBUTES.values():
        assert attribute.type in TYPES, attribute.name
        assert attribute.brief.endswith("."), attribute.name
        assert not attribute.values or attribute.type in {"string", "string[]"}, attribute.name
        assert not attribute.parallel_to or attribute.type.endswith("[]"), attribute.name


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        (c.DROPPED_REASONS, DecisionReason),
        (c.DROPPED_UNLISTED_REASONS, DecisionReason),
        (c.DECISION_REASON, DecisionReason),
        (c.BLOCKS_REASONS, DecisionReason),
        (c.DECISION_OUTCOME, DecisionOutcome),
        (c.BLOCKS_OUTCOMES, DecisionOutcome),
        (c.BLOCK_KIND, EventKind),
        (c.ARRIVED_KINDS, EventKind),
        (c.KIND_NAMES, [*EventKind, *PromptPart]),
        (c.BLOCK_CUT_STRATEGY, Cut),
        (c.COMPACTION_OUTCOME, CompactionOutcome),
        (c.OVERFLOW_CAUSE, OverflowCause),
        (c.PREFIX_BREAK, PrefixBreak),
        (c.ALERT_SEVERITY, Severity),
        (c.POLICY_KIND, [INJECTION, REDUCTION]),
        (c.TOKENS_METHOD, get_args(CountMethod)),
        (c.GEN_AI_OPERATION_NAME, ["invoke_agent"]),
        (c.COST_PART, Cost._fields),
        (c.POST_OUTCOME, PostOutcome),
        (c.VIOLATION_KIND, get_args(get_type_hints(Expectation)["kind"])),
    ],
)
def test_closed_values_are_those_of_the_code(name, closed):
    assert list(ATTRIBUTES[name].values) == [str(span) for span in closed]


def test_no_other_set_of_values_is_closed():
    (closed,) = [
        mark.args[1] for mark in test_closed_values_are_those_of_the_code.pytestmark if mark.name == "parametrize"
    ]
    assert {name for name, _ in closed} == {name for name, attribute in ATTRIBUTES.items() if attribute.values}


def test_every_reason_is_explained_as_explain_does():
    said = {reason: f"{rule[0].upper()}{rule[1:]}." for reason, rule in RULES.items()}
    assert ATTRIBUTES[c.DECISION_REASON].members == said


def test_what_fills_a_prompt_has_a_name_for_every_kind_of_event():
    assert set(ATTRIBUTES[c.KIND_NAMES].values) > {kind.value for kind in EventKind}


def test_nothing_of_ours_looks_like_a_model_call():
    for name in ATTRIBUTES:
        assert not name.startswith(("gen_ai.usage", "gen_ai.request", "gen_ai.response")), name
    assert ATTRIBUTES[c.GEN_AI_OPERATION_NAME].values == ("invoke_agent",)


def test_no_exception_message_is_registered():
    assert "exception.message" not in ATTRIBUTES


# Spans, events, metrics


def all_uses():
    for signal in (*SPANS, *EVENTS, *METRICS):
        for use in signal.attributes:
            yield getattr(signal, "name", None) or signal.verb, use
    for use in MODEL_CALL_STAMP:
        yield "the model call", use
    for use in registry.traced():
        yield "the run of an agent", use


def test_what_is_used_is_registered_and_what_is_registered_is_used():
    assert {use.name for _, use in all_uses()} == set(ATTRIBUTES)


def test_no_signal_has_an_attribute_twice():
    for signal in (*SPANS, *EVENTS, *METRICS):
        counted = Counter(use.name for use in signal.attributes)
        assert max(counted.values()) == 1, counted.most_common(1)


def test_every_condition_is_said_and_names_an_attribute_of_the_same_signal():
    for signal, use in all_uses():
        beside = {other.name for owner, other in all_uses() if owner == signal}
        assert {name for name in (use.unless, use.given) if name} <= beside, (signal, use.name)
        assert (use.level is Level.CONDITIONAL) == bool(use.when or use.given), (signal, use.name)


def test_content_is_opt_in_wherever_it_stands():
    for signal, use in all_uses():
        assert (use.level is Level.OPT_IN) == (use.name in CONTENT), (signal, use.name)
    assert {use.name for _, use in all_uses()} & set(tree_facts.CONTENT) >= CONTENT


def test_a_parallel_array_stands_wherever_the_array_beside_it_does():
    for span in SPANS:
        held = {use.name for use in span.attributes}
        for attribute in ATTRIBUTES.values():
            if attribute.parallel_to in held and attribute.name not in CONTENT:
                assert attribute.name in held, (span.verb, attribute.name)


def test_a_span_stays_under_the_sdks_default_limit_of_attributes():
    assert all(len(span.attributes) < 128 for span in SPANS)


def test_spans_are_internal_and_told_apart_by_their_first_word():
    assert {span.kind for span in SPANS} == {"INTERNAL"}
    assert len({span.verb for span in SPANS}) == len(SPANS)
    assert {use.name for span in SPANS for use in span.attributes} >= {span.named_by for span in SPANS} - {""}
    assert {event for span in SPANS for event in span.events} == {event.name for event in EVENTS}


def test_no_metric_is_split_by_a_conversation_or_an_item():
    for metric in METRICS:
        for use in metric.attributes:
            attribute = ATTRIBUTES[use.name]
            assert attribute.name not in IDENTITIES
            assert not attribute.name.endswith(".id")
            assert attribute.type == "string", (metric.name, attribute.name)
            assert attribute.name not in CONTENT


def test_histograms_have_rising_buckets_and_counters_none():
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.instrument == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        assert all(type(edge) is float for edge in metric.buckets), metric.name


def test_an_attribute_and_a_metric_of_one_name_mean_the_same():
    assert {metric.name for metric in METRICS} & set(ATTRIBUTES) == {c.ALERTS_DELIVERED, c.BUDGET_UTILIZATION}


def test_our_variables_have_our_prefix_and_a_default_among_their_values():
    assert len({variable.name for variable in ENVIRONMENT}) == len(ENVIRONMENT)
    for variable in ENVIRONMENT:
        assert variable.name.startswith("OTEL_ASSEMBLY_") != variable.standard, variable.name
        assert not variable.values or variable.default in variable.values, variable.name


# Checking what was emitted


@pytest.mark.parametrize(
    ("span", "attributes", "events"),
    [
        ("assemble_context", ASSEMBLY, []),
        ("apply_policy sliding_window", POLICY, [("assembly.alert", ALERT)]),
        ("apply_policy sliding_window", POLICY, [("assembly.alert", without(ALERT, c.ALERT_MESSAGE))]),
        ("list_items", {c.KEPT_ITEMS: ("9-12", "14")}, []),
        ("invoke_agent", {c.GEN_AI_OPERATION_NAME: "invoke_agent"}, []),
        (
            "invoke_agent desk",
            {c.GEN_AI_OPERATION_NAME: "invoke_agent", c.GEN_AI_AGENT_NAME: "desk", c.ERROR_TYPE: "assembly_halt"},
            [("assembly.halt", {c.HALT_SOURCE: "loop"})],
        ),
    ],
)
def test_a_good_span_has_no_violations(span, attributes, events):
    assert violations(span, attributes, events) == []


def test_a_good_span_is_still_good_when_the_sdk_has_exported_it():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer(c.SCOPE).start_as_current_span(
        "apply_policy sliding_window", attributes=POLICY
    ) as open_span:
        open_span.add_event(c.EVENT_ALERT, ALERT)
    (span,) = exporter.get_finished_spans()
    assert violations(span.name, span.attributes, [(event.name, event.attributes) for event in span.events]) == []


class Reason(enum.StrEnum):
    FIRST = "first"


class NumberLikeNumPys(int):
    pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"assembly.surprise": 1}, "'assembly.surprise' is not a registered attribute"),
        ({c.POLICY_NAME: "x"}, "'assembly.policy.name' is registered, but not for this name"),
        ({c.TURN: True}, "'assembly.turn' should be int, is bool"),
        ({c.TURN: 2.0}, "'assembly.turn' should be int, is float"),
        ({c.TURN: NumberLikeNumPys(2)}, "'assembly.turn' should be int, is NumberLikeNumPys"),
        ({c.TURN: None}, "'assembly.turn' should be int, is NoneType"),
        ({c.BUDGET_UTILIZATION: 1}, "'assembly.budget.utilization' should be double, is int"),
        ({c.ARRIVED_ITEMS: [3, 4]}, "'assembly.arrived.items' should be string[], is list[int]"),
        ({c.ARRIVED_TOKENS: [3, True]}, "'assembly.arrived.tokens' should be int[], is list[bool, int]"),
        ({c.KEPT_ITEMS: "2-4"}, "'assembly.kept.items' should be string[], is str"),
        ({c.PREFIX_BREAK: Reason.FIRST}, "'assembly.prefix.break' should be string, is Reason"),
        ({c.TOKENS_METHOD: "guessed"}, "'assembly.tokens.method' must not be 'guessed'"),
        ({c.ARRIVED_KINDS: ["response", "noise"]}, "'assembly.arrived.kinds' must not be 'noise'"),
        ({c.ARRIVED_BYTES: [118]}, "'assembly.arrived.bytes' has 1 entries, 'assembly.arrived.items' has 2"),
        ({c.OVERFLOWED: True}, "'assembly.overflow.cause' is missing, which 'assembly.overflowed' requires"),
        ({c.EVENTS_OUT: 4}, "events in + injected = 5, out + dropped + compacted = 6"),
        ({c.TOKENS_OUT: 401}, "'assembly.kind.tokens' sums to 400, 'assembly.tokens.out' is 401"),
    ],
)
def test_what_is_wrong_with_a_span_is_said(change, said):
    assert violations("assemble_context", ASSEMBLY | change) == [f"assemble_context: {said}"]


@pytest.mark.parametrize("use", SPANS[0].attributes, ids=lambda use: use.name)
def test_a_required_attribute_is_missed(use):
    missed = [p for p in violations("assemble_context", without(ASSEMBLY, use.name)) if f"{use.name!r} is missing" in p]
    needed = use.level is Level.REQUIRED or (use.given in ASSEMBLY and ASSEMBLY[use.given] is not False)
    assert bool(missed) == needed


def test_where_the_input_is_unknown_its_numbers_may_be_left_out():
    counts = {use.name for use in SPANS[0].attributes if use.unless == c.INPUT_UNKNOWN}
    partial = without(ASSEMBLY, *counts)
    assert len(violations("assemble_context", partial)) == len(counts)
    assert violations("assemble_context", partial | {c.INPUT_UNKNOWN: True}) == []


@pytest.mark.parametrize("span", ["apply_policy", "apply_policy window", "apply_policy sliding_window 2"])
def test_a_span_is_named_after_its_policy(span):
    assert violations(span, POLICY) == [f"{span}: its name should be 'apply_policy sliding_window'"]
    assert span_type(span).named("sliding_window") == "apply_policy sliding_window"


def test_a_foreign_span_is_not_ours():
    assert violations("chat gpt-4o", {}) == ["'chat gpt-4o' is not a registered span"]
    assert span_type("chat gpt-4o") is None


def test_what_is_wrong_with_an_event_is_said():
    assert violations("list_items", {}, [("assembly.alert", ALERT)]) == [
        "list_items: event 'assembly.alert' is registered, but not for this name"
    ]
    assert violations("apply_policy sliding_window", POLICY, [("assembly.alert", without(ALERT, c.ALERT_SOURCE))]) == [
        "apply_policy sliding_window: assembly.alert: 'assembly.alert.source' is missing"
    ]
    assert event_violations("assembly.halt", {c.HALT_SOURCE: 3}) == [
        "assembly.halt: 'assembly.halt.source' should be string, is int"
    ]
    assert event_violations("exception", {}) == ["'exception' is not a registered event"]


def test_what_is_wrong_with_a_data_point_is_said():
    dropped = {c.POLICY_NAME: "sliding_window", c.DECISION_REASON: "outside_window"}
    assert metric_violations("assembly.items.dropped", "counter", dropped) == []
    assert metric_violations("assembly.items.dropped", "histogram", dropped) == [
        "assembly.items.dropped: is a histogram, registered as a counter"
    ]
    assert metric_violations("assembly.items.dropped", "counter", without(dropped, c.POLICY_NAME)) == [
        "assembly.items.dropped: 'assembly.policy.name' is missing"
    ]
    assert metric_violations("assembly.halts", "counter", {c.GEN_AI_CONVERSATION_ID: "c-1"}) == [
        "assembly.halts: 'gen_ai.conversation.id' is registered, but not for this name"
    ]
    assert metric_violations("assembly.surprises", "counter", {}) == ["'assembly.surprises' is not a registered metric"]


# The page


def generator(*arguments):
    command = [sys.executable, "-m", "otel_assembly.telemetry.document", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


def test_the_page_is_what_the_registry_says():
    checked = generator("--check", PAGE)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("before", [None, "", "# Semantic conventions\n"])
def test_a_page_that_is_not_says_so_in_one_line_and_is_left_alone(tmp_path, capsys, before):
    page = tmp_path / "page.md"
    if before is not None:
        page.write_text(before, encoding="utf-8")
    assert document.main(["--check", str(page)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(page) in said
    assert (page.read_text(encoding="utf-8") if page.exists() else None) == before


def test_a_page_that_was_written_is_up_to_date(tmp_path):
    page = tmp_path / "page.md"
    assert document.main([str(page)]) == 0
    assert document.main(["--check", str(page)]) == 0


def test_the_table_of_instruments_is_what_the_registry_says(tmp_path, capsys):
    said = [
        (metric.name, metric.instrument, metric.unit, metric.brief, metric.buckets) for metric in registry.metrics()
    ]
    assert list(INSTRUMENTS) == said
    page, table = tmp_path / "page.md", tmp_path / "table.py"
    assert document.main([str(page), str(table)]) == 0
    written = {}
    exec(table.read_text(encoding="utf-8"), written)
    assert written["INSTRUMENTS"] == INSTRUMENTS
    table.write_text("", encoding="utf-8")
    assert document.main(["--check", str(page), str(table)]) == 1
    assert str(table) in capsys.readouterr().err


def test_the_page_names_everything():
    page = PAGE.read_text(encoding="utf-8")
    assert "{{" not in page
    for name in (*ATTRIBUTES, *(m.name for m in METRICS), *(e.name for e in EVENTS), *(v.name for v in ENVIRONMENT)):
        assert f"`{name}`" in page, name
    for span in SPANS:
        assert f"### `{span.name_pattern}`" in page
    for row in (line for line in page.splitlines() if line.startswith("|")):
        assert row.endswith("|"), row


def test_the_page_s_weaver_commands_take_the_folder_that_is_printed():
    """They are not run: Weaver is no Python package, and it fetches what the registry builds on from GitHub."""
    commands = re.findall(r"^weaver registry ([a-z-]+) (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [command for command, _ in commands] == ["check", "generate", "live-check"]
    assert all('-r "$(otel-assembly conventions)"' in arguments for _, arguments in commands)


def test_the_example_on_the_page_adds_up():
    example = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if f"`{c.EVENTS_IN}=" in line]
    assert len(example) == 2
    for row in example:
        numbers = {name: int(value) for name, value in re.findall(r"`([a-z_.]+)=(\d+)`", row)}
        arrived = numbers[c.EVENTS_IN] + numbers[c.EVENTS_INJECTED]
        assert arrived == numbers[c.EVENTS_OUT] + numbers[c.DROPPED_COUNT] + numbers[c.COMPACTED_COUNT]
