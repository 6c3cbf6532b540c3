"""``otel-assembly view``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.command_line import runner
from page_runs import embedded
from transcripts.claude_code_session import compacted, text

REAL_DATA = Path(__file__).parents[3] / "shared" / "data" / "airline_support_dev.jsonl"


@pytest.fixture
def otel_assembly(tmp_path):
    return runner(tmp_path)


@pytest.fixture
def spans(otel_assembly, tmp_path):
    """The spans of two conversations, each under two budgets."""
    talk = [{"role": "system", "content": "You are terse."}]
    for number in range(6):
        talk += [
            {"role": "user", "content": f"Question {number}: " + "how does it work? " * 12},
            {"role": "assistant", "content": f"Answer {number}."},
        ]
    rows = [{"id": name, "messages": talk} for name in ("first", "second")]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = otel_assembly("replay", "talks.jsonl", "--budget", 150, "--budget", 300, "--export", "spans.jsonl")
    assert ran.status == 0, ran.err
    return tmp_path / "spans.jsonl"


def test_it_says_what_it_wrote(otel_assembly, spans, tmp_path):
    ran = otel_assembly("view", spans)
    assert ran.status == 0, ran.err
    assert ran.out.startswith("wrote assemblies.html: 2 conversations (4 ledgers), 24 turns, ")
    data, _ = embedded((tmp_path / "assemblies.html").read_text(encoding="utf-8"))
    assert [conversation["id"] for conversation in data["conversations"]] == ["first", "second"]
    assert [ledger["name"] for ledger in data["conversations"][0]["ledgers"]] == ["budget-150", "budget-300"]
    assert data["title"] == "spans.jsonl"


def test_several_files_are_merged_and_a_second_copy_is_no_second_turn(otel_assembly, spans, tmp_path):
    lines = spans.read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[: len(lines) // 2 + 1]))
    (tmp_path / "b.jsonl").write_text("".join(lines[len(lines) // 2 :]))
    assert otel_assembly("view", spans, "-o", "whole.html").status == 0
    assert otel_assembly("view", "a.jsonl", "b.jsonl", "-o", "parts.html").status == 0
    whole, parts = (embedded((tmp_path / name).read_text(encoding="utf-8"))[0] for name in ("whole.html", "parts.html"))
    assert [conversation["ledgers"] for conversation in whole["conversations"]] == [
        conversation["ledgers"] for conversation in parts["conversations"]
    ]
    assert {conversation["file"] for conversation in parts["conversations"]} <= {"a.jsonl", "b.jsonl"}


def test_a_refused_conversation_is_on_the_page_and_on_standard_error(otel_assembly, tmp_path):
    talk = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
    bad = [{"role": "user", "content": 5}]
    rows = [{"id": "a", "messages": talk}, {"id": "b", "messages": bad}, {"id": "c", "messages": talk}]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "alone.json").write_text(json.dumps({"messages": bad}))
    ran = otel_assembly("view", "talks.jsonl", "alone.json")
    assert ran.status == 0, ran.err
    data, _ = embedded((tmp_path / "assemblies.html").read_text(encoding="utf-8"))
    assert [conversation["id"] for conversation in data["conversations"]] == ["a", "c"]
    first, second = data["refusals"]
    assert first.startswith("talks.jsonl:2: message 0: its 'content' is a")
    assert second.startswith("alone.json:1: ")
    assert ran.err.splitlines() == [f"otel-assembly: {first}", f"otel-assembly: {second}"]
    alone = otel_assembly("view", "alone.json")
    assert (alone.status, alone.err.splitlines()) == (
        1,
        [f"otel-assembly: {second}", "otel-assembly: no assembly in 0 spans"],
    )


def test_the_summary_of_a_log_is_the_same_item_in_later_turns(otel_assembly, tmp_path):
    session = compacted(logical=True).user("u3", "Sort again.").answer("a5", "m5", text("Sorted again."))
    (tmp_path / "s-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in session.lines))
    assert otel_assembly("view", "s-1.jsonl").status == 0
    data, _ = embedded((tmp_path / "assemblies.html").read_text(encoding="utf-8"))
    (ledger,) = data["conversations"][0]["ledgers"]
    assert [turn["kept"] for turn in ledger["turns"][2:]] == [["m0", "4"], ["m0", "4-6"]]


def test_one_conversation_on_stdout(otel_assembly, spans):
    ran = otel_assembly("view", spans, "--conversation", "second", "-o", "-")
    assert ran.status == 0
    data, _ = embedded(ran.out)
    assert [conversation["id"] for conversation in data["conversations"]] == ["second"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "name either span files or --jaeger URL"),
        (["spans.jsonl", "--jaeger", "http://localhost:1"], 2, "name either span files or --jaeger URL"),
        (["spans.jsonl", "--service", "shop"], 2, "--jaeger"),
        (["nowhere.jsonl"], 2, "nowhere.jsonl: no such file"),
        (["odd.jsonl"], 2, "odd.jsonl:1"),
        (["."], 2, "is a folder"),
        (["spans.jsonl", "-o", "no/such/folder/page.html"], 2, "the page cannot be written"),
        (["spans.jsonl", "--conversation", "third"], 1, "no conversation has the id 'third'; there are: first, second"),
        (["spans.jsonl", "--trace-link", "javascript:alert(1)"], 2, "is not a URL of a page of traces"),
        (["spans.jsonl", "--with-text", "nowhere.jsonl"], 2, "nowhere.jsonl: does not exist"),
    ],
)
def test_what_is_wrong_is_one_line(otel_assembly, spans, arguments, status, says):
    spans.with_name("odd.jsonl").write_text('{"neither": "spans nor a conversation"}\n')
    ran = otel_assembly("view", *arguments)
    assert ran.status == status
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


def test_a_line_that_cannot_be_read_costs_only_itself(otel_assembly, spans):
    spans.write_text("not JSON\n" + spans.read_text())
    ran = otel_assembly("view", spans)
    assert ran.status == 0
    assert "spans.jsonl:1: not JSON" in ran.err
    assert "24 turns" in ran.out


def page_data(path):
    return embedded(path.read_text(encoding="utf-8"))[0]


def test_texts_of_the_transcripts_are_shown_where_they_are_asked_for(otel_assembly, spans, tmp_path):
    (tmp_path / "other.jsonl").write_text((tmp_path / "talks.jsonl").read_text().replace("does it", "did it"))
    assert otel_assembly("view", spans, "-o", "none.html").status == 0
    assert page_data(tmp_path / "none.html")["texts"] == []
    ran = otel_assembly("view", spans, "--with-text", "talks.jsonl", "-o", "with.html")
    assert (ran.status, ran.err) == (0, "")
    texts = [text[0] for text in page_data(tmp_path / "with.html")["texts"]]
    assert "Answer 0." in texts
    assert "You are terse." in texts
    ran = otel_assembly("view", spans, "--with-text", "other.jsonl", "-o", "other.html")
    assert "no texts for 4 of 4 ledgers: no conversation in other.jsonl matches the spans" in ran.err
    assert page_data(tmp_path / "other.html")["texts"] == []


def test_a_replay_s_page_shows_texts_and_names_conversations_by_their_files(otel_assembly, spans, tmp_path):
    rows = [json.loads(line) for line in (tmp_path / "talks.jsonl").read_text().splitlines()]
    del rows[1]["id"]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    budgets = ("--budget", 150, "--budget", 300)
    assert otel_assembly("replay", "talks.jsonl", *budgets, "--html", "page.html", "--with-text").status == 0
    data = page_data(tmp_path / "page.html")
    assert [(conversation.get("id"), conversation["file"]) for conversation in data["conversations"]] == [
        ("first", "talks.jsonl:1"),
        (None, "talks.jsonl:2"),
    ]
    for conversation in data["conversations"]:
        for ledger in conversation["ledgers"]:
            assert data["texts"][ledger["items"][1]["x"]] == ["Answer 0."]
    ran = otel_assembly("replay", "talks.jsonl", "--with-text")
    assert ran.status == 2
    assert "--html" in ran.err


def test_a_page_of_spans_names_their_files_and_links_their_traces(otel_assembly, spans, tmp_path):
    assert otel_assembly("view", spans, "--trace-link", "http://localhost:16686", "-o", "page.html").status == 0
    data = page_data(tmp_path / "page.html")
    assert {conversation["file"] for conversation in data["conversations"]} == {"spans.jsonl"}
    assert data["traceLink"] == "http://localhost:16686/trace/{trace}?uiFind={span}"


@pytest.mark.slow
@pytest.mark.realdata
def test_recorded_conversations_make_a_page_of_what_replay_counted(otel_assembly, tmp_path):
    if not REAL_DATA.is_file():
        pytest.skip("the recorded transcripts are not beside this checkout")
    replayed = otel_assembly("replay", REAL_DATA, "--budget", 2000, "--export", "spans.jsonl", "--json")
    totals = json.loads(replayed.out)
    assert otel_assembly("view", "spans.jsonl", "-o", "page.html").status == 0
    data, _ = embedded((tmp_path / "page.html").read_text(encoding="utf-8"))
    turns = [
        turn for conversation in data["conversations"] for ledger in conversation["ledgers"] for turn in ledger["turns"]
    ]
    assert len(data["conversations"]) == totals["conversations"]
    assert len(turns) == totals["turns"]
    assert sum(turn["in"] for turn in turns) == totals["tokens_in"]
    assert sum(turn["out"] for turn in turns) == totals["tokens_out"]
    overflows = sum(signal["what"] == "overflow" for turn in turns for signal in turn.get("signals", []))
    assert overflows == totals["overflows"]
    assert all("problems" not in ledger for conversation in data["conversations"] for ledger in conversation["ledgers"])
