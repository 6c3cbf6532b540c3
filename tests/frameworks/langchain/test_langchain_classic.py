"""Agents and chains of ``langchain_classic``, and LangMem's node, where these packages are installed."""

from __future__ import annotations

import warnings
from typing import Any, TypedDict

import pytest
from langchain_agents import scripted
from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
from langchain_classic.chains import ConversationChain
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_parts import calls, weather
from langgraph.graph import START, MessagesState, StateGraph
from traced_calls import check_compact_blocks, span_of_call

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what LangMem imports asks LangGraph for a name that has moved
    from langmem.short_term import SummarizationNode

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ASSEMBLY = "assemble_context"
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "You help."), ("human", "{input}"), MessagesPlaceholder("agent_scratchpad")]
)


class State(MessagesState):
    context: dict[str, Any]


class Shortened(TypedDict):
    summarized_messages: list[Any]
    context: dict[str, Any]


class Calling(FakeMessagesListChatModel):
    """Answers with one message after the other, and may be given tools."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind()


def executor():
    asks = [calls(("weather", {"city": city}), number=number) for number, city in enumerate("ab")]
    agent = create_tool_calling_agent(Calling(responses=[*asks, AIMessage("Yes.")]), [weather], PROMPT)
    return AgentExecutor(agent=agent, tools=[weather])


async def invoke(agent):
    agent.invoke({"input": "Is it raining?"})


async def ainvoke(agent):
    await agent.ainvoke({"input": "Is it raining?"})


async def stream(agent):
    list(agent.stream({"input": "Is it raining?"}))


async def astream(agent):
    _ = [part async for part in agent.astream({"input": "Is it raining?"})]


@pytest.mark.parametrize("way", [invoke, ainvoke, stream, astream])
async def test_a_run_of_an_executor_is_one_trace_with_all_its_calls(telemetry, way):
    await way(executor())
    (root,) = [span for span in telemetry.spans if span.parent_id is None]
    assert root.name == "invoke_agent AgentExecutor"
    spans = telemetry.spans_named(ASSEMBLY)
    assert [span.attributes["assembly.events.in"] for span in spans] == [1, 3, 5]
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]
    assert {span.trace_id for span in spans} == {root.trace_id}


def test_a_classic_chain_is_a_run(telemetry):
    ConversationChain(llm=scripted("Hello.")).invoke({"input": "Hello?"})
    (root,) = [span for span in telemetry.spans if span.parent_id is None]
    assert root.name == "invoke_agent ConversationChain"


@pytest.mark.parametrize("name", ["summarization", "shorten"])
def test_langmems_node_has_its_name_and_its_summarizer_is_an_attempt(telemetry, name):
    model = scripted(*(f"Answer {number}." for number in range(9)))

    def answer(state: Shortened) -> dict[str, Any]:
        return {"messages": [model.invoke(state["summarized_messages"])]}

    class Traced(type(scripted())):
        def _generate(self, *args, **kwargs):
            with span_of_call(telemetry):
                return super()._generate(*args, **kwargs)

    summarizer = Traced(messages=iter([AIMessage("So far.")]))
    node = SummarizationNode(model=summarizer, max_tokens=60, max_summary_tokens=20, name=name)
    builder = StateGraph(State)
    builder.add_node("shorten the history", node)
    builder.add_node("answer", answer)
    builder.add_edge(START, "shorten the history")
    builder.add_edge("shorten the history", "answer")
    talk = [
        ("user" if number % 2 == 0 else "assistant", f"A rather long message, the {number}th of this conversation.")
        for number in range(7)
    ]
    builder.compile().invoke({"messages": talk})
    step, block = telemetry.span(f"apply_policy {name}"), telemetry.span("compact_block summary")
    assert block.parent.span_id == step.span_id
    assert block.attributes["assembly.compaction.outcome"] == "compacted"
    assert step.compacted
    assert step.attributes["assembly.policy.kind"] == "reduction"
    check_compact_blocks(telemetry)
