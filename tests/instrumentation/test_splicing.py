"""What left a list of messages between two looks at it."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation.splicing import with_what_left


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize(
    ("places", "before"),
    [([0, 1, 2, 3], "abcd"), ([2, 3], "abcd"), ([0, 3], "abcd"), ([0, 1], "abcd"), ([], "abcd"), ([1], "abcd")],
)
def test_what_left_stands_where_it_stood(places, before):
    held = messages(*"abcd")
    now = [*(held[place] for place in places), *messages("new")]
    found = with_what_left(held, now)
    assert "".join(one["content"] for one in found) == f"{before}new"
    assert [one for one in found if any(one is other for other in now)] == now
    assert (found is now) is (len(places) == 4)


def test_what_was_put_between_stays_where_it_is():
    held = messages(*"abc")
    assert [one["content"] for one in with_what_left(held, [held[0], *messages("new"), held[2]])] == [
        "a",
        "b",
        "new",
        "c",
    ]


def test_copies_are_what_was_held_and_what_says_the_same_beside_them_is_not():
    held = messages("yes", "no", "yes")
    copies = messages("yes", "no", "yes", "new")
    assert with_what_left(held, copies) is copies
    assert with_what_left(held, held[1:]) == held
