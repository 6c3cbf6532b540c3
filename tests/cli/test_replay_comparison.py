"""What ``otel-assembly replay`` says of chains side by side, as a person reads it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from otel_assembly.telemetry import read_spans

WINDOW = "conversation,sliding_window:max_events=6,token_budget:max_tokens=400"


def tables(text):
    """The totals, by chain and by row; a row that is a part of another stands under its label too."""
    found, header, above = {}, [], ""
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if line and line.strip().startswith(("budget-", "whole")) and "," not in line:
            header = cells
        elif header and len(cells) == len(header) + 1 and re.fullmatch(r"[\d,.%$-]+|none", cells[-1]):
            indent = len(line) - len(line.lstrip())
            above = cells[0] if indent == 1 else above
            label = cells[0] if indent == 1 else f"{above}/{cells[0]}"
            for name, cell in zip(header, cells[1:], strict=True):
                found.setdefault(name, {})[label] = cell
    return found


def number(cell):
    return int(cell.replace(",", ""))


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "whole.yaml"
    path.write_text("name: whole\npolicies: [conversation]\n")
    return path


@pytest.mark.parametrize("columns", [80, 120])
def test_many_chains_are_readable_at_any_width(otel_assembly, conversations, columns):
    budgets = [part for size in (400, 500, 600, 700, 800, 900) for part in ("--budget", size)]
    ran = otel_assembly("replay", conversations, *budgets, "--policies", WINDOW, COLUMNS=str(columns))
    assert max(map(len, ran.out.splitlines())) <= columns
    assert "…" not in ran.out
    read = tables(ran.out)
    for size in (400, 500, 600, 700, 800, 900):
        assert read[f"budget-{size}"]["budget, tokens"] == str(size)
        assert number(read[f"budget-{size}"]["tokens in"]) == number(read["budget-400"]["tokens in"])
    for piece in ("conversation+", "sliding_window+", "token_budget"):
        assert re.search(rf"{re.escape(piece)}\s*$", ran.out, re.MULTILINE)


def test_what_a_budget_costs_and_loses_adds_up(otel_assembly, conversations, whole):
    arguments = ("replay", conversations, "--budget", 400, "--config", whole, "--budget", 800)
    read = tables(otel_assembly(*arguments, COLUMNS="120").out)
    told = {row["name"]: row for row in otel_assembly(*arguments, "--json").json}
    assert set(read) == set(told) == {"budget-400", "whole", "budget-800"}
    for name, rows in read.items():
        assert number(rows["tokens out"]) == told[name]["tokens_out"]
        parts = (rows["tokens out/in the stable prefix"], rows["tokens out/outside the stable prefix"])
        assert sum(map(number, parts)) == told[name]["tokens_out"]
        kinds = [
            number(cell) for label, cell in rows.items() if label.startswith("items dropped/") and "/by " not in label
        ]
        assert sum(kinds) == number(rows["items dropped"]) == told[name]["dropped"]
        breaks = [number(cell) for label, cell in rows.items() if label.startswith("prefix breaks/")]
        assert sum(breaks) == number(rows["prefix breaks"])
    assert read["whole"]["budget used, mean"] == "-"
    assert read["whole"]["prefix reuse, mean/turns that reuse ≥ 90%"] == "100.0%"
    assert number(read["whole"]["tokens dropped"]) == 0 < number(read["budget-800"]["tokens dropped"])
    assert number(read["budget-400"]["prefix breaks/cut_moved"]) > 0


def test_the_numbers_are_those_of_the_spans(otel_assembly, conversations, tmp_path):
    read = tables(otel_assembly("replay", conversations, "--budget", 400, "--export", "spans.jsonl").out)["budget-400"]
    spans = [span.attributes for span in read_spans(tmp_path / "spans.jsonl") if span.name == "assemble_context"]
    begin = number(read["tokens out/in the stable prefix"])
    assert begin == sum(span["assembly.prefix.tokens"] for span in spans)
    causes = Counter(span.get("assembly.prefix.break") for span in spans)
    assert causes.pop("first") == 3
    told = {label.partition("/")[2]: number(cell) for label, cell in read.items() if label.startswith("prefix breaks/")}
    assert told == {cause: count for cause, count in causes.items() if cause}
    used = [span["assembly.budget.utilization"] for span in spans]
    assert read["budget used, mean"] == f"{sum(used) / len(used):.1%}"
    full = [span["assembly.budget.utilization"] for span in spans if span["assembly.tokens.in"] > 400]
    assert read["budget used, mean/if the input exceeds it"] == f"{sum(full) / len(full):.1%}"


def test_what_left_by_different_rules_is_told_apart(otel_assembly, conversations):
    chain = "conversation,sliding_window:max_events=3,token_budget:max_tokens=150"
    text = otel_assembly("replay", conversations, "--policies", chain).out
    rules = {rule: number(count) for rule, count in re.findall(r"by (\w+) +([\d,]+)", text)}
    assert {"over_budget", "outside_window"} <= set(rules)
    assert sum(rules.values()) == number(re.search(r"items dropped +([\d,]+)", text)[1])


def test_where_nothing_can_be_sent_there_is_nothing_to_reuse_and_no_budget_is_used(otel_assembly, conversations):
    read = tables(otel_assembly("replay", conversations, "--budget", 12, "--budget", 4000).out)
    assert read["budget-12"]["overflowed turns"] == "30"
    assert read["budget-12"]["budget used, mean"] == "-"
    assert (read["budget-12"]["tokens out"], read["budget-12"]["items dropped"]) == ("0", "0")
    assert read["budget-4000"]["overflowed turns"] == "0"


def test_a_terminal_without_unicode_gets_the_same_numbers(otel_assembly, conversations, tmp_path):
    path = tmp_path / "korean.jsonl"
    path.write_text(conversations.read_text().replace("talk-2", "대화-2"), encoding="utf-8")
    plain = otel_assembly("replay", path, "--budget", 300, "--turns", PYTHONIOENCODING="ascii")
    assert plain.status == 0
    assert plain.out.isascii()
    unicode = otel_assembly("replay", path, "--budget", 300, "--turns")
    assert "대화-2" in unicode.out
    digits = [re.findall(r"[\d,]*\d", ran.out.replace("대화", "??")) for ran in (plain, unicode)]
    assert digits[0] == digits[1]


def test_a_chains_name_is_broken_and_never_cut(otel_assembly, conversations, tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text("name: " + "nineteen-" * 6 + "end\npolicies: [conversation]\n")
    ran = otel_assembly("replay", conversations, "--config", path, "--budget", 400, COLUMNS="80")
    assert max(map(len, ran.out.splitlines())) <= 80
    header = ran.out[: ran.out.index("budget, tokens")]
    assert "".join(re.findall(r"[a-z-]*nine[a-z-]*|[a-z-]*teen[a-z-]*|[a-z-]*end", header)).count("teen") == 6


def test_what_a_budget_costs_in_dollars(otel_assembly, conversations):
    """At the list price of the model: 2.50 dollars a million tokens, half of that for what is cached."""
    ran = otel_assembly("replay", conversations, "--budget", 400, "--budget", 8_000, "--model", "gpt-4o", COLUMNS="120")
    for rows in tables(ran.out).values():
        begin, rest = (number(rows[f"tokens out/{where} the stable prefix"]) for where in ("in", "outside"))
        paid = float(rows["input cost, estimated"].removeprefix("$"))
        assert paid == pytest.approx(begin * 1.25e-6 + rest * 2.5e-6, rel=0.01)
        left = number(rows["tokens dropped"]) * 2.5e-6
        assert float(rows["input cost, estimated/avoided by dropping"].removeprefix("$")) == pytest.approx(
            left, rel=0.01
        )
    one = otel_assembly("replay", conversations, "--model", "gpt-4o", COLUMNS="120").out
    assert re.search(r"reuse +cost *$", one, re.MULTILINE)
    assert "list prices of input" in " ".join(one.split())


def test_a_model_without_a_list_price_has_no_cost_and_the_table_says_so(otel_assembly, conversations):
    said = " ".join(otel_assembly("replay", conversations, "--model", "our-own-model").out.split())
    assert "input cost" not in said
    assert "No cost is shown: our-own-model has no list price" in said
    assert "ost" not in otel_assembly("replay", conversations).out  # and where no model is named, nobody asked
