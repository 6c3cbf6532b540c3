"""What policies and observers of the plug-in get to work with: AG2's knowledge store, its variables, its events."""

from __future__ import annotations

from ag2_package import MemoryStream, Model, ag2, answer, ask, call, events, history_of, part

from otel_assembly import AlertPolicy, BudgetPolicy, EpisodicMemoryPolicy, WorkingMemoryPolicy
from otel_assembly.instrumentation.ag2 import AssembledPolicy
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.runtime import BudgetMonitor, LoopDetector, TokenMonitor

knowledge = part("knowledge")
WORKING, EPISODE = "/memory/working.md", "/memory/conversations/2026-01-01.md"


def plugin_of(*chain, **rest):
    # Before 1.0, AG2 tells a policy neither of its agent nor of its model.
    return AssembledPolicy(chain, model="gpt-4o", agent_name="support", **rest)


def support(model, plugin, **rest):
    return ag2.Agent("support", prompt="You help.", config=model, assembly=[plugin], **rest)


class Keeps:
    """A policy that tells what it was given."""

    name = "keeps"

    def __init__(self):
        self.seen = []

    async def apply(self, prompts, events, context):
        self.seen.append((dict(context.variables), dict(context.dependencies)))
        return prompts, events


async def test_the_knowledge_store_of_the_agent_is_understood(assembly_telemetry):
    store = knowledge.MemoryKnowledgeStore()
    await store.write(WORKING, "Ada wants a window seat.")
    await store.write(EPISODE, "She was in Rome.")
    model = Model("fine")
    config = part("agent").KnowledgeConfig(store=store)
    await support(model, plugin_of(WorkingMemoryPolicy(), EpisodicMemoryPolicy()), knowledge=config).ask("hello")
    text = "\n".join(model.prompts[0])
    assert "## Working Memory\n\nAda wants a window seat." in text
    assert "She was in Rome." in text
    span = assembly_telemetry.span("assemble_context")
    assert {"working_memory", "episodic_memory"} <= set(span.attributes["assembly.prompt.sources"])
    assert assembly_telemetry.violations() == []


async def test_a_store_of_ours_is_taken_before_it_and_may_be_found_for_each_turn(assembly_telemetry):
    stores = {}
    for user in ("ada", "bob"):
        stores[user] = MemoryKnowledgeStore()
        await stores[user].write(WORKING, f"This is {user}.")
    model = Model("fine", "fine")
    plugin = plugin_of(
        WorkingMemoryPolicy(), dependencies=lambda context: {KnowledgeStore: stores[context.variables["user"]]}
    )
    agent = support(model, plugin)
    for user in ("ada", "bob"):
        await agent.ask("hello", variables={"user": user})
    assert ["This is ada." in "\n".join(prompts) for prompts in model.prompts] == [True, False]
    assert ["This is bob." in "\n".join(prompts) for prompts in model.prompts] == [False, True]


async def test_ag2s_variables_and_dependencies_reach_policies_and_what_is_given_comes_before_them(assembly_telemetry):
    keeps = Keeps()
    agent = support(Model("fine"), plugin_of(keeps, variables={"tier": "gold"}))
    await agent.ask("hello", variables={"tier": "iron", "user": "ada"}, dependencies={"clock": 7})
    variables, dependencies = keeps.seen[0]
    assert variables == {"tier": "gold", "user": "ada"}
    assert dependencies["clock"] == 7


async def test_a_memory_policy_without_a_store_says_so_once(assembly_telemetry, caplog):
    agent = support(Model("one", "two", "three"), plugin_of(WorkingMemoryPolicy()))
    stream = MemoryStream()
    for question in ("a", "b", "c"):
        await agent.ask(question, stream=stream)
    said = [record.getMessage() for record in caplog.records if record.name == "otel_assembly"]
    assert len(said) == 1
    assert "working_memory" in said[0]


def look_up() -> str:
    """Look something up."""
    return "found"


def looping(*answers):
    return Model(*(call("look_up", id=f"c{number}") for number in range(3)), *answers)


async def test_a_loop_is_found_in_ag2s_events_and_told_once_to_the_model_and_on_the_stream(assembly_telemetry):
    model = looping("done")
    agent = support(model, plugin_of(AlertPolicy(), observers=[LoopDetector(10, 3)]), tools=[look_up])
    stream = MemoryStream()
    await agent.ask("hello", stream=stream)
    assert ["loop 1: tool 'look_up' was called 3 times" in "\n".join(prompts) for prompts in model.prompts] == [
        False,
        False,
        False,
        True,
    ]
    alerts = [event for event in await stream.history.get_events() if isinstance(event, events.ObserverAlert)]
    assert [event.source for event in alerts] == ["loop_detector"]
    assert assembly_telemetry.metric("assembly.alerts.delivered", alert_source="loop_detector") == 1


async def test_a_fatal_alert_of_an_observer_halts_as_ag2_halts(assembly_telemetry):
    model = looping("never", "never")
    plugin = plugin_of(AlertPolicy(), observers=[LoopDetector(10, 3, severity="fatal")])
    agent = support(model, plugin, tools=[look_up])
    stream = MemoryStream()
    reply = await agent.ask("hello", stream=stream)
    assert len(model.sent) == 3
    assert "loop 1" in str(getattr(reply, "body", None) or reply.content)
    halts = [event for event in await stream.history.get_events() if isinstance(event, events.HaltEvent)]
    assert len(halts) == 1
    assert plugin.context_of(stream).guard.halted
    await agent.ask("again", stream=stream)
    assert len(model.sent) == 3
    assert assembly_telemetry.metric("assembly.halts", agent_name="support") == 1


async def test_tokens_are_added_up_by_what_ag2_says_was_billed(assembly_telemetry):
    billed = [
        events.ModelResponse(events.ModelMessage(text), usage=events.Usage(prompt_tokens=40, completion_tokens=10))
        for text in ("one", "two", "three", "four")
    ]
    model = Model(*billed)
    agent = support(model, plugin_of(AlertPolicy(), observers=[TokenMonitor(100, 200)]))
    stream = MemoryStream()
    for question in ("a", "b", "c", "d"):
        await agent.ask(question, stream=stream)
    assert ["100 tokens used" in "\n".join(prompts) for prompts in model.prompts] == [False, False, True, False]


async def test_a_budget_that_fills_up_is_said_to_the_model(assembly_telemetry):
    model = Model("one", "two", "three")
    chain = [AlertPolicy(), BudgetPolicy(window=400, output_reserve=100)]
    agent = support(model, plugin_of(*chain, observers=[BudgetMonitor(utilization_threshold=0.01)]))
    stream = MemoryStream()
    for question in ("a", "b", "c"):
        await agent.ask(question, stream=stream)
    assert ["of the budget" in "\n".join(prompts) for prompts in model.prompts] == [False, True, False]


async def test_without_observers_of_ours_nothing_is_put_on_the_stream(assembly_telemetry):
    stream = MemoryStream()
    await history_of(stream, ask("before"), answer("yes"))
    await support(Model("fine"), plugin_of(AlertPolicy())).ask("hello", stream=stream)
    kinds = {type(event).__name__ for event in await stream.history.get_events()}
    assert not kinds & {"ObserverAlert", "HaltEvent"}
