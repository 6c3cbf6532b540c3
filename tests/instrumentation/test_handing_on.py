"""Middleware around a model call: what it does holds until its end, and one that limits is a step of the call."""

from __future__ import annotations

import pytest

from otel_assembly import DecisionReason
from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    ReducerSpec,
    Reduction,
    StepReport,
    already_reported,
    assembled,
    client,
    middleware_scope,
    newest,
    reducing_middleware_hook,
    report_halt,
)

TALK = [{"role": "user", "content": word} for word in ("one", "two", "three", "four")]
LIMITER = ReducerSpec(
    "limiter",
    reason=DecisionReason.OUTSIDE_WINDOW,
    settings={"most": "most"},
    keeps=newest("most"),
    limit="most",
    unit="items",
)


class Conversation:
    """What a halt ends."""


class Halt:
    def __init__(self, reason):
        self.reason, self.source = reason, "guard"


class Limits:
    def __init__(self, most, halts=None):
        self.most, self.halts = most, halts

    async def call(self, call_next, messages, options=None):
        return await call_next(messages[-self.most :], options)


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


@pytest.fixture
def agent(instrumentation):
    """Calls its model through its middleware, the outermost first."""
    conversation = Conversation()

    def handled(instrumentation, call_next, messages, *rest):
        return middleware_scope(
            instrumentation,
            lambda: ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=TALK),
            messages,
            conversation=conversation,
        )

    call = reducing_middleware_hook(LIMITER, handled)(Limits.call, instrumentation)

    async def answers(messages, options):
        return len(messages)

    model = client(lambda messages, options: ClientRequest(messages, model="gpt-4o"))(answers, instrumentation)

    async def ask(*limits):
        def behind(rest):
            if not rest:
                return model
            return lambda messages, options: call(Limits(rest[0]), behind(rest[1:]), messages=messages, options=options)

        return await behind(limits)(TALK, None)

    ask.conversation = conversation
    return ask


async def test_each_limiter_is_a_step_of_the_one_call(agent, assembly_telemetry):
    assert await agent(3, 2) == 2
    (told,) = assembly_telemetry.spans_named("assemble_context")
    assert [step.attributes["assembly.events.out"] for step in told.children] == [3, 2]
    assert told.children[0].attributes["assembly.policy.config"] == '{"most":3}'
    assert set(told.children[1].dropped_reasons.values()) == {"outside_window"}


async def test_what_runs_inside_of_a_reducer_begins_no_call(instrumentation, agent, assembly_telemetry):
    with Reduction(
        instrumentation, StepReport("summarises", TALK), call=ModelCall(instrumentation, InvokingAgent())
    ).running():
        await agent(3)
    assert assembly_telemetry.spans_named("apply_policy limiter") == []


async def test_a_halt_after_a_call_is_told_once_and_with_its_assembly(instrumentation, agent, assembly_telemetry):
    await agent(3)
    halt = Halt("enough")
    for _ in range(2):
        report_halt(instrumentation, agent.conversation, halt)
    assert already_reported(halt)
    assert assembly_telemetry.metric("assembly.halts", agent_name="clerk") == 1


async def test_a_halt_of_a_conversation_without_an_assembly_is_told_all_the_same(instrumentation, assembly_telemetry):
    assembled(conversation := Conversation(), ModelCall(instrumentation))
    report_halt(instrumentation, conversation, Halt("enough"))
    assert assembly_telemetry.metric("assembly.halts") == 1


async def test_a_limiter_that_raises_is_a_step_that_failed(instrumentation, assembly_telemetry):
    class Fails(Limits):
        async def call(self, call_next, messages, options=None):
            raise ConnectionError("no")

    def handled(instrumentation, call_next, messages, *rest):
        return middleware_scope(instrumentation, lambda: ModelCall(instrumentation, messages=TALK), messages)

    with pytest.raises(ConnectionError):
        await reducing_middleware_hook(LIMITER, handled)(Fails.call, instrumentation)(Fails(3), None, TALK)
    assert assembly_telemetry.span("apply_policy limiter").status == "ERROR"
