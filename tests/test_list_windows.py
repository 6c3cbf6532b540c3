"""Lists that lack older messages of the previous list: a program loads only the newest messages of a conversation."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from counting import Calls, WordCounter

from otel_assembly import Assembler, Context, EventFacts, SlidingWindowPolicy, describe
from otel_assembly.messages import EventKind
from otel_assembly.messages.content_snapshot import read_from

SYSTEM = {"role": "system", "content": "Be brief."}


def message(number):
    return {"role": "user" if number % 2 == 0 else "assistant", "content": f"message {number}"}


def conversation():
    """Return a function that assembles a list in one conversation, without a policy."""
    own, context = Assembler([], counter=WordCounter()), Context()
    return lambda messages: own.assemble_sync([], messages, context)


def test_of_a_window_of_copies_only_the_new_messages_are_read():
    read = []

    @dataclass
    class Stored:
        number: int

    def facts(stored):
        read.append(stored.number)
        return EventFacts(EventKind.RESPONSE if stored.number % 2 else EventKind.REQUEST, f"message {stored.number}")

    describe.register(Stored, facts)
    read_from(Stored, "number")
    assemble = conversation()
    for first in range(0, 40, 2):
        read.clear()
        messages = [Stored(-1), *map(Stored, range(first, first + 100))]
        assembly = assemble(messages)
        assert assembly.items == ["0", *(str(number + 1) for number in range(first, first + 100))]
        # Besides its two new messages, the first one that differs from the previous list's at the same place is read.
        assert first == 0 or sorted(read) == [first, first + 98, first + 99]


@pytest.mark.parametrize("length", [100, 1_000])
def test_the_calls_for_a_window_of_copies_are_few_for_each_message(length):
    assemble = conversation()
    for first in range(0, 6, 2):
        messages = [message(number) for number in range(first, first + length)]
        with Calls() as calls:
            assemble(messages)
    assert calls.made < 20 * length


@pytest.mark.parametrize("seed", range(60))
def test_messages_of_the_previous_list_keep_their_ids(seed):
    """The expected ids follow one rule: those of the previous list, else new ones in the order of the list."""
    chance, assemble = random.Random(seed), conversation()
    stored = [message(number) for number in range(chance.randrange(1, 12))]
    ids, next_id, system = {}, 0, dict(SYSTEM)
    for _ in range(12):
        stored += [message(number) for number in range(len(stored), len(stored) + chance.randrange(4))]
        first, last = chance.randrange(4), chance.randrange(1, 8)
        messages = (
            stored if chance.random() < 0.2 else [*stored[: max(0, min(first, len(stored) - last))], *stored[-last:]]
        )
        if chance.random() < 0.5:
            messages = [system, *messages]
        if chance.random() < 0.6:
            messages = [dict(known) for known in messages]
        assembly, known = assemble(messages), ids
        ids = {}
        for content in (known_message["content"] for known_message in messages):
            if content not in known:
                ids[content], next_id = next_id, next_id + 1
            else:
                ids[content] = known[content]
        assert assembly.items == [str(ids[known_message["content"]]) for known_message in messages]
        assert [sent is given for sent, given in zip(assembly.events, messages, strict=True)] == [True] * len(messages)


def test_of_messages_with_equal_content_the_same_objects_keep_their_ids():
    assemble = conversation()
    messages = [SYSTEM, *({"role": "user", "content": text} for text in ("yes", "one", "yes", "two"))]
    assert assemble(messages).items == ["0", "1", "2", "3", "4"]
    window = [dict(SYSTEM), *messages[3:], {"role": "user", "content": "three"}]
    assert assemble(window).items == ["0", "3", "4", "5"]


def test_a_message_that_was_changed_in_place_is_counted_as_it_is_now():
    own, context = Assembler([SlidingWindowPolicy(5)], counter=WordCounter()), Context()
    messages = [message(number) for number in range(12)]
    own.assemble_sync([], messages, context)
    messages[10]["content"] = "many more words than before"
    window = [*messages[6:], message(12)]
    alone = Assembler([SlidingWindowPolicy(5)], counter=WordCounter()).assemble_sync([], window)
    assert own.assemble_sync([], window, context).totals.tokens_in == alone.totals.tokens_in


def test_a_result_whose_call_is_not_in_the_window_is_an_orphan():
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        message(0),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        message(1),
        message(2),
    ]
    own, context = Assembler([SlidingWindowPolicy(10)], counter=WordCounter()), Context()
    assert len(own.assemble_sync([], messages, context).events) == 5
    window = [dict(known) for known in messages[2:]]
    assembly = own.assemble_sync([], window, context)
    assert assembly.events == window[1:]
    assert [(decision.item, decision.reason) for decision in assembly.dropped] == [("2", "orphaned_tool_result")]


def test_a_type_that_cannot_be_compared_is_read_again():
    class Vector:
        def __init__(self, number):
            self.number = number

        def __eq__(self, other):
            raise TypeError("ambiguous")

        __hash__ = None

    describe.register(Vector, lambda event: EventFacts(EventKind.REQUEST, f"vector {event.number}"))
    assemble, vectors = conversation(), [Vector(number) for number in range(6)]
    assemble(vectors)
    assert assemble(vectors[2:]).items == ["2", "3", "4", "5"]
