"""A policy of the user's own: four lines by protocol. What it does is found out, what it may not do is put right."""

from __future__ import annotations

import asyncio
import copy
import json
import logging

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ContextOverflowError,
    DecisionReason,
    HaltedError,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    Verdict,
)
from otel_assembly.decision import DecisionOutcome, Outcome
from otel_assembly.errors import KnowledgeStoreError, PolicyContractError, PolicyFailedError
from otel_assembly.events import CompactionSummary


class DropThinking:
    name = "drop_thinking"

    async def apply(self, prompts, events, context):
        return prompts, [event for event in events if "thinking" not in event.content]


def policy_of(apply, name="custom", **more):
    """A policy that does what a function says."""

    async def applied(self, prompts, events, context):
        return apply(prompts, events)

    return type("Custom", (), {"name": name, "apply": applied, **more})()


def requests(*texts):
    return [ModelRequest(content=text) for text in texts]


def call(arguments="{}", call_id="a"):
    function = {"name": "search", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def user(text):
    return {"role": "user", "content": text}


def exits(assembly):
    return [(d.item, d.outcome.value, d.reason.value, d.policy) for d in assembly.decisions if d.outcome in EXITS]


EXITS = {DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED}


# --- What it did ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, History])
async def test_four_lines_are_enough_to_have_decisions_with_the_reason_policy(kind):
    events = kind(requests("hello", "thinking...", "bye"))
    assembly = await Assembler([DropThinking()]).assemble([], events)
    assert [event.content for event in assembly.events] == ["hello", "bye"]
    assert exits(assembly) == [("1", "dropped", "policy", "drop_thinking")]
    assert assembly.dropped[0].event is events[1]
    assert assembly.totals.dropped == 1


async def test_events_that_come_back_are_the_very_objects():
    events = [user("a"), user("thinking"), user("b")]
    policy = policy_of(lambda prompts, events: (prompts, [events[0], events[2]]))
    assembly = await Assembler([policy]).assemble([], events)
    assert [event is other for event, other in zip(assembly.events, [events[0], events[2]], strict=True)] == [
        True,
        True,
    ]


async def test_a_copy_keeps_the_ordinal_of_what_it_copies():
    events = [user("a"), user("b"), user("c")]
    policy = policy_of(lambda prompts, events: (prompts, copy.deepcopy(events[1:])))
    assembly = await Assembler([policy]).assemble([], events)
    assert assembly.items == ["1", "2"]
    assert exits(assembly) == [("0", "dropped", "policy", "custom")]
    assert assembly.totals.events_injected == 0


async def test_what_a_new_event_stands_for_is_compacted():
    history = History(requests("a", "b", "c", "d"))
    policy = policy_of(lambda p, e: (p, [CompactionSummary(summary="a to b"), *e[2:]]), name="summarise")
    assembly = await Assembler([policy]).assemble([], history)
    assert exits(assembly) == [
        ("0", "compacted", "compacted", "summarise"),
        ("1", "compacted", "compacted", "summarise"),
    ]
    assert [d.event.summary for d in assembly.decisions if d.outcome is DecisionOutcome.INJECTED] == ["a to b"]
    assert (assembly.totals.compacted, assembly.totals.events_injected, assembly.totals.dropped) == (2, 1, 0)


async def test_a_summary_that_reads_the_same_next_turn_is_the_same_item():
    history = History(requests("a", "b", "c", "d"))
    policy = policy_of(lambda p, e: (p, [CompactionSummary(summary="a to b"), *e[2:]]))
    assembler = Assembler([policy])
    first = await assembler.assemble([], history)
    history.append(ModelRequest(content="e"))
    second = await assembler.assemble([], history)
    assert second.items == [first.items[0], "2", "3", "4"]
    assert [(d.item, d.outcome.value) for d in second.decisions] == [("4", "kept")]
    assert second.prefix.cause is None


async def test_a_summary_that_is_made_anew_is_another_item():
    history = History(requests("a", "b", "c", "d"))
    policy = policy_of(lambda p, e: (p, [CompactionSummary(summary=f"{len(e) - 1} events"), e[-1]]))
    assembler = Assembler([policy])
    await assembler.assemble([], history)
    history.append(ModelRequest(content="e"))
    assembly = await assembler.assemble([], history)
    changes = {d.item: (d.outcome.value, d.reason.value) for d in assembly.decisions}
    assert changes == {
        "3": ("compacted", "compacted"),
        "4": ("kept", "fits"),
        "m1": ("injected", "policy"),
    }


async def test_what_a_policy_makes_on_every_turn_is_kept_again_where_a_later_one_lets_it_through_again():
    opens = iter([True, False, True, True])
    reminder = policy_of(lambda p, e: (p, [*e, ModelRequest(content="remember")]), name="reminder")
    gate = policy_of(lambda p, e: (p, e if next(opens) else e[:-1]), name="gate")
    assembler, history = Assembler([reminder, gate]), History(requests("a"))
    assemblies = [await assembler.assemble([], history) for _ in range(4)]
    assert [assembly.items for assembly in assemblies] == [["0", "m0"], ["0"], ["0", "m0"], ["0", "m0"]]
    told = [
        [(d.item, d.outcome.value, d.reason.value, d.policy) for d in assembly.decisions] for assembly in assemblies
    ]
    assert told == [
        [("m0", "injected", "policy", "reminder"), ("0", "kept", "fits", None)],
        [("m0", "dropped", "policy", "gate")],
        [("m0", "kept", "fits", "gate")],
        [],
    ]


async def test_what_a_policy_makes_a_second_drops_and_a_third_puts_back_is_told_once_and_never_as_dropped(recorder):
    note, opens = ModelRequest(content="remember"), iter([True, True, False, True])
    made = policy_of(lambda p, e: (p, [*e, note]), name="reminder")
    gate = policy_of(lambda p, e: (p, e[:-1]), name="gate")
    back = policy_of(lambda p, e: (p, [*e, note] if next(opens) else e), name="rescue")
    assembler, history = Assembler([made, gate, back], recorder=recorder.recorder), History(requests("a"))
    assemblies = [await assembler.assemble([], history) for _ in range(4)]
    assert [assembly.items for assembly in assemblies] == [["0", "m0"], ["0", "m0"], ["0"], ["0", "m0"]]
    told = [
        [(d.item, d.outcome.value, d.reason.value, d.policy) for d in assembly.decisions] for assembly in assemblies
    ]
    assert told == [
        [("m0", "injected", "policy", "rescue"), ("0", "kept", "fits", None)],
        [],
        [("m0", "dropped", "policy", "gate")],
        [("m0", "kept", "fits", "gate")],
    ]
    assert [assembly.totals.dropped for assembly in assemblies] == [0, 0, 0, 0], "it never came in"
    assert recorder.metric("assembly.items.dropped") == 1


async def test_reordering_is_told_once_and_by_as_few_items_as_explain_it():
    history = History(requests("a", "b", "c", "d"))
    policy = policy_of(lambda p, e: (p, [*e[1:4], e[0], *e[4:]]))
    assembler = Assembler([policy])
    first = await assembler.assemble([], history)
    assert first.items == ["1", "2", "3", "0"]
    assert [d.item for d in first.decisions if d.outcome is DecisionOutcome.REORDERED] == ["0"]
    second = await assembler.assemble([], history)
    assert second.decisions == ()


class Stale:
    """Says why, and is wrong about what it keeps."""

    name = "stale"

    async def apply(self, prompts, events, context):
        raise AssertionError("decide() was there")

    async def decide(self, prompts, events, context):
        verdicts = [
            Verdict(events[:1], DecisionOutcome.DROPPED, DecisionReason.STALE),
            Verdict(events[1:2], DecisionOutcome.KEPT, DecisionReason.PINNED),
            Verdict(events[2:3], DecisionOutcome.DROPPED, DecisionReason.DUPLICATE),
            Verdict(events[3:4], DecisionOutcome.KEPT, DecisionReason.PINNED),
        ]
        return Outcome(prompts, events[1:3], verdicts)


async def test_a_policy_with_decide_says_why_and_a_verdict_that_is_not_true_is_not_believed():
    assembly = await Assembler([Stale()]).assemble([], History(requests("a", "b", "c", "d")))
    told = {d.item: (d.outcome.value, d.reason.value) for d in assembly.decisions}
    assert told == {
        "0": ("dropped", "stale"),
        "1": ("kept", "pinned"),
        "2": ("kept", "fits"),
        "3": ("dropped", "policy"),
    }
    totals = assembly.totals
    assert (totals.events_in, totals.events_out, totals.dropped) == (4, 2, 2)


async def test_a_subclass_of_ours_that_overrides_apply_is_obeyed():
    class Mine(SlidingWindowPolicy):
        async def apply(self, prompts, events, context):
            return [*prompts, "mine"], events[:1]

    assembly = await Assembler([Mine(10)]).assemble([], requests("a", "b"))
    assert (assembly.prompts, [e.content for e in assembly.events]) == (["mine"], ["a"])


async def test_a_subclass_of_ours_that_overrides_decide_is_obeyed():
    class Mine(SlidingWindowPolicy):
        async def decide(self, prompts, events, context):
            outcome = await super().decide(prompts, events, context)
            return Outcome([*outcome.prompts, "mine"], outcome.events, outcome.decisions)

    assembly = await Assembler([Mine(1)]).assemble([], requests("a", "b"))
    assert (assembly.prompts, [e.content for e in assembly.events]) == (["mine"], ["b"])
    assert exits(assembly) == [("0", "dropped", "outside_window", "sliding_window")]


async def test_prompts_that_a_policy_adds_are_in_the_assembly_and_in_the_next_policys_sight():
    seen = []
    policies = [
        policy_of(lambda p, e: ([*p, "memory"], e)),
        policy_of(lambda p, e: (seen.append(list(p)), (p, e))[1]),
    ]
    assembly = await Assembler(policies).assemble(["system"], requests("a"))
    assert assembly.prompts == ["system", "memory"]
    assert seen == [["system", "memory"]]


async def test_ours_mend_the_pairs_that_a_policy_before_them_has_parted():
    history = History([user("go"), call(), {"role": "tool", "tool_call_id": "a", "content": "found"}, user("and?")])
    policy = policy_of(lambda p, e: (p, [event for event in e if "tool_calls" not in event]))
    assembly = await Assembler([policy, SlidingWindowPolicy(50)]).assemble([], history)
    assert [event["content"] for event in assembly.events] == ["go", "and?"]
    assert exits(assembly) == [
        ("1", "dropped", "policy", "custom"),
        ("2", "dropped", "orphaned_tool_result", "sliding_window"),
    ]


# --- What it may not do -----------------------------------------------------------------------------------------------


def _set_text(events):
    events[0]["content"] = "changed"


def _set_arguments(events):
    events[1]["tool_calls"][0]["function"]["arguments"] = "changed"


def _add_key(events):
    events[0]["cache_control"] = {"type": "ephemeral"}


def _drop_call(events):
    del events[1]["tool_calls"][0]


def _empty(events):
    events[1].clear()


CHANGES = [_set_text, _set_arguments, _add_key, _drop_call, _empty]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_policy_that_changes_a_message_in_place_is_named_and_the_message_put_back(change):
    events = [user("hello"), call('{"q": 1}'), {"role": "tool", "tool_call_id": "a", "content": "found"}]
    before, parts = copy.deepcopy(events), events[1]["tool_calls"]

    def apply(prompts, events):
        change(events)
        return prompts, events

    with pytest.raises(PolicyContractError, match=r"'vandal'.*changed event [01] of its input in place") as raised:
        await Assembler([policy_of(apply, name="vandal")]).assemble([], events)
    assert (raised.value.policy, raised.value.index) == ("vandal", 0)
    assert events == before
    assert events[1]["tool_calls"] is parts


@pytest.mark.parametrize("change", CHANGES)
async def test_a_policy_that_changes_a_message_and_raises_is_skipped_and_the_message_put_back(change):
    events = [user("hello"), call('{"q": 1}'), {"role": "tool", "tool_call_id": "a", "content": "found"}]
    before = copy.deepcopy(events)

    def apply(prompts, events):
        change(events)
        raise ValueError

    assembly = await Assembler([policy_of(apply)], on_policy_error="skip").assemble([], events)
    assert assembly.events == events == before


async def test_a_policy_that_decides_may_change_nothing_either():
    class Decides:
        name = "decides"

        async def apply(self, prompts, events, context):
            raise AssertionError

        async def decide(self, prompts, events, context):
            events[0]["content"] = "changed"
            return Outcome(prompts, events)

    events = [user("hello")]
    with pytest.raises(PolicyContractError, match=r"'decides'.*in place"):
        await Assembler([Decides()]).assemble([], events)
    assert events == [user("hello")]


@pytest.mark.parametrize(
    "change",
    [
        lambda prompts, events: events.pop(),
        lambda prompts, events: events.reverse(),
        lambda prompts, events: events.append(ModelRequest(content="new")),
        lambda prompts, events: prompts.append("new"),
        lambda prompts, events: prompts.clear(),
    ],
)
async def test_a_policy_that_changes_the_list_it_was_given_is_named_and_the_callers_is_as_it_was(change):
    events, prompts = requests("a", "b"), ["system"]
    before = list(events)

    def apply(prompts, events):
        change(prompts, events)
        return prompts, events

    with pytest.raises(PolicyContractError, match=r"'vandal'.*changed the list"):
        await Assembler([policy_of(apply, name="vandal")]).assemble(prompts, events)
    assert (prompts, events) == (["system"], before)


@pytest.mark.parametrize(
    "returned",
    [
        lambda p, e: None,
        lambda p, e: e,
        lambda p, e: (p,),
        lambda p, e: (p, e, e),
        lambda p, e: [p, e],
        lambda p, e: (p, None),
        lambda p, e: (None, e),
        lambda p, e: ("prompt", e),
        lambda p, e: (p, "events"),
        lambda p, e: (p, (event for event in e)),
        lambda p, e: (iter(p), e),
        lambda p, e: (p, set()),
        lambda p, e: (p, {}),
        lambda p, e: ([1], e),
        lambda p, e: ([None], e),
        lambda p, e: (p, [*e, object()]),
        lambda p, e: (p, [None]),
        lambda p, e: (p, [{"role": "nobody"}]),
    ],
)
async def test_what_is_not_two_sequences_is_refused_by_name_and_skipped_whole(returned):
    policy = policy_of(returned, name="odd")
    with pytest.raises(PolicyContractError, match=r"policy 'odd' \(index 0\) returned"):
        await Assembler([policy]).assemble(["system"], requests("a"))
    assembly = await Assembler([policy], on_policy_error="skip").assemble(["system"], requests("a"))
    assert (assembly.prompts, assembly.items) == (["system"], ["0"])
    assert [(d.item, d.outcome.value) for d in assembly.decisions] == [("0", "kept")]


async def test_a_decision_that_is_no_outcome_is_refused_by_name():
    policy = policy_of(lambda p, e: (p, e), decide=lambda self, p, e, c: (p, e))
    with pytest.raises(PolicyContractError, match="decided a tuple of tuple, View, expected an Outcome"):
        await Assembler([policy]).assemble([], requests("a"))


async def test_a_policy_that_is_not_async_works_all_the_same():
    class Plain:
        name = "plain"

        def apply(self, prompts, events, context):
            return prompts, events[:1]

    assembly = await Assembler([Plain()]).assemble([], requests("a", "b"))
    assert assembly.items == ["0"]


# --- When it raises ---------------------------------------------------------------------------------------------------


def raising(error, name="breaks"):
    def apply(prompts, events):
        raise error

    return policy_of(apply, name=name)


async def test_a_policy_that_raises_is_named_and_its_own_error_is_the_cause():
    error = ValueError("account 4711")
    chain = [DropThinking(), raising(error)]
    with pytest.raises(PolicyFailedError, match=r"policy 'breaks' \(index 1\) raised ValueError") as raised:
        await Assembler(chain).assemble([], requests("a"))
    assert raised.value.__cause__ is error
    assert "4711" not in str(raised.value)


async def test_an_error_of_ours_is_the_cause_of_one_that_names_the_policy():
    with pytest.raises(PolicyFailedError, match=r"'breaks' \(index 0\)") as failed:
        await Assembler([raising(KnowledgeStoreError("disk full"))]).assemble([], requests("a"))
    assert isinstance(failed.value.__cause__, KnowledgeStoreError)


async def test_skip_goes_on_without_the_policy_and_says_so_once_without_the_errors_message(caplog):
    chain = [raising(ValueError("account 4711")), DropThinking()]
    with caplog.at_level(logging.DEBUG, "otel_assembly"):
        assembly = await Assembler(chain, on_policy_error="skip").assemble([], requests("a", "thinking"))
    assert [event.content for event in assembly.events] == ["a"]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "policy 'breaks' (index 0) was skipped: it raised ValueError"
    ]
    assert "4711" not in caplog.text


async def test_what_a_skipped_policy_had_dropped_comes_back():
    turns = iter([False, True, False])

    def apply(prompts, events):
        if next(turns):
            raise ValueError
        return prompts, events[1:]

    assembler, history = Assembler([policy_of(apply)], on_policy_error="skip"), History(requests("a", "b"))
    assert (await assembler.assemble([], history)).items == ["1"]
    second = await assembler.assemble([], history)
    assert [(d.item, d.outcome.value, d.policy) for d in second.decisions] == [("0", "kept", "custom")]
    third = await assembler.assemble([], history)
    assert exits(third) == [("0", "dropped", "policy", "custom")]


async def test_an_alert_policy_is_never_skipped():
    class Broken(AlertPolicy):
        async def decide(self, prompts, events, context):
            raise ValueError

    with pytest.raises(PolicyFailedError, match="'alert'"):
        await Assembler([Broken()], on_policy_error="skip").assemble([], requests("a"))


async def test_a_budget_that_cannot_hold_is_never_skipped():
    with pytest.raises(ContextOverflowError) as raised:
        await Assembler([TokenBudgetPolicy(5)], on_policy_error="skip").assemble(["system"], requests("word " * 50))
    assert (raised.value.policy, raised.value.cause) == ("token_budget", "fixed")


async def test_a_halt_is_never_skipped():
    with pytest.raises(HaltedError):
        await Assembler([raising(HaltedError("stop", "guard"))], on_policy_error="skip").assemble([], requests("a"))


async def test_a_cancelled_policy_is_cancelled_and_its_alerts_are_delivered_next_time():
    waiting = asyncio.Event()

    class Waits:
        name = "waits"

        async def apply(self, prompts, events, context):
            waiting.set()
            if not events[-1].content:
                await asyncio.Event().wait()
            return prompts, events

    alert = ObserverAlert(source="monitor", severity=Severity.WARNING, message="slow")
    history = History([ModelRequest(content="hello"), alert, ModelResponse(content="")])
    assembler = Assembler([AlertPolicy(), Waits()], on_policy_error="skip")
    task = asyncio.create_task(assembler.assemble([], history))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    history.append(ModelRequest(content="still there?"))
    assembly = await assembler.assemble([], history)
    assert "slow" in assembly.prompts[-1]
    assert assembly.turn == 1
    assert [d.item for d in assembly.decisions if d.outcome is DecisionOutcome.KEPT] == ["0", "1", "2", "3"]


async def test_a_policys_context_serves_one_assembly_and_shares_its_dependencies():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts, events, context):
            seen.append(context)
            return prompts, events

    context = Context(dependencies={str: "store"}, variables={"a": 1})
    await Assembler([Looks()]).assemble([], requests("a"), context)
    assert seen[0].dependencies is context.dependencies
    assert seen[0].conversation is context.conversation


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"most": 5, "ratio": 0.5, "strict": True, "level": Severity.FATAL}, ["most", "ratio", "strict", "level"]),
        ({"path": "/home/me", "nested": {"a": 1}, 7: 1}, ["7"]),
        ("text", []),
        (None, []),
    ],
)
async def test_of_a_policys_settings_only_numbers_and_enums_go_on_its_span(config, kept, recorder):
    policy = policy_of(lambda p, e: (p, e), config=config)
    await Assembler([policy]).assemble([], requests("a"))
    span = recorder.span(f"apply_policy {policy.name}")
    assert sorted(json.loads(span.attributes.get("assembly.policy.config", "{}"))) == sorted(kept)


async def test_settings_that_cannot_be_read_stop_nothing(recorder):
    policy = policy_of(lambda p, e: (p, e), config=property(lambda self: 1 / 0))
    assert (await Assembler([policy]).assemble([], requests("a"))).items == ["0"]


async def test_what_is_sent_are_the_objects_that_a_policy_returned_also_where_one_is_an_equal_copy():
    class Copies:
        name = "copies"

        async def apply(self, prompts, events, context):
            return prompts, [events[0], events[1].model_copy(), *events[2:4]]

    events = [ModelRequest(id=f"m{number}", content="yes") for number in range(5)]
    returned = []
    policy = Copies()
    apply = policy.apply

    async def remembered(prompts, given, context):
        result = await apply(prompts, given, context)
        returned.extend(result[1])
        return result

    policy.apply = remembered
    assembly = await Assembler([policy]).assemble([], events)
    assert all(event is other for event, other in zip(assembly.events, returned, strict=True))
    assert [decision.item for decision in assembly.dropped] == ["4"]
