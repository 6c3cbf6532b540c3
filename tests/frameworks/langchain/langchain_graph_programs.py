"""Programs as LangChain's users write them without an agent: graphs of their own, and models that are simply called."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_calls import Client, Streaming, client
from langchain_core.messages import HumanMessage, RemoveMessage, SystemMessage, trim_messages
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_parts import ONE, asks, said, weather
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

# --- Graphs -----------------------------------------------------------------------------------------------------------


def line(state: type = MessagesState, **nodes: Any) -> Any:
    """Nodes one after the other."""
    builder, before = StateGraph(state), START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.add_edge(before, END)


async def a_chatbot_that_slices_by_hand(log):
    """No reducer of LangChain's is asked: the node sends what it likes of the state, and asks for a title beside it."""
    model = client(log, *map(str, range(9)))

    def answer(state):
        return {"messages": [model.invoke([SystemMessage("Be brief."), *state["messages"][-2:]])]}

    def title(state):
        model.invoke(f"Think of a title: {state['messages'][0].text}")
        return {}

    graph = line(answer=answer, title=title).compile(checkpointer=InMemorySaver())
    for number in range(3):
        result = await graph.ainvoke(asks(f"Question {number}?"), ONE)
    return said(result)


async def a_graph_that_summarises_in_a_node(log):
    """The summary is a node's own call of its model, and stands in the prompt of the next one."""

    class State(MessagesState, total=False):
        summary: str

    model = client(log, *map(str, range(20)))

    def answer(state):
        summary = [SystemMessage(f"Before: {state['summary']}")] if state.get("summary") else []
        return {"messages": [model.invoke([*summary, *state["messages"]])]}

    def summarise(state):
        if len(state["messages"]) < 5:
            return {}
        asked = [*state["messages"], HumanMessage("Sum that up.")]
        gone = [RemoveMessage(message.id) for message in state["messages"][:-2]]
        return {"summary": model.invoke(asked).text, "messages": gone}

    graph = line(State, answer=answer, summarise=summarise).compile(checkpointer=InMemorySaver())
    for number in range(4):
        result = graph.invoke(asks(f"Question {number}?"), ONE)
    return said(result)


async def work_that_is_sent_out_at_once(log):
    """A plan is made, each part of it is worked out by itself, and all of them are put together."""

    class State(TypedDict, total=False):
        topics: list[str]
        found: Annotated[list[str], operator.add]
        report: str

    model = client(log, "Answer.")

    def write(state):
        model.invoke("Plan it.")
        return {"topics": ["a", "b", "c"]}

    async def work(topic):
        await asyncio.sleep(0.05 * "abc".index(topic))
        given = [SystemMessage("You look things up."), HumanMessage(f"What of {topic}?")]
        return {"found": [(await model.ainvoke(given)).text]}

    def report(state):
        return {"report": model.invoke([("human", f"Put together: {state['found']}")]).text}

    builder = StateGraph(State).add_node("write", write).add_node("work", work).add_node("report", report)
    builder.add_edge(START, "write").add_edge("work", "report").add_edge("report", END)
    builder.add_conditional_edges("write", lambda state: [Send("work", topic) for topic in state["topics"]], ["work"])
    return await builder.compile().ainvoke({})


async def functions_instead_of_a_graph(log):
    """The functional API: an entry point that keeps its messages, and tasks that call the model."""
    model = client(log, "One.", "Two.", "Three.")

    @task
    def ask(messages):
        return model.invoke(messages)

    @entrypoint(checkpointer=InMemorySaver())
    def talk(text, *, previous=None):
        messages = [*(previous or []), HumanMessage(text)]
        messages = [*messages, ask(messages).result()]
        return entrypoint.final(value=messages[-1].text, save=messages)

    return [talk.invoke(text, ONE) for text in ("Hello.", "And?", "And then?")]


# --- No graph at all --------------------------------------------------------------------------------------------------


async def a_model_that_is_simply_called(log):
    """Every way that a chat model has, on texts, pairs, prompts and lists."""
    model = client(log, "Yes.")
    prompt = ChatPromptTemplate([("system", "You help {who}."), ("human", "{what}")])
    given = [SystemMessage("You help."), HumanMessage("Hello?")]
    found = [model.invoke("Hello?"), await model.ainvoke(given), *model.batch(["One?"]), *await model.abatch(["Two?"])]
    found += [*model.stream(given), *[part async for part in model.astream([("human", "Hello?")])]]
    found.append((prompt | model).invoke({"who": "Ada", "what": "What now?"}))
    found.append(await (prompt | model).ainvoke({"who": "Bob", "what": "And now?"}))
    found += [record.message for many in model.generate([given]).generations for record in many]
    found += [record.message for many in (await model.agenerate([given])).generations for record in many]
    found.append(model.bind_tools([weather]).invoke(given))
    streaming = client(log, "In many words.", of=Streaming, name="gpt-4.1")
    found += [*streaming.stream(given), *[part async for part in streaming.astream(given)]]
    async for _ in streaming.astream_events(given, version="v2"):
        pass
    return [message.text for message in found]


async def a_list_that_the_program_keeps_and_trims(log):
    """A chat loop, as a plain function, as a chain of runnables, and with a template around what is left."""
    model = client(log, *map(str, range(99)))
    trimmer = trim_messages(max_tokens=3, token_counter=len, strategy="last")
    prompt = ChatPromptTemplate([("system", "You help."), MessagesPlaceholder("history")])
    chain = trimmer | model
    around = {"history": trimmer} | prompt | model
    messages = []
    for number in range(3):
        messages.append(HumanMessage(f"Question {number}?"))
        kept = trim_messages(messages, max_tokens=2, token_counter=len)
        messages.append(model.invoke([SystemMessage("You help."), *kept]))
        messages.append(HumanMessage("Really?"))
        messages.append(chain.invoke(messages))
        messages.append(HumanMessage("In one word?"))
        messages.append(await around.ainvoke(messages))
    return [message.text for message in messages]


async def models_of_the_programs_own_make(log):
    """One that overrides how it is invoked, and one that leads to another."""

    class Polite(Client):
        def invoke(self, given, config=None, **settings):
            return super().invoke([*given, HumanMessage("Please.")], config, **settings)

    class Leads(Client):
        def _generate(self, messages, stop=None, run_manager=None, **settings):
            return self.metadata["to"]._generate(messages, **settings)

    polite = client(log, "Gladly.", of=Polite)
    leads = client([], "Never.", of=Leads, metadata={"to": client(log, "There.")})
    agent = create_agent(polite, [weather], system_prompt="You help.")
    return said(agent.invoke(asks("Help."))), leads.invoke("Where?").text


#: Each program, and how many traces its runs are.
GRAPHS = {
    a_chatbot_that_slices_by_hand: 3,
    a_graph_that_summarises_in_a_node: 4,
    work_that_is_sent_out_at_once: 1,
    functions_instead_of_a_graph: 3,
    a_model_that_is_simply_called: 14,
    a_list_that_the_program_keeps_and_trims: 9,
    models_of_the_programs_own_make: 2,
}
