"""Logs of Codex CLI, Gemini CLI and OpenHands, of several versions."""

from __future__ import annotations

import json

import pytest
from read_logs import prompts, read, read_one

from otel_assembly import describe

# Codex CLI


def rollout(kind, **payload):
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def item(role, value):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": value}]}


def response_item(value):
    return rollout("response_item", **value)


META = rollout("session_meta", id="c-1", cli_version="0.77.0", base_instructions={"text": "Be brief."})
ENVIRONMENT = item("user", "<environment_context/>")
CALL = {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "k1"}
OUTPUT = {"type": "function_call_output", "call_id": "k1", "output": "ok"}
ASK, DONE, NEXT, END = (
    item("user", "Build."),
    item("assistant", "Built."),
    item("user", "Test."),
    item("assistant", "Fine."),
)
SUMMARY = item("user", "Summary: built.")


@pytest.mark.parametrize(
    ("payload", "after"),
    [
        ({"message": "Summary: built."}, [ASK, SUMMARY]),
        ({"message": "Summary: built.", "replacement_history": [ASK, SUMMARY]}, [ASK, SUMMARY]),
        ({"message": "", "replacement_history": [{"type": "compaction", "encrypted_content": "gAAA"}]}, None),
    ],
    ids=["without history", "with history", "encrypted"],
)
def test_a_compaction_of_codex_replaces_the_items(write, payload, after):
    first = [ENVIRONMENT, ASK, {"type": "reasoning", "summary": [], "encrypted_content": "g"}, CALL, OUTPUT, DONE]
    records = [META, *map(response_item, first), rollout("compacted", **payload), *map(response_item, [NEXT, END])]
    found = read_one(write("r.jsonl", *records))
    after = after or payload["replacement_history"]
    assert (found.id, found.format, found.prompts, found.unknown) == ("c-1", "Codex CLI", ["Be brief."], ("tools",))
    assert prompts(found) == {"1": first[:2], "2": first[:5], "3": [*after, NEXT]}
    assert found.calls[-1].reduction.before == first
    assert describe(found.calls[-1].reduction.created[-1]).kind == "summary"


def test_codex_rolls_back_turns_and_ignores_its_own_records(write):
    turns = [ENVIRONMENT, ASK, DONE, NEXT, END]
    rest = [
        rollout("event_msg", type="thread_rolled_back", num_turns=1),
        *map(response_item, [item("user", "Stop."), END]),
    ]
    silent = [
        rollout("turn_context", model="gpt-5"),
        rollout("event_msg", type="token_count"),
        rollout("mood", level=3),
    ]
    snapshot = response_item({"type": "ghost_snapshot", "ghost_commit": {}})
    found = read_one(write("r.jsonl", META, *silent, *map(response_item, turns), snapshot, *rest))
    assert list(prompts(found).values())[-1] == [ENVIRONMENT, ASK, DONE, item("user", "Stop.")]
    assert found.skipped == {"record of type 'mood'": 1}


def test_an_early_rollout_has_items_as_lines(write):
    header = {"id": "old", "timestamp": "2025-05-01T00:00:00Z", "instructions": None}
    found = read_one(write("r.jsonl", header, ASK, {"record_type": "state"}, CALL, OUTPUT, DONE))
    assert (found.id, found.unknown) == ("old", ("system prompt", "tools"))
    assert prompts(found) == {"1": [ASK], "2": [ASK, CALL, OUTPUT]}


# Gemini CLI


HEADER = {"sessionId": "g-1", "projectHash": "ab"}
TOOL = {"id": "f1", "name": "ls", "args": {"path": "."}}
RESULT = {"functionResponse": {"id": "f1", "name": "ls", "response": {"output": "a"}}}
CHAT = [
    {"id": "1", "type": "user", "content": [{"text": "List."}]},
    {"id": "2", "type": "gemini", "content": "", "toolCalls": [TOOL | {"status": "success", "result": [RESULT]}]},
    {"id": "3", "type": "gemini", "content": "One file.", "thoughts": [{"subject": "Look"}]},
]
CHAT_PROMPT = [
    {"role": "user", "parts": [{"text": "List."}]},
    {"role": "model", "parts": [{"functionCall": TOOL}]},
    {"role": "user", "parts": [RESULT]},
]


def test_a_chat_of_gemini_cli_is_read_from_lines_and_from_a_document(write):
    running = CHAT[1] | {"toolCalls": [TOOL | {"status": "executing", "result": None}]}
    lines = read_one(write("g.jsonl", HEADER, CHAT[0], running, *CHAT[1:], {"id": "4", "type": "info", "content": "x"}))
    document = read_one(write("g.json", HEADER | {"messages": CHAT}))
    for found in (lines, document):
        assert (found.id, found.unknown) == ("g-1", ("system prompt", "tools"))
        assert prompts(found) == {"2": CHAT_PROMPT[:1], "3": CHAT_PROMPT}
        assert not found.skipped


def test_gemini_cli_rewinds_and_compresses(write):
    more = [{"id": "4", "type": "user", "content": "Delete."}, {"$rewindTo": "4"}]
    more += [{"id": "5", "type": "user", "content": "Show."}, {"id": "6", "type": "gemini", "content": "Hello."}]
    snapshot = [
        {"id": "7", "type": "user", "content": "<state_snapshot/>"},
        {"id": "8", "type": "gemini", "content": "Got it."},
    ]
    end = [{"id": "9", "type": "user", "content": "And?"}, {"id": "10", "type": "gemini", "content": "Ready."}]
    found = read_one(write("g.jsonl", HEADER, *CHAT, *more, {"$set": {"messages": snapshot}}, *end, {"type": "mood"}))

    def said(role, value):
        return {"role": role, "parts": [{"text": value}]}

    calls = prompts(found)
    assert calls["6"] == [*CHAT_PROMPT, said("model", "One file."), said("user", "Show.")]
    assert calls["10"] == [said("user", "<state_snapshot/>"), said("model", "Got it."), said("user", "And?")]
    reduction = found.calls[-1].reduction
    assert (reduction.policy, len(reduction.before), len(reduction.created)) == ("compress", 6, 2)
    assert found.skipped == {"record of type 'mood'": 1}


# OpenHands


def part(value):
    return {"type": "text", "text": value}


def event(name, kind, source="agent", **fields):
    return {"id": name, "kind": kind, "source": source, **fields}


def action(name, call_id, response):
    call = {"id": call_id, "name": "run", "arguments": '{"command": "ls"}'}
    return event(
        name, "ActionEvent", thought=[part("")], tool_name="run", tool_call_id=call_id, tool_call=call,
        llm_response_id=response,
    )  # fmt: skip


def message(name, role, value, **fields):
    source = "user" if role == "user" else "agent"
    return event(name, "MessageEvent", source, llm_message={"role": role, "content": [part(value)]}, **fields)


def observation(name, call_id, value):
    return event(name, "ObservationEvent", "environment", tool_call_id=call_id, observation={"content": [part(value)]})


SYSTEM = event("e0", "SystemPromptEvent", system_prompt=part("Be an engineer."), tools=[])
SYSTEM_MESSAGE = {"role": "system", "content": "Be an engineer."}


def function(call_id):
    return {"id": call_id, "type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}}


def test_a_condensation_of_openhands_removes_events_and_inserts_a_summary(otel_assembly, write):
    events = [
        SYSTEM,
        message("e1", "user", "Count."),
        action("e2", "k1", "r1"),
        action("e3", "k2", "r1"),
        observation("e4", "k1", "10"),
        event("e5", "AgentErrorEvent", "environment", tool_call_id="k2", error="failed"),
        message("e6", "assistant", "Ten.", llm_response_id="r2"),
        event("e7", "ConversationStateUpdateEvent", "environment", key="stats"),
        message("e8", "user", "More?"),
        event(
            "e9", "Condensation", "environment", forgotten_event_ids=["e2", "e3", "e4", "e5", "e6"],
            summary="It has ten.", summary_offset=2, llm_response_id="r3",
        ),
        message("e10", "assistant", "No.", llm_response_id="r4"),
        event("e11", "MoodEvent"),
    ]  # fmt: skip
    path = write("o.jsonl", *events)
    found = read_one(path)
    asked = [SYSTEM_MESSAGE, {"role": "user", "content": "Count."}]
    assert prompts(found) == {
        "r1": asked,
        "r2": [
            *asked,
            {"role": "assistant", "content": None, "tool_calls": [function("k1"), function("k2")]},
            {"role": "tool", "tool_call_id": "k1", "content": "10"},
            {"role": "tool", "tool_call_id": "k2", "content": "failed"},
        ],
        "r4": [*asked, {"role": "user", "content": "It has ten."}, {"role": "user", "content": "More?"}],
    }
    assert found.calls[-1].reduction.call_id == "r3"
    assert found.skipped == {"event of type 'MoodEvent'": 1}
    ran = otel_assembly("replay", path)
    assert "condensation: 4 items" in ran.out
    assert ran.status == 0


@pytest.mark.parametrize(
    "forgotten", [{"forgotten_event_ids": [1, 2]}, {"forgotten_events_start_id": 1, "forgotten_events_end_id": 2}]
)
def test_events_of_openhands_0_are_read(write, forgotten):
    call = {"function_name": "bash", "tool_call_id": "k1", "model_response": {"id": "m", "choices": []}}
    events = [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "Fix."}},
        {
            "id": 1, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "I look."},
            "tool_call_metadata": call,
        },
        {"id": 2, "source": "agent", "cause": 1, "observation": "run", "content": "a.txt"},
        {"id": 3, "source": "agent", "action": "message", "args": {"content": "Fixed."}},
        {
            "id": 4, "source": "agent", "action": "condensation",
            "args": forgotten | {"summary": "looked", "summary_offset": 1},
        },
        {"id": 5, "source": "agent", "action": "finish", "args": {"final_thought": "Done."}},
    ]  # fmt: skip
    found = read_one(write("o.json", events))
    fix = {"role": "user", "content": "Fix."}
    bash = {"id": "k1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    assert prompts(found) == {
        "m": [fix],
        "event 3": [
            fix,
            {"role": "assistant", "content": "I look.", "tool_calls": [bash]},
            {"role": "tool", "tool_call_id": "k1", "content": "a.txt"},
        ],
        "event 5": [fix, {"role": "user", "content": "looked"}, {"role": "assistant", "content": "Fixed."}],
    }


# All


@pytest.mark.realdata
def test_each_prompt_of_the_four_samples_is_rebuilt(samples):
    folder = samples / "coding_agents"
    right = 0
    for path in sorted(folder.glob("*.jsonl")):
        expected = json.loads(path.with_suffix(".prompts.json").read_text())
        found = {}
        for transcript in read(path):
            found |= prompts(transcript)
            # The prompt of a condenser's own call is not in the log.
            found |= {call.reduction.call_id: None for call in transcript.calls if call.reduction}
        found.pop("", None)
        assert found == {str(each["call"]): each["messages"] for each in expected}, path.name
        right += len(expected)
    assert right == 21
