"""An alert whose model call failed is shown again, until what comes in holds a newer response; it counts once."""

from __future__ import annotations

import asyncio
import copy

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    ToolCallEvent,
)
from otel_assembly.errors import PolicyFailedError
from otel_assembly.recorder import NullRecorder
from otel_assembly.runtime import Stream


def alert(message="the disk is full", severity="warning"):
    return ObserverAlert(source="monitor", severity=Severity(severity), message=message)


SHOWN = "[OBSERVER MONITORING ALERTS]\n- [WARNING] (monitor): the disk is full"


class Talk:
    """A conversation whose events are held, and given, in one of the ways in which callers do."""

    def __init__(self, form, *events):
        self.form = form
        self.context = Context()
        self.stream = Stream(History())
        self.said = []
        for event in events:
            self.add(event)

    def add(self, event):
        self.said.append(event)
        self.stream.history.append(event)

    def events(self):
        match self.form:
            case "history":
                return self.stream.history
            case "list":
                return self.said
            case "new list":
                return list(self.said)
            case "chat dicts, copied":
                return [copy.deepcopy(event) for event in map(self.chat, self.said)]
            case "trimmed":
                return [self.said[0], *self.said[1:][-3:]]
        raise AssertionError(self.form)

    @staticmethod
    def chat(event):
        if isinstance(event, ModelRequest):
            return {"role": "user", "content": event.content}
        if isinstance(event, ModelResponse):
            return {"role": "assistant", "content": event.content}
        return event

    async def turn(self, assembler):
        return await assembler.assemble(["be brief"], self.events(), self.context)


FORMS = pytest.mark.parametrize("form", ["history", "list", "new list", "chat dicts, copied", "trimmed"])


@FORMS
async def test_it_is_shown_again_until_the_model_has_answered(form):
    talk = Talk(form, ModelRequest(content="go"), ModelResponse(content="gone"), ModelRequest(content="on"), alert())
    assembler = Assembler([AlertPolicy(), ConversationPolicy()])
    first = await talk.turn(assembler)  # and its model call fails
    second = await talk.turn(assembler)
    talk.add(ModelResponse(content="gone"))  # as an earlier one said
    third = await talk.turn(assembler)
    talk.add(ModelRequest(content="and?"))
    fourth = await talk.turn(assembler)
    assert [policy.prompts[1:] for policy in (first, second, third, fourth)] == [[SHOWN], [SHOWN], [], []]
    assert [assembly.totals.alerts_delivered for assembly in (first, second, third, fourth)] == [1, 0, 0, 0]


@FORMS
async def test_it_is_shown_again_three_times_at_most_and_counts_once(form, assembly_telemetry):
    talk = Talk(form, ModelRequest(content="go"), alert())
    assembler = Assembler([AlertPolicy(), ConversationPolicy()])
    shown = []
    for _ in range(7):
        shown.append(len((await talk.turn(assembler)).prompts) - 1)
        talk.add(ModelRequest(content="are you there?"))
    assert shown == [1, 1, 1, 1, 0, 0, 0]
    assert assembly_telemetry.metric("assembly.alerts.delivered", alert_severity="warning") == 1
    spans = assembly_telemetry.spans_named("apply_policy alert")
    assert [len(span.events_named("assembly.alert")) for span in spans] == [1, 0, 0, 0, 0, 0, 0]
    assert [span.attributes["assembly.alerts.delivered"] for span in spans] == [1, 0, 0, 0, 0, 0, 0]
    assert [span.attributes["assembly.prompts.out"] for span in spans] == [2, 2, 2, 2, 1, 1, 1]
    assert assembly_telemetry.violations() == []


@FORMS
async def test_a_response_that_only_calls_a_tool_is_one(form):
    talk = Talk(form, ModelRequest(content="go"), alert())
    talk.form = form if form != "chat dicts, copied" else "list"
    assembler = Assembler([AlertPolicy()])
    assert len((await talk.turn(assembler)).prompts) == 2
    call = ToolCallEvent(name="look_up", awaiting_approval=True)
    talk.add(call if form == "history" else ModelResponse(tool_calls=(call,)))
    assert len((await talk.turn(assembler)).prompts) == 1


async def test_what_the_model_said_before_is_no_answer():
    talk = Talk("new list", *(ModelResponse(content=f"answer {number}") for number in range(200)), alert())
    assembler = Assembler([AlertPolicy()])
    assert len((await talk.turn(assembler)).prompts) == 2
    del talk.said[:100]
    assert len((await talk.turn(assembler)).prompts) == 2
    talk.said.insert(60, ModelRequest(content="put in front"))
    assert len((await talk.turn(assembler)).prompts) == 2


async def test_a_fatal_one_is_shown_again_where_halted_assemblies_are_returned():
    talk = Talk("history", ModelRequest(content="go"), alert("over", "fatal"))
    assembler = Assembler([AlertPolicy()], on_halt="return")
    assemblies = [await talk.turn(assembler) for _ in range(2)]
    talk.add(ModelResponse(content="goodbye"))
    assemblies.append(await talk.turn(assembler))
    assert [assembly.prompts[1:] for assembly in assemblies] == [
        ["[FATAL ALERT] (monitor): over. Execution halting."],
        ["[FATAL ALERT] (monitor): over. Execution halting."],
        [],
    ]
    assert [assembly.totals.alerts_delivered for assembly in assemblies] == [1, 0, 0]
    assert [assembly.totals.halts_emitted for assembly in assemblies] == [1, 0, 0]


async def test_it_stands_beside_what_is_new():
    talk = Talk("history", ModelRequest(content="go"), alert())
    assembler = Assembler([AlertPolicy()])
    await talk.turn(assembler)
    talk.add(alert("so is the other", "critical"))
    assembly = await talk.turn(assembler)
    assert assembly.prompts[1:] == [f"{SHOWN}\n- [CRITICAL] (monitor): so is the other"]
    assert assembly.totals.alerts_delivered == 1


async def test_an_assembly_that_comes_to_nothing_shows_nothing():
    class Fails:
        name = "fails"
        failing = False

        async def apply(self, prompts, events, context):
            if self.failing:
                raise RuntimeError
            return prompts, events

    fails = Fails()
    talk, assembler = Talk("history", ModelRequest(content="go"), alert()), Assembler([AlertPolicy(), fails])
    shown = 0
    for turn in range(9):
        fails.failing = turn % 2 == 0
        if fails.failing:
            with pytest.raises(PolicyFailedError):
                await talk.turn(assembler)
        else:
            shown += len((await talk.turn(assembler)).prompts) - 1
    assert shown == 4


async def test_a_turn_that_began_before_the_prompt_was_ready_does_not_show_it_again():
    go = asyncio.Event()

    class Waits:
        name = "waits"

        async def apply(self, prompts, events, context):
            await go.wait()
            return prompts, events

    talk = Talk("history", ModelRequest(content="go"), alert())
    late = asyncio.create_task(talk.turn(Assembler([Waits(), AlertPolicy()])))
    await asyncio.sleep(0)
    assert len((await talk.turn(Assembler([AlertPolicy()]))).prompts) == 2
    go.set()
    assert len((await late).prompts) == 1


async def test_a_filter_in_front_hides_no_answer():
    talk = Talk("history", ModelRequest(content="go"), alert())
    assembler = Assembler([SlidingWindowPolicy(1), AlertPolicy()])
    await talk.turn(assembler)
    talk.add(ModelResponse(content="gone"))
    talk.add(ModelRequest(content="on"))
    talk.add(alert())
    assert len((await talk.turn(assembler)).prompts) == 1


async def test_an_alert_that_waits_for_its_answer_keeps_no_events():
    import gc
    import weakref

    class Request(ModelRequest):
        pass

    context = Context(conversation_id="an-alert-that-waits")
    request = Request(content="go")
    gone = weakref.ref(request)
    # The ledger of a conversation with an id goes with the recorder.
    await Assembler([AlertPolicy()], recorder=NullRecorder()).assemble([], [request, alert()], context)
    del request
    gc.collect()
    assert gone() is None
