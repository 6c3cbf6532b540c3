"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from packaging.version import Version
from strands import Agent
from strands.agent.agent import Agent as AgentClass
from strands.agent.conversation_manager import ConversationManager, SlidingWindowConversationManager
from strands.event_loop import event_loop
from strands.hooks import BeforeModelCallEvent, HookRegistry
from strands.models.bedrock import BedrockModel
from strands.models.model import Model
from strands_models import ScriptedModel, Stage, history, steps
from strands_programs import InvokeModelStage, Newest, agent, said

from otel_assembly.instrumentation import HookState, StrandsInstrumentor, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


def test_every_hook_takes():
    instrument("strands")
    try:
        instrumentor = StrandsInstrumentor()
        here = Version(instrumentor.version or "")
        for hook in instrumentor.hooks:
            expected = HookState.TAKEN if hook.expected(str(here)) else HookState.WAITING
            assert instrumentor.states[hook.name] is expected, hook.name
    finally:
        uninstrument("strands")


def held(owner: Any) -> dict[str, Any]:
    """What an owner has, but for what Python notes on a class as one of its objects is copied."""
    return {name: value for name, value in vars(owner).items() if name != "__slotnames__"}


async def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    owners = [
        Model, BedrockModel, ScriptedModel, AgentClass, ConversationManager, SlidingWindowConversationManager, Newest,
        HookRegistry, event_loop,
    ]  # fmt: skip
    if hasattr(Agent, "context_manager"):
        from strands._context_manager.modes.agentic.agentic_context import summarize_context

        owners.append(summarize_context)
    before = list(map(held, owners))
    with assembly_telemetry.as_default():
        instrument("strands")
        try:

            class LateModel(ScriptedModel):
                async def stream(self, *arguments: Any, **named: Any) -> Any:
                    async for event in super().stream(*arguments, **named):
                        yield event

            clerk = agent(Stage(), model=LateModel(Stage(), "Done."), conversation_manager=Newest(4))
            await clerk.invoke_async("Go")
            assert list(map(held, owners)) != before
        finally:
            uninstrument("strands")
    assert list(map(held, owners)) == before
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    await clerk.invoke_async("Go again")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    clerk = agent(Stage(), "Done.", conversation_manager=Newest(3), messages=history(3))
    clerk.hooks.add_callback(BeforeModelCallEvent, lambda event: event.agent.messages.pop(0))
    with assembly_telemetry.as_default():
        instrument("strands")
        try:
            await clerk.invoke_async("Go")
            await clerk.invoke_async("On")
        finally:
            uninstrument("strands")
    first, second = assembly_telemetry.spans_named("assemble_context")
    made_here = "test_agents_that_were_built_before_are_seen"
    assert (steps(first), steps(second)) == ([made_here], ["Newest", made_here])


BREAKS = [
    "agent_messages",
    "prompts_of",
    "schemas_of",
    "invoking_agent_of",
    "function_name",
    *(["model_messages"] if InvokeModelStage else []),
]


@pytest.mark.parametrize("breaks", BREAKS)
async def test_what_fails_of_ours_is_not_felt(monkeypatch, breaks):
    import otel_assembly.instrumentation.strands.calls as calls
    import otel_assembly.instrumentation.strands.reducers as reducers

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    for module in (calls, reducers):
        if hasattr(module, breaks):
            monkeypatch.setattr(module, breaks, broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("strands")
        try:
            clerk = agent(Stage(), "call:look", "Done.", conversation_manager=Newest(3), messages=history(3))
            clerk.hooks.add_callback(BeforeModelCallEvent, lambda event: event.agent.messages.pop(0))
            if InvokeModelStage is not None:
                edits(clerk)
            assert said(await clerk.invoke_async("Go")) == "Done."
            assert [event["data"] async for event in clerk.stream_async("Go") if "data" in event] == ["Done."]
        finally:
            uninstrument("strands")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def edits(clerk: Agent) -> None:
    async def shorter(context: Any, next_fn: Any) -> Any:
        context.messages = context.messages[-1:]
        async for event in next_fn(context):
            yield event

    clerk._middleware_registry.add_middleware(InvokeModelStage, shorter)


def test_nothing_of_strands_is_imported_for_it(imported):
    assert imported("strands", "strands") == []


def test_it_is_instrumented_also_before_it_is_imported(run_program):
    """Its modules import each other while ours are imported with them."""
    program = (
        "import otel_assembly.instrumentation as i; i.instrument('strands'); import strands, strands.multiagent;"
        "print({str(state) for state in i.StrandsInstrumentor().states.values()})"
    )
    states = run_program(sys.executable, "-c", program).stdout
    assert "missing" not in states
    assert "taken" in states


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained):
    said, lost = explained("strands", turn=4)
    assert said[3] == "waiter: Here it is, without nuts."
    assert said[5] == "waiter: Here it is, with plenty of nuts."
    assert "sliding_window (policy 0), outside_window" in lost


@pytest.mark.skipif(InvokeModelStage is None, reason="this release has no middleware")
def test_the_plug_in_s_example_keeps_the_request(kept):
    assert kept("strands") == "All ten. The agent holds 22 messages."
