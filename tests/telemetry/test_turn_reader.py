"""A turn is read from the spans of that turn; what they do not say is not known, and nothing is guessed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from otel_assembly.telemetry import StoredSpan, read_ledgers


def turn(number, offered, kept, *steps, arrived=None, sent=True, **attributes):
    """The spans of one assembly: `steps` are ``(policy, listed)``, `listed` what its span says of items."""
    trace, span = f"{number + 1:032x}", f"{number + 1:015x}0"
    held = {
        "assembly.format.version": 1,
        "assembly.id": f"a{number}",
        "assembly.ledger.id": "ledger",
        "assembly.turn": number,
        "assembly.steps": len(steps),
        "assembly.offered.items": offered,
        "assembly.kept.items": kept,
        **({"assembly.prefix.hash": "0"} if sent else {"error.type": "context_overflow"}),
        **{f"assembly.{name}": value for name, value in attributes.items()},
    }
    if sent and kept is not None:
        held["assembly.events.out"] = sum(size(run) for run in kept)
    if arrived:
        items, tokens = zip(*arrived.items(), strict=True)
        held |= {
            "assembly.arrived.items": list(items),
            "assembly.arrived.kinds": ["request"] * len(items),
            "assembly.arrived.tokens": list(tokens),
            "assembly.arrived.bytes": [4 * count for count in tokens],
            "assembly.arrived.atoms": list(items),
            "assembly.arrived.calls": [0] * len(items),
            "assembly.arrived.sources": ["0-1,4" if item == "m1" else "" for item in items],
        }
    at = 1000 * number
    held = {name: value for name, value in held.items() if value is not None}
    spans = [StoredSpan(trace, span, None, "assemble_context", at, at + 900, held)]
    for index, (policy, listed) in enumerate(steps):
        said = {"assembly.policy.name": policy, "assembly.policy.index": index, **spelled(listed)}
        name = f"apply_policy {policy}"
        spans.append(
            StoredSpan(trace, f"{number + 1:015x}{index + 1}", span, name, at + 1 + index, at + 2 + index, said)
        )
    return spans


NOT_DESCRIBED = "items in a prompt that no available turn describes: "


def size(run):
    first, _, last = run.replace("m", "").partition("-")
    return int(last or first) - int(first) + 1


def spelled(listed):
    """`listed` is by reason, and under ``compacted``, ``injected`` and ``rest`` what these are."""
    listed = dict(listed)
    whole = {f"assembly.{name}.items": listed.pop(name, None) for name in ("compacted", "injected")}
    whole["assembly.dropped.unlisted_reasons"] = listed.pop("rest", None)
    whole["assembly.dropped.items"] = [run for runs in listed.values() for run in runs]
    whole["assembly.dropped.reasons"] = [reason for reason, runs in listed.items() for _ in runs]
    return {name: value for name, value in whole.items() if value}


def read(*turns, lost=()):
    (ledger,) = read_ledgers([span for turn in turns for span in turn if span.span_id not in lost]).values()
    return ledger


def why(ledger, number):
    return {item: (value.policy, value.reason) for item, value in ledger.exits(number).items()}


def test_what_was_offered_kept_and_out_and_by_whom():
    one = turn(0, ["0-5"], ["4-5"], ("talk", {"not_conversation": ["1"]}), ("window", {"outside_window": ["0", "2-3"]}))
    ledger = read(one)
    (told,) = ledger.turns
    assert (list(told.offered), list(told.kept)) == ([*"012345"], ["4", "5"])
    assert why(ledger, 0) == {
        "0": ("window", "outside_window"),
        "1": ("talk", "not_conversation"),
        "2": ("window", "outside_window"),
        "3": ("window", "outside_window"),
    }
    assert (ledger.exit(0, "1").index, ledger.exit(0, "3").index, ledger.exit(0, "4"), ledger.exit(0, "9")) == (
        0,
        1,
        None,
        None,
    )


def test_the_last_word_holds():
    back = turn(0, ["0-2"], ["2", "0"], ("drop", {"policy": ["0-1"]}), ("put_back", {"injected": ["0"]}))
    assert why(read(back), 0) == {"1": ("drop", "policy")}
    again = turn(
        0,
        ["0-2"],
        ["2"],
        ("drop", {"policy": ["0-1"]}),
        ("put_back", {"injected": ["0"]}),
        ("window", {"outside_window": ["0"]}),
    )
    assert why(read(again), 0) == {"0": ("window", "outside_window"), "1": ("drop", "policy")}


def test_what_a_policy_made_has_an_id_of_its_own_and_may_be_out_as_well():
    one = turn(
        0,
        ["0-1"],
        ["m1", "1"],
        ("remind", {"injected": ["m0-m1"]}),
        ("window", {"outside_window": ["m0"], "compacted": ["0"]}),
        arrived={"0": 5, "1": 6, "m0": 7, "m1": 8},
    )
    ledger = read(one)
    assert why(ledger, 0) == {"0": ("window", "compacted"), "m0": ("window", "outside_window")}
    assert ledger.exit(0, "0").outcome == "compacted"
    assert ledger.tokens(0, "m1") == 8
    assert list(ledger.items["m1"].sources) == ["0", "1", "4"]


def test_what_one_step_does_not_list_it_took():
    ledger = read(turn(0, ["0-9"], ["8-9"], ("talk", {}), ("odd", {"policy": ["7"], "rest": ["policy"]})))
    assert why(ledger, 0) == dict.fromkeys("01234567", ("odd", "policy"))


ODD = {"policy": ["7"], "rest": ["policy"]}
WINDOW = {"outside_window": ["6"], "rest": ["outside_window"]}


def test_of_several_the_turn_on_which_it_left_says_which():
    first = turn(0, ["0-1"], ["1"], ("odd", {"policy": ["0"]}), ("window", {}))
    then = [turn(n, ["0-9"], ["8-9"], ("odd", ODD), ("window", WINDOW)) for n in (1, 2)]
    ledger = read(first, *then)
    assert ledger.exit(2, "0") == ledger.exit(0, "0")
    assert ledger.since(2, "0") == (0, True)
    open_ = ledger.exit(2, "3")
    assert (open_.reason, open_.policy, [decision.policy for decision in open_.among]) == (
        None,
        None,
        ["odd", "window"],
    )
    assert read(*then).exit(2, "0").reason is None
    assert read(first, then[1]).exit(2, "0").reason is None  # in between it may have left by the other one


def test_a_lost_policy_takes_what_nobody_lists_and_nothing_else():
    one = turn(0, ["0-9"], ["8-9"], ("odd", ODD), ("window", WINDOW))
    ledger = read(one, lost={one[2].span_id})
    assert ledger.problems[0] == "turn 0: 1 of its 2 policies have no span"
    assert why(ledger, 0) == {**dict.fromkeys("0123456", (None, None)), "7": ("odd", "policy")}


def test_tokens_are_read_from_the_turn_that_told_of_the_item_last():
    ledger = read(
        turn(0, ["0"], ["0"], arrived={"0": 5}),
        turn(1, ["0-1"], ["0-1"], arrived={"1": 6}),
        turn(2, ["0-1"], ["0-1"], arrived={"0": 9}),
    )
    assert [ledger.tokens(number, "0") for number in range(3)] == [5, 5, 9]
    assert [ledger.tokens(number, "1") for number in range(3)] == [None, 6, 6]
    assert (ledger.items["0"].turn, ledger.items["0"].tokens) == (0, 5)


def test_of_two_at_once_the_one_that_ended_first_may_have_told():
    slow, quick = turn(0, ["0"], ["0"]), turn(1, ["0"], ["0"], arrived={"0": 5})
    slow[0] = replace(slow[0], end_ns=9_999)
    ledger = read(slow, quick)
    assert ledger.tokens(0, "0") == 5
    assert ledger.problems == []


def test_without_its_arrival_an_item_has_no_tokens():
    ledger = read(turn(0, ["0-1"], ["0-1"], arrived={"0": 5, "1": 5}), turn(1, ["0-2"], ["1-2"], arrived={"2": 5}))
    assert ledger.problems == []
    ledger = read(turn(1, ["0-2"], ["1-2"], arrived={"2": 5}))
    assert ledger.tokens(1, "1") is None
    assert ledger.problems == [NOT_DESCRIBED + "1"]


def test_a_turn_that_sent_nothing_says_what_was_offered():
    ledger = read(turn(0, ["0-2"], None, ("window", {"outside_window": ["0"]}), sent=False, arrived={"2": 5}))
    (told,) = ledger.turns
    assert (told.sent, list(told.offered), list(told.kept)) == (False, ["0", "1", "2"], [])
    assert (why(ledger, 0), ledger.tokens(0, "2")) == ({}, 5)


def test_where_the_input_could_not_be_known_nothing_is_said_of_what_is_out():
    ledger = read(turn(0, None, ["4-5"], ("trim", {}), **{"input.unknown": True}))
    assert (ledger.turns[0].offered, why(ledger, 0), ledger.problems) == (None, {}, [NOT_DESCRIBED + "4-5"])


def test_since_when_is_known_as_far_as_no_turn_is_missing():
    out = ("window", {"outside_window": ["0"]})
    turns = [turn(0, ["0"], ["0"]), *(turn(n, [f"0-{n}"], [f"1-{n}"], out) for n in range(1, 5))]
    assert read(*turns).since(4, "0") == (1, True)
    assert read(*turns).since(4, "1") == (1, True)
    assert read(*turns[2:]).since(4, "0") == (2, False)
    assert read(turns[0], turns[1], turns[4]).since(4, "0") == (4, False)
    failed = turn(3, ["0-3"], None, sent=False)
    assert read(*turns[:3], failed, turns[4]).since(4, "0") == (1, True)
    assert read(turn(0, ["0"], ["0"])).since(0, "0") == (0, True)


def test_spans_in_any_order_delivered_twice_and_with_arrays_as_text_read_the_same():
    spans = [*turn(0, ["0-2"], ["2"], ("odd", {"policy": ["0-1"]})), *turn(1, ["0-3"], ["3"], ("odd", ODD))]
    in_text = [
        replace(s, attributes={k: json.dumps(v) if isinstance(v, list) else v for k, v in s.attributes.items()})
        for s in spans
    ]
    for variant in (spans[::-1], spans + spans, in_text):
        assert [why(read(variant), number) for number in (0, 1)] == [why(read(spans), number) for number in (0, 1)]
        assert read(variant).problems == [NOT_DESCRIBED + "2-3"]


@pytest.mark.parametrize(
    "runs", [["one-two"], ["3-m4"], ["-3"], ["m"], [""], ["1-2-3"], ["7-3"], ["0-99999999999"], {"a": 1}, [None]]
)
def test_a_malformed_span_is_a_problem_and_no_error(runs):
    ledger = read(turn(0, ["0"], ["0"]), _kept(1, runs))
    span = "span 0000000000000020 (assemble_context)"
    assert ledger.problems == [
        f"turn 1 is skipped: {span}: assembly.kept.items has an invalid value and is ignored",
        NOT_DESCRIBED + "0",
    ]
    assert [turn.number for turn in ledger.turns] == [0]
    with pytest.raises(KeyError):
        ledger.turn(1)


def _kept(number, runs):
    (span,) = turn(number, ["0"], [])
    return [replace(span, attributes={**span.attributes, "assembly.kept.items": runs})]


def test_two_assemblies_of_one_number_are_a_problem():
    one, other = turn(0, ["0"], ["0"], arrived={"0": 5}), turn(0, ["0"], [], id="b0")
    other = [replace(other[0], trace_id="f" * 32)]
    ledger = read(one, other)
    assert ledger.problems == ["turn 0: a second assembly has the same number and is skipped"]
    assert len(ledger.turns) == 1


def test_counts_that_do_not_add_up_are_named():
    counts = {"events.in": 4, "events.injected": 0, "dropped.count": 7, "compacted.count": 0}
    (span,) = turn(0, ["0-3"], ["2-3"], arrived={"2": 5, "3": 5}, **counts)
    ledger = read([replace(span, attributes={**span.attributes, "assembly.events.out": 9})])
    assert ledger.problems == [
        "turn 0: the assembly: the counts do not add up: 4 in + 0 injected, but 9 out + 7 dropped + 0 compacted",
        "turn 0: 9 events are in the prompt, but 2 are listed",
    ]


def test_a_reading_of_a_long_conversation_costs_by_run_and_not_by_item():
    turns = [
        turn(n, [f"0-{50_000 + n}"], [f"{50_000 + n}"], ("odd", {"policy": ["49999"], "rest": ["policy"]}))
        for n in range(300)
    ]
    ledger = read(*turns)
    assert ledger.since(299, "7") == (0, True)
    assert ledger.exit(299, "7").policy == "odd"
