"""Our policies around a service of Semantic Kernel, and in a history that reduces itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread, SequentialOrchestration
from semantic_kernel.agents.runtime import InProcessRuntime
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.contents import AuthorRole, ChatHistory, ChatHistoryTruncationReducer, ChatMessageContent
from semantic_kernel.exceptions.kernel_exceptions import KernelInvokeException
from semantic_kernel.functions import KernelArguments
from semantic_kernel_models import ScriptedService, Settings, Stage, talk, words
from semantic_kernel_programs import LOOK, Tools

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
)
from otel_assembly.instrumentation.semantic_kernel import AssemblyChatCompletion, AssemblyHistoryReducer

LOOKS = [*([LOOK, LOOK] for _ in range(4)), "Done."]


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def budget(window: int = 400, **more: Any) -> list[Any]:
    return [BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)]


def agent(service: Any, **more: Any) -> ChatCompletionAgent:
    given = {"name": "bob", "instructions": "Be exact.", "plugins": [Tools()], **more}
    return ChatCompletionAgent(service=service, **given)


def thread(turns: int = 4) -> ChatHistoryAgentThread:
    return ChatHistoryAgentThread(chat_history=talk(ChatHistory(), turns))


async def test_what_is_sent_are_the_very_objects():
    given: list[Any] = []

    class Keeps(ScriptedService):
        async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> Any:
            given.append(chat_history)
            return await super()._inner_get_chat_message_contents(chat_history, settings)

    history = talk(ChatHistory(system_message="You note."), 4)
    history.add_user_message("Go")
    service = AssemblyChatCompletion(Keeps(Stage(), "Done."), [SlidingWindowPolicy(3)])
    await service.get_chat_message_content(history, Settings())
    (sent,) = given
    assert sent is not history
    assert [any(item is message for message in history.messages) for item in sent.messages] == [True] * 4
    await service.get_chat_message_content(short := ChatHistory(messages=history.messages[:2]), Settings())
    assert given[-1] is short


async def test_what_a_history_left_out_before_it_is_told_of_beside_it(told):
    stage = Stage()
    history = talk(ChatHistoryTruncationReducer(target_count=6), 4)
    service = AssemblyChatCompletion(ScriptedService(stage, "Done."), [SlidingWindowPolicy(3)], name="window")
    held = ChatHistoryAgentThread(chat_history=history)
    await held.reduce()
    await agent(service).get_response("Go", thread=held)
    before, sent = told.spans_named("assemble_context")
    assert [child.name for child in before.children] == ["apply_policy truncation"]
    assert sent.attributes["assembly.name"] == "window"
    assert sent.attributes["assembly.tokens.out"] == stage.received[0].tokens


async def test_in_a_kernel_and_in_an_orchestration_as_well():
    stage = Stage()
    kernel = Kernel(services=[AssemblyChatCompletion(ScriptedService(stage, *LOOKS), budget(window=500))])
    kernel.add_plugin(Tools())
    with_tools = KernelArguments(settings=Settings(function_choice_behavior=FunctionChoiceBehavior.Auto()))
    result = await kernel.invoke_prompt(f"Find all: {words(40)}", arguments=with_tools)
    assert str(result) == "Done."
    assert max(received.tokens for received in stage.received) <= 450
    runtime = InProcessRuntime()
    runtime.start()
    stage.received.clear()
    service = AssemblyChatCompletion(ScriptedService(stage, *LOOKS), budget())
    members = [agent(service, name="one"), agent(service, name="two")]
    result = await SequentialOrchestration(members=members).invoke("Find all", runtime)
    assert str(await result.get(timeout=20)) == "Done."
    await runtime.stop_when_idle()
    assert max(received.tokens for received in stage.received) <= 350


async def test_a_budget_that_cannot_be_met_is_the_cause_of_the_kernels_error():
    stage = Stage()
    service = AssemblyChatCompletion(ScriptedService(stage, "Done."), budget(120))
    with pytest.raises(KernelInvokeException) as raised:
        await Kernel(services=[service]).invoke_prompt(words(100))
    assert isinstance(raised.value.__cause__.__cause__, ContextOverflowError)
    assert stage.received == []


async def test_a_fatal_alert_halts_each_agent_of_a_thread():
    stage, held = Stage(), ChatHistoryAgentThread()
    service = AssemblyChatCompletion(ScriptedService(stage, "Done."), [AlertPolicy()])
    await service.context_of(held).send(fatal())
    for name in ("bob", "eve"):
        with pytest.raises(HaltedError, match="stolen"):
            await agent(service, name=name).get_response("Go", thread=held)
    assert stage.received == []


async def test_a_fatal_alert_halts_a_thread_that_has_only_a_system_prompt():
    stage, held = Stage(), ChatHistoryAgentThread(chat_history=ChatHistory(system_message="You note."))
    service = AssemblyChatCompletion(ScriptedService(stage, "Done."), [AlertPolicy()])
    await service.context_of(held).send(fatal())
    with pytest.raises(HaltedError, match="stolen"):
        await agent(service).get_response("Go", thread=held)
    assert stage.received == []


async def test_the_model_is_that_of_the_requests_settings():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append(context.model)
            return prompts, events

    service = AssemblyChatCompletion(ScriptedService(Stage(), "Done."), [Looks()])
    await agent(service).get_response("Go", arguments=KernelArguments(settings=Settings(ai_model_id="gpt-4o-mini")))
    assert seen == ["gpt-4o-mini"]


async def test_agents_that_ask_at_once_keep_their_own_tools_and_histories(assembly_telemetry):
    stage = Stage()
    service = AssemblyChatCompletion(ScriptedService(stage, "Done."), budget())
    agents = [agent(service, name=f"a{at}", plugins=[Tools()] if at % 2 else []) for at in range(4)]
    await asyncio.gather(*(agent.get_response("Go", thread=thread(8)) for agent in agents))
    assert max(received.tokens for received in stage.received) <= 350
    spans = assembly_telemetry.spans_named("assemble_context")
    assert sorted(span.attributes["assembly.tokens.out"] for span in spans) == sorted(
        request.tokens for request in stage.received
    )


def test_those_who_ask_at_once_may_do_so_in_one_loop_after_another():
    async def variables(_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {}

    service = AssemblyChatCompletion(ScriptedService(Stage(), "Done."), budget(), variables=variables)
    bob, shared = agent(service, plugins=[]), thread(1)

    async def asked() -> list[str]:
        return list(map(str, await asyncio.gather(*(bob.get_response("Go", thread=shared) for _ in range(3)))))

    assert [asyncio.run(asked()) for _ in range(2)] == [["Done."] * 3] * 2


def test_it_is_as_its_inner_service_is():
    class Plain(ScriptedService):
        SUPPORTS_FUNCTION_CALLING = False

        def service_url(self) -> str:
            return "https://models.example"

    service = AssemblyChatCompletion(Plain(Stage(), "Done.", name="small", service_id="mine"), [])
    assert (service.ai_model_id, service.service_id) == ("small", "mine")
    assert service.service_url() == "https://models.example"
    assert service.SUPPORTS_FUNCTION_CALLING is False
    assert service.get_prompt_execution_settings_class() is Settings
    assert Kernel(services=[service]).get_service("mine") is service


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_the_history_refuses_a_name_or_a_model_if_an_assembler_is_given(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyHistoryReducer(Assembler([]), **more)


def test_what_is_no_service_or_no_conversation_is_refused():
    with pytest.raises(ConfigurationError, match="inner must be a ChatCompletionClientBase"):
        AssemblyChatCompletion("gpt-4o", [])
    with pytest.raises(ConfigurationError, match="a conversation is"):
        AssemblyChatCompletion(ScriptedService(Stage(), "Done."), []).context_of("one")


# --- A history that reduces itself ------------------------------------------------------------------------------------


async def test_a_history_holds_a_budget_of_tokens_where_it_is_reduced(assembly_telemetry):
    stage = Stage()
    history = AssemblyHistoryReducer(budget(150), system_message="You are kind.", name="history")
    held = ChatHistoryAgentThread(chat_history=talk(history, 12))
    assert await held.reduce() is history
    assert history.messages[0].content == "You are kind."
    assert [str(message)[:11] for message in history.messages[-2:]] == ["question 11", "answer 11: "]
    assert await held.reduce() is None
    (first, _) = assembly_telemetry.spans_named("assemble_context")
    assert first.attributes["assembly.tokens.out"] <= 100 < first.attributes["assembly.tokens.in"]
    await agent(ScriptedService(stage, "Done."), plugins=[]).get_response("Go", thread=held)
    assert stage.received[0].prompts == ["Be exact.", "You are kind."]


async def test_it_reduces_as_it_grows():
    stage = Stage()
    service = ScriptedService(stage, f"Noted: {words(8)}")
    history = AssemblyHistoryReducer(budget(150), auto_reduce=True, system_message="You note.")
    for turn in range(9):
        await history.add_message_async(ChatMessageContent(role=AuthorRole.USER, content=f"note {turn}: {words(8)}"))
        await history.add_message_async(await service.get_chat_message_content(history, Settings()))
    assert max(received.tokens for received in stage.received) <= 100
    assert {tuple(received.prompts) for received in stage.received} == {("You note.",)}


async def test_a_thread_that_has_it_reduces_as_messages_are_added(assembly_telemetry):
    """As the guide has it: a thread adds messages without awaiting anything."""
    stage = Stage()
    bob = agent(ScriptedService(stage, *(f"Noted {turn}: {words(8)}" for turn in range(9))), plugins=[])
    history = AssemblyHistoryReducer(budget(150), auto_reduce=True, system_message="You note.", name="history")
    held = ChatHistoryAgentThread(chat_history=history)
    for turn in range(9):
        await bob.get_response(f"note {turn}: {words(8)}", thread=held)
    assert [str(message)[:6] for message in history.messages[-2:]] == ["note 8", "Noted "]
    assert len(history.messages) < 12
    assert max(len(received.said) for received in stage.received) < 12
    assembled = [
        span
        for span in assembly_telemetry.spans_named("assemble_context")
        if span.attributes.get("assembly.name") == "history"
    ]
    assert max(span.attributes["assembly.tokens.out"] for span in assembled) <= 100


async def test_a_policy_that_waits_leaves_the_history_to_the_program(caplog):
    class AwaitingPolicy:
        name = "waits"

        async def apply(self, prompts, events, context):
            await asyncio.sleep(0)
            return prompts, events[-1:]

    history = AssemblyHistoryReducer([AwaitingPolicy()], auto_reduce=True)
    held = ChatHistoryAgentThread(chat_history=history)
    for turn in range(3):
        await held.on_new_message(f"note {turn}")
    assert len(history.messages) == 3
    assert len([record for record in caplog.records if "await thread.reduce()" in record.message]) == 1
    await held.reduce()
    assert [str(message) for message in history.messages] == ["note 2"]


def test_outside_of_an_event_loop_messages_are_only_added():
    history = AssemblyHistoryReducer(budget(150), auto_reduce=True)
    assert len(talk(history, 12).messages) == 24


async def test_in_an_instrumented_program_it_is_told_once(told):
    stage = Stage()
    history = AssemblyHistoryReducer(budget(150), name="history")
    service = ScriptedService(stage, "Done.")
    talk(history, 8)
    await service.get_chat_message_content(history, Settings())
    await history.reduce()
    await service.get_chat_message_content(history, Settings())
    names = [span.attributes.get("assembly.name") for span in told.spans_named("assemble_context")]
    assert names == [None, "history", None]
    assert [len(span.children) for span in told.spans_named("assemble_context")] == [0, 1, 0]


async def test_a_halted_history_is_reduced_no_more():
    history = AssemblyHistoryReducer([AlertPolicy()])
    await history.context.send(fatal())
    with pytest.raises(HaltedError):
        await talk(history, 1).reduce()


async def test_it_can_be_written_down_as_any_history():
    history = talk(AssemblyHistoryReducer(budget(150)), 2)
    stored = ChatHistory.restore_chat_history(history.serialize())
    assert [str(message) for message in stored.messages] == [str(message) for message in history.messages]
