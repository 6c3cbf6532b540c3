"""A halted conversation: its assembly is raised, no model call and no tool call starts, and what is told of it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from assembling import SpyCounter

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextAssembler,
    ConversationPolicy,
    HaltedError,
    HaltEvent,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    Task,
    ToolCallEvent,
    attach,
)
from otel_assembly.budget import Compactors
from otel_assembly.events import AssemblyCompleted, Usage
from otel_assembly.runtime import BudgetMonitor, Stream
from otel_assembly.testing import conversation

ROOT = Path(__file__).parents[1]


def fatal(message="fire"):
    return ObserverAlert(source="watch", severity=Severity.FATAL, message=message)


class Spy:
    """A policy that counts its turns, and does something in them."""

    name = "spy"

    def __init__(self, act=None):
        self.turns = 0
        self.act = act

    async def apply(self, prompts, events, context):
        self.turns += 1
        if self.act is not None:
            await self.act(context)
        return prompts, events


def last_policy(*, halted_by):
    """A chain that halts, as it can come about, and a policy behind that."""
    spy = Spy()
    act = {"alert": None, "stream": lambda context: context.send(HaltEvent(reason="fire", source="watch"))}[halted_by]
    return [AlertPolicy() if act is None else Spy(act), spy], spy


# --- The loops of the docs --------------------------------------------------------------------------------------------


def example(page, containing):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    space = {}
    exec(re.sub(r"^(print\()?asyncio\.run\(.*\n", "", block, flags=re.MULTILINE), space)
    return space


class Model:
    """Asks for a tool in each answer; something happens in one of its calls."""

    def __init__(self, happens, on_call=2):
        self.calls, self.tools = 0, 0
        self.happens, self.on_call = happens, on_call

    async def call(self, prompts, events):
        self.calls += 1
        if self.calls == self.on_call:
            await self.happens()
        call = ToolCallEvent(id=f"call-{self.calls}", name="look_up", arguments=f'{{"page": {self.calls}}}')
        return ModelResponse(tool_calls=(call,)) if self.calls < 5 else ModelResponse(content="done")

    async def tool(self, call):
        self.tools += 1
        return "found"


@pytest.mark.parametrize("sent", ["to the context", "into the history"])
async def test_the_readmes_loop_calls_no_model_after_a_fatal_alert(sent):
    readme = example("README.md", "AlertPolicy()")
    history, context = History(), Context(agent_name="support")

    async def happens():
        if sent == "to the context":
            await context.send(fatal())
        else:
            history.append(fatal())

    model = Model(happens)
    readme["call_model"], readme["call_tool"] = model.call, model.tool
    with pytest.raises(HaltedError, match="fire"):
        await readme["answer"]("Where is order 1042?", history, context)
    # The guard knows at once of what is sent; of what is only put into a history, an `AlertPolicy` does.
    assert (model.calls, model.tools) == (2, 1 if sent == "to the context" else 2)


async def test_the_loop_with_observers_calls_no_model_and_no_tool_after_a_fatal_alert():
    stream = Stream()
    model = Model(lambda: stream.send(fatal()))
    with pytest.raises(HaltedError, match="fire"):
        await example("docs/how-to/handle-alerts.md", "TokenMonitor")["answer"](
            "Where?", model.call, model.tool, stream
        )
    assert (model.calls, model.tools) == (2, 1)
    assert sum(isinstance(event, HaltEvent) for event in stream.history) == 1


async def test_the_loops_of_the_docs_end_well_where_nothing_halts():
    for page, containing in (("README.md", "AlertPolicy()"), ("docs/how-to/handle-alerts.md", "TokenMonitor")):
        space = example(page, containing)
        stream = Stream()
        model = Model(lambda stream=stream: stream.send(ModelRequest(content="And?")))
        if page == "README.md":
            space["call_model"], space["call_tool"] = model.call, model.tool
            answer = space["answer"]("Where?", stream.history, Context(stream=stream))
        else:
            answer = space["answer"]("Where?", model.call, model.tool, stream)
        assert await answer == "done"
        assert (model.calls, model.tools) == (5, 4)


# --- What raises, and what it carries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [list, History])
@pytest.mark.parametrize("halted_by", ["alert", "stream"])
async def test_an_assembly_that_halts_raises_and_no_further_policy_starts(halted_by, events):
    chain, spy = last_policy(halted_by=halted_by)
    came = events([ModelRequest(content="hello"), fatal()])
    with pytest.raises(HaltedError) as raised:
        await Assembler(chain).assemble(["be kind"], came, Context())
    assert spy.turns == 0
    assembly = raised.value.assembly
    assert (assembly.halt.source, raised.value.source) == ("watch", "watch")
    assert raised.value.reason == assembly.halt.reason
    assert (assembly.prompts, assembly.events, assembly.kinds) == ([], [], {})
    assert assembly.decisions == assembly.exits == ()
    totals = assembly.totals
    assert (totals.events_in, totals.events_out, totals.dropped, totals.compacted) == (2, 0, 2, 0)
    assert (totals.prompts_in, totals.prompts_out, totals.tokens_out) == (1, 0, 0)
    assert totals.tokens_in > 0
    assert (totals.halts_emitted, totals.alerts_delivered) == (1, 0)


async def test_a_conversation_that_is_halted_runs_no_policy_at_all():
    context, spy = Context(), Spy()
    await context.send(fatal())
    with pytest.raises(HaltedError) as raised:
        await Assembler([spy]).assemble([], conversation("ask"), context)
    assert spy.turns == 0
    assert (raised.value.assembly.totals.events_in, raised.value.assembly.totals.halts_emitted) == (1, 0)


async def test_a_history_that_is_halted_halts_also_under_a_context_that_knows_nothing_of_its_stream():
    stream = Stream(History(conversation("ask")))
    await stream.send(fatal())
    with pytest.raises(HaltedError):
        await Assembler([]).assemble([], stream.history, Context(conversation_id="another"))


async def test_a_halt_that_comes_while_a_policy_waits_ends_the_assembly():
    waits, go = asyncio.Event(), asyncio.Event()

    async def wait(context):
        waits.set()
        await go.wait()

    context, behind = Context(), Spy()
    task = asyncio.create_task(Assembler([Spy(wait), behind]).assemble([], conversation("ask"), context))
    await waits.wait()
    await context.send(fatal())
    go.set()
    with pytest.raises(HaltedError):
        await task
    assert behind.turns == 0


async def test_an_observer_of_the_assembly_itself_halts_before_its_prompt_is_sent():
    stream = Stream(History(conversation("ask")))
    context = Context(stream=stream)
    monitor = BudgetMonitor(0.001, utilization_severity="fatal")
    with attach(stream, [monitor], context), pytest.raises(HaltedError) as raised:
        await Assembler([BudgetPolicy(window=2_000, output_reserve=100)]).assemble(["be kind"], stream.history, context)
    assert raised.value.assembly.totals.tokens_out == 0
    assert raised.value.assembly.totals.events_in == 1
    assert raised.value.assembly.totals.halts_emitted == 1


async def test_a_halt_is_never_skipped():
    spy = Spy()
    chain = [AlertPolicy(), spy]
    with pytest.raises(HaltedError):
        await Assembler(chain, on_policy_error="skip").assemble([], [fatal()], Context())
    assert spy.turns == 0


async def test_a_policy_that_asks_the_guard_carries_the_assembly_too():
    async def ask(context):
        context.guard.observe(fatal())
        context.guard.check()

    for how in ("raise", "return"):
        with pytest.raises(HaltedError, match="fire") as raised:
            await Assembler([Spy(ask)], on_halt=how).assemble([], conversation("ask"), Context())
        assert raised.value.assembly.halt.reason == "FATAL: fire"


# --- on_halt="return" -------------------------------------------------------------------------------------------------


async def test_returned_it_is_an_ordinary_turn():
    stream, spy = Stream(History([ModelRequest(content="hello"), fatal()])), Spy()
    context = Context(stream=stream)
    assembler = Assembler([AlertPolicy(), ConversationPolicy(), spy], on_halt="return")
    first = await assembler.assemble([], stream.history, context)
    assert first.halt.reason == "FATAL: fire"
    assert first.halt in list(stream.history)
    assert first.prompts == ["[FATAL ALERT] (watch): fire. Execution halting."]
    assert (first.totals.alerts_delivered, first.totals.halts_emitted, len(first.events), spy.turns) == (1, 1, 1, 1)
    stream.history.append(ModelResponse(content="goodbye"))
    second = await assembler.assemble([], stream.history, context)
    assert (second.halt, second.prompts, second.prefix.events) == (first.halt, [], 1 if second.prompts else 0)
    assert [event.content for event in second.events] == ["hello", "goodbye"]


async def test_an_assembly_of_a_conversation_that_nobody_halted_has_no_halt():
    for how in ("raise", "return"):
        assert (await Assembler([], on_halt=how).assemble([], conversation("ask"), Context())).halt is None


def test_on_halt_is_one_of_its_two_values():
    with pytest.raises(ConfigurationError, match="on_halt must be 'raise' or 'return', got 'skip'"):
        Assembler([], on_halt="skip")


def test_a_configuration_knows_on_halt():
    assembler = Assembler.from_config({"on_halt": "return", "policies": ["alert"]})
    assert assembler.on_halt == "return"
    assert Assembler.from_config(assembler.to_config()).on_halt == "return"
    assert Assembler.from_config({"policies": ["alert"]}).on_halt == "raise"
    with pytest.raises(ConfigurationError, match="on_halt: Input should be 'raise' or 'return'"):
        Assembler.from_config({"on_halt": "skip", "policies": []})


# --- What the next turn is compared with ------------------------------------------------------------------------------


async def test_a_halted_turn_is_not_what_the_next_is_compared_with_and_no_bill_is_awaited_for_it(recorder):
    history, context = History(conversation("ask", "answer", "ask")), Context()
    chain = [AlertPolicy(), ConversationPolicy(), SlidingWindowPolicy(2)]
    assembler = Assembler(chain, model="some-lab/unheard-of-3", recorder=recorder.recorder)
    sent = await assembler.assemble(["p"], history, context)
    history.extend([ModelRequest(content="a much longer question than all before"), fatal()])
    with pytest.raises(HaltedError):
        await assembler.assemble(["another p"], history, context)
    history.append(ModelResponse(content="late", usage=Usage(input_tokens=40)))
    assembler.on_halt = "return"
    after = await assembler.assemble(["p"], history, context)
    assert (sent.turn, after.turn) == (0, 2)
    assert after.prefix.previous_bytes == len("p") + sum(len(event.content) for event in sent.events)
    assert after.prefix.prompts == 1
    calibrated = recorder.metric("assembly.tokens.calibration", model="some-lab/unheard-of-3")
    assert (calibrated.count, calibrated.sum) == (1, sent.totals.tokens_out / 40)


# --- Model calls inside an assembly -----------------------------------------------------------------------------------


def long_talk():
    talk = [word for number in range(30) for word in (f"ask: question {number} " * 4, f"answer: answer {number} " * 4)]
    return conversation(*talk, "ask: and?")


async def test_no_summariser_is_called_for_a_halted_conversation_that_is_returned():
    called = []

    def compact(text, target):
        called.append(text)
        return "short"

    chain = [AlertPolicy(), BudgetPolicy(window=700, output_reserve=100, compact=compact)]
    assembler = Assembler(chain, on_halt="return")
    assembly = await assembler.assemble([], [*long_talk(), fatal()], Context())
    assert (called, assembly.halt.reason) == ([], "FATAL: fire")
    assert 0 < assembly.totals.tokens_out <= 600
    open_one = await Assembler(chain).assemble([], long_talk(), Context())
    assert (len(called), open_one.halt) == (1, None)


async def test_a_summariser_that_failed_is_not_asked_again_after_a_halt():
    called, context = [], Context()

    async def compact(text, target):
        called.append(text)
        await context.send(fatal())
        raise ConnectionError

    compactors = Compactors(compact, attempts=3)
    with pytest.raises(HaltedError) as raised:
        await Assembler([BudgetPolicy(window=700, output_reserve=100, compact=compactors)]).assemble(
            [], long_talk(), context
        )
    assert (len(called), raised.value.assembly.totals.halts_emitted) == (1, 1)


async def test_no_source_is_asked_for_a_halted_conversation():
    asked = []

    def scopes(user, task):
        asked.append(user)
        return {"public"}

    desk = ContextAssembler(system="Help.", window=4_000, output_reserve=500, scopes=scopes)
    context = Context()
    await desk.assemble(Task("Where?"), user="ada", context=context)
    await context.send(fatal())
    with pytest.raises(HaltedError) as raised:
        await desk.assemble(Task("And now?"), user="ada", context=context)
    assert asked == ["ada"]
    assert raised.value.assembly.turn == 1


# --- Many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", ["list", "history"])
async def test_with_fifty_turns_at_once_no_model_call_starts_after_the_halt(events):
    stream = Stream(History(conversation("ask")))
    context = Context(stream=stream)
    assembler = Assembler([Spy(lambda _: asyncio.sleep(0)), AlertPolicy(), Spy(lambda _: asyncio.sleep(0))])
    calls = {"before": 0, "after": 0}

    async def turn(index):
        for _ in range(index % 7):
            await asyncio.sleep(0)
        if index == 25:
            await stream.send(fatal())
        given = stream.history if events == "history" else list(stream.history)
        await assembler.assemble([], given, context)
        calls["after" if context.guard.halted else "before"] += 1

    outcomes = await asyncio.gather(*map(turn, range(50)), return_exceptions=True)
    assert calls["after"] == 0
    assert calls["before"] > 0
    assert sum(isinstance(outcome, HaltedError) for outcome in outcomes) == 50 - calls["before"]
    assert sum(isinstance(event, HaltEvent) for event in stream.history) == 1


async def test_fifty_turns_at_once_on_a_fatal_alert_that_only_the_policy_sees():
    history, context = History([ModelRequest(content="hello"), fatal()]), Context()
    assembler = Assembler([Spy(lambda _: asyncio.sleep(0)), AlertPolicy(), Spy(lambda _: asyncio.sleep(0))])
    turns = [assembler.assemble([], history, context) for _ in range(50)]
    outcomes = await asyncio.gather(*turns, return_exceptions=True)
    assert all(isinstance(outcome, HaltedError) for outcome in outcomes)
    assert sum(outcome.assembly.totals.halts_emitted for outcome in outcomes) == 1
    assert sum(outcome.assembly.totals.alerts_delivered for outcome in outcomes) == 0


# --- Notes on assemblies ----------------------------------------------------------------------------------------------


async def test_a_note_on_an_assembly_is_no_event_of_the_history():
    stream = Stream(History(conversation("ask")))
    context, heard = Context(stream=stream), []
    stream.subscribe(AssemblyCompleted, heard.append)
    for _ in range(3):
        assembly = await Assembler([ConversationPolicy()]).assemble([], stream.history, context)
        assert (assembly.totals.dropped, assembly.totals.events_in) == (0, 1)
    assert len(heard) == 3
    assert len(stream.history) == 1


@pytest.mark.parametrize(("subscribed", "counted"), [(None, 0), (ModelRequest, 0), (AssemblyCompleted, 1), (object, 1)])
async def test_prompts_are_counted_for_the_note_where_somebody_subscribed_to_it(subscribed, counted):
    counter, stream = SpyCounter(), Stream(History(conversation("ask", "answer")))
    if subscribed is not None:
        stream.subscribe(subscribed, lambda event: None)
    assembler = Assembler([SlidingWindowPolicy(2)], counter=counter)
    await assembler.assemble(["be kind"], stream.history, Context(stream=stream))
    assert counter.asked.count("be kind") == counted
