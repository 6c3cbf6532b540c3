"""What policies and observers of the plug-in get to work with: stores, the run's context, messages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from langchain.agents import create_agent
from langchain_agents import Scripted, agent, arun, call, look_up, run, scripted
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from otel_assembly import AlertPolicy, BudgetPolicy, ConfigurationError, EpisodicMemoryPolicy, WorkingMemoryPolicy
from otel_assembly.instrumentation.langchain import AssemblyMiddleware, GraphKnowledgeStore
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.runtime import BudgetMonitor, LoopDetector, TokenMonitor

HOWS = pytest.mark.parametrize("how", ["sync", "async"])
WORKING, EPISODE = "/memory/working.md", "/memory/conversations/2026-01-01.md"


async def either(how, graph, messages="Refund booking 4711.", thread="one", **rest):
    config = {"configurable": {"thread_id": thread}}
    given = {"messages": [HumanMessage(messages)]}
    return graph.invoke(given, config, **rest) if how == "sync" else await graph.ainvoke(given, config, **rest)


def system(sent):
    return "\n".join(message.text for message in sent if message.type == "system")


class Keeps:
    """A policy that tells what it was given."""

    name = "keeps"

    def __init__(self):
        self.seen = []

    async def apply(self, prompts, events, context):
        self.seen.append((dict(context.variables), dict(context.dependencies)))
        return prompts, events


@HOWS
async def test_memory_policies_read_the_store_that_the_plugin_is_given(assembly_telemetry, how):
    store = MemoryKnowledgeStore()
    await store.write(WORKING, "Ada wants a window seat.")
    await store.write(EPISODE, "She was in Rome.")
    middleware = AssemblyMiddleware(
        [WorkingMemoryPolicy(), EpisodicMemoryPolicy()], dependencies={KnowledgeStore: store}
    )
    graph, model = agent(1, middleware)
    await either(how, graph)
    for sent in model.sent:
        assert "Ada wants a window seat." in system(sent)
        assert "She was in Rome." in system(sent)
    span = assembly_telemetry.span("assemble_context")
    assert span.attributes["assembly.prompt.sources"] == [
        "caller",
        "working_memory",
        "episodic_memory",
        "episodic_memory",
    ]
    step = assembly_telemetry.span("apply_policy working_memory").attributes
    assert step["assembly.prompts.out"] - step["assembly.prompts.in"] == 1
    assert step["assembly.tokens.out"] > step["assembly.tokens.in"]
    assert assembly_telemetry.violations() == []


@HOWS
async def test_the_store_that_the_agent_was_made_with_is_understood(assembly_telemetry, how):
    store = InMemoryStore()
    store.put(("knowledge", "memory"), "working.md", {"content": "Ada wants a window seat."})
    model = scripted("Done.")
    graph = create_agent(model, [], middleware=[AssemblyMiddleware([WorkingMemoryPolicy()])], store=store)
    await either(how, graph)
    assert "Ada wants a window seat." in system(model.sent[0])


@dataclass
class Run:
    user: str


@HOWS
async def test_each_users_memory_is_found_by_the_context_of_the_run(assembly_telemetry, how):
    store = InMemoryStore()
    for user in ("ada", "bob"):
        store.put(("users", user, "memory"), "working.md", {"content": f"This is {user}."})
    keeps = Keeps()
    middleware = AssemblyMiddleware(
        [WorkingMemoryPolicy(), keeps],
        dependencies=lambda runtime: {
            KnowledgeStore: GraphKnowledgeStore(runtime.store, ("users", runtime.context.user))
        },
    )
    model = scripted("Done.", "Done.")
    graph = create_agent(model, [], middleware=[middleware], store=store, context_schema=Run)
    await either(how, graph, thread="one", context=Run("ada"))
    await either(how, graph, thread="two", context=Run("bob"))
    assert ["This is ada." in system(sent) for sent in model.sent] == [True, False]
    assert ["This is bob." in system(sent) for sent in model.sent] == [False, True]
    assert [variables for variables, _ in keeps.seen] == [{"user": "ada"}, {"user": "bob"}]
    assert [dependencies[Run].user for _, dependencies in keeps.seen] == ["ada", "bob"]


@HOWS
async def test_a_store_that_can_only_be_asked_as_the_agent_is_invoked(assembly_telemetry, how):
    """Stores of databases belong to one event loop, or have no async side."""

    class OneSided(InMemoryStore):
        def batch(self, ops):
            assert how == "sync"
            return super().batch(ops)

        async def abatch(self, ops):
            assert how == "async"
            return await super().abatch(ops)

    store = OneSided()
    InMemoryStore.batch(store, [])
    store._data[("knowledge", "memory")]["working.md"] = _item("Ada wants a window seat.")
    model = scripted("Done.")
    graph = create_agent(model, [], middleware=[AssemblyMiddleware([WorkingMemoryPolicy()])], store=store)
    await either(how, graph)
    assert "Ada wants a window seat." in system(model.sent[0])


def _item(text):
    from datetime import UTC, datetime

    from langgraph.store.base import Item

    now = datetime.now(UTC)
    return Item(
        value={"content": text}, key="working.md", namespace=("knowledge", "memory"), created_at=now, updated_at=now
    )


@HOWS
async def test_variables_are_values_or_found_for_each_turn(assembly_telemetry, how):
    turns = []

    async def locate(runtime):
        turns.append(runtime)
        return {"turn": len(turns)}

    keeps, other = Keeps(), Keeps()
    middlewares = [
        AssemblyMiddleware([keeps], name="found", variables=locate),
        AssemblyMiddleware([other], name="given", variables={"tier": "gold"}),
    ]
    graph, _ = agent(1, *middlewares)
    await either(how, graph)
    assert [variables for variables, _ in keeps.seen] == [{"turn": 1}, {"turn": 2}]
    assert [variables for variables, _ in other.seen] == [{"tier": "gold"}] * 2


@HOWS
async def test_a_memory_policy_without_a_store_says_so_once(assembly_telemetry, caplog, how):
    graph, _ = agent(3, AssemblyMiddleware([WorkingMemoryPolicy()]))
    await either(how, graph)
    said = [record.getMessage() for record in caplog.records if record.name == "otel_assembly"]
    assert len(said) == 1
    assert "working_memory" in said[0]
    assert "KnowledgeStore" in said[0]


def looping(*answers):
    """A model that calls the same tool with the same arguments until it is done."""
    made = [call(0) for _ in range(3)]
    for number, message in enumerate(made):
        message.tool_calls[0]["id"] = f"call_{number}"
    return scripted(*made, *answers)


@HOWS
async def test_a_loop_is_found_in_langchains_messages_and_the_model_is_told_once(assembly_telemetry, how):
    model = looping("Done.")
    middleware = AssemblyMiddleware([AlertPolicy()], observers=[LoopDetector(10, 3)])
    graph = create_agent(model, [look_up], middleware=[middleware], checkpointer=InMemorySaver())
    await either(how, graph)
    assert ["loop 1: tool 'look_up' was called 3 times" in system(sent) for sent in model.sent] == [
        False,
        False,
        False,
        True,
    ]
    assert assembly_telemetry.metric("assembly.alerts.delivered", alert_source="loop_detector") == 1


@HOWS
async def test_a_fatal_alert_of_an_observer_ends_the_run_before_the_tool_is_called(telemetry, how):
    called = []

    def look_up(topic: str) -> str:
        """Look something up."""
        called.append(topic)
        return "found"

    model = looping("Never said.")
    middleware = AssemblyMiddleware([AlertPolicy()], observers=[LoopDetector(10, 3, severity="fatal")])
    graph = create_agent(model, [look_up], middleware=[middleware], checkpointer=InMemorySaver())
    result = await either(how, graph)
    assert len(model.sent) == 3
    assert len(called) == 2
    assert result["messages"][-1].content.startswith("Halted: FATAL: loop 1")
    again = await either(how, graph, "And now?")
    assert len(model.sent) == 3
    assert again["messages"][-1].content.startswith("Halted: ")
    assert telemetry.metric("assembly.halts") == 1


@HOWS
async def test_tokens_are_added_up_once_over_persisted_turns(assembly_telemetry, how):
    billed = [
        AIMessage("Done.", usage_metadata={"input_tokens": 40, "output_tokens": 10, "total_tokens": 50})
        for _ in range(4)
    ]
    model = Scripted(messages=iter(billed))
    middleware = AssemblyMiddleware([AlertPolicy()], observers=[TokenMonitor(100, 200)])
    graph = create_agent(model, [], middleware=[middleware], checkpointer=InMemorySaver())
    for question in ("one", "two", "three", "four"):
        await either(how, graph, question)
    assert ["100 tokens used" in system(sent) for sent in model.sent] == [False, False, True, False]


@HOWS
async def test_a_budget_that_fills_up_is_said_to_the_model(assembly_telemetry, how):
    graph, model = agent(
        2,
        AssemblyMiddleware(
            [AlertPolicy(), BudgetPolicy(window=400, output_reserve=100)],
            observers=[BudgetMonitor(utilization_threshold=0.05)],
        ),
    )
    await either(how, graph)
    assert ["of the budget" in system(sent) for sent in model.sent] == [False, True, False]


async def test_two_threads_have_each_their_own_observers_state(assembly_telemetry):
    billed = [
        AIMessage("Done.", usage_metadata={"input_tokens": 90, "output_tokens": 0, "total_tokens": 90})
        for _ in range(4)
    ]
    middleware = AssemblyMiddleware([AlertPolicy()], observers=[TokenMonitor(100, 200)])
    model = Scripted(messages=iter(billed))
    graph = create_agent(model, [], middleware=[middleware], checkpointer=InMemorySaver())
    for thread in ("one", "two", "one", "two"):
        await either("async", graph, thread=thread)
    assert not any("tokens used" in system(sent) for sent in model.sent)


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("dependencies", [1]),
        ("dependencies", MemoryKnowledgeStore()),
        ("variables", "gold"),
        ("observers", LoopDetector),
        ("observers", [object()]),
    ],
)
def test_what_cannot_be_given_is_refused(setting, wrong):
    with pytest.raises(ConfigurationError):
        AssemblyMiddleware([], **{setting: wrong})


async def test_a_function_that_returns_something_else_is_named():
    graph, _ = agent(0, AssemblyMiddleware([], variables=lambda runtime: 7))
    with pytest.raises(ConfigurationError, match="variables must return a mapping, not int"):
        await arun(graph)
    with pytest.raises(ConfigurationError, match="variables must return a mapping, not int"):
        run(graph)
