from __future__ import annotations

import gzip
import io
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import otel_assembly.transcripts.records as records_module
from otel_assembly import describe
from otel_assembly.cli import Transcript, read_transcripts
from otel_assembly.errors import TranscriptError

REAL_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "grüß Gott 😀"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "seen"},
    {"role": "assistant", "content": "done"},
]
SHORT = [{"role": "user", "content": "hi"}]
AUTOGEN = [
    {"type": "SystemMessage", "content": "be brief"},
    {"type": "UserMessage", "source": "user", "content": ["look at ", {"data": "aGk="}]},
    {
        "type": "AssistantMessage",
        "source": "a",
        "thought": "two at once",
        "content": [{"id": "1", "arguments": "{}", "name": "t"}, {"id": "2", "arguments": '{"x": 1}', "name": "t"}],
    },
    {
        "type": "FunctionExecutionResultMessage",
        "content": [
            {"content": "r1", "name": "t", "call_id": "1", "is_error": False},
            {"content": "r2", "name": "t", "call_id": "2", "is_error": None},
        ],
    },
    {"type": "AssistantMessage", "source": "a", "thought": "never sent", "content": "done"},
]
AUTOGEN_AS_CHAT = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "name": "user",
        "content": [
            {"type": "text", "text": "look at "},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        ],
    },
    {
        "role": "assistant",
        "content": "two at once",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "t", "arguments": "{}"}},
            {"id": "2", "type": "function", "function": {"name": "t", "arguments": '{"x": 1}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "r1"},
    {"role": "tool", "tool_call_id": "2", "content": "r2"},
    {"role": "assistant", "content": "done"},
]
GEN_AI = [
    {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "I must look"},
            {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Köln"}},
        ],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"degrees": 7}}]},
]
GEN_AI_OUTPUT = [{"role": "assistant", "parts": [{"type": "text", "content": "7°"}], "finish_reason": "stop"}]
GEN_AI_AS_CHAT = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": [{"type": "reasoning", "text": "I must look"}],
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"degrees": 7}'},
]


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def lines(*values):
    return "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)


def read(*paths):
    return list(read_transcripts(paths))


def one(path):
    (found,) = read(path)
    assert isinstance(found, Transcript), found
    return found


def problem(path):
    (found,) = read(path)
    assert isinstance(found, TranscriptError), found
    return found


def ids(found):
    return [each.id if isinstance(each, Transcript) else each.line for each in found]


# Forms


@pytest.mark.parametrize("key", ["messages", "traj", "history"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson", "a.txt", "a"])
def test_chat_messages_are_read_under_each_key_from_each_kind_of_file(file, key, name):
    found = one(file(name, lines({"id": "x", key: CHAT})))
    assert (found.id, found.named, found.messages, found.line) == ("x", True, CHAT, 1)


def test_a_bare_list_is_a_conversation_in_both_kinds_of_file(file):
    assert one(file("a.json", json.dumps(CHAT, indent=2))).messages == CHAT
    assert [each.messages for each in read(file("a.jsonl", lines(CHAT, SHORT)))] == [CHAT, SHORT]


def test_a_list_of_conversations_says_where_each_begins(file):
    path = file("a.json", json.dumps([{"id": "x", "messages": SHORT}, CHAT], indent=1))
    first, second = read(path)
    assert (first.id, first.line, second.id, second.named, second.messages) == ("x", 2, "a.json:2", False, CHAT)
    assert path.read_text().splitlines()[second.line - 1].strip() == "["


def test_a_jsonl_of_messages_is_one_conversation(file):
    found = one(file("run.jsonl", "\n" + lines(*CHAT)))
    assert (found.id, found.named, found.messages, found.line) == ("run.jsonl:2", False, CHAT, 2)
    assert one(file("run.jsonl", lines(*AUTOGEN))).messages == AUTOGEN_AS_CHAT
    assert one(file("run.json", lines(*GEN_AI))).messages == GEN_AI_AS_CHAT


def test_blank_lines_line_ends_and_a_byte_order_mark_are_tolerated(file):
    content = "\ufeff\r\n" + lines({"id": "x", "messages": SHORT}).replace("\n", "\r\n\r\n") + lines(SHORT).rstrip()
    assert ids(read(file("a.jsonl", content))) == ["x", "a.jsonl:4"]
    assert one(file("a.json", "\ufeff" + json.dumps(CHAT, indent=2))).messages == CHAT


def test_the_content_decides_where_the_suffix_is_wrong(file):
    record = {"id": "x", "messages": SHORT}
    assert ids(read(file("lines.json", lines(record, record)))) == ["x", "x"]
    assert ids(read(file("pretty.jsonl", json.dumps([record, CHAT], indent=2)))) == ["x", "pretty.jsonl:2"]
    assert ids(read(file("all.jsonl", lines([record, CHAT])))) == ["x", "all.jsonl:1.2"]


def test_several_files_are_read_in_order(file):
    paths = file("a.json", json.dumps(SHORT)), file("b.json", "{"), file("c.json", json.dumps(SHORT))
    assert [type(each) for each in read_transcripts([str(paths[0]), *paths[1:]])] == [
        Transcript,
        TranscriptError,
        Transcript,
    ]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"id": 7}, "7"),
        ({"conversation_id": "c"}, "c"),
        ({"gen_ai.conversation.id": "g"}, "g"),
        ({"task_id": 3, "trial": 0}, "3-0"),
        ({"task_id": "t"}, "t"),
        ({"id": "", "task_id": 3}, "3"),
        ({"id": None}, "a.jsonl:1"),
        ({"id": True}, "a.jsonl:1"),
        ({"id": ["x"]}, "a.jsonl:1"),
    ],
)
def test_ids(file, record, expected):
    found = one(file("a.jsonl", lines(record | {"messages": SHORT})))
    assert (found.id, found.named) == (expected, expected != "a.jsonl:1")


def test_tools_come_along(file):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert one(file("a.jsonl", lines({"messages": SHORT, "tools": tools}))).tools == tools
    assert one(file("a.jsonl", lines({"messages": SHORT, "gen_ai.tool.definitions": json.dumps(tools)}))).tools == tools
    assert one(file("a.jsonl", lines({"messages": SHORT, "tools": None}))).tools == []


def test_a_record_may_wrap_the_conversation_once(file):
    found = one(file("a.jsonl", lines({"id": "x", "request": {"model": "m", "messages": SHORT, "tools": [{}]}})))
    assert (found.id, found.messages, found.tools) == ("x", SHORT, [{}])
    twice = problem(file("a.jsonl", lines({"a": {"messages": SHORT}, "b": {"messages": SHORT}})))
    assert twice.problem == "messages under 'a' and 'b', expected them in one place"


def test_joined_tool_results_stay_as_they_are(file):
    joined = {"role": "tool", "tool_call_ids": ["a", "b"], "content": "both"}
    found = one(file("a.jsonl", lines([*SHORT, joined])))
    assert found.messages[1] == joined
    assert list(describe(found.messages[1]).closes) == ["a", "b"]


# AutoGen


@pytest.mark.parametrize(
    "state",
    [
        {"messages": AUTOGEN},
        {"llm_context": {"messages": AUTOGEN}},
        {"type": "AssistantAgentState", "version": "1.0.0", "llm_context": {"messages": AUTOGEN}},
        {"type": "ChatAgentContainerState", "agent_state": {"llm_context": {"messages": AUTOGEN}}},
    ],
)
def test_autogen_state_becomes_what_autogen_sends(file, state):
    assert one(file("state.json", json.dumps(state, indent=1))).messages == AUTOGEN_AS_CHAT


def test_each_agent_of_a_team_has_a_conversation_of_its_own(file):
    def agent(messages):
        state = {"type": "AssistantAgentState", "llm_context": {"messages": messages}}
        return {"type": "ChatAgentContainerState", "agent_state": state, "message_buffer": []}

    team = {
        "type": "TeamState",
        "agent_states": {
            "writer": agent(AUTOGEN),
            "broken": agent([{"type": "UserMessage", "content": 1}]),
            "silent": agent([]),
            "odd": 3,
            "user": {"type": "ChatAgentContainerState", "agent_state": {"type": "BaseState"}},
            "critic": agent([{"type": "UserMessage", "source": "u", "content": "hi"}]),
            "RoundRobinGroupChatManager": {"type": "RoundRobinManagerState", "message_thread": []},
        },
    }
    writer, broken, critic = read(file("team.json", json.dumps({"id": "x"} | team)))
    assert (writer.id, writer.named, writer.messages) == ("x/writer", True, AUTOGEN_AS_CHAT)
    assert broken.problem == "agent 'broken': message 0: its 'content' is a number, expected a string or a list"
    assert (critic.id, critic.messages) == ("x/critic", [{"role": "user", "name": "u", "content": "hi"}])
    nested = {"agent_states": {"outer": {"agent_state": {"inner_team_state": team}}}}
    assert ids(read(file("team.json", json.dumps(nested)))) == [
        "team.json:1/outer/writer",
        1,
        "team.json:1/outer/critic",
    ]


def test_a_team_without_contexts_is_an_error(file):
    assert "'agent_states'" in problem(file("team.json", '{"agent_states": {"a": {"type": "BaseState"}}}')).problem


# OpenTelemetry's GenAI conventions


@pytest.mark.parametrize("prefix", ["gen_ai.{}.{}", "{}_{}"])
@pytest.mark.parametrize("pack", [lambda value: value, json.dumps])
def test_gen_ai_records_are_one_conversation(file, prefix, pack):
    record = {
        "gen_ai.system_instructions": pack([{"type": "text", "content": "be brief"}]),
        prefix.format("input", "messages"): pack(GEN_AI),
        prefix.format("output", "messages"): pack(GEN_AI_OUTPUT),
    }
    expected = [
        {"role": "system", "content": "be brief"},
        *GEN_AI_AS_CHAT,
        {"role": "assistant", "content": "7°"},
    ]
    assert one(file("a.jsonl", lines(record))).messages == expected
    assert one(file("a.jsonl", lines({"name": "chat", "attributes": record}))).messages == expected


def test_plain_system_instructions_stand_before_any_form(file):
    found = one(file("a.jsonl", lines({"system_instructions": "be brief", "messages": SHORT})))
    assert found.messages == [{"role": "system", "content": "be brief"}, *SHORT]


def parts(role, *several, **more):
    return {"role": role, "parts": list(several), **more}


TEXT = {"type": "text", "content": "and"}
CALL = {"type": "tool_call", "name": "t", "arguments": None}
RESULT = {"type": "tool_call_response", "result": "r"}


def test_a_call_without_id_is_answered_by_the_next_result_without_id(file):
    exchange = parts("assistant", CALL, CALL), parts("tool", RESULT, RESULT), parts("tool", RESULT)
    ask, first, second, unknown = one(file("a.jsonl", lines(list(exchange)))).messages
    opened = list(describe(ask).opens)
    assert len(set(opened)) == 2
    assert [first["tool_call_id"], second["tool_call_id"]] == opened
    assert unknown == {"role": "tool", "content": "r"}


def test_results_come_right_after_their_call(file):
    answered = parts("assistant", TEXT, CALL), parts("user", TEXT, RESULT, name="ann")
    assert [each["role"] for each in one(file("a.jsonl", lines(list(answered)))).messages] == [
        "assistant",
        "tool",
        "user",
    ]
    within = parts("assistant", TEXT, CALL, RESULT, TEXT)
    said, result, then = one(file("a.jsonl", lines([within]))).messages
    assert (said["role"], result["role"], then) == ("assistant", "tool", {"role": "assistant", "content": "and"})
    beside = parts("tool", RESULT, TEXT)
    assert one(file("a.jsonl", lines([beside]))).messages == [
        {"role": "tool", "content": [{"type": "text", "text": "r"}, {"type": "text", "text": "and"}]}
    ]


def test_other_parts_are_media_or_text(file):
    blob = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "A" * 5000}
    server = {"type": "server_tool_call", "name": "search", "server_tool_call": {"type": "web", "query": "q"}}
    found = one(file("a.jsonl", lines([parts("user", blob, server, {"type": "note", "content": "n"}, "bare")])))
    facts = describe(found.messages[0])
    assert facts.media_tokens > 0
    assert list(facts.texts) == [json.dumps(server), "n", "bare"]
    assert one(file("a.jsonl", lines([parts("user")]))).messages == [{"role": "user", "content": ""}]


# What cannot be read

LONG = "secret " * 100

BAD = {
    "cut": ('{"messages": [', "not JSON: Expecting value (column 15)"),
    "more": ('{"messages": []} x', "text after the JSON value at column 18, expected its end"),
    "key": ('{"id": 1, "id": 2}', "the key 'id' occurs twice in one object, expected once"),
    "nan": ('[{"role": "user", "content": "x", "n": NaN}]', "not JSON: NaN, expected a number or null"),
    "inf": ('[{"role": "user", "content": "x", "n": 1e999}]', "the number '1e999' is too large"),
    "digits": (f'{{"id": {"9" * 9999}}}', "a number has 9999 digits, which is too large"),
    "deep": ('{"messages": ' + "[" * 100_000, "nested more than 100 levels deep"),
    "deeper": (f'[{{"role": "user", "x": {"[" * 99}{"]" * 99}}}]', "nested more than 100 levels deep"),
    "control": ('[{"role": "user", "content": "\x01"}]', "not JSON: Invalid control character (column 31)"),
    "number": ("7", "a number, expected a conversation"),
    "null": ("null", "null, expected a conversation"),
    "keys": (f'{{"a": 1, "{LONG}": 2}}', "an object with 'a', 'secret secret secret secret secret sec…, expected"),
    "empty": ('{"messages": []}', "a conversation without messages, expected at least one"),
    "none": ("[]", "a conversation without messages, expected at least one"),
    "type": ('{"messages": {"a": 1}}', "'messages' is an object, expected a list of messages"),
    "item": ('{"messages": [{"role": "user", "content": ""}, 3]}', "message 1: is a number, expected an object"),
    "norole": ('[{"content": "x"}, {"content": "y"}]', "message 0: it has no role, expected one of system, "),
    "role": (json.dumps([{"role": LONG}]), "message 0: its 'role' is 'secret secret secret secret secret sec…, exp"),
    "roles": ('[{"role": ["user"]}]', "message 0: its 'role' is a list, expected one of system, "),
    "content": ('[{"role": "user", "content": 5}]', "message 0: its 'content' is a int, expected a string, a list or"),
    "calls": ('[{"role": "assistant", "tool_calls": [{}]}]', "message 0: a tool call has no 'id' or no 'function'"),
    "tools": ('{"messages": [{"role": "user"}], "tools": "x"}', "'tools' is a string, expected a list of tool schemas"),
    "tool": ('{"messages": [{"role": "user"}], "tools": [1]}', "'tools' contains a number, expected objects"),
    "context": ('{"llm_context": {}}', "'messages' is null, expected a list of messages"),
    "packed": ('{"input_messages": "[{"}', "'input_messages': not JSON: "),
    "plain": ('{"input_messages": "hello"}', "'input_messages' is a string, expected a list of messages"),
    "parts": ('[{"role": "user", "parts": {}}]', "message 0: its 'parts' is an object, expected a list"),
    "part": ('[{"role": "user", "parts": [null]}]', "message 0: a part of it is null, expected an object"),
    "text": ('[{"role": "user", "parts": [{"type": "text"}]}]', "message 0: its 'content' is missing, expected a str"),
    "answer": ('[{"role": "user", "parts": [{"type": "tool_call_response"}]}]', "message 0: a tool_call_response part"),
    "autogen": ('[{"type": "AssistantMessage", "content": [{"id": 1}]}]', "message 0: its 'id' is a number, expected"),
    "thought": ('[{"type": "AssistantMessage", "content": [], "thought": 1}]', "message 0: its 'thought' is a number"),
    "result": ('[{"type": "FunctionExecutionResultMessage", "content": "r"}]', "message 0: its 'content' is a string"),
    "stray": ('{"role": "user", "content": "x"}', "an object with 'role', 'content', expected a conversation"),
}


@pytest.mark.parametrize(("bad", "expected"), BAD.values(), ids=BAD.keys())
def test_one_bad_line_costs_only_itself(file, bad, expected):
    good = {"id": "x", "messages": SHORT}
    path = file("a.jsonl", lines(good, bad, good))
    before, error, after = read(path)
    assert before.messages == after.messages == SHORT
    assert (error.path, error.line) == (str(path), 2)
    assert error.problem.startswith(expected)
    assert str(error).startswith(f"{path}:2: ")
    assert "\n" not in str(error)
    assert LONG[:41] not in str(error)


@pytest.mark.parametrize("bad", [pytest.param(each, id=name) for name, (each, _) in BAD.items() if name != "stray"])
def test_a_bad_first_line_costs_only_itself(file, bad):
    error, good = read(file("a.jsonl", lines(bad, {"id": "x", "messages": SHORT})))
    assert (error.line, good.id) == (1, "x")


def test_a_message_among_conversations_costs_only_itself(file):
    record = {"id": "x", "messages": SHORT}
    assert ids(read(file("a.jsonl", lines(SHORT[0], record, record)))) == [1, "x", "x"]
    assert ids(read(file("a.jsonl", lines(record, SHORT[0], record)))) == ["x", 2, "x"]


def test_bytes_that_are_no_text_cost_only_their_line(file):
    path = file("a.jsonl", lines(SHORT).encode() + b'[{"role": "user\xff"}]\n' + lines(CHAT).encode())
    first, error, last = read(path)
    assert (first.messages, last.messages) == (SHORT, CHAT)
    assert (error.line, error.problem) == (2, "not UTF-8: byte 0xff at column 16")
    assert problem(file("a.json", b'[\n{"role": "\xff"}]')).line == 2


def test_a_line_of_fifty_megabytes_costs_only_itself(file):
    huge = json.dumps([{"role": "user", "content": "x" * 50_000_000}])
    error, good = read(file("a.jsonl", lines(huge, SHORT)))
    assert (error.line, error.problem) == (1, "longer than 32 MiB, expected one conversation per line")
    assert good.line == 2
    assert len(one(file("a.json", huge)).messages[0]["content"]) == 50_000_000


def test_a_document_that_is_too_long_says_what_to_do(file, monkeypatch):
    monkeypatch.setattr(records_module, "MAX_DOCUMENT_BYTES", 1 << 20)
    path = file("a.json", json.dumps([{"role": "user", "content": "x" * (1 << 20)}], indent=1))
    assert problem(path).problem == "longer than 1 MiB: write one conversation per line (.jsonl)"


def test_a_bad_conversation_of_a_document_costs_only_itself(file):
    items = ",\n".join([json.dumps(SHORT), '{"a": 1, "a": 2}', '{"b": NaN}', json.dumps(CHAT)])
    assert ids(read(file("a.json", f"[{items}]"))) == ["a.json:1", 2, 3, "a.json:4"]
    cut = f"[{items}"[:-20]
    assert ids(read(file("a.json", cut))) == ["a.json:1", 2, 3, 4]
    assert ids(read(file("a.json", f"[{items}]\n]"))) == ["a.json:1", 2, 3, "a.json:4", 5]
    assert ids(read(file("a.json", f"[{items},\n]"))) == ["a.json:1", 2, 3, "a.json:4", 5]
    assert ids(read(file("a.json", f"[{items}\n{{"))) == ["a.json:1", 2, 3, "a.json:4", 5]


@pytest.mark.parametrize("bad", ["{", '{"role": "user", "content": 5}', "3"])
def test_a_bad_message_spoils_the_conversation_that_the_file_is(file, bad):
    error = problem(file("a.jsonl", lines(*CHAT[:2], bad, *CHAT[2:])))
    assert error.line == 3
    assert error.problem.startswith("message 2: ")


@pytest.mark.parametrize("odd", [{"role": "narrator", "content": "x"}, {"content": "x"}, {"type": "mood", "level": 3}])
def test_a_message_of_an_unknown_kind_is_counted_as_other(file, odd):
    for path in (file("a.jsonl", lines(*CHAT, odd)), file("b.jsonl", lines({"messages": [*CHAT, odd]}))):
        found = one(path)
        assert found.messages[:-1] == CHAT
        assert describe(found.messages[-1]).kind == "other"
        assert sum(found.skipped.values()) == 1


@pytest.mark.parametrize("end", ['{"role": "us', '{"role": "user", "content": "x\n'])
def test_a_message_that_is_being_written_is_left_out(file, end):
    found = one(file("a.jsonl", lines(*CHAT) + end))
    assert found.messages == CHAT
    assert found.skipped == {"incomplete last message": 1}


def test_an_unreadable_beginning_spoils_the_conversation_that_the_file_is(file):
    assert problem(file("a.jsonl", lines("{", *CHAT))).line == 1
    assert problem(file("a.jsonl", lines("{]", *CHAT))).line == 1


def packed(content):
    """In gzip, the same at any time."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b"", "contains nothing, expected a conversation"),
        ("a.json", b" \n\r\n\t", "contains nothing, expected a conversation"),
        ("a.json", b"[ ]", "contains nothing, expected a conversation"),
        ("a.bin", bytes(range(255, 0, -1)), "is not UTF-8, expected JSON in UTF-8"),
        ("a.jsonl", bytes(range(255, 0, -1)) * 10, "is not UTF-8, expected JSON in UTF-8"),
        ("a.json", "[]".encode("utf-16-le"), "is binary or UTF-16, expected JSON in UTF-8"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd[]", "is compressed, expected JSON as it is or in gzip"),
        (
            "twice.gz",
            gzip.compress(gzip.compress(b"[]", mtime=0), mtime=0),
            "is compressed, expected JSON as it is or in gzip",
        ),
        ("a.gz", packed(b"[ ]"), "contains nothing, expected a conversation"),
        ("cut.jsonl.gz", packed(b"{}" * 100)[:-9], "its gzip data is damaged or ends too early"),
        ("bad.jsonl.gz", packed(b"{}" * 100)[:15] + b"\xff" * 30, "its gzip data is damaged"),
        ("notes.txt", b"Dear diary,\ntoday\n", "not JSON: Expecting value (column 1)"),
        ("a.csv", b"role,content\nuser,hi\n", "not JSON: Expecting value (column 1)"),
    ],
)
def test_a_file_that_is_no_recording_is_one_error(file, name, content, expected):
    assert problem(file(name, content)).problem.startswith(expected)


def test_what_is_no_file_is_one_error(tmp_path):
    assert problem(tmp_path / "none.jsonl").problem == "does not exist, expected a file of conversations"
    assert problem(tmp_path).problem == "is a directory, expected a file of conversations"
    assert "is not a path" in problem("a\0b").problem
    assert "cannot be read" in problem("a" * 5000).problem
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or a pipe" in problem(tmp_path / "pipe").problem


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.JSONL.GZ", "a.json", "a"])
def test_what_gzip_has_packed_is_read_as_what_it_holds(file, name):
    plain = lines(*[SHORT] * 3)
    before = read(file("plain.jsonl", plain))
    now = read(file(name, gzip.compress(plain.encode())))
    assert [(item.messages, item.line) for item in now] == [(item.messages, item.line) for item in before]
    assert len(now) == 3


def test_what_comes_before_the_damage_of_a_packed_file_is_not_lost(file):
    plain = lines(*({"id": os.urandom(20).hex(), "messages": SHORT} for _ in range(2_000)))
    packed = gzip.compress(plain.encode())
    *good, error = read(file("a.jsonl.gz", packed[: len(packed) // 2]))
    assert len(good) > 100
    assert "gzip" in error.problem


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read_like_a_file(monkeypatch, pack):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pack(lines(SHORT, "{", SHORT).encode()))))
    first, error, last = read("-")
    assert (first.id, first.line, last.line) == ("standard input:1", 1, 3)
    assert str(error).startswith("standard input:2: not JSON")


def test_a_file_is_read_as_far_as_it_is_asked_for(file, monkeypatch):
    path = file("a.jsonl", lines(*[SHORT] * 10_000))
    asked = []
    parse = records_module.parse
    monkeypatch.setattr(records_module, "parse", lambda text: asked.append(1) or parse(text))
    found = read_transcripts([path])
    assert next(found).line == 1
    assert len(asked) == 1
    found.close()


# Anything at all

# fmt: off
WORDS = st.sampled_from([
    "role", "content", "parts", "type", "id", "name", "messages", "traj", "history", "tools", "tool_calls",
    "function", "arguments", "llm_context", "agent_states", "agent_state", "input_messages", "output_messages",
    "system_instructions", "user", "assistant", "tool", "system", "text", "reasoning", "tool_call",
    "tool_call_response", "response", "blob", "SystemMessage", "UserMessage", "AssistantMessage", "thought",
    "FunctionExecutionResultMessage", "call_id", "tool_call_ids", "data", "refusal", "custom", "function_call",
    "task_id", "trial",
])
# fmt: on
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_call", "tool_call_response", "blob", "other"])},
    optional=dict.fromkeys(("content", "id", "name", "arguments", "response", "result"), VALUES),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "function", "bot"])},
        optional=dict.fromkeys(("content", "tool_calls", "tool_call_id", "function_call", "name", "id"), VALUES),
    )
    | st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "parts": st.lists(PART)})
    | st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["SystemMessage", "UserMessage", "AssistantMessage", "FunctionExecutionResultMessage"]
            ),
            "content": VALUES,
        },
        optional={"thought": VALUES, "source": VALUES},
    )
    | VALUES,
    max_size=4,
)
RECORDS = (
    VALUES | MESSAGES | st.dictionaries(WORDS, MESSAGES | st.dictionaries(WORDS, MESSAGES, max_size=3), max_size=3)
)
SUFFIXES = st.sampled_from([".json", ".jsonl", ".txt"])
FUZZ = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def check(path, content):
    path.write_bytes(content)
    found = read(path)
    assert found
    for each in found:
        if isinstance(each, Transcript):
            assert each.id
            assert each.messages
            assert isinstance(each.tools, list)
            assert each.line is None or 1 <= each.line <= content.count(b"\n") + 1
            for message in each.messages:
                describe(message)
            json.dumps(each.messages, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
        else:
            assert isinstance(each, TranscriptError)
            assert len(each.problem) < 1_000
            assert each.problem.isprintable()
    return found


@FUZZ
@given(st.lists(RECORDS, max_size=4), SUFFIXES, st.sampled_from([None, 1]))
def test_any_json_values_are_conversations_or_errors(tmp_path, values, suffix, indent):
    by_line = "\n".join(json.dumps(value) for value in values)
    found = check(tmp_path / f"lines{suffix}", by_line.encode())
    if suffix == ".jsonl" and values:
        assert len({each.line for each in found}) <= len(values)
    check(tmp_path / f"document{suffix}", json.dumps(values, indent=indent).encode())
    for value in values:
        check(tmp_path / f"single{suffix}", json.dumps(value, indent=indent, ensure_ascii=True).encode())


@FUZZ
@given(st.binary() | st.text(alphabet='[]{}",:\\u\n dD8 1eEN\ufeff').map(str.encode), SUFFIXES)
@example(b"\xef\xbb\xbf", ".json")
@example(b"\x0c\n[", ".json")
@example(b"\x0c[]", ".txt")
@example(b"{\n", ".jsonl")
@example(b"\xef\xbb\xbf\x1f\x8b", ".jsonl")
def test_any_bytes_are_conversations_or_errors(tmp_path, content, suffix):
    check(tmp_path / f"bytes{suffix}", content)


@FUZZ
@given(st.data(), SUFFIXES)
def test_a_damaged_recording_is_conversations_or_errors(tmp_path, data, suffix):
    whole = lines({"id": "x", "messages": CHAT}, {"messages": AUTOGEN}, {"input_messages": GEN_AI}).encode()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 50)))
    check(tmp_path / f"damaged{suffix}", whole[:start] + data.draw(st.binary(max_size=5)) + whole[end:])


# Recorded by others


@pytest.mark.realdata
@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="the recorded transcripts are not beside this checkout")
def test_recorded_conversations_are_read_as_they_are():
    path = REAL_DATA / "airline_support_dev.jsonl"
    found = read(path)
    raw = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(each.id, each.messages) for each in found] == [(each["id"], each["messages"]) for each in raw]
    roles = Counter(message["role"] for each in found for message in each.messages)
    assert (len(found), roles["assistant"]) == (100, 1229)
