"""Parts of messages: what says what it said is the part that it was, by identity, in whatever copy it comes back."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from otel_assembly import EventFacts, describe
from otel_assembly.instrumentation import MessagePart, MessageParts
from otel_assembly.messages import EventKind


@dataclass
class Block:
    text: str


@dataclass
class Message:
    id: str
    blocks: list[Block] = field(default_factory=list)


class Part(MessagePart):
    __slots__ = ()


def split(messages):
    return [(message, at, (block,), at == 0) for message in messages for at, block in enumerate(message.blocks)]


def part_of(message, blocks, *, framed=True):
    name, kind = ("summary", EventKind.SUMMARY) if message is None else (message.id, EventKind.RESPONSE)
    return Part.named(name, message, blocks, EventFacts(kind, blocks[0].text), framed=framed)


def parts():
    return MessageParts(split, part_of)


def test_a_message_that_grows_has_the_parts_that_it_had():
    known, message = parts(), Message("one", [Block("a")])
    (first,) = known.of([message])
    message.blocks.append(Block("b"))
    again, second = known.of([message])
    assert again is first
    assert (describe(first).framed, describe(second).framed) == (True, False)
    assert first.id != second.id


def test_a_copy_says_the_same_and_what_stays_are_its_own_blocks():
    known, message = parts(), Message("one", [Block("a")])
    (first,) = known.of([message])
    copied = deepcopy(message)
    (again,) = known.of([copied])
    assert again is first
    assert again.message is copied
    assert again.blocks[0] is copied.blocks[0]


def test_a_block_that_is_changed_in_place_is_another_part():
    known, message = parts(), Message("one", [Block("a")])
    (first,) = known.of([message])
    message.blocks[0].text = "b"
    (changed,) = known.of([message])
    assert changed is not first
    assert changed.id != first.id
    assert (first.facts.text, changed.facts.text) == ("a", "b")


def test_messages_of_one_id_are_two():
    one, other = parts().of([Message("same", [Block("a")]), Message("same", [Block("b")])])
    assert (one.facts.text, other.facts.text) == ("a", "b")


def test_what_stands_in_front_is_of_no_message():
    known, message = parts(), Message("one", [Block("a")])
    summary, first = known.of([message], [Block("what was")])
    assert summary.message is None
    assert describe(summary).kind is EventKind.SUMMARY
    assert known.of([message], [Block("what was")]) == [summary, first]


def test_what_is_only_looked_at_forgets_no_other():
    known, message, other = parts(), Message("one", [Block("a")]), Message("other", [Block("b")])
    (first,) = known.of([message])
    known.of([other], forgets=False)
    assert known.of([message]) == [first]
    known.of([other])
    assert known.of([message]) != [first]


def test_another_object_of_a_part_is_known_by_its_id():
    message = Message("one", [Block("a")])
    (one,), (other,) = parts().of([message]), parts().of([message])
    assert one is not other
    assert one.id == other.id
