"""Our policies as a memory of LlamaIndex, and in front of a model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import Document, SummaryIndex
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.prompts import PromptTemplate
from llama_index_models import Received, Scripted, Stage, history, words
from llama_index_programs import Answer

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
from otel_assembly.instrumentation.llama_index import AssemblyMemory
from otel_assembly.testing import RecordedTelemetry

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


async def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def agent(stage: Stage, memory: AssemblyMemory | None, lines: Any = LOOKS, **more: Any) -> FunctionAgent:
    model = Scripted(stage, *lines)
    more = {"tools": [look], "system_prompt": "You look.", **more}
    return FunctionAgent(name="bob", llm=model if memory is None else memory.llm(model), **more)


def tokens(received: Received) -> int:
    return received.tokens(next(n for n, message in enumerate(received.messages) if message.role != "system"))


def whole_pairs(messages: list[ChatMessage]) -> bool:
    """Whether each result stands behind its call, and each call in front of its result."""
    asked: list[str] = []
    for message in messages:
        asked += [block.tool_call_id for block in message.blocks if block.block_type == "tool_call"]
        if message.role == "tool":
            asked.remove(message.additional_kwargs["tool_call_id"])
    return not asked


def budget(window: int = 400, **more: Any) -> BudgetPolicy:
    return BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)


async def test_no_call_is_over_the_budget_and_the_history_is_left_alone(assembly_telemetry):
    stage = Stage()
    memory = AssemblyMemory([budget()], ChatMemoryBuffer.from_defaults(chat_history=history(4)))
    await agent(stage, memory).run("Find all", memory=memory)
    assert [tokens(received) <= 350 for received in stage.received] == [True] * 7
    assert all(whole_pairs(received.messages) for received in stage.received)
    assert all(received.messages[0].content == "You look." for received in stage.received)
    assert all("Find all" in str(received.texts) for received in stage.received)
    assert len(memory.get_all()) == 8 + 2 + 3 * 6
    spans = assembly_telemetry.spans_named("assemble_context")
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {"llama_index"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [tokens(request) for request in stage.received]
    assert assembly_telemetry.violations() == []


async def test_the_very_objects_come_out():
    held = history(6)
    memory = AssemblyMemory([SlidingWindowPolicy(3)], ChatMemoryBuffer.from_defaults(chat_history=held))
    assert [any(item is message for message in held) for item in await memory.aget()] == [True] * 3
    assert memory.get() == held[-3:]
    assert memory.get_all() == held


async def test_by_itself_it_counts_what_it_was_told_will_be_sent_beside_it(assembly_telemetry):
    stage = Stage()
    memory = AssemblyMemory(
        [budget(240)], ChatMemoryBuffer.from_defaults(chat_history=history(20)), prompts=["You look."],
        model="gpt-4o",
        tools=[FunctionAgent(llm=Scripted(stage, ""), tools=[look]).tools[0]],
    )  # fmt: skip
    await agent(stage, None, lines=["Done."]).run("Find all", memory=memory)
    [received] = stage.received
    assert len(received.messages) > 3
    assert tokens(received) <= 190
    first, at_the_end = assembly_telemetry.spans_named("assemble_context")  # an agent reads its memory once more
    assert first.attributes["assembly.tokens.out"] == tokens(received) <= at_the_end.attributes["assembly.tokens.in"]


async def test_inside_an_instrumented_agent_it_is_told_once(told):
    stage = Stage()
    memory = AssemblyMemory([SlidingWindowPolicy(3)], Memory.from_defaults(session_id="one"), name="window")
    await agent(stage, memory).run("Find all", memory=memory)
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(7)]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"one"}
    assert {child.name for span in spans for child in span.children} == {"apply_policy sliding_window"}
    assert {span.parent.name for span in spans} == {"invoke_agent bob"}
    assert spans[0].parent.attributes["gen_ai.conversation.id"] == "one"
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [tokens(request) for request in stage.received]


async def test_by_itself_it_is_told_once_and_what_comes_behind_it_as_well(told):
    stage = Stage()
    memory = AssemblyMemory([SlidingWindowPolicy(3)], Memory.from_defaults(session_id="one"), name="window")
    memory.put_messages(history(3))
    llm = Scripted(stage, "Done.")
    await llm.achat(await memory.aget())
    [span] = told.spans_named("assemble_context")
    assert (span.attributes["assembly.name"], span.attributes["assembly.events.out"]) == ("window", 3)
    await llm.achat([ChatMessage(role="system", content="Be kind."), *await memory.aget(), ChatMessage(content="Now?")])
    by_framework = told.spans_named("assemble_context")[-1]
    assert by_framework.attributes["assembly.tokens.out"] == tokens(stage.received[-1])


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(told, streaming):
    stage = Stage()
    memory = AssemblyMemory(Assembler([AlertPolicy()], on_halt="return"), Memory.from_defaults(session_id="one"))
    await memory.context.send(fatal())
    for _ in range(2):
        with pytest.raises(HaltedError, match="stolen"):
            await agent(stage, memory, streaming=streaming).run("Find all", memory=memory)
    alone = AssemblyMemory([AlertPolicy()])
    await alone.context.send(fatal())
    with pytest.raises(HaltedError, match="stolen"):
        await agent(stage, None).run("Find all", memory=alone)
    assert stage.received == []
    top = told.spans_named("invoke_agent bob")[0]
    assert (top.status, top.attributes["error.type"]) == ("ERROR", "assembly_halt")


@pytest.mark.parametrize("streaming", [False, True])
async def test_no_tool_is_called_of_an_answer_upon_which_an_observer_halts(streaming):
    class Halts:
        name = "halts"
        watches = (ChatMessage,)

        async def process(self, event: Any, context: Any) -> Any:
            return fatal() if event.role == "assistant" else None

    called = []

    async def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    memory = AssemblyMemory([AlertPolicy()], observers=[Halts()])
    talker = agent(stage, memory, lines=[["call:note", "call:note"]], tools=[note], streaming=streaming)
    with pytest.raises(HaltedError):
        await talker.run("Go", memory=memory)
    assert (len(stage.received), called) == (1, [])


async def test_a_fatal_alert_in_the_middle_of_a_run_ends_it():
    memory = AssemblyMemory([AlertPolicy()])

    async def stop() -> str:
        """Stop."""
        await memory.context.send(fatal())
        return "stopped"

    stage = Stage()
    with pytest.raises(HaltedError, match="stolen"):
        await agent(stage, memory, lines=["call:stop"], tools=[stop]).run("Go", memory=memory)
    assert len(stage.received) == 1


async def test_a_budget_that_cannot_hold_raises_and_nothing_is_sent():
    stage = Stage()
    memory = AssemblyMemory([budget(60)])
    with pytest.raises(ContextOverflowError):
        await agent(stage, memory).run(f"Find all: {words(100)}", memory=memory)
    assert stage.received == []


async def test_an_alert_is_told_the_model_once():
    stage = Stage()
    memory = AssemblyMemory([AlertPolicy()])
    await memory.context.send(ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full."))
    await agent(stage, memory).run("Find all", memory=memory)
    assert ["Nearly full." in str(received.texts) for received in stage.received] == [True, *[False] * 6]
    assert [received.messages[0].content for received in stage.received] == ["You look."] * 7


async def test_policies_are_given_what_the_memory_has():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append((context.variables["held"], context.agent_name, context.model, len(context.tools)))
            return [*prompts, "Remember the order."], events

    stage = Stage()
    memory = AssemblyMemory([Looks()], variables=lambda memory: {"held": len(memory.get_all())}, agent_name="bob")
    await agent(stage, memory, lines=["Done."]).run("Go", memory=memory)
    assert seen == [(1, "bob", "gpt-4o", 1)]
    assert [message.content for message in stage.received[0].messages] == ["You look.", "Remember the order.", "Go"]


async def test_a_summary_is_a_request_that_any_model_can_be_sent(assembly_telemetry):
    stage = Stage()
    memory = AssemblyMemory(
        [budget(500, compact=ExtractiveCompactor(), summary_tokens=60)],
        ChatMemoryBuffer.from_defaults(chat_history=history(40)),
    )
    await agent(stage, memory).run("Find all", memory=memory)
    assert max(tokens(received) for received in stage.received) <= 450
    said = [
        message
        for message in stage.received[0].messages
        if str(message.content).startswith("[Earlier messages, summarised")
    ]
    assert [message.role.value for message in said] == ["user"]
    block = assembly_telemetry.spans_named("compact_block older")[0]
    assert block.attributes["assembly.compaction.outcome"] == "compacted"


@pytest.mark.parametrize("kept", [ChatMemoryBuffer.from_defaults, Memory.from_defaults])
async def test_observers_are_shown_every_message_once(kept):
    class Notes:
        name = "notes"
        watches = (ChatMessage,)

        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def process(self, event: Any, context: Any) -> None:
            self.seen.append(event)

    notes, stage = Notes(), Stage()
    memory = AssemblyMemory([SlidingWindowPolicy(4)], kept(), observers=[notes])
    talker = agent(stage, memory, lines=["call:look", "Done."])
    for _ in range(2):
        await talker.run("The same", memory=memory)
    assert [describe(message).kind for message in notes.seen] == [
        "request", "response", "tool_result", "response", "request", "response"
    ]  # fmt: skip


async def test_every_way_to_call_a_model_is_held():
    stage = Stage()
    memory = AssemblyMemory([budget(120)], ChatMemoryBuffer.from_defaults(chat_history=history(5)))
    llm: Any = memory.llm(Scripted(stage, "Done."))
    messages = [ChatMessage(role="system", content="Be brief."), *memory.get()]
    await asyncio.to_thread(llm.chat, messages)
    llm.chat(messages)
    await llm.achat(messages)
    assert [chunk.delta for chunk in llm.stream_chat(messages)] == ["Done."]
    assert [chunk.delta async for chunk in await llm.astream_chat(messages)] == ["Done."]
    assert [len(request.messages) for request in stage.received] == [len(stage.received[0].messages)] * 5
    assert max(tokens(received) for received in stage.received) <= 70
    assert llm.complete("Say it").text == str(await llm.acomplete("Say it")) == "Done."
    assert [chunk.delta for chunk in llm.stream_complete("Say it")] == ["Done."]
    assert [chunk.delta async for chunk in await llm.astream_complete("Say it")] == ["Done."]
    assert (llm.model, llm.metadata.context_window) == ("gpt-4o", 128_000)


async def test_a_model_that_must_call_a_tool_is_told_so():
    required = []

    class Asked(Scripted):
        def _prepare_chat_with_tools(self, tools: Any, tool_required: bool = False, **more: Any) -> dict[str, Any]:
            required.append(tool_required)
            return super()._prepare_chat_with_tools(tools, **more)

    llm = AssemblyMemory([budget()]).llm(Asked(Stage(), 'call:Answer {"city": "Bonn", "price": 3}'))
    answer = llm.structured_predict(Answer, PromptTemplate("What costs {what}?"), what="it")
    assert (answer, required) == (Answer(city="Bonn", price=3), [True])


async def test_engines_and_reasoners_are_held_as_well():
    stage = Stage()
    memory = AssemblyMemory([budget(120)], Memory.from_defaults(chat_history=None))
    engine = SimpleChatEngine.from_defaults(
        llm=memory.llm(Scripted(stage, "Done.")), memory=memory, system_prompt="Chat."
    )
    for turn in range(4):
        assert str(await engine.achat(f"Question {turn}: {words(8)}")) == "Done."
        assert str(engine.chat(f"Question {turn} again: {words(8)}")) == "Done."
    assert max(tokens(received) for received in stage.received) <= 70
    assert len(memory.get_all()) == 16
    context = AssemblyMemory([budget(300)])
    reader = SummaryIndex.from_documents([Document(text="Page 1.")]).as_chat_engine(
        "context", llm=context.llm(Scripted(stage, "Read.")), memory=context
    )
    assert [str(await reader.achat(f"Question {turn}: {words(8)}")) for turn in range(6)] == ["Read."] * 6
    assert max(tokens(received) for received in stage.received[8:]) <= 250
    reasoned = AssemblyMemory([budget(1_300)])
    lines = [*["Thought: I look.\nAction: look\nAction Input: {}"] * 8, "Thought: I know.\nAnswer: It."]
    reasoner = ReActAgent(llm=reasoned.llm(Scripted(stage, *lines)), tools=[look])
    assert str(await reasoner.run("Where?", memory=reasoned)) == "It."
    assert max(tokens(received) for received in stage.received[-9:]) <= 1_250


def test_it_is_made_as_memories_are():
    engine = SimpleChatEngine.from_defaults(llm=Scripted(Stage(), "Hi."), memory_cls=AssemblyMemory)
    assert str(engine.chat("Hello")) == "Hi."
    memory = AssemblyMemory.from_defaults([budget()], chat_history=history(1), agent_name="bob")
    assert len(memory.get()) == 2
    memory.set(history(2))
    assert len(memory.get()) == 4
    memory.reset()
    assert memory.get() == []
    asyncio.run(memory.aput(ChatMessage(content="Hi")))
    assert [message.content for message in asyncio.run(memory.aget_all())] == ["Hi"]
    asyncio.run(memory.areset())
    assert memory.get_all() == []


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_a_name_or_model_beside_an_assembler_is_refused(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyMemory(Assembler([]), **more)


async def test_with_and_without_instrumentation_the_same_is_sent():
    sent = []
    for on in (False, True):
        stage = Stage()
        telemetry = RecordedTelemetry()
        with telemetry.as_default():
            if on:
                instrument("llama_index")
            memory = AssemblyMemory([budget()], ChatMemoryBuffer.from_defaults(chat_history=history(4)))
            await agent(stage, memory).run("Find all", memory=memory)
            uninstrument("llama_index")
        sent.append([received.said for received in stage.received])
        telemetry.shutdown()
    assert sent[0] == sent[1]


@settings(max_examples=20, deadline=None)
@given(
    turns=st.integers(0, 8),
    calls=st.lists(st.integers(1, 3), max_size=5),
    window=st.integers(300, 900),
    step=st.sampled_from([0, 200]),
    kept=st.sampled_from([ChatMemoryBuffer.from_defaults, Memory.from_defaults]),
)
async def test_whatever_a_run_does_its_calls_hold_the_budget_and_whole_pairs(turns, calls, window, step, kept):
    stage = Stage()
    inner = kept()
    for message in history(turns):
        await inner.aput(message)
    memory = AssemblyMemory([BudgetPolicy(window=window, output_reserve=50, step_tokens=step)], inner)
    lines = [*(["call:look"] * count for count in calls), "Done."]
    assert str(await agent(stage, memory, lines=lines).run("Find all", memory=memory)) == "Done."
    for received in stage.received:
        assert tokens(received) <= window - 50
        assert whole_pairs(received.messages)
        assert "Find all" in received.texts
        assert received.messages[-1].role in {"user", "tool"}
    assert len(memory.get_all()) == 2 * turns + 2 + len(calls) + sum(calls)


class BedrockConverse(Scripted):
    """A model whose class states its provider, as LlamaIndex's own does; the model's name does not."""


async def test_the_class_of_the_model_states_which_role_comes_first():
    for made, first in ((Scripted, "assistant"), (BedrockConverse, "user")):
        stage = Stage()
        memory = AssemblyMemory([SlidingWindowPolicy(4)], ChatMemoryBuffer.from_defaults(chat_history=history(4)))
        talker = FunctionAgent(name="bob", llm=memory.llm(made(stage, "Done.")), tools=[look])
        await talker.run("Find all", memory=memory)
        assert stage.received[0].messages[0].role == first
