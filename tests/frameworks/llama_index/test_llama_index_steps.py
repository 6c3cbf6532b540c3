"""What is said of each call: who asks, in which conversation, and which memory made what of its messages."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import llama_index_programs as programs
import pytest
from _pytest.monkeypatch import MonkeyPatch
from llama_index.core import Settings
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ImageBlock, LLMMetadata, TextBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.memory import (
    ChatMemoryBuffer,
    ChatSummaryMemoryBuffer,
    Memory,
    SimpleComposableMemory,
    StaticMemoryBlock,
)
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index_models import Completing, Scripted, Stage, history, words
from traced_calls import CALL, TracedCalls, check_linked, check_summarizers_calls, span_of_call


def steps(assembly: Any) -> list[str]:
    return [child.attributes["assembly.policy.name"] for child in assembly.children]


def assemblies(telemetry: Any) -> list[Any]:
    return sorted(telemetry.spans_named("assemble_context"), key=lambda span: span.end_ns)


async def test_what_is_composed_is_made_of_what_the_primary_memory_gave(told):
    """A message that is put into such a memory is put into all of its sources, the very object."""
    stage = Stage()
    summariser = Scripted(stage, "They talked of words.", model="gpt-4o-mini", summarises=True)
    memory = SimpleComposableMemory.from_defaults(
        primary_memory=ChatSummaryMemoryBuffer.from_defaults(llm=summariser, token_limit=30),
        secondary_memory_sources=[ChatMemoryBuffer.from_defaults(chat_history=history(1))],
    )
    engine = SimpleChatEngine.from_defaults(llm=Scripted(stage, "Done."), memory=memory)
    for turn in range(2):
        engine.chat(f"Question {turn}: {words(8)}")
    first, second = assemblies(told)
    assert (steps(first), first.attributes["assembly.events.in"]) == (["simple_composable_memory"], 1)
    assert steps(second) == ["chat_summary_memory_buffer", "simple_composable_memory"]
    assert {"0", "1"} < set(second.children[0].compacted)  # and what was composed before, which the primary one keeps
    assert second.children[1].dropped_reasons == {}
    assert len(told.spans_named("compact_block summary")) == len(stage.summaries)


async def test_one_memory_is_one_ledger_over_all_its_runs(told):
    agent = FunctionAgent(llm=Scripted(Stage(), "Done."), name="bob")
    memory = ChatMemoryBuffer.from_defaults()
    for said in ("One", "Two"):
        await agent.run(said, memory=memory)
    await agent.run("Other")
    spans = assemblies(told)
    ledgers = [span.attributes["assembly.ledger.id"] for span in spans]
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 0]
    assert ledgers[0] == ledgers[1] != ledgers[2]
    assert not any("gen_ai.conversation.id" in span.attributes for span in spans)
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}


@pytest.mark.parametrize(
    ("memory", "known"),
    [
        (lambda: Memory.from_defaults(session_id="s-1"), "s-1"),
        (lambda: ChatMemoryBuffer.from_defaults(chat_store_key="guest-1"), "guest-1"),
        (lambda: ChatSummaryMemoryBuffer.from_defaults(chat_store_key="guest-1"), "guest-1"),
        (lambda: ChatMemoryBuffer.from_defaults(chat_store=SimpleChatStore()), None),
    ],
)
async def test_a_conversation_has_the_id_of_its_session_or_its_key_in_a_store(told, memory, known):
    agent = FunctionAgent(llm=Scripted(Stage(), "Done."))
    held = memory()
    await agent.run("One", memory=held)
    engine = SimpleChatEngine.from_defaults(llm=Scripted(Stage(), "Done."), memory=held)
    await engine.achat("Two")
    assert [span.attributes.get("gen_ai.conversation.id") for span in told.spans_named("assemble_context")] == [
        known
    ] * 2
    runs = [*told.spans_named("invoke_agent Agent"), *told.spans_named("invoke_agent SimpleChatEngine")]
    assert [span.attributes.get("gen_ai.conversation.id") for span in runs] == [known] * 2
    assert [span.attributes["assembly.turn"] for span in assemblies(told)] == [0, 1]


async def test_what_tools_answer_in_a_run_is_not_under_the_limit_of_a_buffer(told):
    async def report() -> str:
        """Give a long report."""
        return words(300)

    memory = ChatMemoryBuffer.from_defaults(token_limit=200, chat_history=history(12))
    agent = FunctionAgent(llm=Scripted(Stage(), "call:report", "Done."), tools=[report])
    await agent.run("Go", memory=memory)
    assert [steps(assembly) for assembly in assemblies(told)] == [["chat_memory_buffer"]] * 2
    assert not any("error.type" in assembly.attributes for assembly in assemblies(told))


async def test_a_buffer_leaves_out_what_is_over_its_limit(told):
    memory = ChatMemoryBuffer.from_defaults(token_limit=45, chat_history=history(3))
    await FunctionAgent(llm=Scripted(Stage(), "Done.")).run("Go", memory=memory)
    (assembly,) = assemblies(told)
    (step,) = assembly.children
    assert step.attributes["assembly.policy.name"] == "chat_memory_buffer"
    assert step.attributes["assembly.policy.kind"] == "reduction"
    assert step.attributes["assembly.dropped.items"] == ["0-3"]
    assert assembly.attributes["assembly.budget.limit"] == 45
    assert (
        [drop["assembly.decision.reason"] for drop in step.drops] == ["over_budget"] if hasattr(step, "drops") else True
    )


async def test_what_leaves_a_queue_is_told_with_the_next_call_and_what_blocks_put_in_as_well(told):
    stage = Stage()
    await programs.remembered_in_blocks(stage)
    spans = assemblies(told)
    assert [steps(span) for span in spans[:5]] == [
        ["memory_blocks"], ["memory_blocks"], ["memory_blocks"], ["memory_queue", "memory_blocks"], ["memory_blocks"],
    ]  # fmt: skip
    queue, blocks = spans[3].children
    assert (queue.attributes["assembly.policy.kind"], blocks.attributes["assembly.policy.kind"]) == (
        "reduction",
        "injection",
    )
    assert queue.attributes["assembly.dropped.items"] == ["0-4"]
    (facts,) = queue.children
    assert facts.name.startswith("compact_block")
    assert facts.attributes["assembly.compaction.outcome"] == "compacted"
    assert blocks.attributes["assembly.events.out"] == blocks.attributes["assembly.events.in"] + 1
    assert len(stage.summaries) == 2


async def test_blocks_that_are_put_into_the_newest_request_edit_it(told):
    memory = Memory.from_defaults(
        insert_method="user", memory_blocks=[StaticMemoryBlock(static_content="Bonn is far.")]
    )
    await FunctionAgent(llm=Scripted(Stage(), "Done.")).run("Where?", memory=memory)
    (assembly,) = assemblies(told)
    (step,) = assembly.children
    assert (step.attributes["assembly.events.in"], step.attributes["assembly.events.out"]) == (1, 1)
    assert step.attributes["assembly.tokens.out"] > step.attributes["assembly.tokens.in"]


@pytest.mark.parametrize("said", ["They talked.", ""])
async def test_a_summary_stands_for_what_its_model_was_given(told, said):
    summariser = Scripted(Stage(), said, model="gpt-4o-mini", summarises=True)
    memory = ChatSummaryMemoryBuffer.from_defaults(llm=summariser, token_limit=40, chat_history=history(3))
    await FunctionAgent(llm=Scripted(Stage(), "Done.")).run("Go", memory=memory)
    (assembly,) = assemblies(told)
    (step,) = assembly.children
    (block,) = step.children
    assert step.attributes["assembly.policy.name"] == "chat_summary_memory_buffer"
    assert block.attributes["assembly.compaction.outcome"] == ("compacted" if said else "empty")
    assert bool(step.attributes.get("assembly.compacted.items")) is bool(said)
    assert bool(step.attributes.get("assembly.dropped.items")) is not bool(said)


async def test_the_span_of_a_summary_covers_the_call_of_its_model(told):
    class Summarizer(Scripted):
        def _line(self, messages: Any, tools: Any = ()) -> ChatMessage:
            times.append(time.time_ns())
            return super()._line(messages, tools)

    times: list[int] = []
    summarizer = Summarizer(Stage(), "They talked.", model="gpt-4o-mini", summarises=True)
    memory = ChatSummaryMemoryBuffer.from_defaults(llm=summarizer, token_limit=40, chat_history=history(3))
    await FunctionAgent(llm=Scripted(Stage(), "Done.")).run("Go", memory=memory)
    block = told.span("compact_block summary")
    assert block.start_ns <= times[0] <= times[-1] <= block.end_ns


async def test_a_summary_whose_model_raises_has_its_span(told):
    await programs.summariser_fails(Stage())
    block = told.span("compact_block summary")
    assert block.parent.name == "apply_policy chat_summary_memory_buffer"
    assert block.attributes["assembly.compaction.outcome"] == "raised"


async def test_without_a_model_a_summary_buffer_only_cuts(told):
    memory = ChatSummaryMemoryBuffer.from_defaults(token_limit=40, chat_history=history(3))
    await FunctionAgent(llm=Scripted(Stage(), "Done.")).run("Go", memory=memory)
    (step,) = assemblies(told)[0].children
    assert step.attributes["assembly.dropped.items"] == ["0-3"]


async def test_a_memory_of_a_program_s_own_goes_by_its_class_s_name(told):
    await programs.own_memories(Stage())
    named = [steps(span) for span in assemblies(told)]
    assert ["Newest"] in named
    assert ["Shorter"] in named


async def test_a_memory_that_raises_ends_the_call_that_is_not_made(told):
    await programs.summariser_fails(Stage())
    failed = next(span for span in assemblies(told) if span.attributes.get("error.type"))
    assert failed.attributes["error.type"] == "ConnectionError"
    assert failed.attributes["gen_ai.agent.name"] == "summed"
    assert failed.attributes["assembly.events.in"] == 5
    (step,) = failed.children
    assert step.attributes["error.type"] == "ConnectionError"


async def test_each_agent_of_a_team_asks_by_its_own_name_in_one_conversation(told):
    await programs.handed_over(Stage())
    spans = assemblies(told)
    assert [span.attributes["gen_ai.agent.name"] for span in spans] == ["finder", "writer", "writer"]
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"team"}
    assert {span.parent.name for span in spans} == {"invoke_agent AgentWorkflow"}


async def test_a_question_that_is_condensed_is_a_call_of_its_own(told):
    await programs.condensed_with_context(Stage())
    spans = assemblies(told)
    assert [span.attributes["assembly.events.out"] for span in spans] == [1, 1, 3, 1, 3]
    ledgers = [span.attributes["assembly.ledger.id"] for span in spans]
    assert ledgers[0] == ledgers[2] == ledgers[4] not in {ledgers[1], ledgers[3]}
    assert steps(spans[4]) == ["chat_memory_buffer"]


async def test_what_a_program_cuts_behind_its_memory_is_told_of_the_framework(told):
    memory, llm = ChatMemoryBuffer.from_defaults(chat_history=history(3)), Scripted(Stage(), "Done.")
    await llm.achat(memory.get()[-2:])
    (assembly,) = assemblies(told)
    assert steps(assembly) == ["framework"]
    assert assembly.attributes["assembly.dropped.count"] == 4


async def test_a_model_that_only_completes_is_told_by_the_messages_of_its_text(told):
    engine = SimpleChatEngine.from_defaults(llm=Completing(Stage(), "Done."), system_prompt="Chat.")
    assert str(engine.chat("Hello")) == str(await engine.achat("Again")) == "Done."
    streamed = "".join([token async for token in (await engine.astream_chat("More")).async_response_gen()])
    assert streamed == "Done."
    told_of = [
        (span.attributes["assembly.events.out"], span.attributes["assembly.prompts.out"]) for span in assemblies(told)
    ]
    assert told_of == [(1, 1), (3, 1), (5, 1)]


@pytest.mark.parametrize("ask", ["complete", "stream_complete"])
def test_a_model_that_is_asked_wrongly_refuses_that_itself(told, ask):
    model = MockLLM()
    model.complete("Hello")
    with pytest.raises(ValueError, match="No prompt"):
        getattr(model, ask)()
    with pytest.raises(TypeError, match="missing"):
        getattr(model, ask.replace("complete", "chat"))()
    assert len(told.spans_named("assemble_context")) == 1
    with pytest.raises(TypeError, match="multiple values"):
        getattr(model, ask)("Hello", prompt="Hello")


async def test_a_query_without_a_model_has_no_span(told):
    with MonkeyPatch.context() as patch:
        patch.setattr(Settings, "_llm", Scripted(Stage(), "Never."))
        await programs.index().as_query_engine(response_mode="no_text").aquery("What?")
    assert told.spans == []


async def test_a_run_has_the_length_of_its_stream(told):
    engine = SimpleChatEngine.from_defaults(llm=Scripted(Stage(), "So it is."))
    answer = await engine.astream_chat("Is it?")
    assert not told.spans_named("invoke_agent SimpleChatEngine")
    assert "".join([token async for token in answer.async_response_gen()]) == "So it is."
    await asyncio.sleep(0)  # the task that writes is done behind the last token
    assert told.span("invoke_agent SimpleChatEngine").end_ns >= told.span("assemble_context").end_ns


async def test_the_window_is_the_one_that_was_set_or_that_a_class_lists(told):
    class Set(Scripted):
        context_window: int = 3_900

        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(model_name=self.model, is_chat_model=True, context_window=self.context_window)

    for llm in (
        Set(Stage(), "Hi."),
        Set(Stage(), "Hi.", context_window=9_000),
        Completing(Stage(), "Hi.", model="own"),
    ):
        llm.complete("Hello")
    windows = [span.attributes.get("assembly.model.window") for span in assemblies(told)]
    assert windows[1] == 9_000
    assert 3_900 not in windows


async def test_a_system_message_of_more_than_text_is_an_item(told):
    message = ChatMessage(role="system", blocks=[TextBlock(text="One."), ImageBlock(url="https://example.org/a.png")])
    Scripted(Stage(), "Hi.").chat([message, ChatMessage(content="Hello")])
    (assembly,) = assemblies(told)
    assert (assembly.attributes["assembly.prompts.out"], assembly.attributes["assembly.events.out"]) == (0, 2)


async def test_what_comes_in_of_a_flush_that_no_call_follows_is_not_told(told):
    memory = Memory.from_defaults(token_limit=40, token_flush_size=10)
    for message in history(3):
        await memory.aput(message)
    assert told.spans == []
    await Scripted(Stage(), "Hi.").achat(await memory.aget())
    (assembly,) = assemblies(told)
    assert set(steps(assembly)) == {"memory_queue"}
    assert assembly.attributes["assembly.events.in"] == 6


async def test_agents_at_once_do_not_take_one_another_s_steps(told):
    stage = Stage()
    agents = [FunctionAgent(name=f"agent{n}", llm=Scripted(stage, "Done.")) for n in range(4)]
    memories = [programs.Newest(messages=history(n), keep=1 + n) for n in range(4)]
    await asyncio.gather(*(programs._ran(message, f"Go {words(n)}", memory=held) for n, (message, held) in enumerate(zip(agents, memories, strict=True))))  # fmt: skip  # noqa: E501
    said = {span.attributes["gen_ai.agent.name"]: span.attributes for span in assemblies(told)}
    got = [(said[f"agent{n}"]["assembly.events.in"], said[f"agent{n}"]["assembly.events.out"]) for n in range(4)]
    assert got == [(1, 1), (3, 2), (5, 3), (7, 4)]


class Continuing(Scripted):
    """A model that goes on from its last response, as LlamaIndex's client of OpenAI's Responses does."""

    _previous_response_id: str | None = PrivateAttr(default=None)

    def _line(self, messages: Any, tools: Any = ()) -> ChatMessage:
        self._previous_response_id = "resp_1"
        return super()._line(messages, tools)


async def test_what_the_provider_holds_is_not_known(told):
    model, asked = Continuing(Stage(), "Yes."), [ChatMessage("And now?")]
    await model.achat(asked)
    await model.achat(asked)
    await Scripted(Stage(), "Yes.").achat(asked, previous_response_id="resp_0")
    known = [span.attributes.get("assembly.input.unknown") for span in told.spans_named("assemble_context")]
    assert known == [None, True, True]


@pytest.mark.parametrize(
    "program",
    [programs.summed_up_by_a_model, programs.remembered_in_blocks, programs.summariser_fails],
    ids=lambda program: program.__name__,
)
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, program, Stage())


def test_bare_calls_and_their_model_spans_belong_together_also_without_a_parent(told):
    stage, memory = Stage(), ChatMemoryBuffer.from_defaults(token_limit=40, chat_history=history(3))
    llm = Scripted(stage, "One.", "Two.", "Three.")
    stage.received = TracedCalls(told)
    llm.chat(memory.get())
    list(llm.stream_chat(memory.get()))
    llm.complete("Hi")
    check_linked(told)


def test_a_model_span_behind_a_bare_call_is_not_of_that_call(told):
    Scripted(Stage(), "One.").chat(history(1))  # no instrumentation of its client makes a span
    with span_of_call(told):
        pass
    (call,) = told.spans_named(CALL)
    assert "assembly.id" not in call.attributes
    assert not call.links
