"""A conversation and a turn are chosen by what somebody who was woken knows, in a file and in a busy Jaeger."""

from __future__ import annotations

import json

import pytest
import talk
from recorded_jaeger import TRACES, copies, serving, starts

from otel_assembly.telemetry import read_ledgers, read_spans

OTHERS = 300


@pytest.fixture(scope="module")
def busy():
    """A Jaeger with hundreds of other conversations, three of which overflowed, on eight turns each."""
    with serving(more=copies(OTHERS) | copies(3, "talk-1", overflowed=True)) as server:
        yield server


@pytest.fixture
def asked(busy, run):
    """Run a command on it; what it asked, the traces that it read, and how many it was told of."""

    def asked(command, *arguments):
        busy.asked.clear(), busy.sent.clear()
        busy.searched = 0
        return run(command, "--jaeger", busy.url, "--lookback", "9999d", *arguments)

    return asked


def conversation(name, traces=TRACES):
    return {trace for trace, result in traces.items() if f'"{name}"' in json.dumps(result)}


def test_of_a_conversation_its_own_traces_are_read_and_no_other(asked, busy):
    said = asked("explain", "--conversation", "talk-1", "--turn", 7, "--item", 2, "--json")
    assert (said.status, said.json["outcome"]) == (0, "dropped")
    assert sorted(busy.sent) == sorted(conversation("talk-1"))
    assert len(busy.asked) == 3 + len(busy.sent)
    assert busy.searched == 2 * len(busy.sent)


def test_of_what_overflowed_the_newest_is_explained(asked, busy):
    said = asked("explain", "--overflowed")
    assert said.status == 0
    assert "agent replay" in said.err
    assert "overflowed 0-7" in said.err
    assert len(busy.sent) == len(conversation("talk-1"))
    assert len(busy.asked) == 3 + len(busy.sent)
    assert asked("explain", "--overflowed", "--turn", 3).err.startswith("otel-assembly: turn 3 of ")


def test_of_a_trace_its_conversation_is_read_and_its_turn_explained(asked, busy):
    trace = max(conversation("talk-1"), key=starts)
    said = asked("explain", "--trace", trace, "--turn", 7, "--item", 2, "--json")
    assert (said.json["turn"], said.json["outcome"], said.json["conversation"]) == (7, "dropped", "talk-1")
    assert set(busy.sent) == conversation("talk-1")
    assert len(busy.asked) == 2 + len(conversation("talk-1"))
    choices = asked("explain", "--trace", trace)
    assert choices.status == 2
    assert [line.split(",")[0].strip() for line in choices.err.splitlines()[1:]] == ["--turn 6", "--turn 7"]
    assert asked("explain", "--trace", "abc").status == 1


def test_without_a_choice_the_newest_are_listed_and_none_is_read(asked, busy):
    said = asked("explain", "--turn", 0)
    assert said.status == 2
    assert "select one with --conversation, --agent, --assembler, --ledger, --trace or --overflowed" in said.err
    assert (busy.sent, busy.searched, len(busy.asked)) == ([], 200, 2)


def test_a_page_holds_the_newest_and_says_how_many_there_are(asked, busy, tmp_path):
    page = tmp_path / "page.html"
    said = asked("view", "-o", page)
    assert said.status == 0
    assert "the newest 20 of" in said.err
    assert "20 conversations" in said.out
    assert len(busy.sent) <= 80
    assert len(busy.asked) <= 2 + 20 + 80


def test_a_page_of_what_overflowed_holds_that_alone(asked, busy, tmp_path):
    said = asked("view", "--overflowed", "-o", tmp_path / "page.html")
    assert "3 conversations, 24 turns" in said.out
    assert len(busy.sent) == 3 * len(conversation("talk-1"))


def test_what_is_not_there_is_said_with_what_was_looked_for(asked, busy):
    said = asked("explain", "--agent", "nobody", "--overflowed")
    assert (said.status, busy.sent) == (1, [])
    assert "no overflowed turn of the agent 'nobody' in the last 9999d" in said.err


def test_a_jaeger_that_cannot_search_by_an_attribute_is_read_all_the_same(run):
    with serving(without="/api/traces") as newer:
        where = ("--jaeger", newer.url, "--lookback", "9999d", "--turn", 7)
        assert run("explain", *where, "--conversation", "talk-1").status == 0
        trace = max(conversation("talk-1"), key=starts)
        assert run("explain", *where, "--trace", trace).status == 0


# In a file


@pytest.fixture
def tight(run, transcript, tmp_path):
    """The spans of a replay at two budgets, one of which the conversation is over on half of its turns."""
    path = tmp_path / "tight.jsonl"
    assert run("replay", transcript, "--budget", 200, "--budget", 500, "--export", path, "--json").status == 0
    return path


def test_the_list_has_agents_and_marks(run, tight):
    said = run("explain", "--traces", tight, "--turn", 0)
    assert said.status == 2
    lines = [line for line in said.err.splitlines() if "conversation talk-1" in line]
    assert len(lines) == 2
    assert all("agent replay" in line and "turns 0 to 7" in line for line in lines)
    assert [line.partition(": ")[2] for line in lines].count("overflowed 1, 3, 5, 7") == 1


def test_an_assembler_is_chosen_by_its_name_and_what_overflowed_by_that(run, tight):
    ledgers = read_ledgers(read_spans(tight)).values()
    names = {ledger.turns[0].attributes["assembly.name"] for ledger in ledgers}
    assert len(names) == 2
    for name in names:
        where = ("explain", "--traces", tight, "--conversation", "talk-1", "--assembler", name)
        said = run(*where, "--turn", 7, "--item", 2, "--json")
        assert (said.status, said.json["outcome"]) == (0, "dropped")
    said = run("explain", "--traces", tight, "--conversation", "talk-1", "--overflowed", "--item", 14, "--json")
    assert (said.json["turn"], said.json["limit"]["limit"]) == (7, 200)
    assert "the newest of 4 that overflowed" in said.err
    assert run("explain", "--traces", tight, "--overflowed", "--turn", 0).status == 1


def test_a_file_is_chosen_by_its_name_also_where_it_names_no_conversation(run, tmp_path):
    files = []
    for number, questions in enumerate((1, 3)):
        files.append(tmp_path / f"talk-{number}.json")
        files[-1].write_text(json.dumps(talk.messages(questions)), encoding="utf-8")
    spans = tmp_path / "spans.jsonl"
    assert run("replay", *files, "--budget", 500, "--export", spans, "--json").status == 0
    assert run("explain", "--traces", spans, "--turn", 0).status == 2
    for file, last in zip(files, (1, 5), strict=True):
        said = run("explain", "--traces", spans, "--transcript", file)
        assert (said.status, len(said.err.splitlines())) == (2, 1 + 1 + last)
        assert run("explain", "--traces", spans, "--transcript", file, "--turn", last).status == 0
    page = tmp_path / "page.html"
    assert "1 conversation, 6 turns" in run("view", spans, "--transcript", files[1], "-o", page).out
    other = tmp_path / "other.json"
    other.write_text(json.dumps(talk.messages(2)[1:]), encoding="utf-8")
    assert run("view", spans, "--transcript", other, "-o", page).status == 1


def test_a_turn_is_chosen_by_its_trace_in_a_file_too(run, traces):
    ledger = max(read_ledgers(read_spans(traces)).values(), key=lambda value: len(value.turns))
    trace = ledger.turn(7).trace_id
    said = run("explain", "--traces", traces, "--trace", trace.upper())
    assert said.status == 2
    assert [line.split(",")[0].strip() for line in said.err.splitlines()[1:]] == ["--turn 6", "--turn 7"]
    assert run("explain", "--traces", traces, "--trace", trace, "--turn", 7).status == 0
