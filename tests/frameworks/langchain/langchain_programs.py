"""Programs as LangChain's users write them; each gives back what it would print, and its models share one log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents import middleware as offered
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    before_model,
    wrap_model_call,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_agents import summarizer
from langchain_calls import Client, Streaming, client
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, trim_messages
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_graph_programs import GRAPHS, line
from langchain_parts import ONE, asks, calls, said, weather
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel


def middleware(name: str) -> Any:
    """One of LangChain's own, if the installed release has it."""
    found = getattr(offered, name, None)
    if found is None:
        pytest.skip(f"this release has no {name}")
    return found


# --- Agents -----------------------------------------------------------------------------------------------------------


async def an_agent_that_nothing_reduces_for(log):
    """Tools in parallel, two asks of one thread, sync and async."""
    model = client(
        log, calls(("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})), "Rain in both.", "You are welcome."
    )
    agent = create_agent(model, [weather], system_prompt="You help.", checkpointer=InMemorySaver(), name="bob")
    agent.invoke(asks("Rome or Oslo?"), ONE)
    return said(await agent.ainvoke(asks("Thanks."), ONE))


async def an_agent_whose_every_hook_returns_nothing(log):
    """Until the conversation is long, nothing is done: each kind of reducer, and hooks that only look."""

    @before_model
    def looks(state, runtime):
        return None

    class Newest(AgentMiddleware):
        async def awrap_model_call(self, request, handler):
            return await handler(request.override(messages=request.messages[-6:]))

    @wrap_model_call
    async def passes(request, handler):
        return await handler(request)

    model = client(log, *(calls(("weather", {"city": f"City {n}"}), number=n) for n in range(7)), "Rain everywhere.")
    reducers = [
        summarizer("They ask about the weather.", at=10, keep=5),
        looks,
        ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=60, keep=1)]),
        passes,
        Newest(),
    ]
    agent = create_agent(model, [weather], system_prompt="You help.", middleware=reducers)
    return said(await agent.ainvoke(asks("The weather in seven cities?"), {"recursion_limit": 100}))[-1]


async def an_agent_that_answers_in_a_schema(log):
    class Answer(BaseModel):
        """The answer."""

        city: str
        rains: bool

    wrong = calls(("Answer", {"city": "Rome"}))
    right = calls(("Answer", {"city": "Rome", "rains": True}), number=1)
    model = client(log, calls(("weather", {"city": "Rome"}), number=2), wrong, right)
    agent = create_agent(model, [weather], response_format=ToolStrategy(Answer))
    found = [(await agent.ainvoke(asks("Rome?")))["structured_response"].model_dump()]

    class Provided(Client):
        profile: Any = None

    model = client(
        log,
        '{"city": "Oslo", "rains": false}',
        of=Provided,
        name="gpt-4.1",
        profile={"structured_output": True},
    )
    agent = create_agent(model, [], response_format=Answer)
    return [*found, agent.invoke(asks("Oslo?")).get("structured_response") is None]


async def a_supervisor_with_agents_as_tools(log):
    """Two of them at once, one of which looks things up itself."""
    inner = client(log, calls(("weather", {"city": "Rome"})), "It rains.", name="gpt-4.1")
    asked = create_agent(inner, [weather], system_prompt="You know the weather.", name="meteorologist")
    critic = create_agent(client(log, "Fine.", name="gpt-4"), [], name="critic")
    answered = asyncio.Event()

    @tool
    async def ask_meteorologist(question: str) -> str:
        """Ask the meteorologist."""
        forecast = said(await asked.ainvoke(asks(question)))[-1]
        answered.set()
        return forecast

    @tool
    async def ask_critic(text: str) -> str:
        """Ask the critic."""
        await answered.wait()  # the log of all models is then in one order
        return said(await critic.ainvoke(asks(text)))[-1]

    model = client(
        log, calls(("ask_meteorologist", {"question": "Rome?"}), ("ask_critic", {"text": "Rain?"})), "Rain, says he."
    )
    agent = create_agent(model, [ask_meteorologist, ask_critic], system_prompt="You lead.", name="lead")
    return said(await agent.ainvoke(asks("What of Rome?")))


async def an_agent_that_hands_over_to_another(log):
    """Nested agents as nodes of a graph that keeps what all of them said."""

    @tool
    def to_sales() -> Any:
        """Hand over to sales."""
        return Command(goto="sales", graph=Command.PARENT, update={"active": "sales"})

    class State(MessagesState, total=False):
        active: str

    support = create_agent(client(log, calls(("to_sales", {}))), [to_sales], system_prompt="Support.", name="support")
    sales = create_agent(client(log, "It costs five.", name="gpt-4.1"), [], system_prompt="Sales.", name="sales")
    builder = StateGraph(State)
    builder.add_node("support", support, destinations=("sales",))
    builder.add_node("sales", sales)
    builder.add_edge(START, "support")
    builder.add_edge("sales", END)
    result = await builder.compile(name="desk").ainvoke(asks("What does it cost?"))
    return said(result)[-1]


async def an_agent_like_a_deep_one(log):
    """It plans, chooses its tools with a model, and gives work to one of its own kind with a context of its own."""
    todo, selector = middleware("TodoListMiddleware"), middleware("LLMToolSelectorMiddleware")
    worker = create_agent(
        client(log, calls(("weather", {"city": "Rome"})), "It rains.", name="gpt-4.1"),
        [weather],
        middleware=[summarizer("S", at=20)],
        name="worker",
    )

    @tool
    def work(description: str) -> str:
        """Give work away."""
        return said(worker.invoke(asks(description)))[-1]

    chooses = client(log, calls(("ToolSelectionResponse", {"tools": ["work"]})), name="gpt-4o-mini")
    plan = calls(("write_todos", {"todos": [{"content": "Ask", "status": "pending"}]}))
    model = client(log, plan, calls(("work", {"description": "Rome's weather"}), number=1), "Rain.")
    agent = create_agent(model, [work, weather], middleware=[todo(), selector(model=chooses, max_tools=1)], name="deep")
    return said(agent.invoke(asks("What of Rome?"), {"recursion_limit": 50}))


async def an_agent_that_waits_for_a_person(log):
    """It is interrupted at a tool, and goes on from its checkpoint; then a node of another graph is."""
    human = middleware("HumanInTheLoopMiddleware")
    model = client(log, calls(("weather", {"city": "Rome"})), "It rains.")
    agent = create_agent(
        model, [weather], middleware=[human(interrupt_on={"weather": True})], checkpointer=InMemorySaver()
    )
    agent.invoke(asks("Rome?"), ONE)
    done = said(agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), ONE))

    other = client(log, "First.", "Second.", name="gpt-4.1")

    def answer(state):
        first = other.invoke(trim_messages(state["messages"], max_tokens=1, token_counter=len))
        return {"messages": [first, HumanMessage(interrupt("Go on?"))]}

    def call_next(state):
        return {"messages": [other.invoke(state["messages"])]}

    graph = line(answer=answer, goes_on=call_next).compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"messages": [HumanMessage("One."), HumanMessage("Two.")]}, ONE)
    return done, said(await graph.ainvoke(Command(resume="Yes."), ONE))


async def an_agent_that_is_cancelled_and_asked_again(log):
    """The first ask is given up while its model thinks; the thread goes on without an answer."""

    class Slow(Client):
        async def _agenerate(self, messages, stop=None, run_manager=None, **settings):
            done = self._generate(messages, **settings)
            if done.generations[0].text == "Never.":
                thinks.set()
                await asyncio.sleep(60)
            return done

    thinks = asyncio.Event()
    agent = create_agent(client(log, "Never.", "Here.", of=Slow), [], checkpointer=InMemorySaver())
    asking = asyncio.create_task(agent.ainvoke(asks("Are you there?"), ONE))
    await thinks.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    return said(await agent.ainvoke(asks("Hello?"), ONE))


async def agents_that_are_read_as_streams(log):
    """Each mode of a graph's stream, and models that stream themselves."""
    found = []
    model = client(log, calls(("weather", {"city": "Rome"})), "It rains there.", of=Streaming)
    agent = create_agent(model, [weather], system_prompt="You help.")
    for mode in ("values", "updates", "messages"):
        model._answers = [calls(("weather", {"city": "Rome"})), "It rains there."]
        found.append(len(list(agent.stream(asks("Rome?"), stream_mode=mode))))
        model._answers = [calls(("weather", {"city": "Rome"})), "It rains there."]
        found.append(len([part async for part in agent.astream(asks("Rome?"), stream_mode=mode)]))
    model._answers = ["It rains there."]
    found.append(len([part async for part in agent.astream_events(asks("Rome?"), version="v2")]) > 3)
    plain = create_agent(client(log, "Yes.", name="gpt-4.1"), [])
    found.append(len(list(plain.stream(asks("Yes?"), stream_mode="messages"))))
    return found


async def agents_that_try_again(log):
    """Middleware, settings of the model, and the graph's own policy: the very same messages are sent again."""
    retry, fallback = middleware("ModelRetryMiddleware"), middleware("ModelFallbackMiddleware")
    broken = ConnectionError("no")
    newest = wrap_model_call(lambda request, handler: handler(request.override(messages=request.messages[-2:])))
    history = [HumanMessage("One."), AIMessage("Two."), HumanMessage("Three.")]
    quick = {"max_retries": 2, "initial_delay": 0.0, "jitter": False}

    agent = create_agent(client(log, broken, broken, "Here."), [], middleware=[newest, retry(**quick)])
    found = [said(agent.invoke({"messages": history}))]
    agent = create_agent(client(log, broken, "Here."), [], middleware=[retry(**quick), newest])
    found.append(said(agent.invoke({"messages": history})))
    agent = create_agent(
        client(log, broken),
        [],
        middleware=[summarizer("Much.", at=3, keep=1), fallback(client(log, "Fell back.", name="gpt-4.1"))],
    )
    found.append(said(agent.invoke({"messages": history}))[-1:])

    tries = client(log, broken, "Here.").with_retry(wait_exponential_jitter=False, stop_after_attempt=2)
    falls = client(log, broken).with_fallbacks([client(log, "Fell back.", name="gpt-4.1")])

    async def answer(state):
        kept = trim_messages(state["messages"], max_tokens=2, token_counter=len)
        return {"messages": [await tries.ainvoke(kept), falls.invoke([SystemMessage("Be brief."), *kept])]}

    found.append(said(await line(answer=answer).compile().ainvoke({"messages": history})))

    again = client(log, broken, "Here.")

    def forget(state):
        return {"messages": [RemoveMessage(state["messages"][0].id)]}

    def speak(state):
        return {"messages": [again.invoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("forget", forget)
    builder.add_node("speak", speak, retry_policy=RetryPolicy(initial_interval=0.01, retry_on=ConnectionError))
    graph = builder.add_edge(START, "forget").add_edge("forget", "speak").compile()
    found.append(said(graph.invoke({"messages": history})))
    return found


@pytest.mark.filterwarnings("ignore")
async def agents_of_the_older_factory(log):
    """``create_react_agent``: bare, with a hook that reduces, with one that does nothing, and with an answer's form."""
    from langgraph.prebuilt import create_react_agent

    class Answer(BaseModel):
        """The answer."""

        rains: bool

    class Structured(Client):
        def with_structured_output(self, schema, **settings):
            return self | RunnableLambda(lambda message: schema(rains="rain" in message.text))

    def hook(state):
        kept = trim_messages(state["messages"], max_tokens=2, token_counter=len)
        return {"llm_input_messages": kept}

    def rewrites(state):
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"][-2:]]}

    found = []
    for settings in (
        {},
        {"prompt": "You help."},
        {"pre_model_hook": hook},
        {"pre_model_hook": rewrites, "checkpointer": InMemorySaver()},
        {"response_format": Answer},
    ):
        model = client(log, calls(("weather", {"city": "Rome"})), "It rains.", of=Structured)
        agent = create_react_agent(model, [weather], **settings)
        found.append(said(await agent.ainvoke({"messages": [HumanMessage("Hello."), HumanMessage("Rome?")]}, ONE)))
    return found


#: Each program, and how many traces its runs are.
PROGRAMS = {
    an_agent_that_nothing_reduces_for: 2,
    an_agent_whose_every_hook_returns_nothing: 1,
    an_agent_that_answers_in_a_schema: 2,
    a_supervisor_with_agents_as_tools: 1,
    an_agent_that_hands_over_to_another: 1,
    an_agent_like_a_deep_one: 1,
    an_agent_that_waits_for_a_person: 4,
    an_agent_that_is_cancelled_and_asked_again: 2,
    agents_that_are_read_as_streams: 8,
    agents_that_try_again: 5,
    agents_of_the_older_factory: 5,
    **GRAPHS,
}
