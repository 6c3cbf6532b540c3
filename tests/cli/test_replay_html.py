"""``otel-assembly replay --html``: every turn of every chain on one page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from otel_assembly.telemetry import read_spans


def page_data(path):
    """What the page was made of."""
    text = path.read_text(encoding="utf-8")
    script = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    return json.loads(script[1])


def ledgers(model):
    return [ledger for conversation in model["conversations"] for ledger in conversation["ledgers"]]


def test_a_page_has_every_turn_of_every_chain(otel_assembly, conversations, tmp_path):
    ran = otel_assembly("replay", conversations, "--budget", 400, "--budget", 800, "--html", "page.html")
    assert ran.status == 0
    assert "wrote page.html: 3 conversations" in ran.err
    assert "exported" not in ran.err
    assert "overflowed turns" in ran.out
    model = page_data(tmp_path / "page.html")
    assert model["title"] == "conversations.jsonl"
    assert [conversation["id"] for conversation in model["conversations"]] == ["talk-0", "talk-1", "talk-2"]
    assert sorted(ledger["name"] for ledger in ledgers(model)) == ["budget-400"] * 3 + ["budget-800"] * 3
    assert sum(len(ledger["turns"]) for ledger in ledgers(model)) == 60


def test_it_goes_with_the_export_and_the_numbers(otel_assembly, conversations, tmp_path):
    arguments = ("replay", conversations, "--budget", 400, "--json")
    ran = otel_assembly(*arguments, "--html", "page.html", "--export", "spans.jsonl")
    assert ran.status == 0
    assert ran.json == otel_assembly(*arguments).json
    assert "lost" not in ran.err
    assemblies = [span for span in read_spans(tmp_path / "spans.jsonl") if span.name == "assemble_context"]
    assert len(assemblies) == sum(len(ledger["turns"]) for ledger in ledgers(page_data(tmp_path / "page.html"))) == 30


def test_earlier_spans_of_a_file_are_not_on_the_page(otel_assembly, conversations, tmp_path):
    for _ in range(2):
        otel_assembly("replay", conversations, "--budget", 400, "--export", "spans.jsonl", "--html", "page.html")
    assert len(ledgers(page_data(tmp_path / "page.html"))) == 3


def test_no_word_of_a_message_is_on_it_unless_content_is_captured(otel_assembly, conversations, tmp_path):
    otel_assembly("replay", conversations, "--budget", 400, "--html", "page.html")
    assert "Fact 1." not in (tmp_path / "page.html").read_text(encoding="utf-8")
    capture = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
    otel_assembly("replay", conversations, "--budget", 400, "--html", "page.html", **capture)
    assert "Fact 1." in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_found_out_before_the_work(otel_assembly, conversations, tmp_path):
    (tmp_path / "folder").mkdir()
    for wrong in ("nowhere/page.html", "folder"):
        ran = otel_assembly("replay", conversations, "--budget", 400, "--html", wrong)
        assert ran.status == 2
        assert ran.out == ""
        assert wrong in ran.err


def test_nothing_is_left_in_the_temporary_folder(otel_assembly, conversations, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    otel_assembly("replay", conversations, "--budget", 400, "--html", "page.html", TMPDIR=str(scratch))
    assert os.listdir(scratch) == []


def test_where_no_conversation_can_be_read_there_is_no_page(otel_assembly, tmp_path):
    Path(tmp_path / "bad.jsonl").write_text("nothing\n")
    assert otel_assembly("replay", "bad.jsonl", "--html", "page.html").status == 2
    assert not (tmp_path / "page.html").exists()
