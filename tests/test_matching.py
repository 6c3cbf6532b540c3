"""Which of the events that came back are those that went in."""

from __future__ import annotations

import copy
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_assembly import ModelRequest, ModelResponse
from otel_assembly.events import CompactionSummary
from otel_assembly.matching import EventMatcher, diff_sequences, moved


def match(inputs, outputs):
    return EventMatcher(inputs).match(outputs)


def user(text, **more):
    return {"role": "user", "content": text, **more}


def image(data):
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "?"}],
    }


def test_the_very_object_is_found_before_an_equal_one():
    one, other = user("a"), user("a")
    assert match([one, other], [other, one]) == [1, 0]


def test_the_same_object_twice_is_found_twice_and_not_a_third_time():
    one = user("a")
    assert match([one, one], [one, one, one]) == [0, 1, None]


def test_a_changed_copy_is_found_by_the_id_of_its_framework():
    inputs = [ModelRequest(content="long text"), ModelResponse(content="b")]
    assert match(inputs, [inputs[1], inputs[0].model_copy(update={"content": "long"})]) == [1, 0]
    assert match([user("a", id="m1"), user("b", id="m2")], [user("B", id="m2")]) == [1]


def test_an_id_does_not_make_two_types_of_events_one():
    request = ModelRequest(content="a")
    assert match([request], [CompactionSummary(id=request.id, summary="a")]) == [None]


def test_equal_copies_are_found_in_order():
    inputs = [user("yes"), user("no"), user("yes")]
    assert match(inputs, copy.deepcopy(inputs)) == [0, 1, 2]
    assert match(inputs, [user("no"), user("yes")]) == [1, 2]
    assert match(inputs, [user("yes"), user("yes"), user("yes")]) == [0, 2, None]


def test_between_two_that_are_found_only_what_stood_between_them_is_compared():
    inputs = [user("yes"), user("a"), user("yes"), user("b")]
    assert match(inputs, [inputs[1], user("yes"), inputs[3]]) == [1, 2, 3]
    assert match(inputs, [inputs[3], user("yes")]) == [3, None]


def test_what_reads_the_same_but_for_an_id_made_anew_is_the_same():
    inputs = [CompactionSummary(summary="in short"), ModelRequest(content="a")]
    outputs = [CompactionSummary(summary="in short"), ModelRequest(content="a"), ModelRequest(content="b")]
    assert match(inputs, outputs) == [0, 1, None]


def test_images_are_compared_by_what_they_hold_and_not_by_the_text_beside_them():
    assert match([image("data:1"), image("data:2")], [image("data:2")]) == [1]
    assert match([image("data:1")], [image("data:3")]) == [None]
    assert match([{**image("data:1"), "id": "1"}], [{**image("data:3"), "id": "2"}]) == [None]


def test_what_nobody_can_read_or_compare_is_matched_by_identity_alone():
    class Odd:
        __hash__ = None

        def __eq__(self, other):
            raise RuntimeError

    one = Odd()
    assert match([one, user("a")], [one]) == [0]
    assert match([one, user("a")], [Odd(), user("a")]) == [None, 1]


def replaced(length, outputs):
    """The inputs in whose place something new stands, where these came out, and a new one for each None."""
    inputs = [user(f"input {at}") for at in range(length)]
    diff = diff_sequences(inputs, [user("new") if at is None else inputs[at] for at in outputs])
    return {at for start, stop, _ in diff.gaps_with_new_events() for at in range(start, stop)} - {
        at for start, stop in diff.kept for at in range(start, stop)
    }


def test_a_replacement_stands_for_what_stood_in_its_place():
    assert replaced(5, [None, 3, 4]) == {0, 1, 2}
    assert replaced(5, [0, None, 4]) == {1, 2, 3}
    assert replaced(3, [0, None]) == {1, 2}
    assert replaced(2, [None]) == {0, 1}


def test_what_left_elsewhere_was_not_replaced():
    assert replaced(4, [None, 0, 1]) == set()
    assert replaced(4, [0, None, 1, 3]) == set()
    assert replaced(4, [0, 3]) == set()
    assert replaced(0, [None]) == set()


@settings(deadline=None, max_examples=200, derandomize=True, database=None)
@given(st.integers(0, 7).flatmap(lambda n: st.permutations(range(n))))
def test_moved_are_as_few_as_explain_the_new_order(order):
    found = moved(order)
    stays = [index for index in order if index not in found]
    assert stays == sorted(stays)
    longest = next(
        size
        for size in range(len(order), -1, -1)
        if any(list(some) == sorted(some) for some in combinations(order, size))
    )
    assert len(stays) == longest


@settings(deadline=None, max_examples=300, derandomize=True, database=None)
@given(st.data())
def test_each_input_is_found_at_most_once_and_what_is_found_reads_the_same(data):
    texts = st.sampled_from(["yes", "no", "go on"])
    inputs = [user(text) for text in data.draw(st.lists(texts, max_size=6))]
    pick = st.one_of(texts.map(user), st.sampled_from(inputs)) if inputs else texts.map(user)
    outputs = data.draw(st.lists(pick, max_size=6))
    found = match(inputs, outputs)
    assert len(found) == len(outputs)
    indexes = [index for index in found if index is not None]
    assert len(indexes) == len(set(indexes))
    for index, event in zip(found, outputs, strict=True):
        assert index is None or inputs[index] == event
