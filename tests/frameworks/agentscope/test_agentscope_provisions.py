"""What policies and observers of the plug-in get to work with inside AgentScope."""

from __future__ import annotations

from scripted import ScriptedModel, agent, interrupted, talk, tool

from otel_assembly import AlertPolicy, BudgetPolicy, EpisodicMemoryPolicy, WorkingMemoryPolicy
from otel_assembly.instrumentation.agentscope import AssemblyMiddleware
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.runtime import BudgetMonitor, LoopDetector, TokenMonitor

WORKING, EPISODE = "/memory/working.md", "/memory/conversations/2026-01-01.md"


def look_up() -> str:
    """Look something up."""
    return "found"


def sent(model):
    """The system prompt of each model call."""
    return ["\n".join(m.get_text_content() or "" for m in asked if m.role == "system") for asked in model.asked]


async def test_memory_policies_read_the_store_that_the_plugin_is_given(assembly_telemetry):
    store = MemoryKnowledgeStore()
    await store.write(WORKING, "Ada wants a window seat.")
    await store.write(EPISODE, "She was in Rome.")
    middleware = AssemblyMiddleware(
        [WorkingMemoryPolicy(), EpisodicMemoryPolicy()], dependencies={KnowledgeStore: store}
    )
    model = ScriptedModel()
    await talk(agent(model, middlewares=[middleware]), "hello")
    assert "You are a travel agent." in sent(model)[0]
    assert "Ada wants a window seat." in sent(model)[0]
    assert "She was in Rome." in sent(model)[0]
    span = assembly_telemetry.span("assemble_context")
    assert span.attributes["assembly.prompt.sources"] == [
        "caller",
        "working_memory",
        "episodic_memory",
        "episodic_memory",
    ]
    assert assembly_telemetry.violations() == []


async def test_what_is_given_may_be_found_for_each_agent(assembly_telemetry):
    stores = {}
    for name in ("Anna", "Ben"):
        stores[name] = MemoryKnowledgeStore()
        await stores[name].write(WORKING, f"Work for {name}.")
    seen = []

    class Keeps:
        name = "keeps"

        async def apply(self, prompts, events, context):
            seen.append(dict(context.variables))
            return prompts, events

    middleware = AssemblyMiddleware(
        [WorkingMemoryPolicy(), Keeps()],
        dependencies=lambda agent: {KnowledgeStore: stores[agent.name]},
        variables=lambda agent: {"round": agent.state.cur_iter},
    )
    for name in ("Anna", "Ben"):
        model = ScriptedModel(["call:look_up", "Done."])
        await talk(agent(model, name=name, tools=[tool(look_up)], middlewares=[middleware]), "hello")
        assert all(f"Work for {name}." in text for text in sent(model))
    assert seen == [{"round": 0}, {"round": 1}] * 2


async def test_a_memory_policy_without_a_store_says_so_once(assembly_telemetry, caplog):
    someone = agent(ScriptedModel(), middlewares=[AssemblyMiddleware([WorkingMemoryPolicy()])])
    await talk(someone, "a", "b", "c")
    said = [record.getMessage() for record in caplog.records if record.name == "otel_assembly"]
    assert len(said) == 1
    assert "working_memory" in said[0]


async def test_a_loop_is_found_and_the_model_is_told_once(assembly_telemetry):
    model = ScriptedModel(["call:look_up"] * 3 + ["Done."])
    middleware = AssemblyMiddleware([AlertPolicy()], observers=[LoopDetector(10, 3)])
    await talk(agent(model, tools=[tool(look_up)], middlewares=[middleware]), "hello", "again")
    assert ["loop 1: tool 'look_up' was called 3 times" in text for text in sent(model)] == [
        False,
        False,
        False,
        True,
        False,
    ]


async def test_a_fatal_alert_of_an_observer_ends_the_reply_before_the_tool_is_called(assembly_telemetry):
    called = []

    def look_up() -> str:
        """Look something up."""
        called.append(1)
        return "found"

    model = ScriptedModel(["call:look_up"] * 5)
    middleware = AssemblyMiddleware([AlertPolicy()], observers=[LoopDetector(10, 3, severity="fatal")])
    someone = agent(model, tools=[tool(look_up)], middlewares=[middleware])
    assert interrupted(await talk(someone, "hello"))
    assert (len(model.asked), len(called)) == (3, 2)
    assert interrupted(await talk(someone, "again"))
    assert len(model.asked) == 3


async def test_tokens_and_budgets_are_watched(assembly_telemetry):
    model = ScriptedModel()
    observers = [TokenMonitor(20, 200), BudgetMonitor(utilization_threshold=0.01)]
    middleware = AssemblyMiddleware([AlertPolicy(), BudgetPolicy(window=400, output_reserve=100)], observers=observers)
    await talk(agent(model, middlewares=[middleware]), "a", "b", "c")
    assert ["of the budget" in text for text in sent(model)] == [False, True, False]
    assert ["24 tokens used" in text for text in sent(model)] == [False, False, True]
