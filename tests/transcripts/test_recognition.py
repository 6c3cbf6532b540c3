"""Recognizing the format of a file: the nearest format, formats of other packages, and damaged files."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, entry_points

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_assembly.transcripts.transcript_format as formats_module
from otel_assembly.errors import ConfigurationError, TranscriptError
from otel_assembly.transcripts import (
    Check,
    Conversation,
    TranscriptFormat,
    has_keys,
    installed_formats,
    read_transcripts,
)


def problem(path):
    (error,) = read_transcripts([path])
    assert isinstance(error, TranscriptError)
    return error.problem


@pytest.mark.parametrize(
    ("record", "nearest", "needs"),
    [
        ({"sessionId": "s", "kind": "x"}, "Claude Code", "a record with 'uuid', 'parentUuid' and a 'type'"),
        ({"timestamp": "t", "payload": {}, "type": "x"}, "Codex CLI", "a record of type 'session_meta'"),
        ({"appName": "a", "state": {}}, "Google ADK session", "a list 'events'"),
        ({"run_type": "llm"}, "LangSmith runs", "runs with 'inputs'"),
    ],
)
def test_an_unknown_file_names_the_nearest_format_and_its_unmet_condition(write, record, nearest, needs):
    found = problem(write("a.jsonl", record, record))
    assert f"the nearest format is {nearest}, which needs {needs}" in found
    tried = found.partition("; tried: ")[2].split(", ")
    assert sorted(tried) == sorted(each.name for each in installed_formats())


def test_a_file_without_any_likeness_names_the_formats_that_were_tried(otel_assembly, write):
    path = write("a.jsonl", {"a": 1}, {"b": 2})
    assert problem(path).startswith("an object with 'a', expected a conversation; tried: ")
    ran = otel_assembly("replay", path)
    assert (ran.status, ran.err.count("\n")) == (2, 1)


def test_a_format_of_another_package_is_found_by_entry_point(write, monkeypatch):
    monkeypatch.setattr(formats_module, "entry_points", lambda group: (*entry_points(group=group), QUESTIONS_ENTRY))
    installed_formats.cache_clear()
    try:
        found, _ = read_transcripts([write("a.jsonl", {"question": "Which ferry?"}, {"question": "When?"})])
    finally:
        installed_formats.cache_clear()
    assert (found.format, found.messages) == ("questions", [{"role": "user", "content": "Which ferry?"}])


def questions(records):
    for record in records:
        yield Conversation(None, [{"role": "user", "content": record.value["question"]}])


QUESTIONS = TranscriptFormat("questions", (Check("a record with 'question'", has_keys("question")),), questions)
QUESTIONS_ENTRY = EntryPoint("questions", f"{__name__}:QUESTIONS", formats_module.ENTRY_POINTS)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], "no transcript format is installed"),
        ([EntryPoint("lost", "no_such_module:X", "otel_assembly.transcripts")], "'lost' cannot be imported"),
        ([EntryPoint("odd", "json:dumps", "otel_assembly.transcripts")], "'odd' of otel_assembly.transcripts is no"),
    ],
)
def test_a_wrong_entry_point_is_an_error(write, monkeypatch, entries, says):
    monkeypatch.setattr(formats_module, "entry_points", lambda group: entries)
    installed_formats.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match=says):
            list(read_transcripts([write("a.jsonl", {"a": 1})]))
    finally:
        installed_formats.cache_clear()


def test_the_failure_of_a_format_is_an_error_of_its_file(write, monkeypatch):
    def fail(records):
        raise KeyError("x")

    failing = TranscriptFormat("failing", (Check("'question'", has_keys("question")),), fail)
    monkeypatch.setattr(formats_module, "installed_formats", lambda: (failing,))
    assert problem(write("a.jsonl", {"question": "x"})).startswith("cannot be read as failing: KeyError")


# Damaged files

#: The beginning of a log of each format that reads a whole file.
BEGINNINGS = {
    "Claude Code": {
        "sessionId": "s",
        "uuid": "u",
        "parentUuid": None,
        "type": "user",
        "message": {"role": "user", "content": "x"},
    },
    "Codex CLI": {
        "timestamp": "t",
        "type": "response_item",
        "payload": {"type": "message", "role": "user", "content": "x"},
    },
    "Gemini CLI": {"sessionId": "s", "projectHash": "h"},
    "OpenHands": {
        "id": "e",
        "kind": "MessageEvent",
        "source": "user",
        "llm_message": {"role": "user", "content": []},
    },
    "OpenHands 0": {"id": 1, "source": "user", "action": "message", "args": {"content": "x"}},
    "Cline and Roo Code": {"role": "user", "content": "x", "ts": 1},
    "Pydantic AI": {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "x"}]},
    "LangSmith runs": {"run_type": "llm", "inputs": {"messages": [{"role": "user", "content": "x"}]}},
    "Langfuse": {"traceId": "t", "type": "GENERATION", "input": "x"},
}
#: Keys and words of the formats, separated by spaces.
KEYS = (
    *("type", "uuid", "parentUuid", "sessionId", "message", "role", "content", "id", "isSidechain", "agentId", "kind"),
    *("subtype", "compactMetadata", "payload", "replacement_history", "num_turns", "toolCalls", "$set", "$rewindTo"),
    *("messages", "source", "action", "args", "observation", "tool_call_metadata", "llm_message", "thought", "parts"),
    *("tool_call", "tool_call_id", "forgotten_event_ids", "summary", "summary_offset", "llm_response_id", "ts"),
    *("condenseId", "isSummary", "part_kind", "tool_name", "inputs", "outputs", "generations", "run_type", "input"),
    *("output", "traceId", "cause"),
)
WORDS = (
    *("user", "assistant", "system", "tool", "text", "tool_use", "tool_result", "compact_boundary", "function_call"),
    *("microcompact_boundary", "response_item", "compacted", "event_msg", "thread_rolled_back", "message", "gemini"),
    *("ActionEvent", "ObservationEvent", "Condensation", "MessageEvent", "run", "condensation", "request", "response"),
    *("tool-call", "tool-return", "GENERATION", "llm", "u", "s", "x", "1"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(
    st.sampled_from(sorted(BEGINNINGS)),
    st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8), max_size=6),
)
def test_any_records_of_a_log_are_conversations_or_a_clear_error(tmp_path_factory, name, records):
    path = tmp_path_factory.mktemp("log") / "a.jsonl"
    beginning = BEGINNINGS[name]
    path.write_text(
        "".join(json.dumps(record) + "\n" for record in (beginning, *({**beginning, **each} for each in records)))
    )
    for found in read_transcripts([path]):
        if isinstance(found, TranscriptError):
            assert "cannot be read as" not in found.problem
            assert found.problem.isprintable()
        else:
            assert found.messages
            json.dumps(found.messages)


@pytest.mark.parametrize("name", sorted(BEGINNINGS))
@pytest.mark.parametrize(
    "bad",
    [
        "[" * 5_000 + "]" * 5_000,
        '{"type": "us',
        "\x00\x01",
        '{"a": 1, "a": 2}',
        '"text"',
        '{"type": {"deep": []}}',
        "NaN",
    ],
    ids=["nesting", "cut", "binary", "twice", "text", "type", "nan"],
)
def test_a_damaged_line_of_a_log_is_reported(write, name, bad):
    beginning = json.dumps(BEGINNINGS[name])
    for path in (write("a.jsonl", beginning, bad, beginning), write("b.jsonl", beginning, end=bad)):
        for found in read_transcripts([path]):
            assert isinstance(found, TranscriptError) or found.skipped or name in ("Langfuse", "LangSmith runs")
