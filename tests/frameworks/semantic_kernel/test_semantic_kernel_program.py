"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

from typing import Any

import pytest
from semantic_kernel.agents import Agent, AgentGroupChat, ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.agents.orchestration.orchestration_base import OrchestrationBase
from semantic_kernel.agents.runtime import InProcessRuntime
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.connectors.ai.open_ai.services.open_ai_chat_completion_base import OpenAIChatCompletionBase
from semantic_kernel.connectors.ai.text_completion_client_base import TextCompletionClientBase
from semantic_kernel.contents import ChatHistory, ChatHistorySummarizationReducer, ChatHistoryTruncationReducer
from semantic_kernel.functions import KernelFunctionFromPrompt
from semantic_kernel_models import ScriptedService, ScriptedTexts, Settings, Stage, talk

from otel_assembly.instrumentation import HookState, SemanticKernelInstrumentor, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

OWNERS = [
    Agent, AgentGroupChat, ChatCompletionAgent, ChatCompletionClientBase, ChatHistory, ChatHistorySummarizationReducer,
    ChatHistoryTruncationReducer, InProcessRuntime, KernelFunctionFromPrompt, OpenAIChatCompletion,
    OpenAIChatCompletionBase, OrchestrationBase, ScriptedService, ScriptedTexts, TextCompletionClientBase,
]  # fmt: skip


def test_every_hook_takes():
    instrument("semantic_kernel")
    try:
        assert set(SemanticKernelInstrumentor().states.values()) == {HookState.TAKEN}
    finally:
        uninstrument("semantic_kernel")


async def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    before = [dict(vars(owner)) for owner in OWNERS]
    with assembly_telemetry.as_default():
        instrument("semantic_kernel")
        try:

            class LateService(ScriptedService):
                async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> Any:
                    return await super()._inner_get_chat_message_contents(chat_history, settings)

            agent = ChatCompletionAgent(service=LateService(Stage(), "Done."), name="bob")
            await agent.get_response("Go")
            assert [dict(vars(owner)) for owner in OWNERS] != before
        finally:
            uninstrument("semantic_kernel")
    assert [dict(vars(owner)) for owner in OWNERS] == before
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    await agent.get_response("Go again")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    thread = ChatHistoryAgentThread(chat_history=talk(ChatHistoryTruncationReducer(target_count=2), 3))
    agent = ChatCompletionAgent(service=ScriptedService(Stage(), "Done."), name="bob")
    with assembly_telemetry.as_default():
        instrument("semantic_kernel")
        try:
            await thread.reduce()
            await agent.get_response("Go", thread=thread)
        finally:
            uninstrument("semantic_kernel")
    assert assembly_telemetry.span("assemble_context").attributes["assembly.dropped.count"] == 4


@pytest.mark.parametrize("breaks", ["split_prompts", "schemas_of", "invoking_agent_of", "restore_removed"])
async def test_what_fails_of_ours_is_not_felt(monkeypatch, breaks):
    import otel_assembly.instrumentation.semantic_kernel.calls as calls

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(calls, breaks, broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("semantic_kernel")
        try:
            history = talk(ChatHistoryTruncationReducer(target_count=2), 3)
            thread = ChatHistoryAgentThread(chat_history=history)
            agent = ChatCompletionAgent(service=ScriptedService(Stage(), "Done."), name="bob")
            assert await thread.reduce() is history
            assert str(await agent.get_response("Go", thread=thread)) == "Done."
            assert [str(chunk) async for chunk in agent.invoke_stream("Go", thread=thread)] == ["Do", "ne."]
            assert str(await agent.service.get_chat_message_content(history, Settings())) == "Done."
        finally:
            uninstrument("semantic_kernel")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def test_nothing_of_semantic_kernel_is_imported_for_it(imported):
    assert imported("semantic_kernel", "semantic_kernel") == []


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained):
    said, lost = explained("semantic_kernel", turn=4)
    assert said[3] == "waiter: Booked: the winter garden."
    assert said[5] == "waiter: Booked: by the smokers' terrace."
    assert "truncation" in lost


def test_the_plug_in_s_example_keeps_the_request(kept):
    assert kept("semantic_kernel") == "All ten. The thread has 22 messages."
