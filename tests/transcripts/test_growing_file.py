"""A file that grows: after each appended byte string, its conversations are those of a reading from the start."""

from __future__ import annotations

import json
import os
import random

import pytest
from transcripts.claude_code_session import Session, call, compacted, result, text

from otel_assembly.transcripts import GrowingFile, Transcript, read_transcripts

LOGS = [
    "claude_code_session.jsonl",
    "codex_rollout.jsonl",
    "openhands_sdk_events_v1.jsonl",
    "coding_agents/claude-code.jsonl",
    "coding_agents/codex-rollout.jsonl",
    "coding_agents/gemini-cli.jsonl",
    "coding_agents/openhands-events.jsonl",
    "openai_finetune.jsonl",
    "openai_batch_requests.jsonl",
    "lmsys.jsonl",
]


def parallel_agents():
    """A session whose agents write the parts of their responses in turn, with lines before their parents."""
    session = Session().user("u1", "Go.").answer("a1", "m1", text("One."))
    helper = {"isSidechain": True, "agentId": "helper"}
    session.user("s0", "Find it.", parent=None, **helper).answer("s1", "x1", text("Look."), **helper)
    session.answer("a2", "m1", call("t1"), parent="a1").answer("s2", "x1", text("Found."), parent="s1", **helper)
    session.user("r1", [result("t1", "b a")], parent="a2").answer("a3", "m2", text("Done."))
    session.answer("late", "m1", text("More."), parent="a1").answer("a4", "m3", text("End."), parent="missing")
    session.user("missing", "Wait.", parent="a3").user("u5", 5).user("u6", [{"type": "text", "text": 7}])
    edits = {"context_management": {"applied_edits": [{"type": "clear", "cleared_input_tokens": 3}]}}
    return session.answer("a5", "m4", text("Yes.")).answer("a6", "m4", call("t2"), more=edits)


def lines_of(records):
    return [json.dumps(record).encode() + b"\n" for record in records]


GEMINI = [
    {"sessionId": "g-1", "projectHash": "p", "startTime": "2026-01-01"},
    {"id": "1", "type": "user", "content": "Sort the list."},
    {"id": "2", "type": "gemini", "content": "I look.", "toolCalls": [{"id": "t", "name": 5, "args": {}}]},
    {"id": "2", "type": "gemini", "content": "I looked.", "toolCalls": [{"id": "t", "name": "ls", "args": {}}]},
    {"id": "3", "type": "user", "content": [{"text": 5}]},
    {"id": "3", "type": "user", "content": "Thanks."},
    {"id": "4", "type": "gemini", "content": "Fine."},
]
WRITTEN = {
    "gemini": lines_of(GEMINI),
    "compacted": lines_of(compacted(logical=True).lines),
    "parallel agents": lines_of(parallel_agents().lines),
    "messages": lines_of([{"role": ["user", "assistant"][at % 2], "content": f"Text {at}."} for at in range(6)]),
    "refused": lines_of([{"messages": [{"role": "user", "content": text}]} for text in ("Hi.", 5, "Bye.")]),
    "document": [b"{\n", b' "messages": [\n', b'  {"role": "user", "content": "Hi."}\n', b" ]\n", b"}\n"],
}


def seen(transcripts):
    """Transcripts with the types of their messages, and with the messages that are the same object."""
    places = {}
    rows = []
    for transcript in transcripts:
        if not isinstance(transcript, Transcript):
            rows.append((str(transcript), transcript.line))
            continue
        lists = [transcript.messages]
        for made in transcript.calls or ():
            reduction = made.reduction
            lists += [made.messages, *([reduction.before, reduction.created] if reduction is not None else ())]
        same = [[places.setdefault(id(message), len(places)) for message in each] for each in lists]
        rows.append((transcript, same, [[type(message) for message in each] for each in lists]))
    return rows


def changed_lines(lines, generator, how):
    """The lines in another order, or with damage."""
    lines = list(lines)
    if how == "shuffled":
        head, rest = lines[:1], lines[1:]
        generator.shuffle(rest)
        return head + rest
    if how == "damaged":
        for bad in (b"{\n", b"\n", b"[1]\n", b'{"a": 1, "a": 2}\n', b'{"b": 1} x\n', b" \t\r\n"):
            lines.insert(generator.randrange(len(lines) + 1), bad)
    if how == "no end":
        lines[-1] = lines[-1].rstrip()
    return lines


def check_growth(path, content, generator, others=()):
    """Append content in pieces that end at random bytes, and replace the file now and then."""
    growing = GrowingFile(path)
    path.write_bytes(b"")
    found = []
    position = 0
    while True:
        fresh = list(growing.read())
        found = [*found, *fresh] if growing.is_partial else fresh
        assert seen(found) == seen(read_transcripts([path], growing=True)), position
        if position == len(content):
            return
        if others and generator.random() < 0.1:
            content, position = generator.choice(others), 0
            if generator.random() < 0.5:
                path.write_bytes(b"")
            else:
                path.with_suffix(".new").write_bytes(b"")
                os.replace(path.with_suffix(".new"), path)
        cut = min(len(content), position + generator.choice([1, 7, 60, 400, 2000]))
        if generator.random() < 0.5:
            cut = content.find(generator.choice([b"\n", b"}"]), position) + 1 or len(content)
        with path.open("ab") as file:
            file.write(content[position:cut])
        position = cut


WAYS = ["as it is", "shuffled", "damaged", "no end"]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        # Each file in two ways, each way with half of the files.
        pytest.param(name, how, marks=[pytest.mark.slow] if (at + number) % 2 else [])
        for at, name in enumerate([*LOGS, *WRITTEN])
        for number, how in enumerate(WAYS)
    ],
)
def test_appended_lines_are_read_as_a_whole_file_is_read(tmp_path, request, name, how):
    if name in WRITTEN:
        lines = WRITTEN[name]
    else:
        lines = (request.getfixturevalue("samples") / name).read_bytes().splitlines(keepends=True)
    for seed in range(4):
        generator = random.Random(f"{name} {how} {seed}")
        content = b"".join(changed_lines(lines, generator, how))
        check_growth(tmp_path / f"{seed}.jsonl", content, generator)
        check_growth(tmp_path / f"{seed}.log", content, generator)


def test_a_file_that_is_replaced_is_read_from_its_start(tmp_path):
    contents = [b"".join(lines) for lines in WRITTEN.values()]
    for seed in range(20):
        generator = random.Random(seed)
        check_growth(tmp_path / f"{seed}.jsonl", generator.choice(contents), generator, contents)


@pytest.mark.parametrize("same_length", [True, False])
def test_a_file_that_is_written_again_in_place_is_read_from_its_start(tmp_path, same_length):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(WRITTEN["compacted"]))
    growing = GrowingFile(path)
    assert seen(growing.read()) == seen(read_transcripts([path]))
    changed = path.read_bytes().replace(b"Sorted.", b"Mixed.." if same_length else b"I sorted the list.")
    path.write_bytes(changed)
    os.utime(path, ns=(1, 1))
    assert seen(growing.read()) == seen(read_transcripts([path]))
    path.unlink()
    (error,) = growing.read()
    assert "does not exist" in str(error)
    path.write_bytes(changed)
    assert seen(growing.read()) == seen(read_transcripts([path]))


def test_the_calls_of_earlier_lines_are_the_same_objects(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(WRITTEN["compacted"][:5]))
    growing = GrowingFile(path)
    (before,) = growing.read()
    path.write_bytes(b"".join(WRITTEN["compacted"]))
    (after,) = growing.read()
    assert [len(before.calls), len(after.calls)] == [2, 3]
    assert all(first is second for first, second in zip(before.calls, after.calls, strict=False))
