"""A call of a model has its assembly, which tells what the client received."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from pretend_instrumentor import PretendInstrumentor, assemblies, every_call, steps

from otel_assembly import DecisionReason, Verdict, uninstrument
from otel_assembly.decision import DecisionOutcome
from otel_assembly.instrumentation import (
    Instrumentation,
    InvokingAgent,
    ModelCall,
    Reduction,
    StepReport,
    current_model_call,
    run_hook,
)


def test_a_call_that_nothing_reduces_is_told(agents, assembly_telemetry):
    asked = agents.Client()
    agents.Agent(asked).ask("hello")
    (told,) = every_call(assembly_telemetry, asked)
    assert told.attributes["gen_ai.agent.name"] == "clerk"
    assert steps(told) == []


def test_messages_that_read_alike_are_no_step(agents, assembly_telemetry):
    class Notes(agents.Client):
        def call(self, messages):
            return super().call([{**message, "note": "internal"} for message in messages])

    asked = Notes()
    agents.Agent(asked).ask("hello")
    (told,) = every_call(assembly_telemetry, asked)
    assert steps(told) == []


def test_what_no_hook_explains_is_a_closing_step(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window(), Odd()])
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert steps(told[2]) == ["window", "framework"]


class Odd:
    """A reducer that nobody has heard of."""

    def reduce(self, messages):
        return messages[1:] if len(messages) == 3 else messages


def test_what_stands_around_and_between_what_was_reduced_came_in_too(agents, assembly_telemetry):
    asked = agents.Client()
    first, *reduced = [{"role": "user", "content": f"question {turn}"} for turn in range(4)]
    call = ModelCall(PretendInstrumentor()._instrumentation, InvokingAgent(asked, "clerk", "clerk"))
    call.reduced(StepReport("window", [first, *reduced], reduced))
    between = {"role": "user", "content": "in between"}
    held = [
        {"role": "user", "content": "in front"},
        reduced[0],
        between,
        *reduced[1:],
        {"role": "user", "content": "."},
    ]
    with call.current():
        asked.call(held)
    (told,) = every_call(assembly_telemetry, asked)
    assert steps(told) == ["window"]
    assert told.attributes["assembly.events.in"] == 7
    assert told.attributes["assembly.dropped.count"] == 1


def test_why_a_copy_left_is_why_the_message_did(agents, assembly_telemetry):
    asked = agents.Client()
    history = [{"role": "user", "content": f"question {turn}"} for turn in range(4)]
    copies = [dict(event) for event in history]
    call = ModelCall(PretendInstrumentor()._instrumentation, InvokingAgent(asked, "clerk", "clerk"), messages=history)
    verdict = Verdict(copies[:2], DecisionOutcome.DROPPED, DecisionReason.STALE)
    call.reduced(StepReport("window", copies, copies[2:], verdicts=[verdict]))
    with call.current():
        asked.call(copies[2:])
    (told,) = every_call(assembly_telemetry, asked)
    assert told.children[0].dropped_reasons == {"0": "stale", "1": "stale"}


def test_a_call_that_comes_to_nothing_is_told_where_something_was_done_for_it(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window(), Raises()])
    agent.history = [{"role": "user", "content": str(number)} for number in range(9)]
    with pytest.raises(ZeroDivisionError):
        agent.ask("hello")
    (told,) = assemblies(assembly_telemetry)
    assert told.attributes["error.type"] == "ZeroDivisionError"
    assert steps(told) == ["window"]


class Raises:
    def reduce(self, messages):
        return 1 / 0


def test_the_care_of_a_history_has_a_name_and_spares_what_it_could_not_reduce(agents, assembly_telemetry):
    history = [{"role": "user", "content": str(number)} for number in range(3)]
    instrumentation, error = Instrumentation("pretend"), ConnectionError()
    call = ModelCall(instrumentation, InvokingAgent("history"), messages=history, name="compaction")
    Reduction(instrumentation, StepReport("compaction", history), call=call).failed(error)
    call.end(error, stays=True)
    (told,) = assemblies(assembly_telemetry)
    assert told.attributes["assembly.name"] == "compaction"
    assert told.attributes["assembly.events.out"] == 3
    assert (told.status, told.attributes["error.type"]) == ("ERROR", "ConnectionError")


async def test_calls_at_once_do_not_mix(agents, assembly_telemetry):
    several = [agents.Client() for _ in range(8)]
    await asyncio.gather(*(agents.Agent(item).aturn(f"hello {at}") for at, item in enumerate(several)))
    assert len(assemblies(assembly_telemetry)) == 8
    assert len({assembly.attributes["assembly.ledger.id"] for assembly in assemblies(assembly_telemetry)}) == 8


def test_what_looks_at_an_answer_never_reaches_the_agent(agents, assembly_telemetry):
    seen = []

    class Run(ModelCall):
        def on_result(self, answer):
            seen.append(answer)
            raise ZeroDivisionError

    run = PretendInstrumentor()._instrumentation
    assert run_hook(lambda *_: Run(run))(len, run)("four") == 4
    assert seen == [4]


def test_with_and_without_are_the_same(agents, assembly_telemetry):
    def talk():
        agent = agents.Agent(agents.Client(["a", "b", "c"]), [agents.Window()])
        return [agent.ask(f"question {turn}") for turn in range(3)], agent.client.received

    with_us = talk()
    uninstrument("pretend")
    assert talk() == with_us
    assert inspect.isfunction(agents.Client.call)
    assert not hasattr(agents.Client.call, "__wrapped__")
    assert current_model_call() is None
