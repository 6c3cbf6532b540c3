"""The compactor that needs no model: never over the target, near to it, the same everywhere, and cheap."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.tokens import TiktokenCounter, shared_encoding

COUNT = TiktokenCounter("o200k_base").count
COMPACT = ExtractiveCompactor()


def recount(text, encoding="o200k_base"):
    """The tokens by tiktoken itself, apart from our counters."""
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return len(shared_encoding(encoding).encode(valid, disallowed_special=()))


class Spy:
    def __init__(self):
        self.texts = []

    def __call__(self, text):
        self.texts.append(text)
        return COUNT(text)


def rows(number):
    made = random.Random(7)
    return [
        {"id": f"ord-{index}", "status": made.choice(["paid", "open", "late"]), "amount": made.randrange(10_000)}
        for index in range(number)
    ]


PROSE = " ".join(
    f"On day {day} the team met in room {day % 4}. Nothing of note was said about the weather. "
    f"Kim decided to move server {day * 17} to Oslo."
    for day in range(60)
)
TEXTS = {
    "prose": PROSE,
    "json lines": "\n".join(map(json.dumps, rows(400))),
    "one line of json": json.dumps(rows(400), separators=(",", ":")),
    "log": "\n".join(f"2026-01-01T00:00:{i % 60:02} INFO worker {i} took job {i * 31}" for i in range(400)),
    "code": "\n".join(f"def function_{i}(value):\n    return value * {i}\n" for i in range(200)),
    "korean": "고객은 주문 4411의 환불을 원합니다. 상담원은 금요일까지 처리하겠다고 약속했습니다. " * 60,
    "chinese": "客户要求退还订单4411的款项。客服承诺在星期五之前处理完毕。" * 80,
    "base64": base64.b64encode(random.Random(1).randbytes(9_000)).decode(),
    "special tokens": "<|endoftext|>" * 600,
    "one word": "a" * 20_000,
    "accents": "e\u0301" * 6_000,
    "families": "👨‍👩‍👧‍👦🇰🇷👍🏽" * 800,
    "lone surrogates": "ab\ud800 cd. " * 900,
    "wide spaces": ("word" + " " * 300) * 60,
    "many newlines": "x\n\n\n\n" * 3_000,
}
each_text = pytest.mark.parametrize("name", TEXTS)


@each_text
@pytest.mark.parametrize("target", [12, 60, 300, 1_000])
def test_the_result_comes_close_to_the_target_and_never_over_it(name, target):
    found = COMPACT(TEXTS[name], target)
    assert recount(found) <= target
    # A family with its flag is some twenty tokens that are not cut apart.
    assert recount(found) >= min(0.8 * target, target - 24, recount(TEXTS[name].strip()))


@each_text
@pytest.mark.parametrize("target", [1, 2, 3, 5, 8])
def test_a_tiny_target_holds_too(name, target):
    assert recount(COMPACT(TEXTS[name], target)) <= target


@given(text=st.text(max_size=3_000), target=st.integers(1, 400))
@settings(max_examples=100, deadline=None)
@example(text="\ud800", target=1)
@example(text="\n\n\n", target=3)
@example(text="<|endoftext|>" * 50, target=20)
@example(text="\u200d" * 200, target=15)
def test_never_over_the_target_for_any_text(text, target):
    for encoding in ("o200k_base", "cl100k_base"):
        found = COMPACT(text, target, count=TiktokenCounter(encoding).count)
        assert recount(found, encoding) <= target


@given(
    text=st.lists(
        st.sampled_from(
            ["word", "네 번째", "第四。", '{"a": 1},', "\n", " ", "x" * 300, "🇰🇷", "e\u0301", ". ", "7781"]
        ),
        max_size=400,
    ).map("".join),
    target=st.integers(1, 200),
)
@settings(max_examples=80, deadline=None)
def test_what_is_kept_stands_in_the_original_in_the_same_order(text, target):
    place = 0
    for part in COMPACT(text, target).split("[…]"):
        kept = part.strip()
        # Without a mark, pieces are joined by a space or a new line that the original need not have there.
        for word in [kept] if target >= 12 else kept.split():
            found = text.find(word, place)
            assert found >= 0
            place = found + len(word)


def test_a_text_that_fits_comes_back_whole():
    assert COMPACT("Kim decided. Lee agreed.\nDone.", 100) == "Kim decided. Lee agreed.\nDone."


@pytest.mark.parametrize("text", ["", " ", "\n" * 100_000, "\t \n"])
def test_nothing_is_made_of_nothing(text):
    assert COMPACT(text, 10) == ""


@pytest.mark.parametrize("target", [0, -1])
def test_no_room_leaves_nothing(target):
    assert COMPACT("some text", target) == ""


def test_where_not_even_a_character_fits_nothing_is_left():
    assert COMPACT("뷁" * 10, 1) == ""
    assert COMPACT("한국어" * 10, 1, count=lambda text: 5 * len(text)) == ""


def test_a_mark_stands_wherever_something_is_left_out():
    text = "\n".join(f"line {number} says something of its own: {number * 7919}" for number in range(100))
    found = COMPACT(text, 80)
    lines = found.split("\n")
    assert lines[0].startswith("line 0 ")
    kept = [int(number) for number in re.findall(r"^(?:\[…\] )?line (\d+)", found, re.MULTILINE)]
    assert kept == sorted(kept)
    gaps = sum(after != before + 1 for before, after in pairwise(kept))
    assert found.count("[…]") >= gaps > 0


def test_of_a_line_that_is_repeated_one_is_enough():
    noise = ["GET /health 200"] * 500
    noise[250] = "payment 8821 failed: card declined by issuer Norddeutsche"
    found = COMPACT("\n".join(noise), 60)
    assert "payment 8821 failed: card declined by issuer Norddeutsche" in found


def test_decisions_numbers_and_names_stand_before_chatter():
    chatter = [
        f"Well, you know, it is what it is and so it goes on and on, {word}." for word in ("yes", "no", "so")
    ] * 40
    text = " ".join([*chatter[:60], "Kim Larsen approved invoice 77120 of 4,150 EUR for Oslo.", *chatter[60:]])
    assert "Kim Larsen approved invoice 77120 of 4,150 EUR for Oslo." in COMPACT(text, 80)


def test_visible_characters_are_not_cut_apart():
    for target in range(12, 60):
        kept = COMPACT("👨‍👩‍👧‍👦" * 100, target).replace("[…]", "").strip()
        assert kept == "👨‍👩‍👧‍👦" * kept.count("👦")
        kept = COMPACT("🇰🇷" * 200, target).replace("[…]", "").strip()
        assert kept == "🇰🇷" * (len(kept) // 2)


def test_a_megabyte_is_never_tokenised():
    text = json.dumps(rows(19_000))
    assert len(text) > 1_000_000
    spy = Spy()
    found = ExtractiveCompactor(spy)(text, 2_000)
    assert 1_900 <= recount(found) <= 2_000
    assert len(spy.texts) <= 16
    assert max(map(len, spy.texts)) < 40_000
    assert sum(map(len, spy.texts)) < len(text) / 4


@each_text
def test_counts_are_bounded(name):
    for target in (1, 15, 150, 1_500):
        spy = Spy()
        ExtractiveCompactor(spy)(TEXTS[name], target)
        assert len(spy.texts) <= 32


def test_the_counter_of_the_caller_decides_unless_it_has_one_of_its_own():
    def letters(text):
        return len(text)

    assert len(ExtractiveCompactor()(PROSE, 100, count=letters)) <= 100
    assert len(ExtractiveCompactor(letters)(PROSE, 100, count=COUNT)) <= 100


def test_the_same_in_every_process():
    program = (
        "import json, sys, hashlib\n"
        "from otel_assembly.budget import ExtractiveCompactor\n"
        "for text in json.load(sys.stdin):\n"
        "    for target in (9, 70, 500):\n"
        "        print(hashlib.sha256(ExtractiveCompactor()(text, target).encode()).hexdigest())\n"
    )
    texts = json.dumps([text for name, text in TEXTS.items() if name != "lone surrogates"])
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            input=texts,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "4711")
    }
    assert len(found) == 1
    assert found.pop().count("\n") == 3 * (len(TEXTS) - 1)
