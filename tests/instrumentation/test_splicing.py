"""What left a list of messages between two looks at it, and whether two lists are the same."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import pytest

from otel_assembly.instrumentation import Instrumentation, ModelCall, StepReport
from otel_assembly.instrumentation.message_alignment import identity_keys, locate, replace_at, restore_removed, same
from otel_assembly.messages.content_snapshot import read_as


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize(
    ("places", "before"),
    [([0, 1, 2, 3], "abcd"), ([2, 3], "abcd"), ([0, 3], "abcd"), ([0, 1], "abcd"), ([], "abcd"), ([1], "abcd")],
)
def test_what_left_stands_where_it_stood(places, before):
    held = messages(*"abcd")
    now = [*(held[place] for place in places), *messages("new")]
    found = restore_removed(held, now)
    assert "".join(message["content"] for message in found) == f"{before}new"
    assert [item for item in found if any(item is other for other in now)] == now
    assert (found is now) is (len(places) == 4)


def test_what_was_put_between_stays_where_it_is():
    held = messages(*"abc")
    assert [message["content"] for message in restore_removed(held, [held[0], *messages("new"), held[2]])] == [
        "a",
        "b",
        "new",
        "c",
    ]


def test_copies_are_what_was_held_and_what_says_the_same_beside_them_is_not():
    held = messages("yes", "no", "yes")
    copies = messages("yes", "no", "yes", "new")
    assert restore_removed(held, copies) is copies
    assert restore_removed(held, held[1:]) == held


@dataclass
class Said:
    """A framework's message; it has no id, and says how often it was asked for what it has not, or was read."""

    text: str
    asked = 0
    read = 0

    def __getattr__(self, name):
        type(self).asked += name == "id"
        raise AttributeError(name)


def _read(message):
    Said.read += 1
    return message.text


read_as(Said, _read)


@pytest.fixture
def said():
    Said.read = Said.asked = 0
    return [Said(text) for text in "abcdefgh"]


def test_two_lists_of_copies_are_compared_by_reading_each_once(said):
    assert same(said, list(map(copy, said)))
    assert Said.read == 2 * len(said) + 2  # the first of each is looked at before all are


def test_the_very_objects_are_not_read(said):
    assert same(said, [*said])
    assert Said.read == 0


@pytest.mark.parametrize("places", [range(8), range(5), range(3, 8), [0, 1, 4, 6, 7], [1, 3, 5], [7], []])
def test_copies_are_located_by_reading_each_message_once(said, places):
    found = locate(said, [copy(said[place]) for place in places])
    assert [*found] == [*places]
    assert Said.read == (len(said) + len(places) if places else 0)


def test_a_message_that_is_missing_or_stands_before_the_last_one_is_not_located(said):
    assert locate(said, [copy(said[0]), Said("another")]) is None
    assert locate(said, [copy(said[3]), copy(said[2])]) is None
    assert [*locate(said, [said[3], said[2]])] == [3, 2], "the very objects are found in any order"


def test_a_reducer_of_other_messages_reads_each_message_at_most_twice(said, assembly_telemetry):
    call = ModelCall(Instrumentation("pretend"), messages=said)
    others = [Said(text) for text in "ijklmnop"]
    assert not call.reduced(StepReport("window", others, others[4:]))
    assert Said.read <= 2 * len([*said, *others])


def test_equal_messages_are_located_one_after_the_other():
    held = messages("yes", "no", "yes", "yes")
    assert [*locate(held, messages("yes", "yes", "yes"))] == [0, 2, 3]
    assert locate(held, messages("no", "no")) is None


class Unequal:
    """What a message contains whose comparison fails."""

    __hash__ = None

    def __eq__(self, other):
        raise ValueError


def test_messages_that_cannot_be_compared_are_not_located_but_by_identity():
    held = [{"content": "a"}, {"content": Unequal()}, {"content": "b"}]
    assert [*locate(held, [{"content": "a"}, {"content": "b"}])] == [0, 2]
    assert locate(held, [{"content": Unequal()}]) is None
    assert [*locate(held, held[1:])] == [1, 2]


@pytest.mark.parametrize(
    ("places", "after"), [([1, 2], "aXYd"), ([3, 0], "XYbc"), ([1, 3], "aXYc"), ([], "abcdXY"), (range(4), "XY")]
)
def test_messages_are_replaced_at_the_first_of_their_places(places, after):
    assert "".join(replace_at("abcd", places, "XY")) == after


@pytest.mark.parametrize("at", [0, 3, 7])
def test_lists_that_differ_are_told_apart_wherever_they_do(said, at):
    other = list(map(copy, said))
    other[at] = Said("another")
    assert not same(said, other)
    assert not same(other, said)
    assert not same(said, other[:-1])


def test_what_a_type_does_for_an_id_that_is_not_there_is_not_asked_for(said):
    assert identity_keys(said) == set(map(id, said))
    assert Said.asked == 0
    named = Said("n")
    named.id = "n-1"
    assert identity_keys([named]) == {id(named), "n-1"}
