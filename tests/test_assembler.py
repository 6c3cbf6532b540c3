"""What an assembly gives its caller, from a history or from any list, and what a failed one leaves."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass

import pytest
from assembling import Custom, SpyCounter, Stream, requests, said, told, user, warning

from otel_assembly import (
    AlertPolicy,
    Assembler,
    ConfigurationError,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    EventFacts,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
    WorkingMemoryPolicy,
    describe,
)
from otel_assembly.errors import DescribeError, KnowledgeStoreError, PolicyFailedError
from otel_assembly.events import AssemblyCompleted, CompactionSummary
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.messages import EventKind
from otel_assembly.messages.content_snapshot import read_from, written_on
from otel_assembly.telemetry import ContentCapture, TelemetrySettings
from otel_assembly.testing import RecordedTelemetry

# --- What comes back --------------------------------------------------------------------------------------------------


async def test_an_empty_chain_sends_what_came_in():
    events = requests("a", "b")
    assembly = await Assembler([]).assemble(["system"], events)
    prompts, sent = assembly
    assert prompts == ["system"]
    assert all(message is other for message, other in zip(sent, events, strict=True))
    assert assembly.items == ["0", "1"]
    assert assembly.id
    assert repr(assembly).startswith("Assembly(turn 0: ")


async def test_prompts_may_come_from_anything_that_can_be_gone_through_once():
    assembly = await Assembler([]).assemble((text for text in ["a", "b"]), [])
    assert assembly.prompts == ["a", "b"]


async def test_policies_run_left_to_right_each_on_what_the_one_before_let_out():
    chain = [Custom(lambda p, e: ([*p, "one"], e[1:])), Custom(lambda p, e: ([*p, "two"], e[1:]))]
    assembly = await Assembler(chain).assemble([], requests("a", "b", "c"))
    assert (assembly.prompts, said(assembly)) == (["one", "two"], ["c"])
    assert [(d.item, d.index) for d in assembly.dropped] == [("0", 0), ("1", 1)]


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


def test_an_assembler_with_policies_more_is_one_beside_it_that_keeps_its_settings_and_is_warned_alike(caplog):
    memory, window = WorkingMemoryPolicy(), SlidingWindowPolicy(max_events=5)
    alone = Assembler([memory, window], name="desk", strict=True)
    alerts, budget = AlertPolicy(), TokenBudgetPolicy(100)
    first, behind = alone.reducing_first([budget]), alone.followed_by([budget])
    assert (first.policies, behind.policies) == ((memory, budget, window), (memory, window, budget))
    assert alone.policies == (memory, window)
    assert [(item.name, item.strict) for item in (first, behind)] == [("desk", True)] * 2
    assert not caplog.records
    alone.followed_by([alerts])
    assert "Policy 'sliding_window' (index 1) runs before 'alert' (index 2)" in caplog.text
    with pytest.raises(ConfigurationError):
        alone.followed_by([SlidingWindowPolicy])


async def test_a_conversation_goes_on_in_an_assembler_that_has_policies_more():
    messages, context = requests(*"abcd"), Context()
    alone = Assembler([])
    before = await alone.assemble([], messages, context)
    after = await alone.followed_by([SlidingWindowPolicy(max_events=2)]).assemble([], messages, context)
    assert after.items == before.items[2:]
    assert [decision.item for decision in after.decisions if decision.outcome == "dropped"] == before.items[:2]


async def test_the_decisions_are_those_of_this_turn_only():
    history = History(requests("a", "b", "c"))
    assembler = Assembler([SlidingWindowPolicy(2)])
    first = await assembler.assemble([], history)
    assert told(first) == [("0", "dropped", "outside_window"), ("1", "kept", "fits"), ("2", "kept", "fits")]
    history.append(ModelRequest(content="d"))
    second = await assembler.assemble([], history)
    assert told(second) == [("1", "dropped", "outside_window"), ("3", "kept", "fits")]
    assert (await assembler.assemble([], history)).decisions == ()
    assert told(first) == [("0", "dropped", "outside_window"), ("1", "kept", "fits"), ("2", "kept", "fits")]


async def test_an_item_that_stays_past_the_rule_is_told_when_that_begins():
    history = History([ModelRequest(content="ask"), ModelResponse(content="1"), ModelResponse(content="2")])
    assembler = Assembler([SlidingWindowPolicy(3)])
    await assembler.assemble([], history)
    history.append(ModelResponse(content="3"))
    second = await assembler.assemble([], history)
    assert ("0", "kept", "pinned") in told(second)
    history.append(ModelResponse(content="4"))
    assert ("0", "kept", "pinned") not in told(await assembler.assemble([], history))
    history.append(ModelRequest(content="ask again"))
    assert ("0", "dropped", "outside_window") in told(await assembler.assemble([], history))


async def test_an_exit_is_told_again_when_another_policy_holds_the_item_out():
    turns = iter([False, True])
    first = Custom(lambda p, e: (p, e[1:] if next(turns) else e), name="first")
    history = History(requests("a", "b"))
    assembler = Assembler([first, SlidingWindowPolicy(1)])
    one = await assembler.assemble([], history)
    two = await assembler.assemble([], history)
    assert [(d.item, d.policy) for d in one.dropped] == [("0", "sliding_window")]
    assert [(d.item, d.policy) for d in two.dropped] == [("0", "first")]
    assert [d.item for d in one.exits] == ["0"]
    assert two.exits == ()


async def test_totals_add_up_and_are_those_of_the_rendered_prompt():
    spy = SpyCounter()
    events = [ModelRequest(content="one two three"), ModelResponse(content="four"), ModelRequest(content="five six")]
    assembly = await Assembler([SlidingWindowPolicy(2)], counter=spy).assemble(["be kind"], events)
    totals = assembly.totals
    assert (totals.events_in, totals.events_out, totals.dropped) == (3, 2, 1)
    assert totals.tokens_out == 3 + (4 + 2) + (4 + 1) + (4 + 2)
    assert totals.tokens_in == totals.tokens_out + (4 + 3)
    assert (totals.dropped_tokens, totals.estimated_in) == (4 + 3, 0)
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
    assert totals.utilization == totals.overflow.needed / 100
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
    assert assembly.items == ["3", "1", "2", "4"]
    assert told(assembly) == [("3", "kept", "fits"), ("4", "kept", "fits")]
    assert assembly.decisions[0].event == user("summary")
    swapped = [cut[2], cut[1]]
    assert (await assembler.assemble([], swapped, context)).items == ["2", "1"]


async def test_the_ids_of_an_emptied_list_are_not_used_again():
    context, assembler = Context(), Assembler([])
    await assembler.assemble([], [user("a"), user("b")], context)
    emptied = await assembler.assemble([], [], context)
    assert (emptied.items, emptied.decisions) == ([], ())
    assert (await assembler.assemble([], [user("a")], context)).items == ["2"]


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
    assert first.items == ["0", "1", "2", "3"]
    change(grows)
    second = await assembler.assemble([], events, context)
    assert second.totals.tokens_out <= 80
    assert second.items == ["3"]
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
    assert (after.items, after.prefix.cause) == (["0"], "event_changed")


async def test_the_list_and_its_messages_are_never_changed():
    events = [user("a"), user("b"), user("c")]
    before, objects = copy.deepcopy(events), list(events)
    assembly = await Assembler([SlidingWindowPolicy(1)]).assemble(["p"], events)
    assembly.events.clear()
    assembly.prompts.clear()
    assert events == before
    assert all(event is other for event, other in zip(events, objects, strict=True))


async def test_an_event_that_nobody_can_read_is_named_and_the_turn_does_not_count():
    assembler, context = Assembler([]), Context()
    with pytest.raises(DescribeError, match=r"builtins\.object"):
        await assembler.assemble([], [user("a"), object()], context)
    assembly = await assembler.assemble([], [user("a")], context)
    assert (assembly.turn, assembly.items) == (0, ["0"])


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
        ("1", "dropped", "outside_window"),
        ("3", "kept", "fits"),
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
async def test_an_overflow_sends_nothing_and_says_so_on_the_stream(events, recorder):
    stream = Stream()
    context = Context(stream=stream)
    assembler = Assembler([SlidingWindowPolicy(2), TokenBudgetPolicy(20)], recorder=recorder.recorder)
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
    assert recorder.span("assemble_context").attributes["error.type"] == "context_overflow"


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
    assert "the stream raised ConnectionError for the event of a completed assembly" in caplog.text
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
    events.append(ModelResponse(content="b"))  # the model has read it
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


async def test_a_store_that_cannot_be_read_fails_the_policy_by_its_name():
    class Broken(MemoryKnowledgeStore):
        async def read(self, path):
            raise KnowledgeStoreError("the disk is gone")

    context = Context(dependencies={KnowledgeStore: Broken()})
    with pytest.raises(PolicyFailedError, match="'working_memory'") as failed:
        await Assembler([WorkingMemoryPolicy()]).assemble([], [ModelRequest(content="one")], context)
    assert isinstance(failed.value.__cause__, KnowledgeStoreError)


class LeavesOut:
    """A policy of a user's own, which is given lists."""

    name = "leaves_out"

    async def apply(self, prompts, events, context):
        return prompts, [event for event in events if event["content"] != "question 2"]


async def test_a_name_that_a_framework_writes_on_a_message_later_is_counted_and_makes_no_other_of_it():
    @dataclass
    class Signed:
        text: str
        name: str = ""

    describe.register(Signed, lambda event: EventFacts(EventKind.REQUEST, event.text, name=event.name))
    read_from(Signed, "text", "name")
    written_on(Signed)
    messages = [Signed(f"question {number}") for number in range(3)]
    assembler, context = Assembler([]), Context()
    before = await assembler.assemble([], messages, context)
    messages[0].name = "a name of several words"
    after = await assembler.assemble([], messages, context)
    alone = await Assembler([]).assemble([], messages, Context())
    assert after.items == before.items
    assert after.totals.tokens_out == alone.totals.tokens_out > before.totals.tokens_out


@pytest.mark.parametrize("policy", [SlidingWindowPolicy(3), LeavesOut()])
@pytest.mark.parametrize("renewed", [[], [1], [0, 1, 2, 3], [3]])
async def test_chat_messages_that_say_what_they_said_are_the_same_items_and_the_objects_of_this_turn_are_sent(
    policy, renewed
):
    messages = [{"role": "user", "content": f"question {number}"} for number in range(4)]
    assembler, context = Assembler([policy]), Context()
    before = (await assembler.assemble([], messages, context)).items
    for at in renewed:
        messages[at] = dict(messages[at])
    messages.append({"role": "user", "content": "and now?"})
    assembly = await assembler.assemble([], messages, context)
    assert all(any(event is message for message in messages) for event in assembly.events)
    assert assembly.items == [str(messages.index(event)) for event in assembly.events]
    assert set(before) & set(assembly.items)


async def test_a_counter_that_is_empty_counts():
    class Memo(dict):
        name, method, generation = "memo", "exact", 0

        def count(self, text):
            return self.setdefault(text, 100)

    assembly = await Assembler([], counter=Memo()).assemble([], requests("hello"))
    assert assembly.totals.encoding == "memo"
    assert assembly.totals.tokens_out > 100


async def test_contexts_with_an_empty_id_are_not_one_conversation():
    assembler = Assembler([])
    for text in ("a", "b"):
        assembly = await assembler.assemble([], requests(text), Context(conversation_id=""))
        assert (assembly.turn, assembly.prefix.cause) == (0, "first")


class Registers:
    """Registers a function that raises, and raises itself if `error` is an exception."""

    name = "registers"

    def __init__(self, error):
        self.error = error

    async def apply(self, prompts, events, context):
        def fail():
            raise RuntimeError("callback")

        context.when_done(success=fail, failure=fail)
        if self.error is not None:
            raise self.error
        return prompts, events


async def test_a_registered_function_that_raises_hides_neither_the_error_nor_the_span(recorder, caplog):
    with pytest.raises(PolicyFailedError):
        await Assembler([Registers(ValueError())], recorder=recorder.recorder).assemble([], requests("a"))
    assert recorder.span("assemble_context").attributes["error.type"] == "ValueError"
    assert "when_done" in caplog.text
    assert (await Assembler([Registers(None)]).assemble([], requests("a"))).events


async def test_a_turn_that_is_cancelled_while_it_is_recorded_gives_its_alerts_back():
    def cancelled(text):
        task.cancel()
        return text

    settings = TelemetrySettings(content=ContentCapture.SPAN_ONLY, redact=cancelled)
    assembler = Assembler([AlertPolicy()], recorder=RecordedTelemetry(settings=settings).recorder)
    history = History([*requests(*map(str, range(600))), warning()])
    task = asyncio.create_task(assembler.assemble([], history))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await Assembler([AlertPolicy()]).assemble([], history)).prompts) == 1
