"""A log that grows under `watch`: its new turns arrive once, and a log that was replaced starts again."""

from __future__ import annotations

import json
import os
import signal

import pytest
from cli.command_line import runner
from transcripts.claude_code_session import Session, compacted, text
from watch.watching import Watch

from otel_assembly.cli.followed_log import FollowedLog


def lines(*records):
    return "".join(f"{json.dumps(record)}\n" for record in records)


def append(path, content):
    with path.open("a", encoding="utf-8") as file:
        file.write(content)


def codex(*texts):
    """A rollout of Codex CLI: requests and answers in turn."""
    items = [("user", "input_text"), ("assistant", "output_text")]
    yield {
        "timestamp": "2026-01-01T00:00:00Z",
        "type": "session_meta",
        "payload": {"id": "c-1", "cli_version": "0.77.0"},
    }
    for number, value in enumerate(texts):
        role, kind = items[number % 2]
        message = {"type": "message", "role": role, "content": [{"type": kind, "text": value}]}
        yield {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": message}


class Shown:
    """The stream of a page: its patches, and the turns after each of them, by conversation and number."""

    def __init__(self, watch):
        self.stream = watch.patches()
        self.turns = {}
        self.texts = set()

    def until(self, condition):
        """Read patches until a condition is met; return the numbers of the turns that they contained."""
        sent = []
        for patch in self.stream:
            for key in patch.get("removed", ()):
                self.turns.pop(key, None)
            self.texts |= {entry[0] for entry in patch.get("texts", {}).values()}
            for conversation in patch.get("conversations", ()):
                for ledger in conversation["ledgers"]:
                    shown = self.turns.setdefault(conversation["key"], {})
                    shown |= {turn["n"]: turn for turn in ledger["turns"]}
                    sent += [turn["n"] for turn in ledger["turns"]]
            if condition():
                return sent
        raise AssertionError(self.turns)

    def until_turns(self, count, conversation="id s-1"):
        return self.until(lambda: len(self.turns.get(conversation, ())) == count)


def test_new_turns_of_claude_code_are_sent_once_with_the_compaction_as_a_step(tmp_path):
    session = compacted(logical=True).lines
    log = tmp_path / "s-1.jsonl"
    log.write_text(lines(*session[:5]))
    with Watch("--port", 0, log) as watch:
        assert "only this machine can open; --no-content hides it" in watch.line("message content")
        shown = Shown(watch)
        assert shown.until_turns(2) == [0, 1]
        append(log, lines(*session[5:]))
        assert shown.until_turns(3) == [2]
        assert [step["policy"] for step in shown.turns["id s-1"][2]["steps"]] == ["compact"]
        assert {"Sort the list.", "Reverse it."} <= shown.texts
        assert watch.end_by_signal(signal.SIGINT) == 0
    (followed,) = [line for line in watch.said if "follows" in line]
    assert followed.endswith("s-1.jsonl (Claude Code); the log does not contain: system prompt, tools")


def test_half_a_line_is_read_when_it_is_complete(tmp_path):
    log = tmp_path / "rollout.jsonl"
    *first, request, answer = map(lines, [*codex("Build.", "Built.", "Test it.", "Fine.")])
    log.write_text("".join(first))
    with Watch("--port", 0, log) as watch:
        shown = Shown(watch)
        assert shown.until_turns(1, "id c-1") == [0]
        append(log, request + answer[:40])
        append(log, answer[40:])
        assert shown.until_turns(2, "id c-1") == [1]
        append(log, lines({"type": "mood"}) + '{"type": "response_item", "payl')
        assert "record of type 'mood'" in watch.line("not understood")
        assert watch.end_by_signal() == 0
    assert not any("incomplete" in line or "not JSON" in line for line in watch.said)


# Another session in the same file truncates the file too.
@pytest.mark.parametrize("how", [pytest.param("truncated", marks=pytest.mark.slow), "replaced"])
def test_a_file_that_is_truncated_or_replaced_starts_again(tmp_path, how):
    log = tmp_path / "s-1.jsonl"
    log.write_text(lines(*compacted(logical=True).lines))
    other = lines(*Session().user("u1", "Sort the list.").answer("a1", "m1", text("No.")).lines)
    with Watch("--port", 0, log) as watch:
        shown = Shown(watch)
        assert shown.until_turns(3) == [0, 1, 2]
        if how == "truncated":
            log.write_text(other)
        else:
            (tmp_path / "new").write_text(other)
            os.replace(tmp_path / "new", log)
        assert shown.until_turns(1) == [0]


def test_a_symbolic_link_is_followed_to_its_file(tmp_path):
    session = compacted(logical=True).lines
    for name in ("links", "logs"):
        (tmp_path / name).mkdir()
    log, link = tmp_path / "logs" / "s-1.jsonl", tmp_path / "links" / "newest.jsonl"
    log.write_text(lines(*session[:5]))
    link.symlink_to(log)
    with Watch("--port", 0, link) as watch:
        shown = Shown(watch)
        assert shown.until_turns(2) == [0, 1]
        append(log, lines(*session[5:]))
        assert shown.until_turns(3) == [2]


def test_another_session_in_the_same_file_replaces_the_first(tmp_path):
    log = tmp_path / "session.jsonl"
    log.write_text(lines(*compacted(logical=True).lines))
    with Watch("--port", 0, log) as watch:
        shown = Shown(watch)
        shown.until_turns(3)
        log.write_text(lines(*codex("Build.", "Built.")))
        shown.until(lambda: {key: len(turns) for key, turns in shown.turns.items()} == {"id c-1": 1})


def test_a_rewind_starts_the_conversation_again(tmp_path):
    session = Session().user("u1", "Go.").answer("a1", "m1", text("Where?")).user("u2", "North.")
    session.answer("a2", "m2", text("Cold."))
    log = tmp_path / "s-1.jsonl"
    log.write_text(lines(*session.lines))
    with Watch("--port", 0, log) as watch:
        shown = Shown(watch)
        shown.until_turns(2)
        known = len(session.lines)
        session.user("u3", "South.", parent="a1").answer("a3", "m3", text("Warm."))
        append(log, lines(*session.lines[known:]))
        assert shown.until_turns(3) == [2], "the turns before it are unchanged"
        assert "South." in shown.texts


def test_the_newest_log_of_a_directory_is_followed_and_a_newer_one_too(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "package.json").write_text('{"name": "app"}')
    with Watch("--port", 0, folder) as watch:
        watch.line("no file with a conversation yet")
        shown = Shown(watch)
        session = compacted(logical=True).lines
        (folder / "s-1.jsonl").write_text(lines(*session[:5]))
        shown.until_turns(2)
        (folder / "notes.json").write_text('{"a": 1}')
        (folder / "rollout.jsonl").write_text(lines(*codex("Build.", "Built.")))
        assert shown.until_turns(1, "id c-1") == [0]
        append(folder / "s-1.jsonl", lines(*session[5:]))
        assert shown.until_turns(3) == [2]
        assert watch.end_by_signal() == 0
    followed = [line.split("project/")[1].split(" ")[0] for line in watch.said if "follows" in line]
    assert followed == ["s-1.jsonl", "rollout.jsonl"]
    assert not any("notes" in line or "package" in line for line in watch.said)


def test_the_newest_log_below_a_directory_is_followed(tmp_path):
    sessions = tmp_path / "sessions"
    (sessions / "2026" / "11" / "28").mkdir(parents=True)
    (sessions / ".cache").mkdir()
    (sessions / ".cache" / "hidden.jsonl").write_text(lines(*codex("Hidden.", "Yes.")))
    (sessions / "2026" / "loop").symlink_to(sessions)
    (sessions / "2026" / "11" / "28" / "s-1.jsonl").write_text(lines(*compacted(logical=True).lines))
    with Watch("--port", 0, sessions) as watch:
        shown = Shown(watch)
        shown.until_turns(3)
        later = sessions / "2026" / "12" / "01"
        later.mkdir(parents=True)
        (later / "rollout.jsonl").write_text(lines(*codex("Build.", "Built.")))
        assert shown.until_turns(1, "id c-1") == [0]
        append(later / "rollout.jsonl", lines(*[*codex("Build.", "Built.", "Test it.", "Fine.")][3:]))
        assert shown.until_turns(2, "id c-1") == [1]
        (sessions / "2027").mkdir()
        watch.end_by_signal()
    followed = [line.split("sessions/")[1].split(" ")[0] for line in watch.said if "follows" in line]
    assert followed == ["2026/11/28/s-1.jsonl", "2026/12/01/rollout.jsonl"]


def test_the_search_below_a_directory_is_bounded(tmp_path):
    said = []
    for number in range(1_010):
        (tmp_path / f"project {number}").mkdir()
    newest = tmp_path / "project 7" / "session"
    newest.mkdir()
    (newest / "s-1.jsonl").write_text(lines(*compacted(logical=True).lines))
    log = FollowedLog(tmp_path, content=True, say=said.append)
    found = log.find()
    assert len(found.folders) == 1_000
    assert found.files == [newest / "s-1.jsonl"], "directories that changed last are searched first"
    assert "looks at 20,000 files and 1,000 directories at most" in said[0]


def test_a_refused_conversation_is_named_and_the_others_are_shown(tmp_path):
    log = tmp_path / "talks.jsonl"
    talk = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
    bad = [talk[0], {"role": "assistant", "content": 5}]
    log.write_text(lines({"id": "a", "messages": talk}, {"id": "b", "messages": bad}, {"id": "c", "messages": talk}))
    with Watch("--port", 0, tmp_path) as watch:
        refusal = watch.line("talks.jsonl:2").rstrip().removeprefix("otel-assembly: ")
        assert refusal.startswith(f"{log}:2: message 1: its 'content' is a")
        assert refusal.endswith("expected a string, a list or null")
        shown = Shown(watch)
        shown.until(lambda: {"id a", "id c"} <= shown.turns.keys())
        assert "id b" not in shown.turns
        (tmp_path / "alone.json").write_text(json.dumps({"messages": bad}))
        watch.line("alone.json:1: message 1")
        named = (json.loads(data) for name, data in watch.events() if name == "refusals")
        assert refusal in next(named)
        append(log, lines({"id": "d", "messages": talk}))
        shown.until(lambda: "id d" in shown.turns)


def test_content_is_hidden_on_request(tmp_path):
    log = tmp_path / "s-1.jsonl"
    log.write_text(lines(*compacted(logical=True).lines))
    with Watch("--port", 0, log, "--no-content", "--host", "localhost") as watch:
        assert watch.line("message content").rstrip().endswith("message content of the log is hidden")
        shown = Shown(watch)
        shown.until_turns(3)
        assert shown.texts == set()


# Most tests of this file have their options before the path.
@pytest.mark.parametrize("after", [4, *(pytest.param(after, marks=pytest.mark.slow) for after in (0, 1, 3))])
def test_options_stand_before_the_path_and_after_it(tmp_path, after):
    log = tmp_path / "s-1.jsonl"
    log.write_text(lines(*compacted(logical=True).lines))
    options = ["--tree", "--port", "0", "--content"]
    before = len(options) - after
    with Watch(*options[:before], log, *options[before:]) as watch:
        Shown(watch).until_turns(3)
        assert watch.process.stdout.readline().startswith("agent ")


def test_an_unreadable_file_is_one_line_until_it_is_readable(tmp_path):
    log = tmp_path / "s-1.jsonl"
    log.write_bytes(b"\xff\xfenot JSON\n")
    with Watch("--port", 0, log) as watch:
        assert "is not UTF-8, expected JSON in UTF-8" in watch.line(str(log))
        shown = Shown(watch)
        log.write_text(lines(*compacted(logical=True).lines))
        shown.until_turns(3)
        assert watch.end_by_signal() == 0
    assert len([line for line in watch.said if "UTF-8" in line]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl"], "missing.jsonl: does not exist; name a log or its directory, or put -- before a command"),
        (["python", "-m", "agent"], "put -- before a command: otel-assembly watch -- python -m agent"),
        (["/dev/null"], "/dev/null: is a device or a pipe"),
        (["log.jsonl", "--", "ls"], "watch follows a log or runs a command, not both"),
        (["log.jsonl", "--port", "0", "--", "ls"], "watch follows a log or runs a command, not both"),
        (["log.jsonl", "--colour"], "watch follows one log or directory; remove --colour"),
        (["log.jsonl", "other.jsonl", "--port", "0"], "watch follows one log or directory; remove other.jsonl"),
        (["log.jsonl", "--port", "x"], "--port: must be a number from 0 to 65535, got 'x'"),
        (["--store", "turns.db", "log.jsonl"], "--store does not apply to a log; run watch without it"),
        (["--forward", "http://127.0.0.1:9", "log.jsonl"], "--forward does not apply to a log"),
        (["log.jsonl", "--no-stay"], "--stay does not apply to a log"),
    ],
)
def test_a_wrong_command_line_is_one_line(tmp_path, arguments, said):
    (tmp_path / "log.jsonl").write_text("")
    ran = runner(tmp_path, here=True)("watch", *arguments)
    assert (ran.status, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert said in line
