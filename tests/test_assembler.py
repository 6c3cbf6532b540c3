"""A chain of policies on a conversation: what comes back, what it costs, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import subprocess
import sys
import threading
import weakref
from contextlib import nullcontext

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyCompleted,
    CompactionSummary,
    Context,
    ConversationPolicy,
    DecisionOutcome,
    History,
    KnowledgeStore,
    MemoryKnowledgeStore,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
    TurnStarted,
    Usage,
    WorkingMemoryPolicy,
)
from otel_assembly.delta import arrivals, counted, exits_from_the_prompt, step_delta
from otel_assembly.errors import (
    ConfigurationError,
    ContextOverflowError,
    DescribeError,
    KnowledgeStoreError,
    PolicyFailedError,
)
from otel_assembly.events import event_to_json
from otel_assembly.facts import describe
from otel_assembly.tokens import CalibratedCounter, CharacterCounter
from otel_assembly.totals import prefix_hash, prefix_of


class SpyCounter:
    """Counts words, and remembers what it was asked."""

    name, method, generation = "words", "exact", 0

    def __init__(self):
        self.asked = []

    def count(self, text):
        self.asked.append(text)
        return len(text.split())


class Recorder:
    """Keeps the records; `sampled` says whether a turn's span records."""

    def __init__(self, sampled=lambda turn: True):
        self.sampled = sampled
        self.records = []
        self.observed = []

    def begin(self, name, model, context, started_ns):
        return Recording(self)

    def calibrated(self, model, counted, billed):
        self.observed.append((model, counted, billed))


class Recording:
    recorded = True
    measured = True

    def __init__(self, recorder):
        self.recorder = recorder

    def policy(self, name, index):
        return nullcontext()

    def finish(self, record):
        self.recorded = record.error is None and self.recorder.sampled(record.turn)
        self.recorder.records.append(record)


class Stream:
    def __init__(self, fail=None):
        self.sent, self.fail = [], fail

    async def send(self, event):
        if self.fail is not None:
            raise self.fail
        self.sent.append(event)


class Custom:
    """A policy that does what a function says."""

    def __init__(self, apply, name="custom"):
        self.name, self.function = name, apply

    async def apply(self, prompts, events, context):
        return self.function(list(prompts), list(events))


def requests(*texts):
    return [ModelRequest(content=text) for text in texts]


def user(text):
    return {"role": "user", "content": text}


def said(assembly):
    return [event["content"] if isinstance(event, dict) else event.content for event in assembly.events]


def told(assembly):
    return [(d.item, d.outcome.value, d.reason.value) for d in assembly.decisions]


# --- What comes back --------------------------------------------------------------------------------------------------


async def test_an_empty_chain_sends_what_came_in():
    events = requests("a", "b")
    assembly = await Assembler([]).assemble(["system"], events)
    prompts, sent = assembly
    assert prompts == ["system"]
    assert all(one is other for one, other in zip(sent, events, strict=True))
    assert assembly.items == [0, 1]
    assert assembly.id
    assert repr(assembly) == "Assembly(turn=0, prompts=1, events=2)"


async def test_prompts_may_come_from_anything_that_can_be_gone_through_once():
    assembly = await Assembler([]).assemble((text for text in ["a", "b"]), [])
    assert assembly.prompts == ["a", "b"]


async def test_policies_run_left_to_right_each_on_what_the_one_before_let_out():
    chain = [Custom(lambda p, e: ([*p, "one"], e[1:])), Custom(lambda p, e: ([*p, "two"], e[1:]))]
    assembly = await Assembler(chain).assemble([], requests("a", "b", "c"))
    assert (assembly.prompts, said(assembly)) == (["one", "two"], ["c"])
    assert [(d.item, d.index) for d in assembly.dropped] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("prompts", ["system", [1], [None], [["nested"]]])
async def test_prompts_that_are_no_strings_are_refused_at_once(prompts):
    with pytest.raises(ConfigurationError, match="sequence of strings"):
        await Assembler([]).assemble(prompts, [])


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        (object(), "object"),
        (type("NoApply", (), {"name": "x"})(), "NoApply"),
        (type("NoName", (), {"apply": len})(), "NoName"),
    ],
)
def test_what_is_no_policy_is_refused_at_construction(policy, what):
    with pytest.raises(ConfigurationError, match=rf"policy at index 1 \({what}\) needs a 'name'"):
        Assembler([ConversationPolicy(), policy])


def test_an_unknown_way_with_policy_errors_is_refused():
    with pytest.raises(ConfigurationError, match="'raise' or 'skip', got 'ignore'"):
        Assembler([], on_policy_error="ignore")


def test_a_chain_in_an_order_that_loses_something_is_warned_of(caplog):
    Assembler([SlidingWindowPolicy(5), AlertPolicy()])
    assert "'sliding_window' (index 0) runs before 'alert' (index 1)" in caplog.text


async def test_the_decisions_are_those_of_this_turn_only():
    history = History(requests("a", "b", "c"))
    assembler = Assembler([SlidingWindowPolicy(2)])
    first = await assembler.assemble([], history)
    assert told(first) == [(0, "dropped", "outside_window"), (1, "kept", "fits"), (2, "kept", "fits")]
    history.append(ModelRequest(content="d"))
    second = await assembler.assemble([], history)
    assert told(second) == [(1, "dropped", "outside_window"), (3, "kept", "fits")]
    assert (await assembler.assemble([], history)).decisions == ()
    assert told(first) == [(0, "dropped", "outside_window"), (1, "kept", "fits"), (2, "kept", "fits")]


async def test_an_item_that_stays_past_the_rule_is_told_when_that_begins():
    history = History([ModelRequest(content="ask"), ModelResponse(content="1"), ModelResponse(content="2")])
    assembler = Assembler([SlidingWindowPolicy(3)])
    await assembler.assemble([], history)
    history.append(ModelResponse(content="3"))
    second = await assembler.assemble([], history)
    assert (0, "kept", "pinned") in told(second)
    history.append(ModelResponse(content="4"))
    assert (0, "kept", "pinned") not in told(await assembler.assemble([], history))
    history.append(ModelRequest(content="ask again"))
    assert (0, "dropped", "outside_window") in told(await assembler.assemble([], history))


async def test_an_exit_is_told_again_when_another_policy_holds_the_item_out():
    turns = iter([False, True])
    first = Custom(lambda p, e: (p, e[1:] if next(turns) else e), name="first")
    history = History(requests("a", "b"))
    assembler = Assembler([first, SlidingWindowPolicy(1)])
    one = await assembler.assemble([], history)
    two = await assembler.assemble([], history)
    assert [(d.item, d.policy) for d in one.dropped] == [(0, "sliding_window")]
    assert [(d.item, d.policy) for d in two.dropped] == [(0, "first")]
    assert [d.item for d in one.exits] == [0]
    assert two.exits == ()


async def test_totals_add_up_and_are_those_of_the_rendered_prompt():
    spy = SpyCounter()
    events = [ModelRequest(content="one two three"), ModelResponse(content="four"), ModelRequest(content="five six")]
    assembly = await Assembler([SlidingWindowPolicy(2)], counter=spy).assemble(["be kind"], events)
    totals = assembly.totals
    assert (totals.events_in, totals.events_out, totals.dropped) == (3, 2, 1)
    assert totals.tokens_out == 3 + (4 + 2) + (4 + 1) + (4 + 2)
    assert totals.tokens_in_estimated
    assert totals.tokens_in == totals.tokens_out
    assert (totals.method, totals.encoding) == ("exact", "words")
    assert (totals.budget, totals.utilization, totals.overflowed) == (None, None, False)


async def test_the_tightest_budget_is_the_budget_and_a_token_overflow_is_not_hidden_by_a_windows():
    events = [ModelRequest(content="ask"), ModelResponse(content="word " * 200)]
    chain = [TokenBudgetPolicy(100, on_overflow="drop"), TokenBudgetPolicy(5_000), SlidingWindowPolicy(1)]
    calls = [
        ModelRequest(content="again"),
        ModelResponse(tool_calls=(ToolCallEvent(id="a", name="f"),)),
        ToolResultEvent(parent_id="a", content="word " * 200),
    ]
    totals = (await Assembler(chain).assemble([], [*events, *calls])).totals
    assert totals.budget == 100
    assert totals.utilization == totals.tokens_out / 100
    assert (totals.overflow.unit, totals.overflow.cause.value) == ("tokens", "newest_atom")
    assert totals.overflow.excess > 0


# --- Lists that the caller rearranges ---------------------------------------------------------------------------------


async def test_items_keep_their_ordinals_however_the_list_is_rebuilt():
    context = Context()
    assembler = Assembler([])
    events = [user("a"), user("b"), user("c")]
    await assembler.assemble([], events, context)
    copies = copy.deepcopy(events)
    assert (await assembler.assemble([], copies, context)).decisions == ()
    cut = [user("summary"), *copies[1:], user("d")]
    assembly = await assembler.assemble([], cut, context)
    assert assembly.items == [3, 1, 2, 4]
    assert told(assembly) == [(0, "dropped", "withdrawn"), (3, "kept", "fits"), (4, "kept", "fits")]
    assert assembly.decisions[0].event == user("a")
    swapped = [cut[2], cut[1]]
    assert (await assembler.assemble([], swapped, context)).items == [2, 1]


async def test_an_emptied_list_withdraws_everything_and_its_ordinals_are_not_used_again():
    context, assembler = Context(), Assembler([])
    await assembler.assemble([], [user("a"), user("b")], context)
    emptied = await assembler.assemble([], [], context)
    assert told(emptied) == [(0, "dropped", "withdrawn"), (1, "dropped", "withdrawn")]
    assert (await assembler.assemble([], [user("a")], context)).items == [2]


@pytest.mark.parametrize(
    "change",
    [
        lambda event: event.update(content=event["content"] * 40),
        lambda event: event["tool_calls"][0]["function"].update(arguments="long " * 90),
        lambda event: event.update(content=[{"type": "text", "text": "long " * 90}]),
        lambda event: event.update(refusal="long " * 90),
    ],
)
async def test_a_message_that_grows_in_place_between_turns_is_counted_anew_and_the_budget_holds(change):
    spelled = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    grows = {"role": "assistant", "content": "text of some words", "tool_calls": spelled}
    events = [user("first"), grows, {"role": "tool", "tool_call_id": "a", "content": "found"}, user("newest")]
    assembler, context = Assembler([TokenBudgetPolicy(80)]), Context()
    first = await assembler.assemble([], events, context)
    assert first.items == [0, 1, 2, 3]
    change(grows)
    second = await assembler.assemble([], events, context)
    assert second.totals.tokens_out <= 80
    assert second.items == [3]
    fresh = await Assembler([TokenBudgetPolicy(80)]).assemble([], events)
    assert fresh.totals.tokens_out == second.totals.tokens_out


async def test_a_nested_text_that_grows_in_place_is_noticed():
    part = {"type": "text", "text": "short"}
    events = [{"role": "user", "content": [part]}]
    assembler, context = Assembler([], counter=SpyCounter()), Context()
    before = (await assembler.assemble([], events, context)).totals.tokens_out
    part["text"] = "now five words in it"
    after = await assembler.assemble([], events, context)
    assert after.totals.tokens_out == before + 4
    assert (after.items, after.prefix.cause) == ([0], "event_changed")


async def test_the_list_and_its_messages_are_never_changed():
    events = [user("a"), user("b"), user("c")]
    before, objects = copy.deepcopy(events), list(events)
    assembly = await Assembler([SlidingWindowPolicy(1)]).assemble(["p"], events)
    assembly.events.clear()
    assembly.prompts.clear()
    assert events == before
    assert all(one is other for one, other in zip(events, objects, strict=True))


async def test_an_event_that_nobody_can_read_is_named_and_the_turn_does_not_count():
    assembler, context = Assembler([]), Context()
    with pytest.raises(DescribeError, match=r"builtins\.object"):
        await assembler.assemble([], [user("a"), object()], context)
    assembly = await assembler.assemble([], [user("a")], context)
    assert (assembly.turn, assembly.items) == (0, [0])


# --- Failure ----------------------------------------------------------------------------------------------------------


async def test_an_assembly_that_fails_leaves_the_ledger_as_it_was_and_its_changes_to_the_next():
    fails = iter([False, True, True, False])

    def apply(prompts, events):
        if next(fails):
            raise ValueError
        return prompts, events

    events, context = [user("a"), user("b"), user("c")], Context()
    assembler = Assembler([SlidingWindowPolicy(2), Custom(apply)])
    assert (await assembler.assemble([], events, context)).turn == 0
    rebuilt = [user("b"), user("c"), user("d")]
    for _ in range(2):
        with pytest.raises(PolicyFailedError):
            await assembler.assemble([], rebuilt, context)
    assembly = await assembler.assemble([], rebuilt, context)
    assert assembly.turn == 3
    assert told(assembly) == [
        (1, "dropped", "outside_window"),
        (0, "dropped", "withdrawn"),
        (3, "kept", "fits"),
    ]


async def test_what_a_failed_turn_made_is_forgotten_and_what_was_made_before_is_not():
    fails = iter([False, True, False])
    summaries = iter(["one", "two", "one"])
    chain = [
        Custom(lambda p, e: (p, [CompactionSummary(summary=next(summaries)), *e[1:]])),
        Custom(lambda p, e: 1 / 0 if next(fails) else (p, e)),
    ]
    assembler, history = Assembler(chain), History(requests("a", "b"))
    first = await assembler.assemble([], history)
    with pytest.raises(PolicyFailedError):
        await assembler.assemble([], history)
    third = await assembler.assemble([], history)
    assert third.items == first.items
    assert third.decisions == ()


@pytest.mark.parametrize("events", [list, History])
async def test_an_overflow_sends_nothing_and_says_so_on_the_stream(events):
    stream, recorder = Stream(), Recorder()
    context = Context(stream=stream)
    assembler = Assembler([SlidingWindowPolicy(2), TokenBudgetPolicy(20)], recorder=recorder)
    came = events([ModelRequest(content="a"), ModelRequest(content="word " * 50)])
    with pytest.raises(ContextOverflowError) as raised:
        await assembler.assemble(["p"], came, context)
    totals = raised.value.assembly.totals
    assert (totals.events_in, totals.dropped, totals.events_out, totals.tokens_out) == (2, 2, 0, 0)
    assert (totals.prompts_out, totals.events_injected, totals.compacted) == (0, 0, 0)
    assert (totals.budget, totals.overflow.excess) == (20, raised.value.needed - 20)
    assert raised.value.assembly.decisions == raised.value.assembly.exits == ()
    [note] = stream.sent
    assert isinstance(note, AssemblyCompleted)
    assert (note.turn, note.tokens, note.budget, note.overflow_cause) == (0, 0, 20, "fixed")
    assert note.overflow_tokens == raised.value.needed - 20
    assert isinstance(recorder.records[0].error, ContextOverflowError)


async def test_every_assembly_is_told_on_the_stream_and_other_failures_are_not():
    stream = Stream()
    context = Context(stream=stream)
    assembler = Assembler([TokenBudgetPolicy(1_000)])
    assembly = await assembler.assemble(["p"], [user("a")], context)
    with pytest.raises(PolicyFailedError):
        await Assembler([Custom(lambda p, e: 1 / 0)]).assemble([], [user("a")], context)
    [note] = stream.sent
    assert (note.assembly, note.turn, note.tokens) == (assembly.id, 0, assembly.totals.tokens_out)
    assert (note.budget, note.fixed, note.overflow_tokens) == (1_000, assembly.totals.fixed, 0)


async def test_a_broken_stream_does_not_undo_an_assembly(caplog):
    context = Context(stream=Stream(fail=ConnectionError("secret")))
    assembler, history = Assembler([SlidingWindowPolicy(1)]), History(requests("a", "b"))
    assembly = await assembler.assemble([], history, context)
    assert said(assembly) == ["b"]
    assert "the stream refused the note on an assembly: ConnectionError" in caplog.text
    assert "secret" not in caplog.text
    assert (await assembler.assemble([], history, context)).decisions == ()


async def test_a_counter_that_fails_for_the_note_alone_does_not_undo_an_assembly(caplog):
    class Broken(SpyCounter):
        def count(self, text):
            raise RuntimeError("secret")

    stream = Stream()
    assembly = await Assembler([SlidingWindowPolicy(1)], counter=Broken()).assemble(
        [], requests("a", "b"), Context(stream=stream)
    )
    assert (said(assembly), stream.sent) == (["b"], [])
    assert "could not be counted: RuntimeError" in caplog.text
    assert "secret" not in caplog.text


def warning(message="slow"):
    return ObserverAlert(source="monitor", severity=Severity.WARNING, message=message)


@pytest.mark.parametrize("kind", [list, History])
async def test_an_alert_whose_assembly_fails_is_delivered_by_the_next_one_and_once(kind):
    fails = iter([True, False, False])
    chain = [AlertPolicy(), Custom(lambda p, e: 1 / 0 if next(fails) else (p, e))]
    assembler, events, context = Assembler(chain), kind([ModelRequest(content="a"), warning()]), Context()
    with pytest.raises(PolicyFailedError):
        await assembler.assemble([], events, context)
    second = await assembler.assemble([], events, context)
    assert "slow" in second.prompts[0]
    assert second.totals.alerts_delivered == 1
    assert (await assembler.assemble([], events, context)).prompts == []


async def test_a_turn_that_is_cancelled_while_it_is_told_gives_its_alerts_back():
    entered = asyncio.Event()

    class Slow(Stream):
        async def send(self, event):
            entered.set()
            await asyncio.Event().wait()

    history = History([ModelRequest(content="a"), warning()])
    assembler = Assembler([AlertPolicy()])
    task = asyncio.create_task(assembler.assemble([], history, Context(stream=Slow())))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await assembler.assemble([], history)).prompts) == 1


async def test_an_alert_that_a_failing_turn_gives_back_is_not_lost_to_a_turn_that_ran_meanwhile():
    go, claimed = asyncio.Event(), asyncio.Event()

    class Fails:
        name = "fails"
        first = True

        async def apply(self, prompts, events, context):
            if self.first:
                self.first = False
                claimed.set()
                await go.wait()
                raise ValueError
            await asyncio.sleep(0)
            if not go.is_set():
                go.set()
                for _ in range(5):
                    await asyncio.sleep(0)
            return prompts, events

    history = History([ModelRequest(content="a"), warning()])
    assembler = Assembler([AlertPolicy(), Fails()])
    failing = asyncio.create_task(assembler.assemble([], history))
    await claimed.wait()
    assert (await assembler.assemble([], history)).prompts == []
    with pytest.raises(PolicyFailedError):
        await failing
    assert len((await assembler.assemble([], history)).prompts) == 1


# --- Many at once -----------------------------------------------------------------------------------------------------


class Yields:
    """Gives other tasks the turn, as often as it is told."""

    name = "yields"

    def __init__(self):
        self.times = iter([3, 0, 7, 1, 5, 2] * 100)

    async def apply(self, prompts, events, context):
        for _ in range(next(self.times)):
            await asyncio.sleep(0)
        return prompts, events


@pytest.mark.parametrize("sampled", [lambda turn: True, lambda turn: turn % 3 == 0])
async def test_fifty_assemblies_at_once_tell_each_arrival_once_and_the_last_one_knows_the_truth(sampled):
    history = History(requests("a", "b"))
    recorder = Recorder(sampled)
    assembler = Assembler([SlidingWindowPolicy(6), Yields()], recorder=recorder)
    inside, turns = set(), set()

    async def turn(number):
        for _ in range(number % 4):
            await asyncio.sleep(0)
        history.append(ModelRequest(content=f"turn {number}"))
        return await assembler.assemble([], history)

    assemblies = await asyncio.gather(*(turn(number) for number in range(50)))
    assert {assembly.turn for assembly in assemblies} == set(range(50))
    assert all(len(assembly.events) == 6 or assembly.totals.events_in < 6 for assembly in assemblies)
    last = await assembler.assemble([], history)
    assert last.items == list(range(46, 52))
    by_id = {assembly.id: assembly for assembly in (*assemblies, last)}
    for record in recorder.records:
        for one in by_id[record.assembly_id].decisions:
            (inside.discard if one.outcome in {DecisionOutcome.DROPPED} else inside.add)(one.item)
        assert inside == set(by_id[record.assembly_id].items)
    recorded = [record for record in recorder.records if sampled(record.turn)]
    arrived = [one.item for record in recorded for one in arrivals(record, record.baseline)]
    assert len(arrived) == len(set(arrived))
    assert set(arrived) == set(range(max(len(record.opening.view) for record in recorded)))
    assert turns == set()


async def test_two_assemblers_on_one_history_have_ledgers_of_their_own():
    history = History(requests("a", "b", "c"))
    small, large = Assembler([SlidingWindowPolicy(1)]), Assembler([SlidingWindowPolicy(9)])
    assert (await small.assemble([], history)).items == [2]
    assembly = await large.assemble([], history)
    assert (assembly.items, assembly.turn) == ([0, 1, 2], 0)
    assert (await small.assemble([], history)).turn == 1


def test_threads_share_an_assembler_and_a_history():
    history, assembler = History(requests("a")), Assembler([ConversationPolicy(), SlidingWindowPolicy(5)])
    recorder = Recorder()
    assembler = Assembler([ConversationPolicy(), TokenBudgetPolicy(60)], recorder=recorder, counter=CharacterCounter(4))
    errors = []

    def work(number):
        try:
            for turn in range(20):
                history.append(ModelRequest(content=f"{number} {turn}"))
                assembly = asyncio.run(assembler.assemble([], history))
                assert assembly.totals.tokens_out <= 60
                totals = assembly.totals
                assert totals.events_in == totals.events_out + totals.dropped
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    arrived = [one.item for record in recorder.records for one in arrivals(record, record.baseline)]
    assert sorted(arrived) == list(range(121))
    assert sorted(record.turn for record in recorder.records) == list(range(120))


def test_one_assembler_serves_many_event_loops_and_conversations_and_forgets_those_that_are_gone():
    assembler = Assembler([SlidingWindowPolicy(3)])

    async def run():
        history = History(requests("a", "b", "c", "d"))
        await assembler.assemble([], history)
        assembly = await assembler.assemble([], history)
        assert assembly.turn == 1
        context = Context()
        await assembler.assemble([], requests("x"), context)
        return weakref.ref(history), weakref.ref(context), weakref.ref(assembly._record.ledger)

    dead = [ref for _ in range(5) for ref in asyncio.run(run())]
    gc.collect()
    assert [ref() for ref in dead] == [None] * 15


async def test_a_history_that_lives_on_does_not_keep_assemblers_alive():
    history = History(requests("a"))
    assembler = Assembler([])
    ledger = weakref.ref((await assembler.assemble([], history))._record.ledger)
    assert ledger() is not None
    del assembler
    gc.collect()
    assert ledger() is None


async def test_lists_are_one_conversation_by_their_id_and_the_least_recently_used_of_many_is_forgotten():
    assembler = Assembler([])

    async def turn(name):
        return (await assembler.assemble([], [user("a")], Context(conversation_id=name))).turn

    assert [await turn("first"), await turn("first"), await turn("second")] == [0, 1, 0]
    for number in range(998):
        await turn(f"other {number}")
    assert await turn("first") == 2
    assert await turn("one more") == 0
    assert await turn("first") == 3
    assert await turn("second") == 0


async def test_a_list_that_slides_on_for_ever_is_remembered_no_further_than_it_is_long():
    assembler, context = Assembler([TokenBudgetPolicy(500)], recorder=Recorder()), Context()
    events = [user(str(number)) for number in range(5)]
    for number in range(200):
        events[2]["content"] += "!"
        events = [*events[1:], user(f"next {number}")]
        record = (await assembler.assemble([], events, context))._record
    frame = record.opening.frame
    assert [len(kept) <= 5 for kept in (frame.told, frame.changes, frame.history, frame.ordinals)] == [True] * 4
    assert len(record.ledger._said) == 5


async def test_a_list_with_a_fresh_context_is_a_conversation_of_one_assembly():
    assembler, events = Assembler([]), [user("a")]
    assert [(await assembler.assemble([], events)).turn for _ in range(2)] == [0, 0]
    context = Context()
    assert [(await assembler.assemble([], events, context)).turn for _ in range(2)] == [0, 1]


# --- The prefix -------------------------------------------------------------------------------------------------------


def rendered(assembly):
    """The prompt by item: what kind of message, and every text in it."""
    facts = [describe(event) for event in assembly.events]
    return [("prompt", (text,)) for text in assembly.prompts] + [(str(one.kind), one.texts) for one in facts]


def size(items):
    return sum(len(text.encode("utf-8", "surrogatepass")) for _, texts in items for text in texts)


def common_length(one, other):
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def check_prefix(before, after):
    old, new, prefix = rendered(before), rendered(after), after.prefix
    same = common_length(old, new)
    assert prefix.prompts + prefix.events == (same if after.prompts == before.prompts else min(same, prefix.prompts))
    joined, other = ("".join(t for _, texts in items for t in texts).encode() for items in (old, new))
    assert size(new[: prefix.prompts + prefix.events]) <= prefix.bytes <= common_length(joined, other)
    assert prefix.previous_bytes == size(old)
    assert prefix.reuse == (prefix.bytes / size(old) if size(old) else None)
    return prefix.cause


def summarise(prompts, events):
    """One summary stands for the events up to the third, the seventh, the eleventh …"""
    upto = len(events) // 4 * 4
    return prompts, [CompactionSummary(summary=f"{upto}"), *events[upto - 1 :]] if upto else events


SUMMARIES = Custom(summarise)
SWAPS = Custom(lambda p, e: (p, e if len(e) == 3 else [e[1], e[0], *e[2:]]))
COUNTS = Custom(lambda p, e: (p, [{**e[0], "content": f"{len(e)}"}, *e[1:]]))


@pytest.mark.parametrize(
    ("cause", "chain", "first", "second"),
    [
        (None, [], (["p"], "abc"), (["p"], "abcd")),
        (None, [], (["p"], "abc"), (["p"], "abc")),
        (None, [SlidingWindowPolicy(9)], (["p"], "abc"), (["p"], "abcd")),
        ("prompt_changed", [], (["pad"], "abc"), (["pap"], "abc")),
        ("prompt_changed", [], (["p"], "abc"), (["p", "q"], "abc")),
        ("prompt_changed", [], (["p", "q"], "abc"), (["p"], "abc")),
        ("cut_moved", [SlidingWindowPolicy(3)], (["p"], "abc"), (["p"], "abcd")),
        ("cut_moved", [Custom(lambda p, e: (p, e[1:] if len(e) > 3 else e))], (["p"], "abc"), (["p"], "abcd")),
        ("compacted", [SUMMARIES], (["p"], "abc"), (["p"], "abcd")),
        ("compacted", [SUMMARIES], (["p"], "abcdefg"), (["p"], "abcdefgh")),
        ("reordered", [SWAPS], ([], "abc"), ([], "abcd")),
        ("event_changed", [], (["p"], "abc"), (["p"], "aXc")),
        ("event_changed", [], (["p"], "abc"), (["p"], "bc")),
        ("event_changed", [], (["p"], "abc"), (["p"], "aXbc")),
        ("event_changed", [COUNTS], ([], "abc"), ([], "abcd")),
    ],
)
async def test_the_prefix_says_how_much_of_the_last_prompt_begins_this_one_and_what_broke_it(
    cause, chain, first, second
):
    assembler, context, known = Assembler(chain), Context(), {}

    def events(letters):
        return [known.setdefault(letter, {**user(f"{letter}-"), "id": letter}) for letter in letters]

    one = await assembler.assemble(first[0], events(first[1]), context)
    assert (one.prefix.cause, one.prefix.reuse, one.prefix.bytes) == ("first", None, 0)
    two = await assembler.assemble(second[0], events(second[1]), context)
    assert check_prefix(one, two) == cause


async def test_an_item_that_comes_back_into_the_window_moves_the_cut():
    room = iter([2, 3])
    chain = [Custom(lambda p, e: (p, e[-next(room) :]))]
    assembler, history = Assembler(chain), History(requests("a", "b", "c"))
    one = await assembler.assemble([], history)
    assert check_prefix(one, await assembler.assemble([], history)) == "cut_moved"


async def test_other_events_that_read_the_same_leave_the_prefix_whole():
    assembler, context = Assembler([]), Context()
    one = await assembler.assemble(["p"], [user("yes"), user("yes"), user("no")], context)
    two = await assembler.assemble(["p"], [user("yes"), user("no"), user("and")], context)
    check_prefix(one, two)
    assert two.prefix.events == 1


async def test_prefixes_of_a_long_conversation_are_those_of_its_bytes():
    assembler, history = Assembler([ConversationPolicy(), TokenBudgetPolicy(90, step_tokens=16)]), History()
    last, causes = None, set()
    for number in range(60):
        history.append(ModelRequest(content=f"질문 {number}: where is it?"))
        if number % 3 == 0:
            history.append(TurnStarted(turn=number))
            history.append(ModelResponse(content="naïve " * (number % 5)))
        prompts = ["système"] if number % 20 else ["système", "once"]
        assembly = await assembler.assemble(prompts, history)
        causes.add(check_prefix(last, assembly) if last is not None else "first")
        last = assembly
    assert causes == {"first", None, "cut_moved", "prompt_changed"}


async def test_the_prefix_counts_its_own_tokens_though_nobody_asked_for_the_totals():
    assembler, history = Assembler([], counter=SpyCounter()), History(requests("one two", "three"))
    await assembler.assemble(["be kind"], history)
    assert (await assembler.assemble(["be kind"], history)).prefix.tokens == (4 + 2) + (4 + 2) + (4 + 1)


HASH_SCRIPT = """
import asyncio
from otel_assembly import Assembler, Context, History, ModelRequest, SlidingWindowPolicy
from otel_assembly.totals import prefix_hash

async def main():
    history = History(ModelRequest(content=f"{n} \\u00e9") for n in range(5))
    history.append({"role": "user", "content": "x", "name": "y"})
    assembler = Assembler([SlidingWindowPolicy(9)])
    await assembler.assemble(["a", "b"], history)
    history.append(ModelRequest(content="more"))
    assembly = await assembler.assemble(["a", "b"], history)
    print(prefix_hash(assembly._record, assembly.prefix), len({1, 2}), hash("x"))

asyncio.run(main())
"""


def test_the_hash_of_a_prefix_is_equal_in_every_process():
    def run(seed):
        environment = {"PYTHONHASHSEED": seed, "PATH": ""}
        output = subprocess.run(
            [sys.executable, "-c", HASH_SCRIPT], env=environment, capture_output=True, text=True, check=True
        ).stdout
        return output.split()

    one, other = run("1"), run("2")
    assert one[-1] != other[-1]
    assert one[0] == other[0]
    assert len(one[0]) == 16


async def test_the_hash_changes_with_the_prefix_and_with_nothing_else():
    async def hash_of(prompts, texts, more):
        assembler, history = Assembler([]), History(requests(*texts))
        await assembler.assemble(prompts, history)
        history.append(ModelRequest(content=more))
        record = (await assembler.assemble(prompts, history))._record
        return prefix_hash(record, prefix_of(record))

    base = await hash_of(["p"], ["a", "b"], "c")
    assert await hash_of(["p"], ["a", "b"], "d") == base
    others = {
        await hash_of(*one, "c") for one in ((["q"], ["a", "b"]), (["p"], ["ab"]), (["p", "a"], ["b"]), (["p"], ["a"]))
    }
    assert base not in others
    assert len(others) == 4


# --- Calibration ------------------------------------------------------------------------------------------------------


async def test_what_the_provider_billed_calibrates_the_next_turns_tokens():
    recorder = Recorder()
    assembler = Assembler([], model="some-lab/unheard-of-1", recorder=recorder)
    history = History(requests("word " * 100))
    first = await assembler.assemble(["p"], history)
    counted_then = first.totals.tokens_out
    assert first.totals.method == "estimated"
    history.append(ModelResponse(content="ok", usage=Usage(input_tokens=counted_then * 2)))
    history.append(ModelRequest(content="word " * 100))
    second = await assembler.assemble(["p"], history)
    assert second.totals.method == "calibrated"
    assert recorder.observed == [("some-lab/unheard-of-1", counted_then, counted_then * 2)]
    plain = await Assembler([]).assemble(["p"], history)
    assert 1.8 < second.totals.tokens_out / plain.totals.tokens_out < 2.1
    await assembler.assemble(["p"], history)
    assert len(recorder.observed) == 1


async def test_items_counted_under_another_calibration_are_told_again():
    recorder = Recorder()
    counter = CalibratedCounter("m", CharacterCounter(1))
    assembler = Assembler([TokenBudgetPolicy(1_000)], counter=counter, recorder=recorder)
    history = History(requests("abcdefghij"))

    async def turn():
        await assembler.assemble([], history)
        record = recorder.records[-1]
        new = arrivals(record, record.baseline)
        return [(one.item, one.tokens) for one in new], counted(record, record.baseline, new)

    assert await turn() == ([(0, 4 + 10)], [])
    assembler.observe_usage(100, 200)
    history.append(ModelRequest(content="ab"))
    assert await turn() == ([(1, 4 + 4)], [(0, 4 + 20)])
    assert await turn() == ([], [])


async def test_a_bill_for_an_earlier_prompt_or_none_is_not_taken_for_this_ones():
    recorder = Recorder()
    assembler = Assembler([], model="some-lab/unheard-of-2", recorder=recorder)
    history = History([ModelRequest(content="a"), ModelResponse(content="b", usage=Usage(input_tokens=10))])
    for text in "cd":
        await assembler.assemble([], history)
        history.append(ModelResponse(content=text))
    assembly = await assembler.assemble([], history)
    assert (recorder.observed, assembly.totals.method) == ([], "estimated")


async def test_observed_usage_calibrates_and_an_exact_tokenizer_is_only_compared():
    recorder = Recorder()
    assembler = Assembler([], recorder=recorder)
    assembly = await assembler.assemble([], requests("a"), Context(model="gpt-4o"))
    assembler.observe_usage(assembly.totals.tokens_out, 99, model="gpt-4o")
    again = await assembler.assemble([], requests("a"), Context(model="gpt-4o"))
    assert again.totals.tokens_out == assembly.totals.tokens_out
    assert recorder.observed == [("gpt-4o", assembly.totals.tokens_out, 99)]


# --- Cost: counted, never timed ---------------------------------------------------------------------------------------


async def test_where_nobody_listens_a_window_counts_no_token():
    spy = SpyCounter()
    assembler, history = Assembler([ConversationPolicy(), SlidingWindowPolicy(5)], counter=spy), History()
    for number in range(30):
        history.append(ModelRequest(content=f"{number}"))
        assembly = await assembler.assemble(["p"], history)
        assert len(assembly.events) <= 5
        assert assembly.items[-1] == number
    assert spy.asked == []
    assert assembly.totals.tokens_out == 3 + (4 + 1) * 6
    assert len(spy.asked) == 6


async def test_each_event_is_counted_once_and_only_those_near_the_window_are():
    spy = SpyCounter()
    history = History(requests(*(f"event {number}" for number in range(500))))
    assembler = Assembler([TokenBudgetPolicy(100)], counter=spy, recorder=Recorder())
    for number in range(500, 520):
        history.append(ModelRequest(content=f"event {number}"))
        await assembler.assemble([], history)
    events = [text for text in spy.asked if text.startswith("event")]
    assert len(events) == len(set(events))
    assert len(events) < 60


class Steps:
    """Lines that the engine runs, counted."""

    def __enter__(self):
        self.lines, self.before = 0, sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _call(self, frame, what, argument):
        return self._line if "otel_assembly" in frame.f_code.co_filename else None

    def _line(self, frame, what, argument):
        self.lines += 1
        return self._line


def mixed(number):
    """Every kind of event, and pairs that some answers are missing of."""
    call = f"call {number}"
    return {
        0: [ModelRequest(content=f"question {number}")],
        1: [
            ModelResponse(tool_calls=(ToolCallEvent(id=call, name="f"),)),
            ToolResultEvent(parent_id=call, content="r"),
        ],
        2: [TurnStarted(turn=number), warning(f"alert {number % 7}")],
        3: [ModelResponse(content="answer")],
    }[number % 4]


@pytest.fixture(scope="module")
def histories():
    """A short one and a long one: some 1,000 events and 100,000."""
    return [History(event for number in range(length) for event in mixed(number)) for length in (666, 66_666)]


async def steps_of_a_turn(chain, history, *, read):
    assembler = Assembler(chain(), recorder=Recorder(), counter=CharacterCounter(4))
    await assembler.assemble(["p"], history)
    most = 0
    for number in range(24):
        for event in mixed(number):
            history.append(event)
        with Steps() as steps:
            assembly = await assembler.assemble(["p"], history)
            record = assembly._record
            if read:
                assembly.decisions, assembly.totals, assembly.prefix, assembly.events  # noqa: B018
                prefix_hash(record, assembly.prefix)
                counted(record, record.baseline, arrivals(record, record.baseline))
                for step in record.steps:
                    step_delta(record, step, record.baseline)
                    exits_from_the_prompt(record, step)
        most = max(most, steps.lines)
    return most


@pytest.mark.parametrize(
    "chain",
    [
        lambda: [SlidingWindowPolicy(12)],
        lambda: [ConversationPolicy(), SlidingWindowPolicy(12, stride=4)],
        lambda: [AlertPolicy(), ConversationPolicy(), TokenBudgetPolicy(200)],
        lambda: [TokenBudgetPolicy(200, step_tokens=20)],
    ],
)
@pytest.mark.parametrize("read", [False, True])
async def test_a_turn_at_a_hundred_thousand_events_takes_the_steps_of_a_turn_at_a_thousand(chain, read, histories):
    short, long = [await steps_of_a_turn(chain, history, read=read) for history in histories]
    assert 100 < long <= short * 1.1 + 50


async def test_a_foreign_filter_that_parts_thousands_of_pieces_takes_steps_in_proportion():
    chain = [Custom(lambda p, e: (p, [one for n, one in enumerate(e) if n % 2]))]
    steps = []
    for length in (500, 2_000):
        history = History(requests(*map(str, range(length))))
        assembler = Assembler(chain)
        await assembler.assemble([], history)
        history.append(ModelRequest(content="new"))
        with Steps() as counted_steps:
            assembly = await assembler.assemble([], history)
            assert len(assembly.decisions) == 1
            assembly.prefix  # noqa: B018
        steps.append(counted_steps.lines)
    assert steps[1] < steps[0] * 6


async def test_an_assembler_with_ever_new_models_remembers_a_bounded_number_of_them():
    assembler = Assembler([])
    for number in range(100):
        await assembler.assemble([], [], Context(model=f"tune-{number}"))
    assert len(assembler._meters) <= 32


async def test_events_are_ours_in_json_after_a_turn_as_before():
    events = [ModelRequest(content="a"), ModelResponse(content="b")]
    before = [event_to_json(event) for event in events]
    await Assembler([SlidingWindowPolicy(1)]).assemble([], events)
    assert [event_to_json(event) for event in events] == before


async def test_nothing_of_a_message_is_logged(caplog):
    with caplog.at_level(logging.DEBUG):
        await Assembler([SlidingWindowPolicy(1)]).assemble(["canary"], requests("canary", "canary"))
    assert "canary" not in caplog.text


async def test_other_tools_make_another_prompt_from_its_very_beginning():
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    assembler, history = Assembler([ConversationPolicy()]), History([ModelRequest(content="one")])
    await assembler.assemble(["p"], history, Context())
    same = await assembler.assemble(["p"], history, Context())
    other = await assembler.assemble(["p"], history, Context(tools=tools))
    assert (same.prefix.reuse, same.prefix.cause) == (1.0, None)
    assert (other.prefix.reuse, other.prefix.tokens, other.prefix.cause) == (0.0, 0, "prompt_changed")


async def test_a_store_that_cannot_be_read_fails_the_policy_by_its_name():
    class Broken(MemoryKnowledgeStore):
        async def read(self, path):
            raise KnowledgeStoreError("the disk is gone")

    context = Context(dependencies={KnowledgeStore: Broken()})
    with pytest.raises(PolicyFailedError, match="'working_memory'") as failed:
        await Assembler([WorkingMemoryPolicy()]).assemble([], [ModelRequest(content="one")], context)
    assert isinstance(failed.value.__cause__, KnowledgeStoreError)
