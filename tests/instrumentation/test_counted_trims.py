"""Trims by a caller's own counter: why each message left shows in its answers, and it is never asked more often."""

from __future__ import annotations

from operator import itemgetter

import pytest

from otel_assembly.instrumentation import CountedTrim, Instrumentation, ModelCall, trims

TALK = [{"role": role, "content": text} for role, text in (("system", "s"), *[("user", str(n)) for n in range(5)])]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


@pytest.fixture
def call(instrumentation):
    return ModelCall(instrumentation, messages=TALK)


class Counter:
    """A model that counts: ten tokens a message."""

    def __init__(self):
        self.asked = 0

    def count(self, messages):
        self.asked += 1
        return 10 * len(messages)


def newest(messages, *, room, counts, system=False):
    """A framework's trim, from the front; a system message is counted by itself."""
    front, rest = (messages[:1], messages[1:]) if system else ([], messages)
    room -= counts(front) if front else 0
    order = rest[::-1]
    while order and counts(order) > room:
        order = order[:-1]
    return [*front, *order[::-1]]


def watched(call, instrumentation, original=newest):
    reads = CountedTrim(
        "newest",
        limit="room",
        counter="counts",
        flags=("system",),
        cuts=(),
        system="system",
        role=itemgetter("role"),
        find_call=lambda _, messages, since: (call, call.out),
        model_of=lambda model: "gpt-4o" if isinstance(model, Counter) else None,
    )
    return trims(reads, last=True)(original, instrumentation)


@pytest.mark.parametrize(("counts", "reason", "limit"), [(None, "over_budget", 40), (len, "outside_window", 4)])
def test_what_had_no_room_left_for_that(counts, reason, limit, call, instrumentation, assembly_telemetry):
    counter = Counter()
    kept = watched(call, instrumentation)(TALK, room=limit, counts=counts or counter.count, system=True)
    assert kept == [TALK[0], *TALK[3:]]
    call.end()
    step = assembly_telemetry.span("apply_policy newest")
    assert step.dropped_reasons == {"1": reason, "2": reason}
    named = "max_messages" if counts else "max_tokens"
    assert f'"{named}":{limit}' in step.attributes["assembly.policy.config"]
    assert call.model == (None if counts else "gpt-4o")
    alone = Counter()
    newest(TALK, room=40, counts=alone.count, system=True)
    assert counter.asked == (0 if counts else alone.asked)


def test_a_result_that_is_empty_for_want_of_room_is_an_overflow(call, instrumentation, assembly_telemetry):
    assert watched(call, instrumentation)(TALK[1:], room=5, counts=Counter().count) == []
    call.end()
    names = [event.name for event in assembly_telemetry.span("apply_policy newest").events]
    assert any("overflow" in name for name in names), names


def test_one_that_another_one_works_by_is_a_part_of_that(call, instrumentation, assembly_telemetry):
    inner = watched(call, instrumentation)
    outer = watched(call, instrumentation, lambda messages, **settings: inner(messages, **settings)[-1:])
    assert outer(TALK, room=40, counts=Counter().count) == TALK[-1:]
    call.end()
    assert len(assembly_telemetry.spans_named("apply_policy newest")) == 1


def test_what_is_called_otherwise_is_left_alone(call, instrumentation, assembly_telemetry):
    def anything(*messages, **settings):
        return messages, settings

    trim = watched(call, instrumentation, anything)
    assert trim(TALK, "positional", room=1, counts=len) == ((TALK, "positional"), {"room": 1, "counts": len})
    assert trim(TALK, room=1) == ((TALK,), {"room": 1})
    assert trim([], room=1, counts=len) == (([],), {"room": 1, "counts": len})
    call.end()
    assert assembly_telemetry.spans == []


def test_one_that_raises_is_told_and_raises(call, instrumentation, assembly_telemetry):
    def counts(messages):
        raise ConnectionError("secret")

    with pytest.raises(ConnectionError):
        watched(call, instrumentation)(TALK, room=1, counts=counts)
    call.end()
    assert assembly_telemetry.span("apply_policy newest").attributes["error.type"] == "ConnectionError"
