"""AutoGen's agents: their runs, their memories, the images that their models cannot see."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import MultiModalMessage, TextMessage
from autogen_agentchat.teams import MagenticOneGroupChat, RoundRobinGroupChat, SelectorGroupChat
from autogen_core import CancellationToken, Image
from autogen_core.memory import ListMemory, MemoryContent, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import BufferedChatCompletionContext, HeadAndTailChatCompletionContext
from autogen_core.models import ModelFamily, SystemMessage
from autogen_talk import asks_for, model, said
from autogen_team_programs import ledger_entry
from PIL import Image as Picture

pytestmark = pytest.mark.filterwarnings("ignore:No approval function set:UserWarning")  # AutoGen's, of an executor


def weather(city: str) -> str:
    """The weather in a city."""
    return f"it rains in {city}"


def agent(name, *answers, **settings):
    return AssistantAgent(name, model(*answers), **settings)


def parents(telemetry, name):
    return [span.parent.name if span.parent is not None else None for span in telemetry.spans_named(name)]


async def test_each_model_call_has_its_assembly_under_autogens_span(autogens_spans):
    told = autogens_spans
    clerk = agent("clerk", asks_for("weather", '{"city": "Bonn"}'), "rain", tools=[weather], reflect_on_tool_use=True)
    await clerk.run(task="the weather in Bonn?")
    assert parents(told, "assemble_context") == ["invoke_agent clerk", "invoke_agent clerk"]
    assert [span.scope for span in told.spans_named("invoke_agent clerk")] == ["autogen-core"]
    first, second = told.spans_named("assemble_context")
    assert first.attributes["gen_ai.agent.name"] == "clerk"
    assert (first.attributes["assembly.events.in"], second.attributes["assembly.events.in"]) == (1, 3)
    # The system message is a prompt of the caller's; the tools are offered to the first call only.
    assert first.attributes["assembly.prompt.sources"] == ["caller"]
    assert "tool_schemas" in first.attributes["assembly.kind.names"]
    assert "tool_schemas" not in second.attributes["assembly.kind.names"]


async def test_a_stream_has_the_same_spans_and_nothing_is_attached_in_between(told):
    clerk = agent("clerk", "one two", "three four", model_client_stream=True)
    outside = told.tracer()
    with outside.start_as_current_span("caller"):
        async for _ in clerk.on_messages_stream([TextMessage(content="hello", source="user")], CancellationToken()):
            outside.start_span("reader").end()
    assert parents(told, "assemble_context") == ["caller"]
    assert set(parents(told, "reader")) == {"caller"}
    assert [span.name for span in told.spans if span.name.startswith("invoke_agent")] == []


async def test_a_stream_that_is_left_early(told):
    clerk = agent("clerk", "one two three", model_client_stream=True)
    stream = clerk.on_messages_stream([TextMessage(content="hello", source="user")], CancellationToken())
    async for _ in stream:
        break
    await stream.aclose()
    assert told.span("invoke_agent clerk").status == "UNSET"
    assert len(told.spans_named("assemble_context")) == 1


async def test_a_run_without_a_span_gets_one(told):
    clerk = agent("clerk", "one", "two")
    await clerk.on_messages([TextMessage(content="hello", source="user")], CancellationToken())
    assert told.tree().splitlines() == [
        "invoke_agent clerk",
        "  assemble_context",
        "    apply_policy unbounded",
    ]


async def test_a_memory_is_an_injection_of_the_assembly(told):
    memory = ListMemory()
    await memory.add(MemoryContent(content="likes tea", mime_type="text/plain"))
    clerk = agent("clerk", "one", "two", "three", memory=[memory])
    for task in ("first", "second", "third"):
        await clerk.run(task=task)
    assemblies = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in assemblies] == [0, 1, 2]
    # AutoGen leaves each injection in the context: it is what comes in from the next run on.
    assert [span.attributes["assembly.events.in"] for span in assemblies] == [1, 4, 7]
    assert [span.attributes["assembly.events.out"] for span in assemblies] == [2, 5, 8]
    steps = told.spans_named("apply_policy memory")
    assert [step.attributes["assembly.events.injected"] for step in steps] == [1, 1, 1]
    assert {step.attributes["assembly.policy.kind"] for step in steps} == {"injection"}
    assert [step.attributes["assembly.policy.index"] for step in steps] == [0, 0, 0]
    # What was injected once keeps its ordinal.
    assert [span.kept for span in assemblies] == [
        ["0", "m0"],
        ["0", "m0", "1", "2", "m1"],
        ["0", "m0", "1", "2", "m1", "3", "4", "m2"],
    ]


async def test_memories_and_reducers_in_turns_of_any_number_of_steps(told):
    memory = ListMemory()
    await memory.add(MemoryContent(content="likes tea", mime_type="text/plain"))
    clerk = agent(
        "clerk",
        asks_for("weather", '{"city": "Bonn"}'),
        "rain",
        asks_for("weather", '{"city": "Ulm"}'),
        "sun",
        tools=[weather],
        reflect_on_tool_use=True,
        memory=[memory, memory],
        model_context=HeadAndTailChatCompletionContext(1, 2),
    )
    await clerk.run(task="the weather in Bonn?")
    await clerk.run(task="the weather in Ulm?")
    assemblies = told.spans_named("assemble_context")
    assert [len(span.children) for span in assemblies] == [3, 1, 3, 1]
    for span in assemblies:
        held = span.attributes
        assert held["assembly.events.in"] + held["assembly.events.injected"] == (
            held["assembly.events.out"] + held["assembly.dropped.count"] + held["assembly.compacted.count"]
        )


async def likes_tea(memory_type=ListMemory):
    memory = memory_type()
    await memory.add(MemoryContent(content="likes tea", mime_type="text/plain"))
    return memory


async def test_a_memory_that_asks_the_context_makes_no_assembly(told):
    class Recalling(ListMemory):
        async def update_context(self, model_context):
            await model_context.get_messages()
            return await super().update_context(model_context)

    class Quiet(ListMemory):
        async def update_context(self, model_context):
            await model_context.get_messages()
            return UpdateContextResult(memories=await self.query(""))

    memory = await likes_tea(Recalling)
    clerk = agent("clerk", "one", memory=[memory, Quiet()])
    await clerk.run(task="hello")
    assert len(told.spans_named("assemble_context")) == 1
    assert [span.name for span in told.spans if span.name.startswith("apply_policy")] == [
        "apply_policy Recalling",
        "apply_policy unbounded",
    ]


async def test_the_reducers_of_an_agent_that_a_memory_runs_are_recorded(told):
    rewriter = AssistantAgent(
        "rewriter", model("a query"), model_context=BufferedChatCompletionContext(1), memory=[await likes_tea()]
    )

    class Rewriting(ListMemory):
        async def update_context(self, model_context):
            await rewriter.run(task=[TextMessage(content=text, source="user") for text in ("one", "two")])
            return await super().update_context(model_context)

    await agent("clerk", "one", memory=[Rewriting()]).run(task="hello")
    steps = [span.name for span in told.spans if span.name.startswith("apply_policy")]
    assert steps == ["apply_policy memory", "apply_policy buffered", "apply_policy unbounded"]


def picture():
    return MultiModalMessage(content=["what is this?", Image(Picture.new("RGB", (1024, 1024)))], source="user")


@pytest.mark.parametrize("vision", [False, True])
async def test_images_that_the_model_cannot_see_are_the_last_step(vision, told):
    looks = AssistantAgent("looks", model("a cat", "a dog", vision=vision))
    await looks.run(task=picture())
    await looks.run(task="and now?")
    sent = looks._model_client.create_calls[-1]["messages"]
    assert isinstance(sent[1].content, str) is not vision
    assemblies = told.spans_named("assemble_context")
    assert [len(span.children) for span in assemblies] == ([1, 1] if vision else [2, 2])
    if vision:
        assert assemblies[0].arrived["0"].tokens > 765
    else:
        step = told.spans_named("apply_policy remove_images")[0]
        assert step.compacted == ["0"]
        assert assemblies[0].attributes["assembly.tokens.out"] < 765
        assert told.spans_named("apply_policy remove_images")[1].compacted == ["0"]


async def test_the_model_call_is_not_in_the_assembly(told):
    tracer = told.tracer("some model instrumentation")

    class Watched(type(model())):
        component_provider_override = None

        async def create(self, *args, **kwargs):
            with tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}):
                return await super().create(*args, **kwargs)

    clerk = AssistantAgent("clerk", Watched(["one"]), model_context=BufferedChatCompletionContext(1))
    await clerk.on_messages(
        [TextMessage(content="opening request", source="user"), TextMessage(content="go on", source="user")],
        CancellationToken(),
    )
    assembly, chat = told.span("assemble_context"), told.span("chat")
    assert assembly.end_ns <= chat.start_ns
    assert chat.attributes["assembly.id"] == assembly.attributes["assembly.id"]
    assert chat.attributes["gen_ai.conversation.compacted"] is True
    assert [link.span_id for link in chat.links] == [assembly.span_id]


async def test_the_opening_request_is_lost_and_the_trace_says_so(told):
    clerk = agent("clerk", *"abcdef", model_context=BufferedChatCompletionContext(4))
    for task in ("book a table for Ann, who is allergic to nuts", "at eight", "outside", "thanks"):
        await clerk.run(task=task)
    assert "nuts" not in str(said(clerk._model_client.create_calls[-1]["messages"]))
    steps = told.spans_named("apply_policy buffered")
    assert [step.dropped_reasons for step in steps] == [
        {},
        {},
        {"0": "outside_window"},
        {"0": "outside_window", "1": "outside_window", "2": "outside_window"},
    ]
    assert told.metric("assembly.items.dropped", policy_name="buffered") == 3


async def test_a_team_is_one_trace(told):
    team = RoundRobinGroupChat(
        [agent("ann", *"abc"), agent("bob", *"abc")], termination_condition=MaxMessageTermination(4)
    )
    await team.run(task="talk")
    assert len({span.trace_id for span in told.spans}) == 1
    agents = [span.attributes["gen_ai.agent.name"] for span in told.spans_named("assemble_context")]
    assert agents == ["ann", "bob", "ann"]
    assert [span.name for span in told.spans if span.parent_id is None] == [f"invoke_agent {team.name}"]


async def test_a_team_with_autogens_own_spans_is_one_trace(autogens_spans):
    told = autogens_spans
    team = RoundRobinGroupChat(
        [agent("ann", *"abc"), agent("bob", *"abc")], termination_condition=MaxMessageTermination(4)
    )
    told.clear()
    await team.run(task="talk")
    assert len({span.trace_id for span in told.spans}) == 1
    assert parents(told, "assemble_context") == ["invoke_agent ann", "invoke_agent bob", "invoke_agent ann"]
    assert len(told.spans_named("invoke_agent ann")) == 2


async def test_a_selector_chooses_by_its_own_context(told):
    team = SelectorGroupChat(
        [agent("ann", *"abc"), agent("bob", *"abc")],
        model("ann", "bob", "ann"),
        termination_condition=MaxMessageTermination(4),
        allow_repeated_speaker=True,
        model_context=BufferedChatCompletionContext(1),
    )
    await team.run(task="talk")
    steps = told.spans_named("apply_policy buffered")
    assert [step.parent.attributes["gen_ai.agent.name"] for step in steps] == ["SelectorGroupChatManager"] * 3
    assert [sorted(step.dropped_reasons) for step in steps] == [[], ["0"], ["0", "1"]]


@pytest.mark.parametrize("family", [ModelFamily.GPT_4O, ModelFamily.UNKNOWN])
async def test_a_selectors_prompt_stands_for_the_conversation_that_is_rendered_into_it(told, family):
    """For one family the prompt is a system message, for others a user's."""
    selector = model("ann", "bob", "ann")
    selector._model_info = {**selector.model_info, "family": family}
    team = SelectorGroupChat(
        [agent("ann", *["Draft one.", "Draft two."]), agent("bob", "A criticism.")],
        selector,
        termination_condition=MaxMessageTermination(4),
        allow_repeated_speaker=True,
    )
    await team.run(task="Write a poem.")
    selections = [
        span
        for span in told.spans_named("assemble_context")
        if span.attributes["gen_ai.agent.name"] == "SelectorGroupChatManager"
    ]
    assert [span.attributes["assembly.dropped.count"] for span in selections] == [0, 0, 0]
    assert [span.attributes["assembly.compacted.count"] for span in selections] == [1, 2, 3]
    assert [span.attributes["assembly.events.out"] for span in selections] == [1, 1, 1]
    sources = [source for span in selections for source in span.attributes["assembly.arrived.sources"] if source]
    assert sources == ["0", "0-1", "0-2"]


async def test_the_orchestrator_of_magentic_one_sends_its_thread_as_messages_and_drops_none(told):
    answers = ["the facts", "the plan", ledger_entry(False), ledger_entry(True), "it is done"]
    team = MagenticOneGroupChat([agent("ann", "A draft.")], model(*answers))
    await team.run(task="Write a poem.")
    made = [
        span.attributes
        for span in told.spans_named("assemble_context")
        if span.attributes["gen_ai.agent.name"] == "MagenticOneOrchestrator"
    ]
    assert [span["assembly.turn"] for span in made] == [0, 1, 2, 3, 4]
    assert [span["assembly.events.out"] for span in made] == [1, 3, 2, 4, 4]
    assert {span["assembly.dropped.count"] for span in made} == {0}


async def test_other_agents_of_autogen(told):
    inner = RoundRobinGroupChat([agent("ann", *"abc")], termination_condition=MaxMessageTermination(2))
    society = SocietyOfMindAgent("society", inner, model("so be it", "and so on"))
    await society.on_messages([TextMessage(content="think", source="user")], CancellationToken())
    coder = CodeExecutorAgent("coder", _NoCode(), model_client=model("no code needed"))
    await coder.on_messages([TextMessage(content="think", source="user")], CancellationToken())
    agents = [span.attributes["gen_ai.agent.name"] for span in told.spans_named("assemble_context")]
    assert agents == ["ann", "society", "coder"]


class _NoCode:
    """A code executor that is never asked."""

    timeout = 1


async def test_agents_at_once_never_share_a_parent(autogens_spans):
    told = autogens_spans
    clerks = [agent(f"clerk_{number}", *"abcd", model_context=BufferedChatCompletionContext(2)) for number in range(8)]

    async def talk(clerk):
        for task in "1234":
            await clerk.run(task=task)
            await asyncio.sleep(0)

    await asyncio.gather(*map(talk, clerks))
    check_parents(told, 32)


def test_agents_in_a_thread_pool_never_share_a_parent(autogens_spans):
    told = autogens_spans

    def talk(number):
        clerk = agent(f"clerk_{number}", *"abcd", model_context=BufferedChatCompletionContext(2))

        async def runs():
            for task in "1234":
                await clerk.run(task=task)

        asyncio.run(runs())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(talk, range(8)))
    check_parents(told, 32)


def check_parents(told, count):
    assemblies = told.spans_named("assemble_context")
    assert len(assemblies) == count
    for span in assemblies:
        assert span.parent.name == f"invoke_agent {span.attributes['gen_ai.agent.name']}"
        assert [child.name for child in span.children] == ["apply_policy buffered"]
    ledgers = {}
    for span in assemblies:
        ledgers.setdefault(span.attributes["assembly.ledger.id"], []).append(span.attributes["gen_ai.agent.name"])
    assert sorted(map(len, ledgers.values())) == [4] * 8
    assert all(len(set(names)) == 1 for names in ledgers.values())


async def test_a_cancelled_run_leaves_nothing_open(told):
    class Slow(type(model())):
        component_provider_override = None

        async def create(self, *args, **kwargs):
            await asyncio.sleep(60)

    clerk = AssistantAgent("clerk", Slow(["never"]))
    run = asyncio.create_task(clerk.on_messages([TextMessage(content="hello", source="user")], CancellationToken()))
    while not told.spans_named("assemble_context"):
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told.span("invoke_agent clerk").status == "ERROR"
    assert told.span("assemble_context").status == "UNSET"


async def test_what_an_agent_sends_is_the_same_without_us(told):
    from otel_assembly.instrumentation import instrument, uninstrument

    async def sent():
        clerk = agent(
            "clerk",
            asks_for("weather", '{"city": "Bonn"}'),
            "rain",
            "sun",
            tools=[weather],
            reflect_on_tool_use=True,
            model_context=HeadAndTailChatCompletionContext(1, 2),
        )
        outcome = [await clerk.run(task="the weather?"), await clerk.run(task=picture())]
        calls = [(call["messages"], len(call["tools"])) for call in clerk._model_client.create_calls]
        texts = [(type(message).__name__, message.to_text()) for result in outcome for message in result.messages]
        return calls, texts

    watched = await sent()
    uninstrument("autogen")
    alone = await sent()
    instrument("autogen")
    assert watched == alone


class _Likes:
    """A memory that derives from nothing."""

    async def update_context(self, model_context):
        await model_context.add_message(SystemMessage(content="likes tea"))
        return UpdateContextResult(memories=MemoryQueryResult(results=[]))


class _Answers:
    """A client that derives from nothing."""

    def __init__(self, *answers):
        self._answers = model(*answers)

    def __getattr__(self, name):
        return getattr(self._answers, name)

    async def create(self, *args, **kwargs):
        return (await self._answers.create(*args, **kwargs)).model_copy(update={"thought": None})


async def test_what_an_agent_holds_need_derive_from_nothing(told):
    ann = agent("ann", *"abc")
    ann._memory = [_Likes()]
    team = RoundRobinGroupChat([ann], termination_condition=MaxMessageTermination(2))
    await SocietyOfMindAgent("society", team, _Answers("so be it")).run(task="think")
    spans = told.spans_named("assemble_context")
    assert [span.attributes["gen_ai.agent.name"] for span in spans] == ["ann", "society"]
    assert [span.name for span in spans[0].children] == ["apply_policy _Likes", "apply_policy unbounded"]
