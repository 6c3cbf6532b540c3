"""The cost of one appended model call: counted, not timed, and equal for short and long logs."""

from __future__ import annotations

import json

import pytest
from counting import Calls
from transcripts.claude_code_session import Session, call, result, text

from otel_assembly.cli.followed_log import FollowedLog
from otel_assembly.page import LivePage, RowStore


def claude_code(calls):
    """The lines of each model call: a tool call and its result."""
    session = Session().user("u", "Read all files.")
    yield session.lines[:]
    for number in range(calls):
        del session.lines[:]
        session.answer(f"a{number}", f"m{number}", text("I read."), call(f"t{number}", path=f"{number}.txt"))
        session.user(f"r{number}", [result(f"t{number}", f"content of file {number}")])
        yield session.lines[:]


def codex(calls):
    def line(kind, **payload):
        return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}

    request = line("response_item", type="message", role="user", content=[{"type": "input_text", "text": "Read."}])
    yield [line("session_meta", id="c-1"), request]
    for number in range(calls):
        yield [
            line("response_item", type="function_call", name="read", arguments="{}", call_id=f"t{number}"),
            line("response_item", type="function_call_output", call_id=f"t{number}", output=f"content {number}"),
        ]


def gemini_cli(calls):
    yield [{"sessionId": "g-1", "projectHash": "p"}, {"id": "u", "type": "user", "content": "Read all files."}]
    for number in range(calls):
        tool = {"id": f"t{number}", "name": "read", "args": {}, "result": []}
        yield [{"id": f"m{number}", "type": "gemini", "content": f"I read {number}.", "toolCalls": [tool]}]


def openhands(calls):
    request = {"role": "user", "content": [{"type": "text", "text": "Read all files."}]}
    yield [{"id": "u", "source": "user", "kind": "MessageEvent", "llm_message": request}]
    for number in range(calls):
        tool = {"tool_call_id": f"t{number}", "tool_name": "read"}
        action = {"id": f"a{number}", "source": "agent", "kind": "ActionEvent", "llm_response_id": f"r{number}"}
        result_text = [{"type": "text", "text": f"content {number}"}]
        yield [
            {**action, **tool, "tool_call": {"arguments": "{}"}, "thought": []},
            {"id": f"o{number}", "kind": "ObservationEvent", **tool, "observation": {"content": result_text}},
        ]


def calls_of_an_update(path, log_format, calls):
    """The Python calls of the library from an appended model call to the patch of the page."""
    lines = ["".join(f"{json.dumps(record)}\n" for record in records) for records in log_format(calls + 3)]
    log, page = FollowedLog(path, content=True, say=lambda text: None), LivePage(RowStore())

    def update():
        return [page.add(update.spans).patch for update in log.updates([path])]

    path.write_text("".join(lines[: calls + 1]))
    update()
    counts = set()
    for appended in lines[calls + 1 :]:
        with path.open("a") as file:
            file.write(appended)
        with Calls() as library:
            (patch,) = update()
        (conversation,) = json.loads(patch)["conversations"]
        assert len(conversation["ledgers"][0]["turns"]) == 1
        counts.add(library.made)
    return max(counts)


@pytest.mark.parametrize(
    "log_format",
    [claude_code, *(pytest.param(log_format, marks=pytest.mark.slow) for log_format in (codex, gemini_cli, openhands))],
)
def test_an_update_makes_as_many_calls_for_a_long_log_as_for_a_short_one(tmp_path, log_format):
    few, more, many = (calls_of_an_update(tmp_path / f"{count}.jsonl", log_format, count) for count in (10, 100, 1000))
    assert more <= 1.05 * few
    assert many <= 1.05 * few
