"""What reduces is a step of the call that it is made for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pretend_instrumentor import OWNERS, assemblies, every_call, reading, sent, split, steps
from recount import prompt_tokens

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    StepReport,
    client,
    reducer,
)


def test_reductions_are_the_steps_of_the_call_that_they_are_made_for(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window()])
    for turn in range(4):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [span.attributes["assembly.events.in"] for span in told] == [1, 3, 5, 7]
    assert [span.attributes["assembly.dropped.count"] for span in told] == [0, 0, 2, 4]
    assert [steps(item) for item in told] == [[], [], ["window"], ["window"]]
    assert len({span.attributes["assembly.ledger.id"] for span in told}) == 1


async def test_async_reducers_that_return_copies(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window()])
    for turn in range(5):
        await agent.aturn(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [span.attributes["assembly.dropped.count"] for span in told] == [0, 0, 0, 1, 2]
    assert all(span.attributes["assembly.compacted.count"] == 0 for span in told)


def test_what_ran_inside_of_a_reducer_and_told_all_is_not_told_again(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Around(agents.Window())])
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [steps(item) for item in told] == [[], [], ["window"]]


def test_what_reduces_outside_of_a_call_is_told_with_the_next_one(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, tidies=True)
    OWNERS[id(agent.history)] = InvokingAgent(agent, "clerk", "clerk")
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [steps(item) for item in told] == [[], [], ["window"]]
    assert told[2].attributes["assembly.events.in"] == 5
    assert told[2].attributes["assembly.dropped.count"] == 1


def test_a_reducer_may_change_the_system_prompts_and_says_itself_what_it_does(agents, assembly_telemetry):
    def told(prompts, messages):
        return [{"role": "system", "content": text} for text in prompts] + messages

    def read(messages):
        prompts, rest = split(messages)
        return ClientRequest(rest, prompts)

    def add(prompts, messages):
        return told([*prompts, "Be brief."], split(messages)[1])

    call = ModelCall(Instrumentation("pretend"), InvokingAgent("history"))
    hello = [{"role": "user", "content": "hello"}]
    call.set_input(hello, prompts=["You help."])

    @reducer
    def hook(_, __, messages):
        before = read(messages)
        report = StepReport("brief", before.messages, kind="injection", prompts_before=before.prompts)
        after = read((yield report))
        return replace(report, after=after.messages, prompts=after.prompts)

    with call.current():
        made = hook(add, call.instrumentation)(["You help."], told(["You help."], hello))
    call.client_called(sent(None, made))
    (assembly,) = assemblies(assembly_telemetry)
    assert [child.attributes["assembly.policy.kind"] for child in assembly.children] == ["injection"]
    assert assembly.attributes["assembly.tokens.in"] == prompt_tokens(["You help."], hello)
    assert assembly.attributes["assembly.tokens.out"] == prompt_tokens(["You help.", "Be brief."], hello)


def test_around_a_plugin_of_ours_each_assembly_has_a_span_of_its_own(agents, assembly_telemetry, caplog):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window(), agents.Plugin()])
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = assemblies(assembly_telemetry)
    assert [steps(item) for item in told] == [["window"]]
    assert not caplog.records


def test_a_message_that_stands_twice_in_a_history_is_found_where_it_stands(assembly_telemetry):
    again, other = {"role": "user", "content": "Again."}, {"role": "user", "content": "What else?"}
    for taken in ([again, other, again], [other, again]):
        call = ModelCall(Instrumentation("pretend"), InvokingAgent(), messages=[again, other, again])
        call.reduced(StepReport("window", taken, [again]))
        call.client_called(ClientRequest([*[again, other, again][: 3 - len(taken)], again]))
    told = assemblies(assembly_telemetry)
    assert [steps(item) for item in told] == [["window"], ["window"]]
    assert [span.attributes["assembly.events.in"] for span in told] == [3, 3]
    assert [span.attributes["assembly.events.out"] for span in told] == [1, 2]


def test_what_fails_outside_of_a_call_and_ends_the_run_is_told_with_what_was_tried(assembly_telemetry):
    """Where it ends nothing, the run goes on, and what becomes of the messages is told with the next call."""

    def reduce(messages, ends):
        summariser(messages[:2])
        raise RuntimeError("no summary")

    invoking_agent = InvokingAgent("talk", "clerk", "clerk")
    talk = [{"role": "user", "content": word} for word in ("one", "two", "three")]
    hook = reducer(
        reading(lambda messages, ends: messages, policy="sums_up"),
        invoking_agent=lambda *_: invoking_agent,
        uncalled_agent=lambda messages, ends: invoking_agent if ends else None,
    )
    with assembly_telemetry.as_default():
        instrumentation = Instrumentation("pretend")
        summariser = client(lambda messages: ClientRequest(messages, model="gpt-4o"))(
            lambda messages: "", instrumentation
        )
        wrapped = hook(reduce, instrumentation)
        for ends in (False, True):
            with pytest.raises(RuntimeError, match="no summary"):
                wrapped(talk, ends)
    (told,) = assemblies(assembly_telemetry)
    (step,) = told.children
    assert told.attributes["error.type"] == step.attributes["error.type"] == "RuntimeError"
    assert steps(told) == ["sums_up"]
    assert [child.name for child in step.children] == ["compact_block summary"]
    assert told.attributes["assembly.events.in"] == 3


def test_what_is_told_by_whoever_raises_it_is_no_failure_of_the_reducer_around(assembly_telemetry):
    telling = Instrumentation("pretend")
    call = ModelCall(telling, messages=[{"role": "user", "content": "Hello"}])

    def fails(messages):
        raise KeyError("told elsewhere")

    hook = reducer(reading(lambda messages: messages, policy="around"), expected_errors=(KeyError,))
    with assembly_telemetry.as_default(), call.current(), pytest.raises(KeyError):
        hook(fails, telling)(call.messages)
    call.end()
    assert assembly_telemetry.spans == []
