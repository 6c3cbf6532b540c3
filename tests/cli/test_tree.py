from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from otel_assembly.cli import render_tree, safe_text
from otel_assembly.telemetry import StoredEvent, StoredSpan, span_tree

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def span(span_id="a", parent=None, name="work", *, start=0.0, ms=1.0, trace="ab" * 16, events=(), failed=False, **more):
    """A span; keyword arguments with __ for dots are its attributes."""
    return StoredSpan(
        trace,
        span_id,
        parent,
        name,
        int(start * 1e6),
        int((start + ms) * 1e6),
        {key.replace("__", "."): value for key, value in more.items()},
        [StoredEvent(event, 0, attributes) for event, attributes in events],
        status="ERROR" if failed else "UNSET",
    )


def draw(*spans, width=100, **options):
    return render_tree(span_tree(spans), width=width, **({"color": False} | options))


def line_with(words, drawn):
    (line,) = [line for line in drawn.splitlines() if words in line]
    return line


ASSEMBLY = {
    "assembly__turn": 7,
    "assembly__tokens__in": 12410,
    "assembly__tokens__out": 6000,
    "assembly__budget__limit": 8000,
    "assembly__kind__names": ["prompt", "request", "tool_result"],
    "assembly__kind__tokens": [2000, 1000, 3000],
    "assembly__dropped__count": 14,
    "assembly__dropped__tokens": 6410,
}
POLICY = {
    "assembly__tokens__in": 12410,
    "assembly__tokens__out": 7980,
    "assembly__dropped__items": ["3-9", "12", "14"],
    "assembly__dropped__reasons": ["over_budget", "orphaned_tool_result", "over_budget"],
    "assembly__dropped__count": 9,
}
ALERT = {
    "assembly.alert.source": "budget_watch",
    "assembly.alert.severity": "warning",
    "assembly.alert.message": "92% of the budget is fixed",
}


def test_an_assembly_says_its_turn_its_tokens_and_what_it_dropped():
    head = line_with("assemble_context", draw(span(name="assemble_context", ms=1.8, **ASSEMBLY)))
    assert "turn 7  tokens 12,410→6,000 / 8,000  dropped 14 (6,410 tokens)" in head
    assert head.endswith(" 1.8ms")
    assert len(head) == 100


def test_the_bar_shows_each_kind_in_proportion_and_the_budget_that_is_left():
    drawn = draw(span(name="assemble_context", **ASSEMBLY))
    bar = re.search(r"\[(.*)\] 75\.0%", drawn).group(1)
    assert bar == "P" * 15 + "U" * 8 + "T" * 22 + "·" * 15


def test_every_kind_that_is_there_is_seen_in_the_bar():
    kinds = {"assembly__kind__names": ["prompt", "framing", "alert"], "assembly__kind__tokens": [7997, 2, 1]}
    drawn = draw(span(name="assemble_context", **(ASSEMBLY | kinds)))
    bar = re.search(r"\[(.*)\]", drawn).group(1)
    assert {"P", "F", "A"} <= set(bar)
    assert len(bar) == 60


def test_a_bar_over_its_budget_marks_where_the_budget_ends():
    drawn = draw(span(name="assemble_context", **(ASSEMBLY | {"assembly__kind__tokens": [8000, 4000, 0]})))
    bar = re.search(r"\[(.*)\] 150\.0%", drawn).group(1)
    assert bar[40] == "┃"
    assert "·" not in bar


@pytest.mark.parametrize(
    ("limit", "bar"),
    [
        (4000, "P{20}U{10}T{30}] 100.0%"),
        (8000, "P{12}U{6}T{18}·{24}] 50.0%"),
        (2000, "P{20}U{10}T{10}┃T{19}] 200.0%"),
    ],
)
def test_a_limit_of_the_messages_is_told_of_them_and_stands_behind_what_is_beside_them(limit, bar):
    held = {"assembly__budget__limit": limit, "assembly__budget__used": 4000, "assembly__model__window": 128000}
    drawn = draw(span(name="assemble_context", **(ASSEMBLY | held)), width=140)
    head = line_with("assemble_context", drawn)
    assert f"tokens 12,410→6,000 / 128,000 (model window)  messages 4,000 / {limit:,}  " in head
    assert re.search(rf"\[{bar}", drawn)


def test_without_a_budget_the_bar_is_full_and_has_no_share():
    attributes = {key: value for key, value in ASSEMBLY.items() if "budget" not in key}
    drawn = draw(span(name="assemble_context", **attributes))
    assert re.search(r"\[[PUT]{60}\]$", drawn, re.MULTILINE)
    assert " / " not in drawn


def test_the_legend_stands_once_and_names_what_was_shown():
    spans = [span(str(turn), name="assemble_context", start=turn, **ASSEMBLY) for turn in range(3)]
    drawn = draw(*spans)
    assert drawn.endswith("\n\nP prompt  U request  T tool_result  · free\n")
    assert drawn.count("T tool_result") == 1
    assert "memory" not in drawn


def test_no_bar_no_legend():
    assert "free" not in draw(span())
    assert render_tree([], width=80, color=False) == ""


def test_no_two_kinds_share_a_letter():
    from otel_assembly.cli.bars import _KINDS

    assert len({letter for letter, _ in _KINDS.values()}) == len(_KINDS)
    assert len({shade for _, shade in _KINDS.values()}) == len(_KINDS)


def test_every_kind_of_the_registry_has_a_letter():
    from otel_assembly.cli.bars import _KINDS
    from otel_assembly.telemetry import conventions
    from otel_assembly.telemetry.conventions_registry import attributes

    assert set(attributes()[conventions.KIND_NAMES].values) <= set(_KINDS)


def test_a_policy_says_how_many_items_left_and_why():
    drawn = draw(span(name="apply_policy token_budget", **POLICY))
    assert "dropped 9 (over_budget ×8, orphaned_tool_result ×1)" in drawn
    assert "12,410→7,980" in drawn


def test_items_that_left_in_earlier_turns_are_told_from_those_that_left_in_this_one():
    policy = POLICY | {"assembly__newly_dropped__count": 3}
    drawn = draw(span(name="apply_policy sliding_window", **policy), width=120)
    assert "dropped 9 (3 newly; over_budget ×8, orphaned_tool_result ×1)" in drawn


def test_of_what_a_policy_does_not_list_the_reasons_stand_together():
    policy = POLICY | {"assembly__dropped__count": 120, "assembly__dropped__unlisted_reasons": ["over_budget"]}
    drawn = draw(span(name="apply_policy sliding_window", **policy), width=120)
    assert "dropped 120 (over_budget ×119, orphaned_tool_result ×1)" in drawn
    policy["assembly__dropped__unlisted_reasons"] = ["over_budget", "stale"]
    drawn = draw(span(name="apply_policy sliding_window", **policy), width=120)
    assert "dropped 120 (over_budget or stale ×111, over_budget ×8, orphaned_tool_result ×1)" in drawn


def test_reasons_that_did_not_fit_the_span_are_read_from_its_list():
    rest = span("b", "a", "list_items", assembly__dropped__items=["20-29"], assembly__dropped__reasons=["stale"])
    drawn = draw(span(name="apply_policy p", **(POLICY | {"assembly__dropped__count": 19})), rest, width=120)
    assert "dropped 19 (stale ×10, over_budget ×8, orphaned_tool_result ×1)" in drawn


def test_arrays_may_be_the_json_texts_of_jaeger():
    drawn = draw(
        span(
            name="apply_policy p",
            assembly__dropped__items='["0-1"]',
            assembly__dropped__reasons='["stale"]',
        ),
        span(
            "b",
            "a",
            "assemble_context",
            **(ASSEMBLY | {"assembly__kind__names": '["prompt"]', "assembly__kind__tokens": "[6000]"}),
        ),
    )
    assert "dropped 2 (stale ×2)" in drawn
    assert "P" * 45 in drawn


def test_alerts_halts_and_overflows_stand_under_their_span():
    drawn = draw(
        span(
            name="assemble_context",
            failed=True,
            error__type="context_overflow",
            assembly__overflow__tokens=812,
            assembly__budget__limit=8000,
            events=[
                ("assembly.alert", ALERT),
                ("assembly.alert", ALERT | {"assembly.alert.severity": "fatal"}),
                ("assembly.overflow", {"assembly.overflow.cause": "newest_atom"}),
                ("assembly.halt", {"assembly.halt.source": "watch", "assembly.halt.reason": "enough"}),
                ("something.else", {}),
            ],
        ),
        span("b", "a"),
    )
    assert [line[:60].rstrip() for line in drawn.splitlines()[1:]] == [
        "assemble_context  ERROR context_overflow",
        "├─ ⚠ WARNING alert  budget_watch: 92% of the budget is fixed",
        "├─ ✖ FATAL alert  budget_watch: 92% of the budget is fixed",
        "├─ ✖ OVERFLOW  newest atom: 812 tokens over the budget of 8,",
        "├─ ✖ HALT  watch: enough",
        "├─ • something.else",
        "└─ work",
    ]


def test_an_alert_without_its_message_is_still_an_alert():
    drawn = draw(span(events=[("assembly.alert", {"assembly.alert.severity": "info"})]))
    assert "└─ ⚠ INFO alert\n" in drawn


def test_an_unknown_span_is_its_name_and_duration():
    drawn = draw(span(name="GET /things", ms=1234.5, http__method="GET"))
    assert drawn.splitlines()[1].split() == ["GET", "/things", "1.23s"]


@pytest.mark.parametrize(
    ("ms", "shown"), [(0.0124, "12µs"), (0, ""), (9.96, "10.0ms"), (2000, "2.00s"), (125_000, "2m05s"), (-5, "")]
)
def test_durations_and_none_where_no_time_passed(ms, shown):
    assert draw(span(ms=ms)).splitlines()[-1].split() == ["work", *([shown] if shown else [])]


def test_traces_stand_apart_under_their_ids():
    drawn = draw(span(), span("b"), span("c", trace="cd" * 16, start=5))
    assert [line for line in drawn.splitlines() if "trace" in line or not line] == [
        "trace " + "ab" * 16,
        "",
        "trace " + "cd" * 16,
    ]


def test_captured_content_is_shown_only_when_asked_for():
    captured = {"assembly__arrived__contents": ["the user's words", "\x1b[2Ja [red]tool[/red]"]}
    node = span(name="assemble_context", **captured, gen_ai__system_instructions='[{"type":"text"}]')
    assert "words" not in draw(node)
    shown = draw(node, content=True)
    assert "assembly.arrived.contents  the user's words\n" in shown
    assert "assembly.arrived.contents  a [red]tool[/red]\n" in shown
    assert 'gen_ai.system_instructions  [{"type":"text"}]' in shown


# Colour and characters


def full_tree():
    return [
        span("r", name="invoke_agent helper", ms=4210, failed=True, error__type="assembly_halt"),
        span("a", "r", "assemble_context", **ASSEMBLY, events=[("assembly.alert", ALERT)]),
        span("p", "a", "apply_policy token_budget", **POLICY),
        span("c", "r", "chat gpt", start=9),
    ]


def test_colour_adds_nothing_but_colour():
    assert ANSI.sub("", draw(*full_tree(), color=True)) == draw(*full_tree())


def test_an_error_is_red_and_an_alert_has_the_colour_of_its_severity():
    drawn = draw(*full_tree(), color=True)
    assert "\x1b[1;31minvoke_agent helper" in drawn
    assert "\x1b[33m⚠ WARNING alert" in drawn


def test_colour_does_not_depend_on_the_environment(monkeypatch):
    colored, plain = draw(*full_tree(), color=True), draw(*full_tree())
    for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "20", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
        assert draw(*full_tree(), color=True) == colored
        assert draw(*full_tree()) == plain


def test_ascii_where_the_encoding_has_nothing_else():
    drawn = draw(*full_tree(), span("x", name="größer"), ascii=True)
    assert drawn.isascii()
    assert "|- assemble_context" in drawn
    assert "12,410->7,980" in drawn
    assert "gr??er" in drawn


@pytest.mark.parametrize("options", [{}, {"ascii": True}, {"color": True}])
@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width, options):
    alert = ALERT | {"assembly.alert.message": "漢字" * 30 + " " + "word " * 40 + "x" * 300}
    spans = [*full_tree(), span("e", "r", "long " * 40, events=[("assembly.alert", alert)])]
    for line in draw(*spans, width=width, **options).splitlines():
        assert cell_len(ANSI.sub("", line)) <= width


def test_a_very_deep_trace_keeps_room_for_what_it_says():
    spans = [span(str(depth), str(depth - 1), f"level {depth}", start=depth) for depth in range(1500)]
    drawn = draw(*spans, width=80)
    assert "level 1499" in drawn
    assert max(map(len, drawn.splitlines())) <= 80


# What spans may not do to a terminal


HOSTILE = (
    "a\x1b[31mb\x1b]0;title\x07c\x1b]8;;http://evil\x1b\\d\x9b2Je\rf\x08g\x07h\x1bci\u202ej\u200bk\ud800l\x00m\nn\x1b[m"
)


def test_hostile_text_is_printed_and_nothing_more():
    assert safe_text(HOSTILE) == "abcde fghijklm n"
    assert safe_text("\x1b]0;unended title") == "0;unended title"
    assert safe_text("é 漢 🌍 [bold]") == "é 漢 🌍 [bold]"


@given(st.text(alphabet="\x1b[]0;m\x07\\\x9b\x9d\x9c Pa\u202e\u2028\n") | st.text())
def test_no_text_reaches_the_terminal_with_a_control_character(text):
    assert all(character.isprintable() or character == " " for character in _known(safe_text(text)))


def _known(text):
    import unicodedata

    return [character for character in text if unicodedata.category(character) != "Cn"]


@pytest.mark.parametrize("options", [{}, {"color": True}, {"ascii": True}, {"content": True}])
def test_injections_in_every_place_of_a_span(options):
    evil = HOSTILE + " [bold red]markup[/] :warning: [link=http://x]y[/link]"
    node = StoredSpan(
        evil,
        "a",
        None,
        f"assemble_context {evil}",
        0,
        10,
        {
            "assembly.kind.names": [evil],
            "assembly.kind.tokens": [5],
            "assembly.dropped.items": ["1"],
            "assembly.dropped.reasons": [evil],
            "assembly.arrived.contents": [evil],
            "error.type": evil,
        },
        [
            StoredEvent(evil),
            StoredEvent(
                "assembly.alert", 0, {f"assembly.alert.{key}": evil for key in ("source", "severity", "message")}
            ),
            StoredEvent("assembly.halt", 0, {"assembly.halt.source": evil, "assembly.halt.reason": evil}),
            StoredEvent("assembly.overflow", 0, {"assembly.overflow.cause": evil}),
        ],
        status="ERROR",
        status_message=evil,
    )
    policy = StoredSpan(evil, "b", "a", f"apply_policy {evil}", 0, 10, dict(node.attributes))
    drawn = ANSI.sub("", draw(node, policy, width=200, **options))
    assert all(character.isprintable() or character == "\n" for character in drawn)
    assert "title" not in drawn
    assert "evil" not in drawn
    assert "[bold red]markup[/] :warning:" in drawn


def test_attributes_of_the_wrong_type_do_no_harm():
    wrong = {
        "assembly__turn": "7",
        "assembly__tokens__in": "x",
        "assembly__tokens__out": None,
        "assembly__budget__limit": float("nan"),
        "assembly__kind__names": 5,
        "assembly__kind__tokens": [[], "3", -4],
        "assembly__dropped__count": True,
        "assembly__dropped__items": ["a-b", "9-3", "-", None, 4],
        "assembly__dropped__reasons": [1, 2, 3, 4, {}],
    }
    assert "turn 7" in draw(span(name="assemble_context", **wrong))
    assert "dropped 1 ({} ×1)" in draw(span(name="apply_policy p", **wrong))


def test_a_huge_text_is_cut_before_it_fills_the_screen():
    drawn = draw(span(name="\x1b]" * 500_000 + "x" * 1_000_000))
    assert len(drawn) < 2000
