"""Lists of messages, compared: LangGraph hands the same objects on, and other code copies of them."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def alike(one: Any, other: Any) -> bool:
    """Whether two messages are the same one, or a copy of it that reads as it does."""
    return one is other or (
        type(one) is type(other)
        and one.content == other.content
        and getattr(one, "tool_calls", None) == getattr(other, "tool_calls", None)
        and one.id == other.id
    )


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists hold the same messages."""
    return len(one) == len(other) and (all(map(is_, one, other)) or all(map(alike, one, other)))


def changed(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether messages are not those that they were, or read differently."""
    return not same(before, after)


def part_of(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether these very messages, and there are any, all stand in a list."""
    return bool(part) and set(map(id, part)) <= set(map(id, whole))


def holds(messages: Sequence[Any], any_of: Sequence[Any]) -> bool:
    """Whether one of these very messages stands in a list."""
    return not set(map(id, any_of)).isdisjoint(map(id, messages))


def spliced(whole: Sequence[Any], part: Sequence[Any], instead: Sequence[Any]) -> list[Any]:
    """A list with others in the place of a part of it."""
    objects = set(map(id, part))
    at = next((place for place, one in enumerate(whole) if id(one) in objects), len(whole))
    return [*whole[:at], *instead, *(one for one in whole[at:] if id(one) not in objects)]
