"""Our policies as a memory of LlamaIndex, and in front of a model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
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
    BudgetPolicy,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
)
from otel_assembly.instrumentation.llama_index import AssemblyMemory

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


def budget(window: int = 400, **more: Any) -> BudgetPolicy:
    return BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)


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


async def test_a_fatal_alert_ends_the_run_if_the_chain_runs_in_the_memory():
    stage = Stage()
    alone = AssemblyMemory([AlertPolicy()])
    await alone.context.send(fatal())
    with pytest.raises(HaltedError, match="stolen"):
        await agent(stage, None).run("Find all", memory=alone)
    assert stage.received == []


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


class BedrockConverse(Scripted):
    """A model whose class states its provider, as LlamaIndex's own does; the model's name does not."""


async def test_the_class_of_the_model_states_which_role_comes_first():
    for made, first in ((Scripted, "assistant"), (BedrockConverse, "user")):
        stage = Stage()
        memory = AssemblyMemory([SlidingWindowPolicy(4)], ChatMemoryBuffer.from_defaults(chat_history=history(4)))
        talker = FunctionAgent(name="bob", llm=memory.llm(made(stage, "Done.")), tools=[look])
        await talker.run("Find all", memory=memory)
        assert stage.received[0].messages[0].role == first
