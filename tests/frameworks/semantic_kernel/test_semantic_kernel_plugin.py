"""Our policies around a service of Semantic Kernel, and in a history that reduces itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread, SequentialOrchestration
from semantic_kernel.agents.runtime import InProcessRuntime
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.contents import AuthorRole, ChatHistory, ChatHistoryTruncationReducer, ChatMessageContent
from semantic_kernel.exceptions.kernel_exceptions import KernelInvokeException
from semantic_kernel.filters import FilterTypes
from semantic_kernel.functions import KernelArguments, kernel_function
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
    describe,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.semantic_kernel import AssemblyChatCompletion, AssemblyHistoryReducer
from otel_assembly.testing import RecordedTelemetry

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


def whole_pairs(messages: list[Any]) -> bool:
    """Whether each result stands behind its call, and each call in front of its result."""
    asked: list[str] = []
    for message in messages:
        for item in message.items:
            if item.content_type == "function_call":
                asked.append(item.id)
            elif item.content_type == "function_result":
                asked.remove(item.id)
    return not asked


class Notes:
    """Writes down what it is shown."""

    name = "notes"
    watches = (ChatMessageContent,)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def process(self, event: Any, context: Any) -> None:
        self.seen.append(event)

    @property
    def kinds(self) -> list[str]:
        return [str(describe(message).kind) for message in self.seen]


@pytest.mark.parametrize("streams", [False, True])
async def test_no_request_is_over_the_budget_and_the_thread_stays_whole(assembly_telemetry, streams):
    stage, held = Stage(), thread()
    looker = agent(AssemblyChatCompletion(ScriptedService(stage, *LOOKS), budget()))
    run = looker.invoke_stream if streams else looker.invoke
    assert "".join([str(message) async for message in run("Find all", thread=held)]) == "Done."
    assert [received.tokens <= 350 for received in stage.received] == [True] * 5
    assert all(whole_pairs(received.messages) for received in stage.received)
    assert all(received.prompts == ["Be exact."] and received.tools for received in stage.received)
    assert all("Find all" in map(str, received.messages) for received in stage.received)
    assert len(stage.received[-1].messages) < len(held) == 8 + 1 + 4 * 3 + 1
    spans = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {"semantic_kernel"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert assembly_telemetry.violations() == []


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


async def test_inside_an_instrumented_agent_it_is_told_once(told):
    stage = Stage()
    service = AssemblyChatCompletion(ScriptedService(stage, *LOOKS), [SlidingWindowPolicy(3)], name="window")
    held = ChatHistoryAgentThread(thread_id="one")
    await agent(service).get_response("Find all", thread=held)
    async for _ in agent(service).invoke_stream("And again", thread=held):
        pass
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(6)]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"one"}
    assert {child.name for span in spans for child in span.children} == {"apply_policy sliding_window"}
    assert {span.parent.name for span in spans} == {"AutoFunctionInvocationLoop"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]


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


async def test_a_budget_that_cannot_hold_raises_and_nothing_is_sent():
    stage = Stage()
    service = AssemblyChatCompletion(ScriptedService(stage, "Done."), budget(120))
    with pytest.raises(ContextOverflowError):
        await agent(service).get_response(f"Find all: {words(100)}")
    with pytest.raises(ContextOverflowError):
        async for _ in agent(service).invoke_stream(f"Find all: {words(100)}"):
            pass
    with pytest.raises(KernelInvokeException) as raised:
        await Kernel(services=[service]).invoke_prompt(words(100))
    assert isinstance(raised.value.__cause__.__cause__, ContextOverflowError)
    assert stage.received == []


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(told, on_halt):
    stage, held = Stage(), ChatHistoryAgentThread()
    service = AssemblyChatCompletion(ScriptedService(stage, "Done."), Assembler([AlertPolicy()], on_halt=on_halt))
    await service.context_of(held).send(fatal())
    for name in ("bob", "eve"):  # whoever asks in that thread
        with pytest.raises(HaltedError, match="stolen"):
            await agent(service, name=name).get_response("Go", thread=held)
    assert stage.received == []
    assert {span.attributes["error.type"] for span in told.spans_named("invoke_agent bob")} == {"assembly_halt"}
    assert str(await agent(service).get_response("Go")) == "Done."


async def test_a_fatal_alert_in_the_middle_of_a_run_ends_it_and_no_tool_is_called():
    called = []

    class Halts:
        @kernel_function
        async def stop(self) -> str:
            """Stop."""
            await service.context_of(held).send(fatal())
            await asyncio.sleep(0)
            return "stopped"

        @kernel_function
        async def note(self) -> str:
            """Note something."""
            called.append(1)
            return "noted"

    stage, held, kernel = Stage(), ChatHistoryAgentThread(), Kernel()
    service = AssemblyChatCompletion(
        ScriptedService(stage, ["call:Halts-stop", "call:Halts-note"], "call:Halts-note"), [AlertPolicy()]
    )
    kernel.add_plugin(Halts())
    kernel.add_filter(FilterTypes.AUTO_FUNCTION_INVOCATION, service.tools)
    with pytest.raises(HaltedError, match="stolen"):
        await agent(service, kernel=kernel, plugins=[]).get_response("Go", thread=held)
    with pytest.raises(HaltedError, match="stolen"):
        await agent(service, kernel=kernel, plugins=[]).get_response("Go on", thread=held)
    assert (len(stage.received), called) == (1, [])


@pytest.mark.parametrize("streams", [False, True])
async def test_no_tool_is_called_of_an_answer_upon_which_an_observer_halts(streams):
    class Guard(Notes):
        async def process(self, event: Any, context: Any) -> None:
            if describe(event).opens:
                await context.send(fatal())

    called = []

    class Tool:
        @kernel_function
        def note(self) -> str:
            """Note something."""
            called.append(1)
            return "noted"

    stage = Stage()
    service = AssemblyChatCompletion(ScriptedService(stage, ["call:Tool-note"] * 2), [], observers=[Guard()])
    noter = agent(service, plugins=[Tool()])
    run = noter.invoke_stream if streams else noter.invoke
    with pytest.raises(HaltedError):
        [message async for message in run("Go")]
    assert (len(stage.received), called) == (1, [])


@pytest.mark.parametrize("streams", [False, True])
async def test_observers_are_shown_every_message_once(streams):
    notes, stage, held = Notes(), Stage(), ChatHistoryAgentThread()
    service = AssemblyChatCompletion(ScriptedService(stage, LOOK, "Done."), [SlidingWindowPolicy(4)], observers=[notes])
    looker = agent(service)
    for question in ("Go", "Go", "Go"):
        if streams:
            async for _ in looker.invoke_stream(question, thread=held):
                pass
        else:
            await looker.get_response(question, thread=held)
    assert notes.kinds == [
        "request", "response", "tool_result", "response", *["request", "response"] * 2
    ]  # fmt: skip


async def test_an_alert_is_told_the_model_once():
    stage, held = Stage(), ChatHistoryAgentThread()
    service = AssemblyChatCompletion(ScriptedService(stage, LOOK, "Done."), [AlertPolicy()])
    await service.context_of(held).send(ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full."))
    await agent(service).get_response("Go", thread=held)
    assert ["Nearly full." in str(received.prompts) for received in stage.received] == [True, False]
    assert [received.prompts[0] for received in stage.received] == ["Be exact."] * 2


async def test_a_summary_is_a_message_that_any_model_can_be_sent(assembly_telemetry):
    stage = Stage()
    policies = budget(500, compact=ExtractiveCompactor(), summary_tokens=60)
    await agent(AssemblyChatCompletion(ScriptedService(stage, *LOOKS), policies)).get_response("Go", thread=thread(40))
    assert max(received.tokens for received in stage.received) <= 450
    texts = [text for event in stage.received[0].events for text in event.texts]
    assert sum(text.startswith("[Earlier messages, summarised") for text in texts) == 1
    block = assembly_telemetry.spans_named("compact_block older")[0]
    assert block.attributes["assembly.compaction.outcome"] == "compacted"


async def test_policies_are_given_what_they_ask_for():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append((context.dependencies[ChatHistory], context.variables["city"], context.model))
            return [*prompts, "Remember the order."], events

    stage = Stage()
    service = AssemblyChatCompletion(
        ScriptedService(stage, "Done."),
        [Looks()],
        dependencies=lambda history: {ChatHistory: len(history)},
        variables={"city": "Bonn"},
    )
    await agent(service).get_response("Go", arguments=KernelArguments(settings=Settings(ai_model_id="gpt-4o-mini")))
    assert seen == [(2, "Bonn", "gpt-4o-mini")]
    assert stage.received[0].prompts == ["Be exact.", "Remember the order."]


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
def test_a_name_or_model_beside_an_assembler_is_refused(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyChatCompletion(ScriptedService(Stage(), "Done."), Assembler([]), **more)
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyHistoryReducer(Assembler([]), **more)


def test_what_is_no_service_or_no_conversation_is_refused():
    with pytest.raises(ConfigurationError, match="inner must be a ChatCompletionClientBase"):
        AssemblyChatCompletion("gpt-4o", [])
    with pytest.raises(ConfigurationError, match="a conversation is"):
        AssemblyChatCompletion(ScriptedService(Stage(), "Done."), []).context_of("one")


async def test_with_and_without_instrumentation_the_same_is_sent():
    sent = []
    for on in (False, True):
        stage, telemetry = Stage(), RecordedTelemetry()
        with telemetry.as_default():
            if on:
                instrument("semantic_kernel")
            await agent(AssemblyChatCompletion(ScriptedService(stage, *LOOKS), budget())).get_response(
                "Go", thread=thread()
            )
            uninstrument("semantic_kernel")
        sent.append([received.said for received in stage.received])
        telemetry.shutdown()
    assert sent[0] == sent[1]


@settings(max_examples=25, deadline=None)
@given(
    turns=st.integers(0, 8),
    calls=st.lists(st.integers(1, 3), max_size=4),
    window=st.integers(330, 900),
    step=st.sampled_from([0, 200]),
    streams=st.booleans(),
)
async def test_whatever_a_run_does_its_requests_hold_the_budget_and_whole_pairs(turns, calls, window, step, streams):
    stage, held = Stage(), thread(turns)
    policies = [BudgetPolicy(window=window, output_reserve=50, step_tokens=step)]
    looker = agent(
        AssemblyChatCompletion(ScriptedService(stage, *([LOOK] * count for count in calls), "Done."), policies)
    )
    run = looker.invoke_stream if streams else looker.invoke
    assert "".join([str(message) async for message in run("Find all", thread=held)]) == "Done."
    for received in stage.received:
        assert received.tokens <= window - 50
        assert whole_pairs(received.messages)
    assert len(held) == 2 * turns + 2 + sum(count + 1 for count in calls)


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
