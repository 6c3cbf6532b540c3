"""``otel-assembly explain`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import talk
from recorded_jaeger import serving

from otel_assembly.telemetry import read_spans


@pytest.fixture
def explain(run, traces):
    """Explain on the first conversation."""

    def explain(*arguments):
        return run("explain", "--traces", traces, "--conversation", "talk-1", *arguments)

    return explain


def test_a_dropped_item_has_its_policy_its_rule_its_room_and_its_mend(explain, run, transcript):
    said = explain("--turn", 7, "--item", 2)
    assert said.status == 0
    assert said.out.startswith("Item 2 (tool_result, 125 tokens) is not in the prompt of turn 7.\n")
    parts = ("over_budget", "since", "500 tokens", "fixed", "left", "newer items", "also dropped", "to keep it")
    for part in (*parts, "max_tokens="):
        assert part in said.out
    assert all(len(line) <= 80 for line in said.out.splitlines())
    answer = explain("--turn", 7, "--item", 2, "--json").json
    (change,) = answer["raises"]
    for budget, kept in ((change["to"], True), (change["to"] - 1, False)):
        path = transcript.with_name(f"at-{budget}.jsonl")
        assert run("replay", transcript, "--policies", talk.policies(budget), "--export", path, "--json").status == 0
        again = run("explain", "--traces", path, "--conversation", "talk-1", "--turn", 7, "--item", 2, "--json").json
        assert (again["outcome"] == "kept") is kept


def test_the_numbers_add_up(explain):
    answer = explain("--turn", 7, "--item", 2, "--json").json
    limit = answer["limit"]
    assert limit["left"] == limit["limit"] - limit["used"] >= 0
    assert sum(competitor["tokens"] for competitor in answer["competitors"]) == answer["competitors_tokens"]
    assert answer["policy"] == "token_budget"
    assert answer["index"] == 1


def test_a_kept_item_has_its_place(explain):
    answers = [explain("--turn", 7, "--item", item, "--json").json for item in (12, 13, 14)]
    standings = [answer["standing"] for answer in answers]
    assert [standing["position"] for standing in standings] == sorted(standing["position"] for standing in standings)
    wholes = {s["tokens_before"] + a["tokens"] + s["tokens_after"] for s, a in zip(standings, answers, strict=True)}
    assert len(wholes) == 1
    assert answers[0]["reason"] == "fits"
    said = explain("--turn", 7, "--item", 14)
    assert said.out.startswith("Item 14 (tool_result, 125 tokens) is in the prompt of turn 7.\n")
    for part in ("position", "before it", "after it", "cache"):
        assert part in said.out


def test_what_comes_later_had_not_arrived(explain):
    said = explain("--turn", 1, "--item", 9)
    assert said.status == 0
    assert "had not arrived by turn 1: it is first recorded on turn 5" in said.out.replace("\n", " ")


def test_without_an_item_everything_that_is_out_is_listed(explain):
    said = explain("--turn", 7)
    assert said.status == 0
    assert "token_budget" in said.out
    assert "over_budget" in said.out
    assert all(len(line) <= 80 for line in said.out.splitlines())
    (group,) = explain("--turn", 7, "--json").json
    assert all(explain("--turn", 7, "--item", item, "--json").json["outcome"] == "dropped" for item in group["items"])
    assert "No item is missing" in explain("--turn", 0).out


def test_a_text_is_found_in_the_transcript(explain, transcript):
    said = explain("--turn", 7, "--find", "fact 0", "--transcript", transcript, "--json")
    assert said.json["item"] == "2"
    assert said.json["outcome"] == "dropped"


def test_several_places_of_a_text_are_the_choices(explain, transcript):
    said = explain("--turn", 7, "--find", "Answer", "--transcript", transcript)
    assert said.status == 2
    assert said.out == ""
    first, *choices = said.err.splitlines()
    assert "3 items contain the text" in first
    assert [line.split(",")[0].strip() for line in choices] == ["--item 3", "--item 7", "--item 11"]
    assert all("Answer" in line for line in choices)


def test_captured_content_is_searched(run, tmp_path, monkeypatch, transcript):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    path = tmp_path / "with-content.jsonl"
    assert run("replay", transcript, "--policies", talk.policies(500), "--export", path, "--json").status == 0
    said = run("explain", "--traces", path, "--conversation", "talk-1", "--turn", 7, "--find", "FACT 1.", "--json")
    assert said.json["item"] == "6"


def test_without_content_there_is_nothing_to_search(explain):
    said = explain("--turn", 7, "--find", "Fact")
    assert said.status == 2
    assert "--transcript" in said.err


def test_a_transcript_of_another_conversation_is_refused(explain, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"id": "talk-1", "messages": talk.messages()[1:]}) + "\n")
    said = explain("--turn", 7, "--find", "Fact", "--transcript", path)
    assert said.status == 2
    assert "another conversation" in said.err


def test_several_conversations_are_the_choices(run, traces):
    said = run("explain", "--traces", traces, "--turn", 0)
    assert said.status == 2
    assert "found 2 conversations" in said.err
    parts = ("conversation talk-1", "conversation talk-2", "agent replay", "turns 0 to 7")
    assert [part in said.err for part in parts] == [True] * 4
    ledger = said.err.split("--ledger ")[2].split(",")[0]
    assert run("explain", "--traces", traces, "--turn", 0, "--ledger", ledger).status == 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--turn", "99"], 1, "has no turn 99; the spans record turns 0 to 7"),
        (["--turn", "7", "--item", "99"], 1, "has no item 99; the spans record items 0-14"),
        (["--turn", "x"], 2, "must be a whole number"),
        (["--turn", "-1"], 2, "must be a whole number"),
        (["--turn", "0", "--item", "1", "--find", "a"], 2, "not allowed with"),
        (["--turn", "0", "--transcript", "x.jsonl"], 2, "x.jsonl"),
        (["--turn", "0", "--trace", "xyz"], 2, "must be a trace id"),
        (["--turn", "0", "--trace", "abc"], 1, "no assembly has the trace"),
        (["--overflowed"], 1, "no turn overflowed"),
        (["--agent", "nobody"], 1, "no conversation has the agent 'nobody'; there are: replay"),
        (["--turn", "0", "--lookback", "2d"], 2, "--jaeger"),
        (["--turn", "0", "--ledger", "zz"], 1, "no ledger has the id"),
        (["--turn", "7", "--find", ""], 2, "needs a text"),
    ],
)
def test_what_cannot_be_answered_is_one_line(explain, transcript, arguments, status, said):
    if "--find" in arguments and "" in arguments:
        arguments = [*arguments, "--transcript", transcript]
    told = explain(*arguments)
    assert told.status == status
    assert said in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_a_file_that_is_not_there_is_one_line(run):
    said = run("explain", "--traces", "nowhere.jsonl", "--turn", 0)
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert "nowhere.jsonl" in said.err
    said = run("explain", "--traces", "nowhere.jsonl", "--turn", 0, "--conversation", "x")
    assert said.status == 2


def test_an_unknown_conversation_is_status_1(run, traces):
    said = run("explain", "--traces", traces, "--turn", 0, "--conversation", "talk-9")
    assert (said.status, "talk-9" in said.err) == (1, True)


def test_a_jaeger_says_what_a_file_says(run, explain):
    def told(said):
        return {name: value for name, value in said.json.items() if name not in {"ledger"}}

    with serving() as jaeger:
        where = ("explain", "--jaeger", jaeger.url, "--lookback", "9999d", "--conversation", "talk-1")
        for item in (2, 6, 14):
            there = run(*where, "--turn", 7, "--item", item, "--json")
            assert there.status == 0
            assert told(there) == told(explain("--turn", 7, "--item", item, "--json"))
        assert run(*where, "--turn", 7, "--service", "nobody").status == 2
    assert run("explain", "--jaeger", "nonsense", "--turn", 7).status == 2


def test_not_a_word_of_the_conversation_is_printed(explain, traces):
    words = ("Question", "Fact", "Answer", "주문", "how does it work", talk.SYSTEM)
    told = "".join(
        said.out + said.err
        for item in range(15)
        for said in (explain("--turn", 7, "--item", item), explain("--turn", 7, "--item", item, "--json"))
    )
    told += explain("--turn", 7).out + explain("--turn", 7, "--find", "zzz").err
    assert not [word for word in words if word in told]
    assert len(list(read_spans(traces))) > 0


def test_what_a_span_says_cannot_move_the_cursor(run, traces, tmp_path):
    evil = tmp_path / "evil.jsonl"
    text = traces.read_text(encoding="utf-8").replace('"token_budget"', '"token\\u001b[2Jbudget"')
    evil.write_text(text, encoding="utf-8")
    said = run("explain", "--traces", evil, "--conversation", "talk-1", "--turn", 7, "--item", 2)
    assert "\x1b" not in said.out + said.err
    assert "not known" in said.out


def test_the_list_of_a_turn_that_overflowed_says_what_did_not_fit(run, tmp_path):
    recorded = Path(__file__).parents[2] / "examples" / "conversations.jsonl"
    spans = tmp_path / "tight.jsonl"
    assert run("replay", recorded, "--budget", "250", "--export", spans, "--json").status == 0
    said = run("explain", "--traces", spans, "--overflowed").out
    first, second, *_ = said.splitlines()
    assert first == "Turn 6 overflowed: newest atom: 1 token over the budget of 250."
    assert second == "Not in the prompt of turn 6: 3 items."
    assert "overflowed" not in run("explain", "--traces", spans, "--conversation", "broken-shade", "--turn", "5").out
