"""Our contexts inside AutoGen: what its clients receive holds, and beside its own classes, bug for bug where asked."""

from __future__ import annotations

import json

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import FunctionCall, models
from autogen_core import model_context as autogens
from autogen_core.memory import ListMemory, MemoryContent, MemoryQueryResult, UpdateContextResult
from autogen_core.models import FunctionExecutionResultMessage, ModelInfo, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_talk import asks_for
from hypothesis import given, settings
from hypothesis import strategies as st
from model_context.talks import Talk, WordClient, broken, filled, places, said, table

from otel_assembly import (
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
)
from otel_assembly import model_context as alone
from otel_assembly.instrumentation import autogen as inside
from otel_assembly.tokens import shared_encoding

TALK = Talk(models, FunctionCall)
KINDS = ["unbounded", "buffered", "head_and_tail", "token_limited"]
SLOW = settings(max_examples=60, deadline=None, derandomize=True)


def weather(city: str) -> str:
    """The weather in a city, at some length."""
    return f"it rains in {city} " + "and rains " * 6


class Writes(ReplayChatCompletionClient):
    """Writes down what it receives, and counts every word of it and of its tools."""

    def __init__(self, *answers):
        info = ModelInfo(
            vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
        )
        super().__init__(list(answers), model_info=info)
        self.received = []

    async def create(self, messages, *, tools=(), **given):
        self.received.append((list(messages), list(tools)))
        return await super().create(messages, tools=tools, **given)

    def count_tokens(self, messages, *, tools=()):
        schemas = [tool if isinstance(tool, dict) else tool.schema for tool in tools]
        return WordClient().count_tokens(messages) + sum(len(json.dumps(schema).split()) for schema in schemas)

    def remaining_tokens(self, messages, *, tools=()):
        return 150 - self.count_tokens(messages, tools=tools)


def answers(turns):
    """A model that calls a tool on every other turn."""
    return [
        asks_for("weather", '{"city": "Bonn"}', call_id=f"{at}") if at % 2 == 0 else f"answer {at} " + "so " * 12
        for at in range(turns)
    ]


def agent(name, client, context, **more):
    return AssistantAgent(
        name,
        client,
        tools=[weather],
        model_context=context,
        system_message="You know the weather, and are brief about it.",
        reflect_on_tool_use=True,
        **more,
    )


def contexts(client, *, limit=150):
    return [
        inside.UnboundedChatCompletionContext(),
        inside.BufferedChatCompletionContext(4),
        inside.HeadAndTailChatCompletionContext(2, 3),
        inside.TokenLimitedChatCompletionContext(client, token_limit=limit),
        inside.TokenLimitedChatCompletionContext(client),
    ]


@pytest.mark.parametrize("which", range(5))
async def test_what_a_teams_clients_receive_holds(told, which):
    clients = [Writes(*answers(40)), Writes(*answers(40))]
    made = [contexts(client)[which] for client in clients]
    team = RoundRobinGroupChat(
        [agent(name, client, context) for name, client, context in zip(("one", "two"), clients, made, strict=True)],
        termination_condition=MaxMessageTermination(40),
    )
    await team.run(task="the weather in Bonn, day by day?")
    for client in clients:
        assert len(client.received) >= 10
        for messages, tools in client.received:
            assert broken(messages) == []
            if which in {0, 2}:  # the first message of both agents' conversations
                assert said(messages)[1] == "the weather in Bonn, day by day?"
            assert any(isinstance(message, UserMessage) for message in messages)
            if which >= 3:
                assert client.count_tokens(messages, tools=tools) <= 150
    spans = told.spans_named("assemble_context")
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"one", "two"}
    assert len(spans) == sum(len(client.received) for client in clients)
    for span in spans:
        assert span.attributes["assembly.framework"] == "autogen"
        if which >= 3:
            assert span.attributes["assembly.budget.limit"] == 150
            assert span.attributes["assembly.tokens.out"] <= 150


async def test_what_is_counted_is_what_the_client_counts_of_what_it_receives(told):
    client = Writes(*answers(12))
    clerk = agent("clerk", client, inside.TokenLimitedChatCompletionContext(client, token_limit=150))
    for number in range(6):
        await clerk.run(task=f"the weather of day {number}?")
    counted = [client.count_tokens(messages, tools=tools) for messages, tools in client.received]
    assert [span.attributes["assembly.tokens.out"] for span in told.spans_named("assemble_context")] == counted


async def test_a_request_over_the_limit_stops_the_agent_before_its_model(told):
    client = Writes("never")
    clerk = agent("clerk", client, inside.TokenLimitedChatCompletionContext(client, token_limit=40))
    with pytest.raises(ContextOverflowError):
        await clerk.run(task="word " * 100)
    assert client.received == []
    assert told.span("assemble_context").attributes["assembly.overflowed"] is True


async def test_a_selectors_team_runs_on_a_context():
    client, chooser = Writes(*(f"answer {at}" for at in range(9))), Writes(*["one", "two", "three"] * 5)
    members = [
        AssistantAgent(name, client, description=name, model_context=inside.BufferedChatCompletionContext(3))
        for name in ("one", "two", "three")
    ]
    team = SelectorGroupChat(
        members,
        chooser,
        termination_condition=MaxMessageTermination(8),
        model_context=inside.HeadAndTailChatCompletionContext(1, 2),
    )
    await team.run(task="who begins?")
    assert len(chooser.received) >= 3
    assert all(broken(messages) == [] for messages, _ in (*client.received, *chooser.received))


NOTHING = MemoryQueryResult(results=[])


class Asks:
    """A memory that asks what the context holds before it adds something."""

    component_type = "memory"

    async def update_context(self, model_context):
        self.seen = await model_context.get_messages()
        await model_context.add_message(SystemMessage(content="it likes tea"))
        return UpdateContextResult(memories=NOTHING)


@pytest.mark.parametrize("instrumented", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_memory_that_asks_is_no_assembly(request, instrumented, kind):
    telemetry = request.getfixturevalue("told" if instrumented else "assembly_telemetry")
    client = Writes(*(f"answer {at}" for at in range(3)))
    context = getattr(table(inside, client=client), kind)
    memory = Asks()
    plain = ListMemory(memory_contents=[MemoryContent(content="it is Monday", mime_type="text/plain")])
    clerk = AssistantAgent("clerk", client, model_context=context, memory=[memory, plain])
    for number in range(3):
        await clerk.run(task=f"ask {number}")
    assert said(memory.seen)[-1] == "ask 2"
    assert len(client.received) == 3
    assert len(telemetry.spans_named("assemble_context")) == 3


async def test_a_memory_that_asks_the_plug_in_is_no_assembly_either(assembly_telemetry):
    context = inside.AssembledChatCompletionContext([SlidingWindowPolicy(3)])
    clerk = AssistantAgent("clerk", Writes("a", "b"), model_context=context, memory=[Asks()])
    for number in range(2):
        await clerk.run(task=f"ask {number}")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 2


async def test_a_fatal_alert_halts_an_agent():
    client, context = Writes("never"), inside.BufferedChatCompletionContext(3)
    await context.context_of().send(ObserverAlert(source="guard", severity=Severity.FATAL, message="stop"))
    with pytest.raises(HaltedError):
        await AssistantAgent("clerk", client, model_context=context).run(task="go on")
    assert client.received == []


# Beside AutoGen's own


def untidy(seed, turns):
    """A talk with some messages missing, as windows and crashes leave it."""
    talk = [message for at, message in enumerate(TALK.random(seed, turns)) if (seed + at) % 5]
    return [FunctionExecutionResultMessage(content=[]), *talk] if seed % 3 == 0 else talk


def outline(messages, talk):
    return [
        at if at is not None else message.content for at, message in zip(places(messages, talk), messages, strict=True)
    ]


@SLOW
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.integers(5, 200))
async def test_compat_is_autogen_bug_for_bug(seed, turns, message, other, limit):
    talk, client = untidy(seed, turns), WordClient(window=limit)
    for make in (
        lambda home, **more: home.UnboundedChatCompletionContext(talk, **more),
        lambda home, **more: home.BufferedChatCompletionContext(message, talk, **more),
        lambda home, **more: home.HeadAndTailChatCompletionContext(message, other, talk, **more),
        lambda home, **more: home.TokenLimitedChatCompletionContext(
            client, token_limit=limit, initial_messages=talk, **more
        ),
        lambda home, **more: home.TokenLimitedChatCompletionContext(client, initial_messages=talk, **more),
    ):
        theirs, ours = make(autogens), make(inside, compat=True)
        assert outline(await ours.get_messages(), talk) == outline(await theirs.get_messages(), talk)
        standalone = make(alone, compat=True)
        await standalone.load_state(await theirs.save_state())
        held = standalone._messages
        assert outline(await standalone.get_messages(), held) == outline(await theirs.get_messages(), talk)


@pytest.mark.parametrize("home", [autogens, inside, alone])
async def test_compat_gives_the_list_itself_where_autogen_does(home):
    talk = (Talk() if home is alone else TALK).of("ask", "say", "ask")
    more = {} if home is autogens else {"compat": True}
    for context in (
        home.UnboundedChatCompletionContext(talk, **more),
        home.HeadAndTailChatCompletionContext(2, 2, talk, **more),
    ):
        kept = await context.get_messages()
        kept[0] = talk[2]
        kept.append(talk[1])
        assert places((await context.save_state()) and await context.get_messages(), talk)[0] == 2


@SLOW
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 9), st.integers(1, 9))
async def test_safe_never_breaks_a_pair_of_autogens_messages(seed, turns, message, other):
    talk = TALK.random(seed, turns)
    for context in (
        inside.UnboundedChatCompletionContext(talk),
        inside.BufferedChatCompletionContext(message, talk),
        inside.HeadAndTailChatCompletionContext(message, other, talk),
    ):
        assert broken(await context.get_messages()) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_states_go_between_ours_and_autogens(kind):
    talk = TALK.of("system", "ask", "call a b", "result a b", "say")
    ours = await filled(getattr(table(inside), kind), talk)
    theirs = autogens.UnboundedChatCompletionContext()
    await theirs.load_state(json.loads(json.dumps(await ours.save_state())))
    assert await theirs.get_messages() == talk
    without = alone.UnboundedChatCompletionContext()
    await without.load_state(await theirs.save_state())
    await theirs.load_state(await without.save_state())
    assert await theirs.get_messages() == talk
    again = getattr(table(inside), kind)
    await again.load_state({"llm_context": await theirs.save_state()})
    assert (await again.save_state())["messages"] == (await ours.save_state())["messages"]
    with pytest.raises(ConfigurationError, match="state: has no 'messages'"):
        await again.load_state({"message": []})
    old = json.loads(json.dumps(await ours.save_state()))
    del old["messages"][3]["content"][0]["name"]
    await again.load_state(old)
    assert (await again.save_state())["messages"] == (await ours.save_state())["messages"]


async def test_an_agents_state_is_saved_and_loaded():
    client = Writes("one", "two")
    clerk = agent("clerk", client, inside.BufferedChatCompletionContext(5))
    await clerk.run(task="remember me")
    state = json.loads(json.dumps(await clerk.save_state()))
    other = agent("clerk", Writes("three"), inside.BufferedChatCompletionContext(5))
    await other.load_state(state)
    await other.run(task="who am I?")
    assert said(other._model_client.received[0][0])[1:] == ["remember me", "one", "who am I?"]


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_autogen_reloads_a_configuration_as_the_same_class_with_its_messages(kind, compat):
    talk = TALK.of("ask", "call a", "result a", "say")
    made = table(inside, client=ReplayChatCompletionClient(["yes"]), compat=compat, initial_messages=talk)
    context = getattr(made, kind)
    dumped = json.loads(context.dump_component().model_dump_json())
    for loader in (autogens.ChatCompletionContext, type(context)):
        loaded = loader.load_component(dumped)
        assert (type(loaded), loaded.compat) == (type(context), compat)
        assert await loaded.get_messages() == await context.get_messages()
    theirs = autogens.ChatCompletionContext.load_component(context.dump_component(provider="autogen"))
    assert type(theirs) is getattr(autogens, type(context).__name__)
    own = theirs.dump_component()
    assert type(type(context).load_component(own)) is type(context)


@pytest.mark.parametrize("invalid", [{}, {"provider": 3, "config": {}}, {"provider": "x.Y"}])
def test_an_invalid_configuration_is_refused(invalid):
    with pytest.raises(ConfigurationError, match="component"):
        inside.UnboundedChatCompletionContext.load_component(invalid)


async def test_an_agent_is_dumped_with_its_context():
    client = ReplayChatCompletionClient(["yes"])
    clerk = AssistantAgent("clerk", client, model_context=inside.HeadAndTailChatCompletionContext(2, 3))
    loaded = AssistantAgent.load_component(json.loads(clerk.dump_component().model_dump_json()))
    assert type(loaded._model_context) is inside.HeadAndTailChatCompletionContext


class Mine(inside.UnboundedChatCompletionContext):
    """A context of a user's own."""


def test_a_class_of_ones_own_keeps_its_name():
    dumped = Mine().dump_component()
    assert dumped.provider.endswith(".Mine")
    assert type(Mine.load_component(dumped)) is Mine


# With the real OpenAI client


@pytest.fixture
def openai(monkeypatch):
    """Its client, with the vocabulary that comes with us in the place of one that would be fetched."""
    monkeypatch.setattr("tiktoken.get_encoding", shared_encoding)
    monkeypatch.setattr("tiktoken.model.get_encoding", shared_encoding)
    return OpenAIChatCompletionClient(model="gpt-4o", api_key="none")


class LikeOllama:
    """Counts as AutoGen's Ollama client does: no tool call, and each result as a message."""

    def __init__(self):
        self._encode = shared_encoding("cl100k_base").encode_ordinary

    def count_tokens(self, messages, *, tools=()):
        return 3 + sum(map(self._count, messages))

    def _count(self, message):
        content = message.content
        if isinstance(content, str):
            return 3 + len(self._encode(content))
        return 3 + sum(len(self._encode(message.content)) for message in content if hasattr(message, "content"))

    def remaining_tokens(self, messages, *, tools=()):
        return 131_072 - self.count_tokens(messages, tools=tools)


async def test_a_limit_as_tight_as_the_newest_request_gives_just_that():
    client, talk = LikeOllama(), TALK.of("ask", "say", "ask")
    limit = client.count_tokens(talk[2:])
    context = inside.TokenLimitedChatCompletionContext(client, token_limit=limit, initial_messages=talk)
    assert places(await context.get_messages(), talk) == [2]
    with pytest.raises(ContextOverflowError):
        await inside.TokenLimitedChatCompletionContext(
            client, token_limit=limit - 1, initial_messages=talk
        ).get_messages()
    whole = inside.TokenLimitedChatCompletionContext(client, initial_messages=talk)
    assert places(await whole.get_messages(), talk) == [0, 1, 2]


@pytest.mark.parametrize("home", [inside, alone])
@pytest.mark.parametrize("limit", [120, 300, 900])
@pytest.mark.parametrize("provider", ["openai", "ollama"])
async def test_the_clients_own_count_is_never_over_the_limit(openai, home, limit, provider):
    client = openai if provider == "openai" else LikeOllama()
    talk = Talk() if home is alone else TALK
    for seed in range(6):
        context = home.TokenLimitedChatCompletionContext(client, token_limit=limit)
        await filled(context, talk.random(seed, 12))
        try:
            kept = await context.get_messages()
        except ContextOverflowError:
            continue
        assert broken(kept) == []
        theirs = autogens.UnboundedChatCompletionContext()
        await theirs.load_state({"messages": [message.model_dump() for message in kept]})
        assert client.count_tokens(await theirs.get_messages()) <= limit


async def test_without_a_limit_it_is_the_openai_models_window(openai, assembly_telemetry):
    context = inside.TokenLimitedChatCompletionContext(openai, initial_messages=TALK.of("ask"))
    assert len(await context.get_messages()) == 1
    assert assembly_telemetry.span("assemble_context").attributes["assembly.budget.limit"] == 128_000
