"""Every call that an agent makes of a model has an assembly, which says what the model's client receives."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from agentscope.agent import Agent, ModelConfig
from agentscope.message import AssistantMsg, Base64Source, DataBlock, SystemMsg, TextBlock, UserMsg
from agentscope.middleware import MiddlewareBase, TracingMiddleware
from agentscope.model import ChatModelBase, ChatResponse
from every_call import ASSEMBLY, Listening, assert_every_call_is_told, plainly
from pydantic import BaseModel
from scripted import FALLS_BACK, LIMITS_IMAGES, agent, instrumented, interrupted, talk, tool, usage, words

STRUCTURED = "structured_schema" in inspect.signature(Agent.reply).parameters
#: Whether a model that does not give what it is asked for is asked in another way.
TRIES_OTHERWISE = hasattr(ChatModelBase, "_get_structured_output_fallback_exceptions")


def fare() -> str:
    """What a flight costs."""
    return words(20)


def seats(order: str = "4711") -> str:
    """Which seats are free.

    Args:
        order: The order's number.
    """
    return f"Of order {order}: 12A and 12F."


class Answer(BaseModel):
    city: str
    price: int


class Polite(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}\nBe polite to everybody."


class Newest(MiddlewareBase):
    """Sends the system prompt and the newest message alone."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        first, *rest = input_kwargs["messages"]
        return await next_handler(**{**input_kwargs, "messages": [first, *rest[-1:]]})


class TriesAgain(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler(**input_kwargs)
        except ConnectionError:
            return await next_handler(**input_kwargs)


class FallsBack(MiddlewareBase):
    """Asks another model, with less, where the agent's fails."""

    def __init__(self, other):
        self.other = other

    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler(**input_kwargs)
        except ConnectionError:
            first, *rest = input_kwargs["messages"]
            return await next_handler(current_model=self.other, messages=[first, *rest[-1:]])


class Asks(MiddlewareBase):
    """Asks a model of its own something else, before the agent's is called."""

    def __init__(self, model):
        self.model = model

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await self.model([SystemMsg("system", "You know moods."), UserMsg("user", "What is the mood?")])
        return await next_handler(**input_kwargs)


class Routes(MiddlewareBase):
    """Asks a model what a reply is about, before it begins, as AgentScope's own router does."""

    def __init__(self, model):
        self.model = model

    async def on_reply(self, agent, input_kwargs, next_handler):
        asked = [SystemMsg("system", "Sort it."), *agent.state.context[:1], UserMsg("user", "a trip")]
        await self.model.generate_structured_output(asked, Topic)
        async for event in next_handler(**input_kwargs):
            yield event


class Topic(BaseModel):
    topic: str


class Summarises(MiddlewareBase):
    """Compresses with a model of its own."""

    def __init__(self, model):
        self.model = model

    async def on_compress_context(self, agent, input_kwargs, next_handler):
        context = agent.state.context
        if len(context) > 3:
            answer = await self.model([*context[:-1], UserMsg("user", "Summarise this.")])
            agent.state.summary = answer.content[0].text
            agent.state.context = context[-1:]


def long(someone, messages=7):
    someone.state.context = [UserMsg("user", f"{number} {words(600)}") for number in range(messages)]
    return someone


def image():
    return DataBlock(source=Base64Source(data="aGVsbG8=", media_type="image/png"))


@pytest.fixture
def run(assembly_telemetry):
    """Run a program without us and with us: it must say and send the same, and every call must be told."""

    async def run(program, *, traces=1):
        bare = []
        said = await program(bare)
        received = []
        with instrumented(assembly_telemetry):
            assert await program(received) == said
        assert plainly(received) == plainly(bare)
        assert received
        return assert_every_call_is_told(assembly_telemetry, received, traces=traces)

    return run


def chains(spans):
    return [
        [step.name.removeprefix("apply_policy ") for step in span.children if step.name.startswith("apply")]
        for span in spans
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_that_nothing_reduces(run, stream):
    async def program(calls):
        someone = agent(Listening(["Hello.", "Done."], calls=calls, stream=stream))
        said = []
        for text in ("hello", "and now?", "thanks"):
            said += [event.type async for event in someone.reply_stream(UserMsg("user", text))]
        return said

    spans = await run(program, traces=3)
    assert chains(spans) == [[], [], []]
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1
    assert [span.attributes["assembly.events.in"] for span in spans] == [1, 3, 5]


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_at_once_and_one_after_the_other(run, stream):
    async def program(calls):
        lines = [["I look.", "call:fare", "call:seats"], ["call:seats"], "Done."]
        someone = agent(
            Listening(lines, calls=calls, stream=stream, context_size=50_000), tools=map(tool, (fare, seats))
        )
        return (await talk(someone, "What is free?")).get_text_content()

    spans = await run(program)
    assert [span.attributes["assembly.events.in"] for span in spans] == [1, 6, 8]


async def test_a_retry_of_the_models_own_and_one_of_the_agents_and_the_fallback(run):
    class Flaky(Listening):
        @classmethod
        def _get_retryable_exceptions(cls):
            return (TimeoutError,)

    async def program(calls):
        model = Flaky([TimeoutError("slow"), ConnectionError("down"), ConnectionError("down")], calls=calls)
        model.max_retries = 2
        other = Listening(["Done."], calls=calls, name="gpt-4.1", context_size=8_000)
        someone = agent(model, middlewares=[Polite()])
        someone.model_config = ModelConfig(max_retries=1, fallback_model=other)
        return (await talk(someone, "hello")).get_text_content()

    spans = await run(program)
    assert [span.attributes["assembly.model"] for span in spans] == ["gpt-4o"] * 3 + ["gpt-4.1"]
    assert chains(spans) == [["Polite"]] * 4
    assert len({span.attributes["assembly.events.in"] for span in spans}) == 1


async def test_a_middleware_that_tries_again_and_one_that_falls_back(run):
    async def program(calls):
        other = Listening(["Done."], calls=calls, name="gpt-4.1", context_size=8_000)
        down = ConnectionError("down")
        one = agent(Listening([down, "Done."], calls=calls), middlewares=[TriesAgain()])
        two = agent(Listening(["Hello.", down, "Done."], calls=calls), name="Ben", middlewares=[FallsBack(other)])
        return [(await talk(one, "hello")).get_text_content(), (await talk(two, "hello", "again")).get_text_content()]

    spans = await run(program, traces=3)
    assert chains(spans) == [[], [], [], [], ["FallsBack"]]
    assert [span.attributes["assembly.events.out"] for span in spans] == [1, 1, 1, 3, 1]


@pytest.mark.parametrize("same", [False, True])
async def test_an_agent_as_a_tool_of_another(run, same):
    async def program(calls):
        async def ask_ben() -> str:
            """Ask Ben."""
            model = Listening(["call:fare", "Twenty."], calls=calls, name="gpt-4.1")
            ben = agent(model, name="Ben", tools=[tool(fare)])
            if same:
                ben.state.session_id = boss.state.session_id
            return (await talk(ben, "How much is it?")).get_text_content()

        model = Listening([["call:ask_ben", "call:ask_ben"], "Done."], calls=calls)
        boss = agent(model, name="Boss", tools=[tool(ask_ben)])
        return (await talk(boss, "What does Ben say?")).get_text_content()

    spans = await run(program)
    names = [span.attributes["gen_ai.agent.name"] for span in spans]
    assert sorted(names) == ["Ben"] * 4 + ["Boss"] * 2
    assert (names[0], names[-1]) == ("Boss", "Boss")
    sessions = {span.attributes["gen_ai.conversation.id"] for span in spans}
    assert len(sessions) == (1 if same else 3)


async def test_several_agents_of_one_session_each_with_a_context_of_its_own(run):
    async def program(calls):
        anna, ben = (agent(Listening(["Yes.", "No."], calls=calls), name=name) for name in ("Anna", "Ben"))
        ben.state.session_id = anna.state.session_id
        message = UserMsg("user", "Shall we?")
        for _ in range(2):
            for entry, other in ((anna, ben), (ben, anna)):
                message = await entry.reply(message)
                await other.observe(message)
        return message.get_text_content()

    spans = await run(program, traces=4)
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 2
    assert len({span.attributes["gen_ai.conversation.id"] for span in spans}) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_context_that_agentscope_compresses(run, stream):
    async def program(calls):
        someone = agent(Listening(calls=calls, stream=stream), reserve_ratio=0.3, middlewares=[Polite()])
        await talk(someone, *(f"question {number} {words(400)}" for number in range(20)))
        return someone.state.summary

    spans = await run(program, traces=20)
    compressed = [chain for chain in chains(spans) if "compress_context" in chain]
    assert len(compressed) >= 2
    assert all(chain in (["Polite"], ["Polite", "compress_context"]) for chain in chains(spans))


async def test_a_summary_that_fails_and_a_limit_that_is_declared_and_passes(run):
    class Verbose(MiddlewareBase):
        async def on_system_prompt(self, agent, current_prompt):
            return f"{current_prompt}\n{words(2_000)}"

    async def program(calls):
        someone = agent(Listening(calls=calls, context_size=1_000), middlewares=[Verbose()])
        await talk(long(someone, 4), "and now?")
        return someone.state.summary

    (span,) = await run(program)
    assert span.attributes["assembly.overflowed"] is True
    assert span.attributes["assembly.overflow.cause"] == "framework"
    assert span.attributes["assembly.overflow.tokens"] == span.attributes["assembly.tokens.out"] - 800


async def test_a_context_that_a_users_middleware_compresses_with_a_model_of_its_own(assembly_telemetry):
    received, asked = [], Listening(["They talked."], name="gpt-4.1")
    with instrumented(assembly_telemetry):
        someone = agent(Listening(calls=received), middlewares=[Summarises(asked)])
        await talk(someone, "one", "two", "three")

    spans = assert_every_call_is_told(assembly_telemetry, received, traces=3)
    assert chains(spans) == [[], [], ["Summarises"]]
    assert len(asked.received) == 1
    attempt = assembly_telemetry.span("compact_block summary")
    assert attempt.parent.name == "apply_policy Summarises"
    assert attempt.attributes["assembly.compaction.outcome"] == "compacted"
    assert assembly_telemetry.span("apply_policy Summarises").compacted == ["0", "1", "2", "3"]


async def test_a_middleware_that_takes_out_something_around_agentscopes_own_compression(run):
    class Around(MiddlewareBase):
        async def on_compress_context(self, agent, input_kwargs, next_handler):
            if len(agent.state.context) > 5:
                agent.state.context = agent.state.context[1:]
                await next_handler(**input_kwargs)
                agent.state.context = agent.state.context[-1:]

    async def program(calls):
        someone = agent(Listening(calls=calls), middlewares=[Around()], reserve_ratio=0.3)
        await talk(long(someone), "and now?", "and then?")
        return someone.state.summary

    spans = await run(program, traces=2)
    assert chains(spans) == [["Around", "compress_context", "Around"], []]
    first, compressed, last = spans[0].children
    assert list(first.dropped_reasons) == ["0"]
    assert compressed.compacted
    assert last.attributes["assembly.events.out"] == 2


async def test_images_results_and_prompts_that_are_cut_or_changed(run):
    def book() -> str:
        """All there is to know."""
        return words(800)

    async def program(calls):
        settings = {"max_image_num": 1} if LIMITS_IMAGES else {}
        lines = [["call:book", "call:fare"], "Done.", "Done."]
        model = Listening(lines, calls=calls, context_size=100_000)
        someone = agent(
            model, tools=map(tool, (book, fare)), middlewares=[Polite(), Newest()], tool_result_limit=50, **settings
        )
        someone.state.context = [
            UserMsg("user", [TextBlock(text="Which is it?"), image()]),
            AssistantMsg("Friday", [TextBlock(text="This."), image()]),
        ]
        return (await talk(someone, "And now?", "And then?")).get_text_content()

    spans = await run(program, traces=2)
    images = ["limit_images"] * LIMITS_IMAGES
    assert sorted(chains(spans)[0]) == sorted(["Polite", *images, "Newest"])
    assert "truncate_tool_result" in chains(spans)[1]
    assert [chain[-1] for chain in chains(spans)] == ["Newest"] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_is_interrupted_in_a_tool_and_goes_on(run, stream):
    async def program(calls):
        reached = asyncio.Event()

        async def wait() -> str:
            """Wait for ever."""
            reached.set()
            await asyncio.Event().wait()

        model = Listening(["call:wait", "Done."], calls=calls, stream=stream)
        someone = agent(model, tools=[tool(wait)])
        reply = asyncio.create_task(talk(someone, "go"))
        await reached.wait()
        reply.cancel()
        assert interrupted(await reply) or not FALLS_BACK  # older versions ask the model all the same
        return (await talk(someone, "go on")).get_text_content()

    await run(program, traces=2)


async def test_a_reply_that_is_interrupted_while_the_model_answers(run):
    async def program(calls):
        reached = asyncio.Event()

        class Slow(Listening):
            async def _streamed(self, blocks):
                yield ChatResponse(content=[TextBlock(text="Well, ")], is_last=False, usage=usage())
                if not reached.is_set():
                    reached.set()
                    await asyncio.Event().wait()

        someone = agent(Slow(calls=calls, stream=True))
        reply = asyncio.create_task(talk(someone, "go"))
        await reached.wait()
        reply.cancel()
        assert interrupted(await reply)
        return (await talk(someone, "go on")).get_text_content()

    await run(program, traces=2)


async def test_a_session_that_is_kept_and_goes_on_in_an_agent_made_anew(run):
    async def program(calls):
        state = None
        for number in range(12):
            model = Listening(["call:fare", f"Answer {number}."], calls=calls)
            someone = agent(model, tools=[tool(fare)], state=state, reserve_ratio=0.3)
            await talk(someone, f"question {number} {words(300)}")
            state = type(someone.state).model_validate_json(someone.state.model_dump_json())
        return state.summary

    spans = await run(program, traces=12)
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1
    assert [span.attributes["assembly.turn"] for span in spans] == list(range(24))
    assert any("compress_context" in chain for chain in chains(spans))


async def test_its_own_tracing_beside_us(assembly_telemetry, monkeypatch):
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: assembly_telemetry.tracer_provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_, **__: assembly_telemetry.tracer_provider.get_tracer(name))
    received = []
    with instrumented(assembly_telemetry):
        model = Listening([ConnectionError("down"), "call:fare", "Done."], calls=received, context_size=50_000)
        someone = agent(model, tools=[tool(fare)], middlewares=[TracingMiddleware(), Polite(), TriesAgain()])
        await talk(someone, "hello")

    spans = assert_every_call_is_told(assembly_telemetry, received, traces=1)
    chats = assembly_telemetry.spans_named("chat gpt-4o")
    assert len(spans) == 3
    assert [chat.attributes["assembly.id"] for chat in chats] == [span.attributes["assembly.id"] for span in spans[1:]]


@pytest.mark.skipif(not STRUCTURED, reason="this version of AgentScope's agents have no structured output")
async def test_a_reply_with_structured_output(run):
    async def program(calls):
        lines = ["I think.", 'call:GenerateStructuredOutput {"city": "Bonn", "price": 20}', "Done."]
        someone = agent(Listening(lines, calls=calls))
        answer = await someone.reply(UserMsg("user", "Where to?"), structured_schema=Answer)
        return answer.get_text_content()

    await run(program)


async def test_a_model_that_is_asked_for_structured_output_itself(run):
    line = 'call:generate_structured_output {"topic": "travel"}'

    async def program(calls):
        router = Listening(["No.", line] if TRIES_OTHERWISE else [line], calls=calls, name="gpt-4.1")
        someone = agent(Listening(calls=calls), middlewares=[Routes(router)])
        await talk(someone, "one", "two")
        alone = await Listening([line], calls=calls).generate_structured_output([UserMsg("user", "a trip")], Topic)
        return alone.content

    spans = await run(program, traces=None)
    assert [span.attributes["assembly.model"] for span in spans][-1] == "gpt-4o"


async def test_models_with_methods_of_their_own_that_no_agent_has(run):
    class Own(Listening):
        """Asks its client by itself, whatever it is asked for."""

        async def __call__(self, messages, tools=None, tool_choice=None, **kwargs):
            return await self._call_api(self.model, messages, tools, tool_choice, **kwargs)

        async def generate_structured_output(self, messages, structured_model, **kwargs):
            return await self._call_api(self.model, messages[-1:])

    async def program(calls):
        someone = agent(Listening(calls=calls), middlewares=[Routes(Own(["Travel."], calls=calls, name="gpt-4.1"))])
        await talk(someone, "one")
        return (await Own(calls=calls)([UserMsg("user", "hello")])).content[0].text

    spans = await run(program, traces=None)
    assert [span.attributes["assembly.model"] for span in spans] == ["gpt-4.1", "gpt-4o", "gpt-4o"]


async def test_a_model_that_a_middleware_asks_something_else(run):
    async def program(calls):
        other = Listening(["Good."], calls=calls, name="gpt-4.1")
        someone = agent(Listening(calls=calls), middlewares=[Asks(other), Newest()])
        return (await talk(someone, "one", "two")).get_text_content()

    spans = await run(program, traces=2)
    assert chains(spans) == [[], [], [], ["on_model_call"]]
    assert len({span.attributes["assembly.ledger.id"] for span in spans[1::2]}) == 1
    assert spans[1].attributes["assembly.ledger.id"] not in {
        span.attributes["assembly.ledger.id"] for span in spans[::2]
    }


async def test_a_model_with_a_call_of_its_own(run):
    class Own(Listening):
        """Sends no more than three messages, whoever asks."""

        async def __call__(self, messages, tools=None, tool_choice=None, **kwargs):
            return await super().__call__(messages[-3:], tools, tool_choice, **kwargs)

    async def program(calls):
        return (await talk(agent(Own(calls=calls)), "one", "two", "three")).get_text_content()

    spans = await run(program, traces=3)
    assert chains(spans) == [[], ["framework"], ["framework"]]
    assert spans[1].attributes["assembly.prompts.out"] == 0


async def test_a_model_that_is_none_of_agentscopes(run):
    async def program(calls):
        class Alike:
            def __init__(self):
                real = self.real = Listening(calls=calls)
                self.model, self.stream, self.max_retries, self.formatter = "gpt-4o", False, 0, real.formatter
                self.context_size, self.count_tokens = 4_000, real.count_tokens

            async def __call__(self, messages, tools=None, tool_choice=None):
                return await self.real._call_api("gpt-4o", messages, tools, tool_choice)

        return (await talk(agent(Alike()), "one", "two")).get_text_content()

    await run(program, traces=2)


async def test_agents_at_once(run):
    async def program(calls):
        async def work(name):
            lines = ["call:fare", "Done."]
            someone = agent(Listening(lines, calls=calls, context_size=50_000), name=name, tools=[tool(fare)])
            return (await talk(someone, f"{name} asks {words(len(name))}", "and again")).get_text_content()

        return await asyncio.gather(*(work("Anna" * number) for number in range(1, 5)))

    spans = await run(program, traces=8)
    for span in spans:
        assert span.parent.name == f"invoke_agent {span.attributes['gen_ai.agent.name']}"


async def test_compression_outside_of_a_reply_is_told_without_a_call(assembly_telemetry):
    received = []
    with instrumented(assembly_telemetry):
        someone = long(agent(Listening(calls=received)))
        await someone.compress_context()
        (alone,) = assembly_telemetry.spans_named(ASSEMBLY)
        assert received == []
        assembly_telemetry.clear()
        await talk(someone, "and now?")
    (span,) = assert_every_call_is_told(assembly_telemetry, received, traces=1)
    assert alone.kept[0] in span.offered
