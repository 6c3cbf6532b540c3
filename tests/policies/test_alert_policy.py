from __future__ import annotations

import asyncio
import enum
import threading
from dataclasses import dataclass

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ConversationPolicy,
    EventFacts,
    HaltedError,
    HaltEvent,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.errors import PolicyFailedError
from otel_assembly.messages import EventKind
from otel_assembly.runtime import Stream


def alert(message="the disk is full", severity="warning", source="monitor"):
    return ObserverAlert(source=source, severity=severity, message=message)


def answer():
    return ModelResponse(content="done")


def ask():
    return ModelRequest(content="go on")


class Level(enum.Enum):
    WARNING = "WARNING"
    FATAL = "fatal"


@dataclass
class ForeignAlert:
    """An alert of another library, which spells its severity in its own way."""

    source: str
    severity: object
    message: str


@describe.register
def _(event: ForeignAlert) -> EventFacts:
    return EventFacts(EventKind.ALERT)


class Failing:
    """A policy that raises as long as it is told to."""

    name = "failing"

    def __init__(self, failures=1):
        self.failures = failures

    async def apply(self, prompts, events, context):
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise RuntimeError
        return prompts, events


def halts(events):
    return [event for event in events if isinstance(event, HaltEvent)]


async def test_new_alerts_are_one_prompt_behind_the_others_and_stay_among_the_events():
    events = [ask(), alert(), alert("tokens run out", "critical", "meter")]
    prompts, kept = await AlertPolicy().apply(["be brief"], events, Context())
    assert prompts == [
        "be brief",
        "[OBSERVER MONITORING ALERTS]\n- [WARNING] (monitor): the disk is full\n- [CRITICAL] (meter): tokens run out",
    ]
    assert kept == events


async def test_a_fatal_alert_is_a_prompt_of_its_own_behind_the_others():
    events = [alert("first fatal", "fatal"), alert(), alert("second fatal", "fatal")]
    prompts, _ = await AlertPolicy().apply([], events, Context())
    assert prompts == [
        "[OBSERVER MONITORING ALERTS]\n- [WARNING] (monitor): the disk is full",
        "[FATAL ALERT] (monitor): first fatal. Execution halting.",
    ]


async def test_a_fatal_alert_halts_with_one_event_that_has_all_of_them():
    stream = Stream()
    for event in (alert("first", "fatal"), alert("second", "fatal", "meter")):
        stream.history.append(event)
    context = Context(stream=stream)
    await AlertPolicy().apply([], stream.history, context)
    (halt,) = halts(stream.history)
    assert (halt.reason, halt.source) == ("FATAL: first", "monitor")
    assert [alert.message for alert in halt.alerts] == ["first", "second"]
    with pytest.raises(HaltedError, match="FATAL: first"):
        context.guard.check()


async def test_an_alert_is_delivered_once_in_a_conversation():
    history, context, assembler = History([ask(), alert()]), Context(), Assembler([AlertPolicy()])
    first = await assembler.assemble([], history, context)
    history.extend([answer(), ask()])
    second = await assembler.assemble([], history, context)
    history.append(alert())  # the same words again
    third = await assembler.assemble([], history, context)
    history.append(alert("and the second disk"))
    fourth = await assembler.assemble([], history, context)
    assert [len(policy.prompts) for policy in (first, second, third, fourth)] == [1, 0, 0, 1]
    assert [assembly.totals.alerts_delivered for assembly in (first, second, third, fourth)] == [1, 0, 0, 1]


async def test_a_list_with_the_same_conversation_id_is_the_same_conversation():
    events, assembler = [ask(), alert()], Assembler([AlertPolicy()])
    first = await assembler.assemble([], events, Context(conversation_id="alerts-once"))
    second = await assembler.assemble([], [*events, answer()], Context(conversation_id="alerts-once"))
    other = await assembler.assemble([], list(events), Context(conversation_id="alerts-elsewhere"))
    assert [len(policy.prompts) for policy in (first, second, other)] == [1, 0, 1]


async def test_one_policy_object_serves_two_conversations():
    policy = AlertPolicy()
    for _ in range(2):
        context = Context()
        prompts, _ = await policy.apply([], [alert("over", "fatal")], context)
        assert prompts == ["[FATAL ALERT] (monitor): over. Execution halting."]
        assert context.guard.halted


@pytest.mark.parametrize("severity", [Severity.WARNING, "warning", "WARNING", Level.WARNING])
async def test_a_severity_is_the_same_as_enum_and_as_string(severity):
    foreign = ForeignAlert("monitor", severity, "the disk is full")
    prompts, _ = await AlertPolicy().apply([], [alert(), foreign], Context())
    assert prompts == ["[OBSERVER MONITORING ALERTS]\n- [WARNING] (monitor): the disk is full"]


@pytest.mark.parametrize("severity", [Severity.FATAL, "fatal", "Fatal", Level.FATAL])
async def test_a_fatal_severity_halts_as_enum_and_as_string(severity):
    context = Context()
    await AlertPolicy().apply([], [ForeignAlert("monitor", severity, "over")], context)
    assert context.guard.halted


async def test_an_alert_comes_again_where_a_later_policy_raised():
    history, context, assembler = History([ask(), alert()]), Context(), Assembler([AlertPolicy(), Failing()])
    with pytest.raises(PolicyFailedError):
        await assembler.assemble([], history, context)
    assert len((await assembler.assemble([], history, context)).prompts) == 1
    history.append(answer())
    assert (await assembler.assemble([], history, context)).prompts == []


async def test_a_fatal_alert_that_comes_again_does_not_halt_again():
    stream = Stream(History([alert("over", "fatal")]))
    assembler, context = Assembler([AlertPolicy(), Failing()], on_halt="return"), Context(stream=stream)
    with pytest.raises(PolicyFailedError):
        await assembler.assemble([], stream.history, context)
    assembly = await assembler.assemble([], stream.history, context)
    assert assembly.prompts == ["[FATAL ALERT] (monitor): over. Execution halting."]
    assert len(halts(stream.history)) == 1


async def test_an_alert_is_not_lost_when_its_turn_fails_after_another_turn_looked_for_alerts():
    """One turn took the alert upon itself, a second sees that; the first fails, then the second comes to its end."""
    history, context = History([ask(), alert()]), Context()
    may_fail, may_end = asyncio.Event(), asyncio.Event()

    class Wait:
        name = "wait"

        def __init__(self, until, error=None):
            self.until, self.error = until, error

        async def apply(self, prompts, events, context):
            await self.until.wait()
            if self.error:
                raise self.error
            return prompts, events

    failing = asyncio.create_task(
        Assembler([AlertPolicy(), Wait(may_fail, RuntimeError())]).assemble([], history, context)
    )
    await asyncio.sleep(0)
    ending = asyncio.create_task(Assembler([AlertPolicy(), Wait(may_end)]).assemble([], history, context))
    await asyncio.sleep(0)
    may_fail.set()
    with pytest.raises(PolicyFailedError):
        await failing
    may_end.set()
    assert (await ending).prompts == []
    assert len((await Assembler([AlertPolicy()]).assemble([], history, context)).prompts) == 1


async def test_fifty_turns_at_once_deliver_a_fatal_alert_once_and_halt_once():
    stream = Stream(History([ask(), alert("over", "fatal"), alert()]))
    context = Context(stream=stream)
    assembler = Assembler([Failing(0), AlertPolicy(), Failing(0), ConversationPolicy()], on_halt="return")
    assemblies = await asyncio.gather(*(assembler.assemble([], stream.history, context) for _ in range(50)))
    said = [prompt for assembly in assemblies for prompt in assembly.prompts]
    assert sorted(said) == [
        "[FATAL ALERT] (monitor): over. Execution halting.",
        "[OBSERVER MONITORING ALERTS]\n- [WARNING] (monitor): the disk is full",
    ]
    assert len(halts(stream.history)) == 1
    assert sum(assembly.totals.halts_emitted for assembly in assemblies) == 1


def test_eight_threads_deliver_a_fatal_alert_once_and_halt_once():
    history, context = History([ask(), alert("over", "fatal")]), Context()
    context.adopt(history.conversation)
    assembler, assemblies, start = Assembler([AlertPolicy()], on_halt="return"), [], threading.Barrier(8)

    def turn():
        start.wait()
        assemblies.append(asyncio.run(assembler.assemble([], history, context)))

    threads = [threading.Thread(target=turn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(assembly.totals.alerts_delivered for assembly in assemblies) == 1
    assert sum(assembly.totals.halts_emitted for assembly in assemblies) == 1


async def test_an_alert_that_was_sent_and_halted_is_not_answered_by_a_second_halt():
    stream = Stream()
    await stream.send(alert("over", "fatal"))
    assembler = Assembler([AlertPolicy()], on_halt="return")
    assembly = await assembler.assemble([], stream.history, Context(stream=stream))
    assert len(assembly.prompts) == 1
    assert len(halts(stream.history)) == 1


async def test_an_alert_that_a_filter_let_through_is_delivered_from_its_window():
    events = [alert("old"), *(ask() for _ in range(5)), alert("new")]
    assembly = await Assembler([SlidingWindowPolicy(3), AlertPolicy()]).assemble([], events, Context())
    assert assembly.prompts == ["[OBSERVER MONITORING ALERTS]\n- [WARNING] (monitor): new"]
