from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recount import count, event_tokens, newest_request, pair, read
from strategies import conversations

from otel_assembly import (
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    SlidingWindowPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.errors import DescribeError
from otel_assembly.history import View
from otel_assembly.tokens import TiktokenCounter, TokenMeter

QUICK = settings(
    max_examples=75, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def requests(count):
    return [ModelRequest(content=f"text {n}") for n in range(count)]


def runs(indexes):
    """Indexes as the fewest ranges, each from its first to behind its last."""
    found = []
    for index in sorted(indexes):
        start = found.pop()[0] if found and found[-1][1] == index else index
        found.append((start, index + 1))
    return found


# a sequence


def test_a_history_is_a_sequence_of_the_very_objects():
    events = requests(5)
    history = History(events)
    history.append(extra := ModelRequest(content="more"))
    events.append(extra)
    assert len(history) == 6
    assert all(event is other for event, other in zip(history, events, strict=True))
    assert history[0] is events[0]
    assert history[-1] is extra
    assert extra in history
    assert history.index(extra) == 5
    with pytest.raises(IndexError):
        history[6]


@QUICK
@given(st.integers(0, 12), st.slices(12), st.slices(12))
def test_a_slice_of_a_slice_is_what_a_list_gives(length, value, other):
    events = requests(length)
    history = History(events)
    assert list(history[value]) == events[value]
    assert list(history[value][other]) == events[value][other]
    assert list(reversed(history[value])) == events[value][::-1]


@QUICK
@given(st.integers(1, 40), st.data())
def test_a_pick_is_what_its_runs_name(length, data):
    view = History(requests(length)).view()
    for _ in range(3):
        if not len(view):
            break
        indexes = sorted(data.draw(st.sets(st.integers(0, len(view) - 1))))
        listed = list(view)
        picked, rest = (view.pick(runs(some)) for some in (indexes, set(range(len(view))).difference(indexes)))
        assert list(picked) == [listed[index] for index in indexes]
        assert sorted([*picked.positions(), *rest.positions()]) == list(view.positions())
        positions = list(picked.positions())
        assert list(picked.backward()) == positions[::-1]
        assert [picked.position(index) for index in range(len(picked))] == positions
        assert [picked.index_of(position) for position in positions] == list(range(len(picked)))
        assert all(picked.holds(p) == (p in positions) for p in range(length))
        assert picked.end == (positions[-1] + 1 if positions else 0)
        view = picked


def test_a_view_stays_as_it_was_when_the_history_grows():
    history = History(requests(3))
    view, part = history.view(), history[1:]
    history.extend(requests(4))
    assert (len(view), len(part), len(history)) == (3, 2, 7)


def test_views_compare_by_their_items_with_any_sequence():
    events = requests(4)
    history = History(events)
    assert history[1:3] == events[1:3] == history[1:3]
    assert history[1:3] != events[1:]
    assert history[1:1] == []
    assert history[:] != "text"


def test_a_view_says_how_much_it_shows_without_its_content():
    assert repr(History(requests(9))[2:5]) == "View(3 of 9 events)"
    assert repr(History(requests(9))) == "History(9 events)"


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_outside_a_view_is_refused(index):
    with pytest.raises(IndexError):
        History(requests(6))[1:5][index]


# what it takes


def test_an_event_that_cannot_be_read_is_not_appended():
    history = History(requests(1))
    with pytest.raises(DescribeError):
        history.append(object())
    assert len(history) == 1


def test_all_events_are_added_or_none():
    history = History(requests(1))
    with pytest.raises(DescribeError):
        history.extend([*requests(2), {"role": "robot"}])
    assert len(history) == 1


def test_events_may_come_from_a_generator():
    assert len(History(event for event in requests(3))) == 3


def test_threads_that_append_lose_nothing():
    history = History()

    def add():
        for event in requests(500):
            history.append(event)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history) == 2_000
    assert history.offsets[1_999] + history.sizes[1_999] == sum(len(event.content) for event in history)


# what it knows


@QUICK
@given(conversations())
def test_every_event_has_its_tokens_and_they_sum_up_whatever_part_is_asked_for(events):
    history, later = History(events[::2]), events[1::2]
    table = history.table(TokenMeter(TiktokenCounter("o200k_base")))
    table.sum(history.view())
    history.extend(later)
    events = [*events[::2], *later]
    echoes = pair(events).echoes
    expected = [0 if place in echoes else event_tokens(event) for place, event in enumerate(events)]
    assert [table.known(place) for place in range(len(events))] == expected
    for start in range(0, len(events) + 1, 3):
        for stop in range(start, len(events) + 1, 2):
            assert table.sum(history[start:stop]) == sum(expected[start:stop])
    for column in (history.all, *history.classes, history.requests, history.alerts, history.summaries):
        assert table.sum(View(history, column, [(0, len(column))] if len(column) else [])) == sum(
            expected[place] for place in column.positions
        )


@QUICK
@given(conversations(), st.integers(1, 3))
async def test_views_stay_as_they_are_whatever_is_given_up_or_answered_late(events, step):
    """A history that grows says what one that is read at once says, and its older views what they said."""
    history, meter, before = History(), TokenMeter(TiktokenCounter("o200k_base")), []

    def places(view):
        return list(view.positions())

    for start in range(0, len(events), step):
        history.extend(events[start : start + step])
        found, read_at_once = [
            [(decision.events, decision.reason) for decision in outcome.decisions] + [(outcome.events, None)]
            for outcome in [
                await ConversationPolicy().decide([], whole, Context()) for whole in (history, History(history))
            ]
        ]
        assert [(places(view), reason) for view, reason in found] == [(places(v), reason) for v, reason in read_at_once]
        views = [view for view, _ in found]
        for view, held in before:
            assert places(view) == held
            assert history.table(meter).sum(view) == sum(map(history.table(meter).known, held))
            for other in views:
                shared = set(held) & set(places(other))
                assert set(held) - set(places(view.minus(other))) == shared
                assert set(places(other)) - set(places(other.minus(view))) == shared
        before += [(view, places(view)) for view in views]


@QUICK
@given(conversations())
def test_offsets_are_bytes_of_text_from_the_start(events):
    history = History(events)
    echoes, at = pair(events).echoes, 0
    for place, event in enumerate(events):
        one = read(event)
        size = 0 if place in echoes or one.kind == "aside" else _bytes([*one.texts, one.name])
        assert (history.offsets[place], history.sizes[place]) == (at, size)
        at += size


def _bytes(texts):
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


@QUICK
@given(conversations(), st.integers(0, 10), st.integers(0, 30))
async def test_the_newest_request_of_any_part_is_found(events, start, stop):
    part = History(events)[start:stop]
    place = newest_request(events[start:stop])
    kept = (await SlidingWindowPolicy(1).decide([], part, Context())).events
    assert place is None or any(event is events[start + place] for event in kept)


@QUICK
@given(conversations())
def test_atoms_are_what_stands_or_falls_together(events):
    history = History(events)
    for place, atom in enumerate(pair(events).atoms(len(events))):
        assert history.pairing.atoms[place] == min(atom)


def test_the_newest_bill_is_remembered():
    from otel_assembly.events import Usage

    history = History([ModelResponse(content="a", usage=Usage(input_tokens=5)), ModelResponse(content="b")])
    assert history.billed == (0, 5)


def test_two_meters_count_for_themselves():
    history = History([ModelRequest(content="수하물이 어디에 있습니까?")])
    tokens = {
        name: history.table(TokenMeter(TiktokenCounter(name))).tokens(0) for name in ("o200k_base", "cl100k_base")
    }
    assert tokens == {name: 4 + count("수하물이 어디에 있습니까?", name) for name in tokens}
    assert tokens["o200k_base"] != tokens["cl100k_base"]


# digests


DIGESTS = """
from otel_assembly import History, ModelRequest
history = History([ModelRequest(content="가방 \\ud83d"), {"role": "user", "content": ["a", "b"]}])
print([history.digest(place) for place in range(2)])
"""


def test_a_digest_is_the_same_in_every_process():
    printed = {
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_digests_tell_texts_kinds_and_fields_apart():
    history = History(
        [
            ModelRequest(content="ab"),
            ModelResponse(content="ab"),
            ModelRequest(content="abc"),
            {"role": "user", "content": ["a", "b"]},
            ToolResultEvent(parent_id="x", content="ab"),
            ModelRequest(content="ab"),
        ]
    )
    digests = [history.digest(place) for place in range(6)]
    assert digests[0] == digests[5]
    assert len(set(digests)) == 5


def test_alerts_and_calls_have_digests_too():
    history = History(
        [ObserverAlert(source="m", severity="info", message="x"), ToolCallEvent(id="a", name="f"), *requests(1)]
    )
    assert all(history.digest(place) for place in range(3))
