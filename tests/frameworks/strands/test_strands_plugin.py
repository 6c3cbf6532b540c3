"""Our policies as the conversation manager of a Strands agent."""

from __future__ import annotations

from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterModelCallEvent
from strands.session import FileSessionManager
from strands.types.exceptions import ContextWindowOverflowException
from strands_models import ScriptedModel, Stage, history, words
from strands_programs import InvokeModelStage, look

from otel_assembly import (
    AlertPolicy,
    BudgetPolicy,
    ContextOverflowError,
    HaltedError,
    HeadAndTailPolicy,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
)

if InvokeModelStage is None:
    pytest.skip("it works as middleware, which this release has not", allow_module_level=True)

from otel_assembly.instrumentation.strands import AssemblyConversationManager

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def agent(stage: Stage, manager: Any, *, lines: Any = LOOKS, tools: Any = (look,), **more: Any) -> Agent:
    more.setdefault("system_prompt", "You look.")
    return Agent(
        model=ScriptedModel(stage, *lines), name="bob", tools=list(tools), conversation_manager=manager,
        callback_handler=None, **more,
    )  # fmt: skip


def sendable(messages: list[Any]) -> bool:
    """Whether Bedrock would take it: it begins with a user's, roles alternate, and each call has its result behind."""
    roles = [message["role"] for message in messages]
    asked: set[str] = set()
    for message in messages:
        asked |= {block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block}
        for block in message["content"]:
            if "toolResult" in block:
                asked.remove(block["toolResult"]["toolUseId"])
    return roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] and not asked


def budget(window: int = 400, **more: Any) -> AssemblyConversationManager:
    return AssemblyConversationManager([BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)])


async def test_policies_are_handed_the_very_messages_of_the_agent():
    seen: list[Any] = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append(list(events))
            return prompts, events

    talker = agent(Stage(), AssemblyConversationManager([Looks()]), lines=["call:look", "Done."])
    await talker.invoke_async("Find all")
    assert [len(message) for message in seen] == [1, 3]
    assert all(event is own for events in seen for event, own in zip(events, talker.messages, strict=False))


async def test_what_other_middleware_does_before_it_is_told_of_beside_it(told):
    def verbose(context: Any) -> Any:
        context.messages = [*history(9), *context.messages]
        return context

    stage = Stage()
    talker = agent(stage, AssemblyConversationManager([BudgetPolicy(400, 50, 0)], name="budget"))
    talker._middleware_registry.add_middleware(InvokeModelStage.Input, verbose)
    await talker.invoke_async("Find all")
    assert max(received.tokens for received in stage.received) <= 350
    spans = told.spans_named("assemble_context")
    sent = [span for span in spans if span.attributes.get("assembly.name") == "budget"]
    assert [span.attributes["assembly.tokens.out"] for span in sent] == [request.tokens for request in stage.received]
    before = [span for span in spans if span not in sent]
    assert {child.name for span in before for child in span.children} == {"apply_policy verbose"}


async def test_middleware_behind_it_is_a_step_by_its_name(told):
    async def answers_first(context: Any, next_fn: Any) -> Any:
        context.messages = [*context.messages, *reversed(history(1))]
        async for event in next_fn(context):
            yield event

    one = agent(Stage(), AssemblyConversationManager([SlidingWindowPolicy(4)]), lines=["Done."], messages=history(4))
    one._middleware_registry.add_middleware(InvokeModelStage, answers_first)
    await one.invoke_async("Go")
    _, behind = told.spans_named("assemble_context")
    assert [step.attributes["assembly.policy.name"] for step in behind.children] == ["answers_first"]


async def test_what_is_left_is_what_bedrock_takes(told):
    """A window may begin with an answer, and what is left out between two ends leaves two of one role."""
    for policy in (SlidingWindowPolicy(4), SlidingWindowPolicy(2), HeadAndTailPolicy(1, 1), HeadAndTailPolicy(2, 2)):
        stage = Stage()
        lines = ["One.", "call:look", "Two.", "Three."]
        talker = agent(stage, AssemblyConversationManager([policy]), lines=lines, messages=history(3))
        for number in range(3):
            await talker.invoke_async(f"Question {number}")
        assert [sendable(received.messages) for received in stage.received] == [True] * 4
        assert all("Question" in str(received.messages) for received in stage.received)
        spans = told.spans_named("assemble_context")
        assert [span.attributes["assembly.tokens.out"] for span in spans] == [
            request.tokens for request in stage.received
        ]
        told.clear()


async def test_an_alert_is_told_the_model_once_behind_the_prompt_as_it_was():
    stage = Stage()
    manager = AssemblyConversationManager([AlertPolicy()])
    prompt: Any = [{"text": "You look."}, {"cachePoint": {"type": "default"}}]
    talker = agent(stage, manager, system_prompt=prompt)
    warning = ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full.")
    await manager.context_of(talker).send(warning)
    await talker.invoke_async("Find all")
    assert ["Nearly full." in str(received.prompts) for received in stage.received] == [True, *[False] * 6]
    assert [received.prompts[0] for received in stage.received] == ["You look."] * 7


async def test_no_tool_is_called_once_a_hook_has_halted_the_conversation():
    manager = AssemblyConversationManager([AlertPolicy()])
    stage = Stage()
    talker = agent(stage, manager, lines=["call:look", "Never."])

    async def halts(event: AfterModelCallEvent) -> None:
        await manager.context_of(event.agent).send(fatal())

    talker.hooks.add_callback(AfterModelCallEvent, halts)
    with pytest.raises(HaltedError):
        await talker.invoke_async("Go")
    assert len(stage.received) == 1
    assert "Not called: " in str(talker.messages[-1])


async def test_it_reaches_whoever_runs_the_agent_from_a_later_cycle_too():
    @tool
    def much() -> str:
        """Say very much."""
        return words(500)

    stage = Stage()
    with pytest.raises(ContextOverflowError) as raised:
        await agent(stage, budget(), lines=["call:much"], tools=(much,)).invoke_async("Go")
    assert raised.value.__cause__ is None
    assert len(stage.received) == 1


async def test_a_model_that_takes_less_than_the_budget_says_so():
    stage = Stage()
    talker = agent(stage, budget(), lines=[ContextWindowOverflowException("too long")])
    with pytest.raises(ContextWindowOverflowException, match="too long"):
        await talker.invoke_async("Go")
    assert len(stage.received) == 1


async def test_a_session_keeps_the_whole_history_and_is_one_conversation(tmp_path, told):
    manager = AssemblyConversationManager([SlidingWindowPolicy(2), AlertPolicy()], name="window")
    for turn in range(3):
        session = FileSessionManager(session_id="s-1", storage_dir=str(tmp_path))
        talker = agent(Stage(), manager, lines=["Done."], session_manager=session)
        assert len(talker.messages) == 2 * turn
        await talker.invoke_async(f"Question {turn}")
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"s-1"}
    await manager.context_of(talker).send(fatal())
    again = agent(Stage(), manager, session_manager=FileSessionManager("s-1", storage_dir=str(tmp_path)))
    with pytest.raises(HaltedError):
        await again.invoke_async("On")
