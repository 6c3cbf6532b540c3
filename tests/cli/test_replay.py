"""``otel-assembly replay``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_assembly import describe
from otel_assembly.cli import read_transcripts
from otel_assembly.telemetry import read_spans
from otel_assembly.tokens import TokenMeter, counter_for

TOTALS = [
    "conversations",
    "turns",
    "tokens_in",
    "tokens_out",
    "max_tokens_out",
    "dropped",
    "overflows",
    "orphans",
    "prefix_reuse",
]


def test_a_budget_is_held_and_what_it_cost_is_told(otel_assembly, conversations):
    ran = otel_assembly("replay", conversations, "--budget", 400, "--json")
    assert ran.status == 0
    assert list(ran.json) == TOTALS
    assert ran.json["conversations"] == 3
    assert ran.json["turns"] == 30
    assert 0 < ran.json["max_tokens_out"] <= 400
    assert ran.json["tokens_out"] < ran.json["tokens_in"]
    assert ran.json["dropped"] > 0
    assert ran.json["orphans"] == 0


def test_a_budget_is_the_conversation_and_the_budget_policy(otel_assembly, conversations):
    chain = "conversation,budget:window=400:output_reserve=0"
    budget, policies = otel_assembly("replay", conversations, "--budget", 400, "--policies", chain, "--json").json
    assert (budget.pop("name"), policies.pop("name")) == ("budget-400", "conversation+budget")
    assert budget == policies
    assert budget["budget"] == 400


@pytest.mark.parametrize("exports", [False, True])
def test_a_wrong_order_is_reported_once_for_each_chain(otel_assembly, conversations, tmp_path, caplog, exports):
    chain = "conversation,token_budget:max_tokens=400,episodic_memory"
    export = ("--export", tmp_path / "spans.jsonl") if exports else ()
    ran = otel_assembly("replay", conversations, "--policies", chain, "--budget", 400, "--json", *export)
    assert ran.status == 0
    assert caplog.text.count("'token_budget' (index 1) runs before 'episodic_memory' (index 2)") == 1


def test_what_is_reserved_for_the_reply_is_no_budget(otel_assembly, conversations):
    chain = "conversation,budget:window=500:output_reserve=100"
    rows = otel_assembly("replay", conversations, "--policies", chain, "--budget", 400, "--json").json
    assert [row["budget"] for row in rows] == [400, 400]
    assert rows[0]["tokens_out"] == rows[1]["tokens_out"]


def test_without_a_chain_everything_is_sent(otel_assembly, conversations):
    whole = otel_assembly("replay", conversations, "--json").json
    assert whole["tokens_in"] == whole["tokens_out"]
    assert whole["dropped"] == 0
    assert whole["prefix_reuse"] == 1.0
    meter = TokenMeter(counter_for(None))
    largest = 0
    for transcript in read_transcripts([conversations]):
        *before, _ = transcript.messages
        largest = max(largest, meter.priming + sum(meter.event(describe(message)) for message in before))
    assert whole["max_tokens_out"] == largest


def test_variants_stand_side_by_side(otel_assembly, conversations, tmp_path):
    chain = tmp_path / "chain.yaml"
    chain.write_text("name: mine\npolicies:\n  - conversation\n  - sliding_window: {max_events: 4}\n")
    arguments = ("replay", conversations, "--budget", 4000, "--policies", "conversation", "--config", chain)
    rows = otel_assembly(*arguments, "--json").json
    assert [row["name"] for row in rows] == ["budget-4000", "conversation", "mine"]
    assert [row["budget"] for row in rows] == [4000, None, None]
    assert all(set(row) == {*TOTALS, "name", "budget"} for row in rows)
    text = otel_assembly(*arguments).out
    header = next(line for line in text.splitlines() if "mine" in line)
    assert "budget-4000" in header
    assert "overflowed turns" in text


def test_both_ends_of_a_conversation_can_be_replayed(otel_assembly, conversations):
    ran = otel_assembly("replay", conversations, "--policies", "head_and_tail:head=2:tail=4", "--json")
    assert ran.status == 0
    assert ran.json["tokens_out"] < ran.json["tokens_in"]


def test_two_variants_of_one_name_are_told_apart(otel_assembly, conversations):
    rows = otel_assembly("replay", conversations, "--budget", 400, "--budget", 400, "--json").json
    assert [row["name"] for row in rows] == ["budget-400", "budget-400#2"]


def test_turn_by_turn_it_says_what_left_and_why(otel_assembly, conversations):
    ran = otel_assembly("replay", conversations, "--budget", 400, "--conversation", "talk-2")
    assert ran.status == 0
    assert "talk-2" in ran.out
    assert "talk-0" not in ran.out
    assert "budget: " in ran.out
    assert "over_budget" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100


def test_one_conversation_is_shown_turn_by_turn_unasked(otel_assembly, tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]))
    ran = otel_assembly("replay", path)
    assert "dropped or compacted" in ran.out


def test_a_budget_that_cannot_hold_is_counted_and_the_rest_goes_on(otel_assembly, conversations):
    ran = otel_assembly("replay", conversations, "--budget", 12, "--json")
    assert ran.status == 0
    assert ran.json["overflows"] == ran.json["turns"] == 30
    assert ran.json["max_tokens_out"] == 0
    assert ran.json["tokens_in"] == otel_assembly("replay", conversations, "--json").json["tokens_in"]


def test_spans_go_to_a_file_one_trace_an_ask_and_none_is_lost(otel_assembly, conversations, tmp_path):
    ran = otel_assembly("replay", conversations, "--budget", 400, "--json", "--export", "spans.jsonl")
    assert ran.status == 0
    assert "lost" not in ran.err
    spans = list(read_spans(tmp_path / "spans.jsonl"))
    assemblies = [span for span in spans if span.name == "assemble_context"]
    assert len(assemblies) == 30
    assert len({span.trace_id for span in spans}) == 15
    assert {span.attributes["gen_ai.conversation.id"] for span in assemblies} == {"talk-0", "talk-1", "talk-2"}
    assert {span.attributes["assembly.name"] for span in assemblies} == {"budget-400"}


def test_spans_go_over_otlp_and_none_is_lost(otel_assembly, conversations, receiver):
    endpoint = f"http://127.0.0.1:{receiver.port}"
    ran = otel_assembly(
        "replay", conversations, "--budget", 400, "--json", "--export", "otlp", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint
    )
    assert ran.status == 0, ran.err
    assert "lost" not in ran.err
    names = [span.name for span in receiver.spans()]
    assert names.count("assemble_context") == 30
    assert names.count("invoke_agent replay") == 15


def test_a_dead_endpoint_is_one_line_before_any_work(otel_assembly, conversations):
    ran = otel_assembly("replay", conversations, "--export", "otlp", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert ran.status == 1
    assert ran.out == ""
    assert "http://127.0.0.1:9" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--budget", "0"], "at least 1"),
        (["--budget", "many"], "whole number of tokens"),
        (["--budget", "-5"], "at least 1"),
        (["--policies", "sliding_widow:max_events=3"], "sliding_window"),
        (["--policies", "sliding_window:max_event=3"], "max_events"),
        (["--policies", "sliding_window:max_events=-3"], "at least 1"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_usage_is_status_2_and_says_the_mend(otel_assembly, conversations, arguments, said):
    ran = otel_assembly("replay", conversations, *arguments)
    assert ran.status == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_a_file_that_cannot_be_read_is_status_2_and_one_line(otel_assembly, tmp_path):
    (tmp_path / "torn.jsonl").write_text('{"messages": [{"role": "user"\n')
    for name in ("torn.jsonl", "missing.jsonl"):
        ran = otel_assembly("replay", name)
        assert ran.status == 2
        assert name in ran.err
        assert ran.err.count("\n") == 1


def test_one_bad_line_costs_one_conversation(otel_assembly, conversations):
    lines = conversations.read_text().splitlines()
    conversations.write_text("\n".join([lines[0], '{"messages": 7}', *lines[1:]]) + "\n")
    ran = otel_assembly("replay", conversations, "--json")
    assert ran.status == 1
    assert ran.json["conversations"] == 3
    assert f"{conversations}:2" in ran.err


def test_standard_input_is_replayed(otel_assembly, conversations, monkeypatch):
    with conversations.open(encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        ran = otel_assembly("replay", "-", "--json")
    assert ran.json == otel_assembly("replay", conversations, "--json").json


@pytest.mark.parametrize(("bad", "named"), [(21, 21), (22, 21), (5_000, 21)])
@pytest.mark.parametrize("command", ["replay bad.jsonl", "view bad.jsonl", "explain --traces bad.jsonl --turn 0"])
def test_of_many_errors_some_are_named_and_the_rest_is_a_count(otel_assembly, conversations, command, bad, named):
    one = conversations.read_text(encoding="utf-8").splitlines()[0]
    conversations.write_text(one, encoding="utf-8")
    otel_assembly("replay", conversations, "--export", "spans.jsonl")
    good = conversations if command.startswith("replay") else conversations.with_name("spans.jsonl")
    text = good.read_text(encoding="utf-8").strip()
    good.with_name("bad.jsonl").write_text("{bad}\n" * bad + text, encoding="utf-8")
    lines = otel_assembly(*command.split()).err.splitlines()
    assert sum("not JSON" in line for line in lines) == named
    more = [f"otel-assembly: and {bad - named:,} more problems"] if bad > named else []
    assert [line for line in lines[named:] if "replayed" not in line] == more


def test_a_transcript_without_a_turn_of_an_assistant_says_so(otel_assembly, conversations):
    asked = json.dumps({"id": "asked", "messages": [{"role": "user", "content": "Where is it?"}]})
    conversations.write_text(f"{asked}\n{conversations.read_text(encoding='utf-8')}", encoding="utf-8")
    ran = otel_assembly("replay", conversations, "--budget", 400, "--budget", 900, "--json")
    assert ran.status == 0
    assert ran.json[0]["turns"] == 30
    assert ran.err == "otel-assembly: asked: no assistant turn, so nothing was assembled\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no /dev/full")
def test_what_could_not_be_exported_is_told_of_all(otel_assembly, conversations):
    assert (
        "exported 75 of 75 spans to spans.jsonl\n"
        in otel_assembly("replay", conversations, "--json", "--export", "spans.jsonl").err
    )
    ran = otel_assembly("replay", conversations, "--json", "--export", "/dev/full")
    assert ran.status == 1
    assert "exported 0 of 75 spans to /dev/full, lost 75\n" in ran.err


def test_an_unknown_conversation_is_status_1(otel_assembly, conversations):
    ran = otel_assembly("replay", conversations, "--conversation", "nobody")
    assert ran.status == 1
    assert "nobody" in ran.err


def test_the_model_chooses_the_tokenizer(otel_assembly, conversations):
    counts = {
        model: otel_assembly("replay", conversations, "--json", "--model", model).json["tokens_in"]
        for model in ("gpt-4o", "gpt-4")
    }
    assert counts["gpt-4o"] != counts["gpt-4"]


def test_colours_and_escapes_of_a_transcript_do_not_reach_the_terminal(otel_assembly, tmp_path):
    path = tmp_path / "evil.jsonl"
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    path.write_text(json.dumps({"id": "\x1b[31mred[bold]", "messages": messages}) + "\n")
    ran = otel_assembly("replay", path)
    assert "\x1b" not in ran.out
    assert "red[bold]" in ran.out


@pytest.mark.realdata
def test_real_conversations_at_three_budgets(otel_assembly, real_data):
    rows = otel_assembly("replay", real_data, "--budget", 8000, "--budget", 2000, "--budget", 500, "--json").json
    assert [row["conversations"] for row in rows] == [100, 100, 100]
    assert [row["turns"] for row in rows] == [1229, 1229, 1229]
    assert [row["orphans"] for row in rows] == [0, 0, 0]
    assert [row["overflows"] for row in rows] == [0, 17, 1229]
    assert rows[1]["max_tokens_out"] <= 2000
    assert rows[0]["tokens_in"] == rows[1]["tokens_in"] == rows[2]["tokens_in"]
