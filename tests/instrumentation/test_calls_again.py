"""A call that is made again, or by what prepared several, has an assembly of its own with the same steps."""

from __future__ import annotations

import pytest
from pretend_instrumentor import PretendInstrumentor, assemblies, every_call, steps
from recount import prompt_tokens

from otel_assembly.instrumentation import ClientRequest, Instrumentation, InvokingAgent, ModelCall, StepReport


def test_a_retry_has_an_assembly_of_its_own_with_the_same_steps(agents, assembly_telemetry):
    asked = agents.Client(["fine", "fine", ValueError(), "fine"])
    agent = agents.Agent(asked, [agents.Window()], attempts=2)
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert len(told) == 4
    assert [steps(item) for item in told[2:]] == [["window"], ["window"]]
    assert told[2].offered == told[3].offered
    assert told[3].attributes["assembly.newly_dropped.count"] == 0


@pytest.mark.parametrize("outer", [True, False], ids=["in front of it", "behind it"])
def test_a_middleware_that_is_called_again_does_its_step_once_for_each_call(agents, assembly_telemetry, outer):
    asked = agents.Client(["fine", ValueError(), "fine"])
    retried = agents.Retries(agents.Limits(asked)) if outer else agents.Limits(agents.Retries(asked))
    agent = agents.Agent(retried)
    for turn in range(2):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [steps(item) for item in told] == [["limits"]] * 3
    assert told[1].offered == told[2].offered


def test_behind_a_plugin_a_call_is_told_once_it_is_made_again(agents, assembly_telemetry):
    call = ModelCall(Instrumentation("pretend"), InvokingAgent("history"))
    messages = [{"role": "user", "content": "hello"}]
    call.replaced_by_plugin(messages, prompts=["You help."])
    call.client_called(ClientRequest(messages, ["You help."]))
    assert assemblies(assembly_telemetry) == []
    call.client_called(ClientRequest(messages, ["You help."]))
    (told,) = assemblies(assembly_telemetry)
    assert told.attributes["assembly.tokens.out"] == prompt_tokens(["You help."], messages)


def test_another_call_begins_with_what_one_was_at_some_time(agents, assembly_telemetry):
    """As where two go on at once with what one has prepared for both."""
    instrumentation = PretendInstrumentor()._instrumentation
    messages = [{"role": "user", "content": str(number)} for number in range(6)]
    call = ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=messages)
    call.reduced(StepReport("first", messages, messages[1:]))
    call.reduced(StepReport("second", messages[1:], messages[3:]))
    assert [len(state) for state in call.states] == [6, 5, 3]
    call.client_called(ClientRequest(messages[3:]))
    assert call.ended
    call.fork(1).client_called(ClientRequest(messages[1:]))
    call.fork(0).client_called(ClientRequest(messages))
    told = assemblies(assembly_telemetry)
    assert [steps(item) for item in told] == [["first", "second"], ["first"], []]
    assert [span.attributes["assembly.events.in"] for span in told] == [6] * 3


def test_calls_of_one_run_begin_with_what_was_reduced_for_all_of_them(agents, assembly_telemetry):
    asked = agents.Client()
    run = PretendInstrumentor()._instrumentation
    history = [{"role": "user", "content": f"question {turn}"} for turn in range(4)]
    prepared = ModelCall(run, InvokingAgent(asked, "clerk", "clerk"))
    prepared.reduced(StepReport("window", history, history[2:]))
    others = prepared.fork()
    held = history[2:]
    for call in (prepared, others.fork(), others.fork()):
        held = [*held, {"role": "user", "content": f"more {len(held)}"}]
        call.set_input(held)
        with call.current():
            asked.call(held)
    told = every_call(assembly_telemetry, asked)
    assert [steps(item) for item in told] == [["window"]] * 3
    assert [span.attributes["assembly.events.in"] for span in told] == [5, 6, 7]
    assert [span.attributes["assembly.dropped.count"] for span in told] == [2, 2, 2]
    assert [span.attributes["assembly.newly_dropped.count"] for span in told] == [2, 0, 0]
