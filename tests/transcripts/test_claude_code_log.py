"""Claude Code's session logs, of several versions."""

from __future__ import annotations

import json
import re

import pytest
from claude_code_session import Session, assistant, call, compacted, result, text, user
from read_logs import prompts, read, read_one

from otel_assembly import describe
from otel_assembly.telemetry import read_spans


@pytest.mark.parametrize("logical", [False, True], ids=["1.0", "2.0"])
def test_a_compaction_replaces_the_messages_before_it(write, logical):
    found = read_one(write("s.jsonl", *compacted(logical=logical).lines))
    whole = [
        user("Sort the list."),
        assistant(text("I read."), call("t1", path="list.txt")),
        user([result("t1", "b a")]),
    ]
    assert (found.id, found.format) == ("s-1", "Claude Code")
    assert prompts(found) == {
        "m1": whole[:1],
        "m2": whole,
        "m3": [user("Summary: the list is sorted."), user("Reverse it.")],
    }
    *before, last = found.calls
    assert [each.reduction for each in before] == [None, None]
    assert last.reduction.policy == "compact"
    assert last.reduction.before == [*whole, assistant(text("Sorted."))]
    assert last.reduction.settings == {"logged_tokens_before": 900, "logged_tokens_after": 80}
    assert describe(last.messages[0]).kind == "summary"


def test_a_replay_shows_the_compaction_as_a_step_with_the_sources_of_the_summary(otel_assembly, write, tmp_path):
    path = write("s.jsonl", *compacted(logical=True).lines)
    ran = otel_assembly("replay", path, "--export", "spans.jsonl")
    assert ran.status == 0, ran.err
    assert re.search(r"compact: 4 items, \d+\s+tokens, compacted", ran.out)
    assert "Unknown, because the log does not contain them: system prompt, tools." in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    (step,) = [span for span in read_spans(tmp_path / "spans.jsonl") if span.name == "apply_policy compact"]
    assert list(step.attributes["assembly.compacted.items"]) == ["0-3"]
    ran = otel_assembly("replay", path, "--json")
    assert (ran.json["turns"], ran.json["unknown"]) == (3, ["system prompt", "tools"])


def test_a_policy_is_applied_after_the_recorded_compaction(otel_assembly, write, tmp_path):
    path = write("s.jsonl", *compacted(logical=True).lines)
    ran = otel_assembly("replay", path, "--budget", 30, "--json", "--export", "spans.jsonl")
    assert ran.status == 0, ran.err
    assert ran.json["dropped"] > 0
    spans = [span for span in read_spans(tmp_path / "spans.jsonl") if span.name.startswith("apply_policy")]
    last = sorted(spans, key=lambda span: span.start_ns)[-3:]
    assert [span.name for span in last] == ["apply_policy compact", "apply_policy conversation", "apply_policy budget"]


def test_a_page_of_a_log_has_each_turn_and_its_texts_on_request(otel_assembly, write, tmp_path):
    path = write("s.jsonl", *compacted(logical=True).lines)
    ran = otel_assembly("view", path)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("wrote assemblies.html: 1 conversation, 3 turns")
    page = (tmp_path / "assemblies.html").read_text(encoding="utf-8")
    assert "s.jsonl:1 (unknown: system prompt, tools)" in page
    assert "Sort the list." not in page
    assert otel_assembly("view", path, "--with-text", path, "-o", "texts.html").err == ""
    assert "Sort the list." in (tmp_path / "texts.html").read_text(encoding="utf-8")


def test_parallel_results_on_other_branches_belong_to_their_response(write):
    session = Session().user("u1", "Go.").answer("a1", "m1", call("t1")).answer("a2", "m1", call("t2"))
    session.user("r1", [result("t1", "one")], parent="a1").user("r2", [result("t2", "two")], parent="a2")
    session.answer("a3", "m2", text("Done."))
    found = read_one(write("s.jsonl", *session.lines))
    assert prompts(found)["m2"] == [
        user("Go."),
        assistant(call("t1"), call("t2")),
        user([result("t1", "one"), result("t2", "two")]),
    ]


def test_a_rewind_leaves_the_other_branch_out(write):
    session = Session().user("u1", "Go.").answer("a1", "m1", text("Where?")).user("u2", "North.")
    session.answer("a2", "m2", text("Cold.")).user("u3", "South.", parent="a1").answer("a3", "m3", text("Warm."))
    assert prompts(read_one(write("s.jsonl", *session.lines)))["m3"] == [
        user("Go."),
        assistant(text("Where?")),
        user("South."),
    ]


def test_each_subagent_is_a_conversation(write):
    session = Session().user("u1", "Go.").answer("a1", "m1", call("t1", "Task"))
    session.user("v1", "Look.", parent=None, isSidechain=True, agentId="ab").answer(
        "v2", "n1", text("Seen."), isSidechain=True, agentId="ab"
    )
    session.user("w1", "Old form.", parent=None, isSidechain=True).answer("w2", "n2", text("Yes."), isSidechain=True)
    session.user("r1", [result("t1", "Seen.")], parent="a1").answer("a2", "m2", text("Done."))
    found = {each.id: prompts(each) for each in read(write("s.jsonl", *session.lines))}
    assert found["s-1/ab"] == {"n1": [user("Look.")]}
    assert found["s-1/w1"] == {"n2": [user("Old form.")]}
    assert list(found["s-1"]) == ["m1", "m2"]


def test_a_compaction_may_keep_the_newest_messages(write):
    session = (
        Session().user("u1", "One.").answer("a1", "m1", text("1")).user("u2", "Two.").answer("a2", "m2", text("2"))
    )
    kept = {"headUuid": "u2", "anchorUuid": "c1", "tailUuid": "a2"}
    metadata = {"trigger": "auto", "preTokens": 90, "preservedSegment": kept}
    session.add(
        "system", "b1", parent=None, logicalParentUuid="a2", subtype="compact_boundary", compactMetadata=metadata
    )
    session.user("c1", "Summary: one.", isCompactSummary=True).user("u3", "Three.").answer("a3", "m3", text("3"))
    last = read_one(write("s.jsonl", *session.lines)).calls[-1]
    assert list(last.messages) == [user("Summary: one."), user("Two."), assistant(text("2")), user("Three.")]


def test_cleared_tool_results_are_a_reduction(otel_assembly, write):
    session = Session().user("u1", "Go.").answer("a1", "m1", call("t1")).user("r1", [result("t1", "long " * 200)])
    session.answer("a2", "m2", call("t2")).user("r2", [result("t2", "short")])
    metadata = {"trigger": "auto", "preTokens": 400, "tokensSaved": 190, "compactedToolIds": ["t1"]}
    session.add("system", "b1", subtype="microcompact_boundary", microcompactMetadata=metadata)
    session.answer("a3", "m3", text("Done."))
    path = write("s.jsonl", *session.lines)
    last = read_one(path).calls[-1]
    assert last.messages[2] == user([result("t1", "[Old tool result content cleared]")])
    assert last.reduction.settings == {"logged_tokens_before": 400, "logged_tokens_saved": 190}
    ran = otel_assembly("replay", path)
    assert re.search(r"microcompact: 1 item, \d+\s+tokens, compacted", ran.out)


def test_edits_of_the_provider_are_a_step_with_their_numbers(otel_assembly, write, tmp_path):
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 3, "cleared_input_tokens": 12_000}
    session = Session().user("u1", "Go.").answer("a1", "m1", text("One."), more={"context_management": None})
    session.user("u2", "On.").answer("a2", "m2", text("Two."), more={"context_management": {"applied_edits": [edit]}})
    path = write("s.jsonl", *session.lines)
    ran = otel_assembly("replay", path, "--export", "spans.jsonl")
    assert "(by the provider): cleared_tool_uses 3" in " ".join(ran.out.split())
    spans = list(read_spans(tmp_path / "spans.jsonl"))
    (step,) = [span for span in spans if span.name == "apply_policy clear_tool_uses_20250919"]
    assert json.loads(step.attributes["assembly.policy.config"])["cleared_input_tokens"] == 12_000
    assert step.attributes["assembly.tokens.in"] == step.attributes["assembly.tokens.out"]


def test_records_about_the_session_may_come_first(write):
    titles = [{"type": "summary", "summary": f"Title {number}", "leafUuid": "a"} for number in range(60)]
    found = read_one(write("s.jsonl", *titles, *compacted(logical=True).lines))
    assert (found.format, len(found.calls)) == ("Claude Code", 3)
    assert not found.skipped


def test_lines_of_a_resumed_session_count_once_and_errors_are_no_responses(write):
    session = Session().user("u1", "Go.").answer("a1", "m1", text("One."))
    session.lines += json.loads(json.dumps(session.lines))
    session.answer("e1", "x", text("API Error"), model="<synthetic>", isApiErrorMessage=True)
    session.user("u2", "Again.").answer("a2", "m2", {"type": "thinking", "thinking": "hm"}, text("Two."))
    found = prompts(read_one(write("s.jsonl", *session.lines)))
    assert list(found) == ["m1", "m2"]
    assert found["m2"] == [user("Go."), assistant(text("One.")), user("Again.")]


def test_records_that_are_not_understood_are_reported(otel_assembly, write):
    session = compacted(logical=True)
    records = [{"type": "summary", "summary": "Lists", "leafUuid": "a4"}, *session.lines, {"type": "mood", "level": 3}]
    path = write("s.jsonl", "{bad", *records, "[1]", end='{"type": "us')
    found = read_one(path)
    assert found.skipped == {
        "line that is not JSON": 1,
        "record of type 'mood'": 1,
        "record that is not an object": 1,
        "incomplete last line": 1,
    }
    ran = otel_assembly("replay", path)
    assert ran.status == 0
    assert "not understood: " in ran.err
    assert "record of type 'mood'" in ran.err


def test_the_log_of_a_subagent_in_its_own_file_is_a_conversation(write):
    session = Session(isSidechain=True, agentId="ab12").user("u1", "Look.").answer("a1", "m1", text("Found."))
    found = read_one(write("agent-ab12.jsonl", *session.lines))
    assert (found.id, prompts(found)) == ("s-1/ab12", {"m1": [user("Look.")]})
