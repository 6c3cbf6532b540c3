"""A session waits for people, is cancelled, saved and loaded, halted and resumed."""

from __future__ import annotations

import asyncio
import time

import pytest
from spoken_agents import Watchdog, calls, said, transfer

from otel_assembly import Agent, HaltedError, MiddlewareBase, ModelResponse, Tool, ToolCallEvent, ToolResultEvent
from otel_assembly.errors import SessionError
from otel_assembly.events import (
    ConfirmResult,
    ConversationResumed,
    ExternalExecutionResultEvent,
    UserConfirmResultEvent,
)
from otel_assembly.knowledge import AggregateTrigger, MemoryKnowledgeStore
from otel_assembly.runtime import AggregateObserver
from otel_assembly.testing import ScriptedModel

# Waiting for somebody


async def test_a_call_that_needs_approval_waits_and_runs_as_it_was_confirmed():
    model = ScriptedModel(calls("transfer", arguments='{"amount": 5}'), "Sent.")
    agent = Agent("bank", "", model, [Tool(transfer, needs_approval=True)])
    answer = await agent.ask("Send 5.")
    (waiting,) = answer.tool_calls
    assert waiting.awaiting_approval
    assert list(agent.session.pending) == [waiting.id]
    assert len(model.received) == 1
    changed = waiting.model_copy(update={"arguments": '{"amount": 4}'})
    confirmed = UserConfirmResultEvent(confirm_results=(ConfirmResult(tool_call=changed, confirmed=True),))
    assert (await agent.ask(confirmed)).content == "Sent."
    assert "result transfer: sent 4" in said(agent.session)
    assert not agent.session.pending


async def test_a_call_that_is_not_confirmed_does_not_run():
    agent = Agent(
        "bank",
        "",
        ScriptedModel(calls("transfer", arguments='{"amount": 5}'), "Fine."),
        [Tool(transfer, needs_approval=True)],
    )
    (waiting,) = (await agent.ask("Send 5.")).tool_calls
    refused = ConfirmResult(tool_call=waiting, confirmed=False, message="too much")
    assert (await agent.ask(UserConfirmResultEvent(confirm_results=(refused,)))).content == "Fine."
    assert "error transfer: not run: too much" in said(agent.session)


async def test_who_asks_anew_while_a_call_waits_has_passed_it_over():
    model = ScriptedModel(calls("transfer", arguments='{"amount": 5}'), "Never mind.")
    agent = Agent("bank", "", model, [Tool(transfer, needs_approval=True)])
    (waiting,) = (await agent.ask("Send 5.")).tool_calls
    assert (await agent.ask("Forget it.")).content == "Never mind."
    assert "error transfer: not run: it was not confirmed before the next user message" in said(agent.session)
    late = UserConfirmResultEvent(confirm_results=(ConfirmResult(tool_call=waiting, confirmed=True),))
    with pytest.raises(SessionError, match="call-0: no call is pending"):
        await agent.ask(late)


async def test_a_call_that_somebody_else_runs_waits_for_its_result():
    external = Tool(None, name="scan", parameters={"type": "object", "properties": {}})
    agent = Agent("nurse", "", ScriptedModel(calls("scan"), "Healthy."), [external])
    (waiting,) = (await agent.ask("Scan.")).tool_calls
    with pytest.raises(SessionError, match="calls are pending"):
        await agent.ask()
    done = ExternalExecutionResultEvent(
        execution_results=(ToolResultEvent(parent_id=waiting.id, name="scan", content="clear"),)
    )
    assert (await agent.ask(done)).content == "Healthy."
    assert "result scan: clear" in said(agent.session)


# Halts


async def test_a_halt_ends_the_ask_and_every_later_one_until_it_is_lifted():
    ran = []

    def work(step: int) -> str:
        ran.append(step)
        return "poison" if step == 1 else "fine"

    model = ScriptedModel(calls("work", arguments='{"step": 1}'), "Too late.", "Fresh.")
    agent = Agent("helper", "Be brief.", model, [work], observers=[Watchdog("poison")])
    answer = await agent.ask("Go.")
    assert answer.content == "HALTED: FATAL: saw poison"
    assert len(model.received) == 1
    assert not any(line.startswith("say") for line in said(agent.session))
    with pytest.raises(HaltedError):
        await agent.ask("Again.")
    assert agent.session.halt is not None
    await agent.session.resume("looked at it")
    assert agent.session.halt is None
    assert (await agent.ask("Again.")).content == "Too late."
    assert not any("FATAL" in prompt for prompt in model.received[-1].prompts)
    assert any(isinstance(event, ConversationResumed) for event in agent.session.history)
    with pytest.raises(SessionError, match="not halted"):
        await agent.session.resume()


async def test_of_tools_that_wait_for_a_thread_none_starts_after_the_halt():
    started = []

    def work(step: int) -> str:
        started.append(step)
        if step == 0:
            return "poison"
        time.sleep(0.3)
        return "done"

    response = ModelResponse(
        tool_calls=tuple(ToolCallEvent(id=str(n), name="work", arguments=f'{{"step": {n}}}') for n in (0, 1, 2, 3, 4))
    )
    agent = Agent("helper", "", ScriptedModel(response), [work], observers=[Watchdog("poison")], max_tool_threads=2)
    answer = await agent.ask("Go.")
    assert answer.content.startswith("HALTED")
    lines = said(agent.session)
    not_run = [line for line in lines if line.startswith("error work: not run: halted")]
    assert len(started) + len(not_run) == 5
    assert len(not_run) >= 2
    assert len([line for line in lines if line.startswith(("result", "error"))]) == 5


async def test_fifty_agents_at_once_each_have_their_own_halt():
    def work() -> str:
        return "poison"

    halting = [
        Agent(
            f"agent-{n}",
            "",
            ScriptedModel(calls("work"), "Done."),
            [work],
            observers=[Watchdog("poison")] if n % 2 else [],
        )
        for n in range(50)
    ]
    answers = await asyncio.gather(*(agent.ask("Go.") for agent in halting))
    assert [answer.content.startswith("HALTED") for answer in answers] == [bool(n % 2) for n in range(50)]


# What is cancelled, saved and loaded


async def test_what_ran_before_a_cancellation_stays_and_what_did_not_is_an_error():
    async def quick() -> str:
        return "quick"

    async def slow() -> str:
        await asyncio.sleep(60)
        return ""

    model = ScriptedModel(calls("quick", "slow"), "Going on.")
    agent = Agent("helper", "", model, [quick, slow])
    ask = asyncio.ensure_future(agent.ask("Go."))
    while "result quick: quick" not in said(agent.session):
        await asyncio.sleep(0.01)
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask
    assert said(agent.session)[2:] == ["result quick: quick", "error slow: not run to its end: the ask was cancelled"]
    assert (await agent.ask()).content == "Going on."


class Around(MiddlewareBase):
    """Stands around a call, and changes nothing."""

    async def on_acting(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            yield event


@pytest.mark.parametrize("hooks", [(), (Around(),)])
async def test_a_call_alone_that_is_cancelled_is_an_error_and_the_session_goes_on(hooks):
    running = asyncio.Event()

    async def slow() -> str:
        running.set()
        await asyncio.sleep(60)
        return ""

    agent = Agent("helper", "", ScriptedModel(calls("slow"), "Going on."), [slow], middlewares=hooks)
    ask = asyncio.ensure_future(agent.ask("Go."))
    await running.wait()
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask
    assert said(agent.session)[2:] == ["error slow: not run to its end: the ask was cancelled"]
    assert (await agent.ask()).content == "Going on."


async def test_who_leaves_a_stream_early_can_ask_again():
    async def slow() -> str:
        await asyncio.sleep(60)
        return ""

    async def quick() -> str:
        return "quick"

    agent = Agent("helper", "", ScriptedModel(calls("quick", "slow"), "Going on."), [quick, slow])
    events = agent.stream("Go.")
    async for event in events:
        if isinstance(event, ToolResultEvent):
            break
    await events.aclose()
    assert said(agent.session)[-1] == "error slow: not run to its end: the ask was cancelled"
    assert (await agent.ask()).content == "Going on."


async def test_who_leaves_as_the_calls_are_told_leaves_none_unanswered():
    def work() -> str:
        return "done"

    agent = Agent("helper", "", ScriptedModel(calls("work"), "Going on."), [work])
    events = agent.stream("Go.")
    async for _ in events:
        break
    await events.aclose()
    assert said(agent.session)[-1] == "error work: not run to its end: the ask was cancelled"


async def test_a_session_goes_on_where_it_was_saved():
    model = ScriptedModel(calls("transfer", arguments='{"amount": 5}'), "Sent.")
    agent = Agent("bank", "", model, [Tool(transfer, needs_approval=True)])
    thread = agent.open_session("thread-7")
    (waiting,) = (await thread.ask("Send 5.")).tool_calls
    loaded = agent.load_session(thread.session.save())
    assert loaded.session.context.conversation_id == "thread-7"
    assert loaded.session.turns == 1
    confirmed = UserConfirmResultEvent(confirm_results=(ConfirmResult(tool_call=waiting, confirmed=True),))
    assert (await loaded.ask(confirmed)).content == "Sent."
    assert said(loaded.session)[-2:] == ["result transfer: sent 5", "say Sent."]
    assert not agent.session.history


async def test_a_halted_session_is_halted_when_it_is_loaded_and_a_resumed_one_is_not():
    def agent():
        return Agent("helper", "", ScriptedModel("poison", "Fresh."), observers=[Watchdog("poison")])

    first = agent()
    assert (await first.ask("Go.")).content.startswith("HALTED")
    loaded = agent().load_session(first.session.save())
    with pytest.raises(HaltedError):
        await loaded.ask("Again.")
    await loaded.session.resume()
    again = Agent("helper", "", ScriptedModel("Fresh.")).load_session(loaded.session.save())
    assert (await again.ask("Again.")).content == "Fresh."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: this is not a saved session"),
        ("[1]\n", "line 1: this is not a saved session"),
        ('{"format": "otel-assembly session", "version": 9}\n', "line 1: the session has format version 9"),
        ('{"format": "otel-assembly session", "version": 1}\n{"type": "model_request"\n', "line 2: "),
        ('{"format": "otel-assembly session", "version": 1}\n{"type": "model_request"}\n', "line 2: Field required"),
    ],
)
def test_what_is_no_saved_session_is_refused_by_its_line(text, problem):
    with pytest.raises(SessionError, match=problem):
        Agent("helper", "", ScriptedModel()).load_session(text)


async def test_asks_of_one_session_wait_for_each_other():
    model = ScriptedModel("One.", "Two.")
    agent = Agent("helper", "", model)
    await asyncio.gather(agent.ask("1"), agent.ask("2"))
    assert said(agent.session) == ["ask 1", "say One.", "ask 2", "say Two."]


async def test_observers_are_detached_also_where_the_last_aggregates_are_not_waited_for():
    class Endless:
        async def aggregate(self, events, context, store):
            await asyncio.Event().wait()

    memory = AggregateObserver(Endless(), AggregateTrigger(on_end=True), store=MemoryKnowledgeStore())
    agent = Agent("bank", "", ScriptedModel("Hello."), observers=[memory, Watchdog("fire")])
    await agent.ask("Hi.")
    session = agent.session
    for close in (session.aclose, memory.aclose):
        closing = asyncio.create_task(close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    await session.stream.send(ModelResponse(content="fire"))
    assert session.halt is None
