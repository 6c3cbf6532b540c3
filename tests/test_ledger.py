"""Ordinals, intervals, and what a reader of some of the turns is told."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from counting import Reads
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_assembly import (
    Assembler,
    CompactionSummary,
    Context,
    ConversationPolicy,
    DecisionOutcome,
    DecisionReason,
    History,
    ModelRequest,
    PolicyFailedError,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    TurnStarted,
)
from otel_assembly.ledger.interval_diff import entered, ordinal_runs, shared_prefix, still_in
from otel_assembly.ledger.item_ids import ItemIds
from otel_assembly.ledger.ledger_diff import arrivals, counted, exits_from_the_prompt, step_delta
from otel_assembly.ledger.snapshot import Group, NumberedHistory
from otel_assembly.tokens import CharacterCounter

QUICK = settings(deadline=None, max_examples=200, derandomize=True, database=None)


# --- Ordinals and intervals, against lists and sets -------------------------------------------------------------------


@QUICK
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=8), st.data())
def test_ordinals_in_runs_are_those_of_a_plain_list(pieces, data):
    ordinals, plain, at = ItemIds(), [], 0
    for count, gap in pieces:
        at += gap
        ordinals.extend(count, at)
        plain += range(at, at + count)
        at += count
    assert len(ordinals) == len(plain)
    assert list(ordinals.all()) == plain
    assert [ordinals.of(position) for position in range(len(plain))] == plain
    start = data.draw(st.integers(0, len(plain)))
    stop = data.draw(st.integers(start, len(plain)))
    runs = list(ordinals.spans(start, stop))
    assert [item for first, last in runs for item in range(first, last + 1)] == plain[start:stop]


def frame_of(history):
    ordinals = ItemIds()
    ordinals.extend(len(history), 0)
    return NumberedHistory(history, ordinals)


def test_runs_only_ever_ascend_and_follow_the_order_of_the_view():
    history = History(ModelRequest(content=str(n)) for n in range(6))
    frame = NumberedHistory(history, ItemIds())
    for ordinal in (0, 1, 5, 4, 2, 3):
        frame.ordinals.extend(1, ordinal)
    assert ordinal_runs(history.view(), frame) == [(0, 1), (5, 5), (4, 4), (2, 3)]
    assert ordinal_runs(history.view()[1:4], frame) == [(1, 1), (5, 5), (4, 4)]


REASONS = (DecisionReason.POLICY, DecisionReason.STALE)


@st.composite
def groups(draw, frame, view):
    """A few disjoint groups of a view's items."""
    tags = draw(st.lists(st.sampled_from([None, *REASONS]), min_size=len(view), max_size=len(view)))
    found = []
    for reason in REASONS:
        indexes = [index for index, tag in enumerate(tags) if tag is reason]
        part = view.pick([(index, index + 1) for index in indexes])
        if part:
            found.append(Group(part, frame, DecisionOutcome.DROPPED, reason))
    return found


def pairs(some):
    return {(item, group.reason) for group in some for item in group.frame.of(group.view)}


@QUICK
@given(st.data(), st.booleans())
def test_what_entered_is_a_difference_of_sets_whatever_views_it_is_made_of(data, tagged):
    history = History()
    for number in range(data.draw(st.integers(0, 12))):
        history.append(TurnStarted(turn=number) if data.draw(st.booleans()) else ModelRequest(content=f"{number}"))
    frames = [frame_of(history), frame_of(History(history))]
    sides = []
    for _ in range(2):
        frame = data.draw(st.sampled_from(frames))
        view = frame.history.view()
        if data.draw(st.booleans()):
            view = type(view)(frame.history, [(frame.history.conversational, 0, len(frame.history.conversational))])
        sides.append(data.draw(groups(frame, view)))
    new, old = sides
    if tagged:
        expected = pairs(new) - pairs(old)
    else:
        before = {item for item, _ in pairs(old)}
        expected = {(item, reason) for item, reason in pairs(new) if item not in before}
    assert pairs(entered(new, old, tagged=tagged)) == expected
    kept = frames[0].history.view().pick([(0, 1), (2, 3), (4, 5)] if len(history) > 4 else [])
    assert still_in(new, kept, frames[0]) == sorted({item for item, _ in pairs(new)} & set(frames[0].of(kept)))


@QUICK
@given(st.data())
def test_the_shared_prefix_of_two_views_is_that_of_their_texts(data):
    texts = st.lists(st.sampled_from("ab"), max_size=8)
    history = History(ModelRequest(content=text) for text in data.draw(texts))
    other = data.draw(st.sampled_from([history, History(ModelRequest(content=text) for text in data.draw(texts))]))

    def part(of):
        return of.view().pick([(n, n + 1) for n in range(len(of)) if data.draw(st.booleans())])

    new, old = part(history), part(other)
    expected = 0
    for one, two in zip(new, old, strict=False):
        if one.content != two.content:
            break
        expected += 1
    assert shared_prefix(new, old) == expected


# --- What a reader is told of the turns that are sampled --------------------------------------------------------------


class Sampled:
    """Records some of the turns, and keeps what a reader of their spans would learn."""

    def __init__(self, *turns):
        self.turns, self.told, self.recorded, self.measured = turns, [], False, True

    def begin(self, name, model, context, started_ns):
        return self

    def calibrated(self, model, counted, billed):
        pass

    def watch(self, kind):
        return lambda attempt: nullcontext()

    def policy(self, name, index):
        return nullcontext()

    def finish(self, record):
        self.recorded = record.error is None and record.turn in self.turns
        if not self.recorded:
            return
        new = arrivals(record, record.baseline)
        deltas = [step_delta(record, step, record.baseline) for step in record.steps]
        self.told.append(
            {
                "since": record.baseline and record.baseline.assembly_id,
                "arrived": {one.item: one.tokens for one in new},
                "counted": dict(counted(record, record.baseline, new)),
                "exits": [
                    (item, group.reason.value)
                    for delta in deltas
                    for group in delta.exits
                    for item in group.frame.of(group.view)
                ],
                "returned": [item for delta in deltas for item in delta.returned],
                "injected": [item for delta in deltas for item in delta.injected],
                "withdrawn": [*record.withdrawn, *(item for delta in deltas for item in delta.withdrawn)],
                "left the prompt": [
                    item
                    for step in record.steps
                    for group in exits_from_the_prompt(record, step)
                    for item in group.frame.of(group.view)
                ],
            }
        )


def requests(*texts):
    return [ModelRequest(content=text) for text in texts]


async def test_what_an_unsampled_turn_did_is_carried_to_the_next_that_is_sampled():
    reader, history = Sampled(0, 3), History(requests("a", "b"))
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=reader, counter=CharacterCounter(1))
    first = await assembler.assemble([], history)
    for text in "cde":
        history.append(ModelRequest(content=text))
        last = await assembler.assemble([], history)
    zero, three = reader.told
    assert (zero["since"], three["since"]) == (None, first.id)
    assert list(zero["arrived"]) == [0, 1]
    assert list(three["arrived"]) == [2, 3, 4]
    assert three["exits"] == [(0, "outside_window"), (1, "outside_window"), (2, "outside_window")]
    assert three["left the prompt"] == [2]
    assert [d.item for d in last.dropped] == [2]


async def test_tokens_that_were_not_counted_at_arrival_are_told_once_when_they_are():
    reader, history = Sampled(0, 2, 3), History(requests("a" * 10, "b"))
    assembler = Assembler([SlidingWindowPolicy(1)], recorder=reader, counter=CharacterCounter(1))
    await assembler.assemble([], history)
    table = history.table(assembler._meter(None))
    table.tokens(0)
    for text in "cde":
        history.append(ModelRequest(content=text))
        await assembler.assemble([], history)
    zero, two, three = reader.told
    assert zero["arrived"] == {0: -1, 1: 5}
    assert (two["counted"], two["arrived"]) == ({0: 14}, {2: 5, 3: 5})
    assert (three["counted"], three["arrived"]) == ({}, {4: 5})


async def test_what_is_sent_in_another_order_has_its_tokens_at_arrival():
    class Reverses:
        name = "reverses"

        async def apply(self, prompts, events, context):
            return prompts, events[::-1]

    reader, history = Sampled(0, 1), History(requests("a", "bb"))
    assembler = Assembler([Reverses(), SlidingWindowPolicy(9)], recorder=reader, counter=CharacterCounter(1))
    await assembler.assemble([], history)
    history.append(ModelRequest(content="ccc"))
    await assembler.assemble([], history)
    assert [turn["arrived"] for turn in reader.told] == [{0: 5, 1: 6}, {2: 7}]
    assert [turn["counted"] for turn in reader.told] == [{}, {}]


async def test_a_list_that_was_rebuilt_between_two_sampled_turns_is_told_as_a_whole():
    reader, context = Sampled(0, 3), Context()
    assembler = Assembler([TokenBudgetPolicy(500)], recorder=reader, counter=CharacterCounter(1))
    a, b, c, d = requests("a", "b", "c", "d")
    for events in ([a, b], [b, c], [c], [c, d, a]):
        last = await assembler.assemble([], events, context)
    zero, three = reader.told
    assert last.items == [2, 3, 4]
    assert three["withdrawn"] == [0, 1]
    assert three["arrived"] == {2: 5, 3: 5, 4: 5}
    assert three["counted"] == {}
    assert zero["withdrawn"] == []


async def test_what_came_and_went_between_two_sampled_turns_is_never_told():
    reader, context = Sampled(0, 2), Context()
    summaries = iter(["one", "two", "three"])

    class Summarises:
        name = "summarises"

        async def apply(self, prompts, events, context):
            return prompts, [CompactionSummary(summary=next(summaries)), *events[1:]]

    assembler = Assembler([Summarises()], recorder=reader)
    a, b, c = requests("a", "b", "c")
    for events in ([a, b], [a, b, c], [a, b]):
        await assembler.assemble([], events, context)
    zero, two = reader.told
    assert zero["injected"] == [2]
    assert (list(two["arrived"]), two["injected"], two["withdrawn"], two["exits"]) == ([5], [5], [2], [])


async def test_nothing_of_a_failed_turn_is_told_and_all_of_it_is_carried():
    fails = iter([False, True, False])

    class Fails:
        name = "fails"

        async def apply(self, prompts, events, context):
            if next(fails):
                raise ValueError
            return prompts, events

    reader, context = Sampled(0, 1, 2), Context()
    assembler = Assembler([Fails(), SlidingWindowPolicy(1)], recorder=reader)
    a, b, c = requests("a", "b", "c")
    await assembler.assemble([], [a, b], context)
    with pytest.raises(PolicyFailedError):
        await assembler.assemble([], [b, c], context)
    await assembler.assemble([], [b, c], context)
    _, two = reader.told
    assert (list(two["arrived"]), two["withdrawn"], two["exits"]) == ([2], [0], [(1, "outside_window")])
    assert two["left the prompt"] == [1]


async def test_the_kinds_bytes_and_atoms_of_arrivals_are_those_of_the_events():
    class Keeps(Sampled):
        def finish(self, record):
            self.found = arrivals(record, None)

    reader = Keeps()
    spelled = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "é"}}]
    events = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": None, "tool_calls": spelled},
        {"role": "user", "content": "meanwhile"},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        TurnStarted(turn=1),
    ]
    await Assembler([ConversationPolicy()], recorder=reader).assemble([], events)
    assert [(one.item, one.kind, one.bytes, one.atom) for one in reader.found] == [
        (0, "system", 1, 0),
        (1, "response", 3, 1),
        (2, "request", 9, 2),
        (3, "tool_result", 5, 1),
        (4, "other", 0, 4),
    ]


async def test_two_conversations_of_one_assembler_have_ledgers_with_names_of_their_own():
    class Names(Sampled):
        names = ()

        def finish(self, record):
            self.names = (*self.names, record.ledger.id)

    reader = Names()
    assembler = Assembler([], recorder=reader)
    one, other = History(requests("a")), History(requests("b"))
    for history in (one, other, one):
        await assembler.assemble([], history)
    assert reader.names[0] == reader.names[2] != reader.names[1]


async def test_what_is_sent_are_the_caller_s_own_objects_also_where_one_was_replaced_by_its_equal():
    assembler, context = Assembler([]), Context()
    first = [ModelRequest(id=f"m{number}", content="yes") for number in range(3)]
    await assembler.assemble([], first, context)
    second = [first[0], first[1].model_copy(), first[2]]
    assembly = await assembler.assemble([], second, context)
    assert all(one is other for one, other in zip(assembly.events, second, strict=True))
    assert assembly.items == [0, 1, 2]


async def test_each_assembly_has_the_objects_of_its_own_list_also_when_it_is_read_later():
    assembler, context = Assembler([SlidingWindowPolicy(2)]), Context()
    lists = [[{"role": "user", "content": f"message {number}"} for number in range(4)] for _ in range(3)]
    assemblies = [await assembler.assemble([], events, context) for events in lists]
    for assembly, events in zip(assemblies, lists, strict=True):
        assert all(one is other for one, other in zip(assembly.events, events[2:], strict=True))
        assert assembly.items == [2, 3]


async def test_what_a_caller_makes_anew_on_every_turn_is_read_once():
    reader, context = Sampled(0, 1, 2), Context()
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=reader, counter=CharacterCounter(1))
    with Reads(dict) as reads:
        for length in (3, 4, 5):
            await assembler.assemble([], [{"role": "user", "content": f"{n}"} for n in range(length)], context)
    assert reads.made == 5
    assert [list(turn["arrived"]) for turn in reader.told] == [[0, 1, 2], [3], [4]]


async def test_ids_tell_apart_what_reads_the_same_and_an_id_that_one_lacks_does_not():
    assembler, context = Assembler([]), Context()
    for events, items in [
        (["a", "b"], [0, 1]),
        (["b", "c"], [1, 2]),
        (["c", "b"], [2, 1]),
        ([None, "b"], [2, 1]),
        (["d", None], [2, 1]),
    ]:
        given = [{"role": "user", "content": "ok", **({} if name is None else {"id": name})} for name in events]
        assert (await assembler.assemble([], given, context)).items == items, events


async def test_our_events_that_nobody_gave_an_id_are_matched_by_what_they_say():
    assembler, context = Assembler([]), Context()
    for events, items in [
        ([ModelRequest(content="ok")], [0]),
        ([ModelRequest(content="ok"), ModelRequest(content="ok")], [0, 1]),
        ([ModelRequest(id="x", content="ok"), ModelRequest(id="y", content="ok")], [0, 1]),
        ([ModelRequest(id="y", content="ok"), ModelRequest(id="z", content="ok")], [1, 2]),
    ]:
        assert (await assembler.assemble([], events, context)).items == items
