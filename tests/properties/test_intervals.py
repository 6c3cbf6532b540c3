"""Interval arithmetic says of ranges what sets say of the numbers in them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from otel_assembly import History, ModelRequest, ModelResponse, ObserverAlert, ToolCallEvent, ToolResultEvent
from otel_assembly.history.view import View, difference, intersection, is_in, merged, to_ranges

MOST = 40
NUMBERS = st.sets(st.integers(0, MOST))
LOOSE_RUNS = st.lists(st.tuples(st.integers(0, MOST), st.integers(0, MOST)), max_size=8)


@st.composite
def ranges(draw):
    """Ascending, disjoint ranges, of which some touch: two neighbours need not be one."""
    found, cuts = [], draw(NUMBERS)
    for start, stop in to_ranges(sorted(draw(NUMBERS))):
        edges = [start, *sorted(cut for cut in cuts if start < cut < stop), stop]
        found += itertools.pairwise(edges)
    return found


def numbers(some):
    return {number for start, stop in some for number in range(start, stop)}


def are_runs(some):
    """Whether they are ascending, disjoint, and none is empty."""
    return all(start < stop for start, stop in some) and all(
        stop <= start for (_, stop), (start, _) in itertools.pairwise(some)
    )


@given(NUMBERS)
def test_numbers_become_the_fewest_runs_that_hold_them(some):
    made = to_ranges(sorted(some))
    assert numbers(made) == some
    assert are_runs(made)
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(made))


@given(st.lists(st.integers(0, MOST)))
def test_numbers_in_any_order_are_read_back_from_their_runs_in_that_order(some):
    assert [number for start, stop in to_ranges(some) for number in range(start, stop)] == some


@given(LOOSE_RUNS)
def test_merged_runs_hold_what_the_loose_ones_held(some):
    made = merged(some)
    assert numbers(made) == numbers(some)
    assert made == to_ranges(sorted(numbers(some)))


@given(ranges(), st.integers(-1, MOST + 1))
def test_a_number_is_in_the_runs_that_hold_it(some, number):
    assert is_in(some, number) is (number in numbers(some))


@given(ranges(), ranges())
def test_two_lists_of_runs_have_in_common_what_their_numbers_have(value, other):
    made = intersection(value, other)
    assert numbers(made) == numbers(value) & numbers(other)
    assert are_runs(made)


@given(ranges(), ranges())
def test_what_runs_leave_of_others_is_what_their_numbers_leave(value, other):
    made = difference(value, other)
    assert numbers(made) == numbers(value) - numbers(other)
    assert are_runs(made)


@given(st.integers(0, MOST), ranges())
def test_what_runs_leave_of_a_length_is_what_their_numbers_leave(length, some):
    made = difference([(0, length)], some)
    assert numbers(made) == set(range(length)) - numbers(some)
    assert are_runs(made)


@given(ranges(), ranges(), ranges())
def test_what_is_taken_away_in_two_steps_is_taken_away_in_one(value, other, third):
    assert numbers(difference(difference(value, other), third)) == numbers(difference(value, merged([*other, *third])))


# --- Views ------------------------------------------------------------------------------------------------------------

KINDS = ("ask", "answer", "call", "result", "stray", "alert")


def event_of(kind, number):
    if kind == "ask":
        return ModelRequest(content=str(number))
    if kind == "answer":
        return ModelResponse(content=str(number))
    if kind == "call":
        return ModelResponse(tool_calls=(ToolCallEvent(id=f"c{number % 3}", name="f"),))
    if kind in {"result", "stray"}:
        return ToolResultEvent(parent_id=f"c{number % 3}" if kind == "result" else "none", content=str(number))
    return ObserverAlert(source="monitor", severity="warning", message=str(number))


@st.composite
def views_of_one_history(draw):
    """Two views of one history, each of one of its columns; items may change their class between the two."""
    history, views = History(), []
    for _ in range(2):
        start = len(history)
        history.extend([event_of(kind, start + at) for at, kind in enumerate(draw(st.lists(st.sampled_from(KINDS))))])
        columns = history.all, *history.classes, history.requests
        column = draw(st.sampled_from([column for column in columns if len(column)] or [history.all]))
        edges = sorted(
            draw(st.lists(st.integers(0, len(column)), min_size=2, max_size=6).filter(lambda e: len(e) % 2 == 0))
        )
        views.append(View(history, column, merged(zip(edges[::2], edges[1::2], strict=True))))
    return views


@given(views_of_one_history(), st.booleans())
def test_what_a_view_has_beyond_another_is_what_its_positions_have(views, turned):
    view, other = reversed(views) if turned else views
    left = view.minus(other)
    assert sorted(left.positions()) == sorted(set(view.positions()) - set(other.positions()))
    assert list(other.minus(other).positions()) == []
