"""Programs as users of agent-framework write them: each returns what it would print."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from agent_framework import (
    Agent,
    AgentSession,
    CharacterEstimatorTokenizer,
    ChatMiddleware,
    CompactionProvider,
    ContextProvider,
    FileHistoryProvider,
    InMemoryHistoryProvider,
    Message,
    RawAgent,
    SelectiveToolCallCompactionStrategy,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    ToolResultCompactionStrategy,
    TruncationStrategy,
    WorkflowBuilder,
    chat_middleware,
    tool,
)
from pydantic import BaseModel
from scripted_clients import BareClient, Received, ScriptedClient, calling, streamed, weather

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Stage:
    """What a program plays on: its clients, and how many runs it asks for.

    Attributes:
        received: What the clients of its agents received, in order.
        summaries: What the clients of its summarisers received.
        runs: How many runs it has asked for; each is one trace.
    """

    received: list[Received] = field(default_factory=list)
    summaries: list[Received] = field(default_factory=list)
    runs: int = 0

    def client(self, *answers: Any, kind: type = ScriptedClient, **settings: Any) -> Any:
        return kind(*answers, log=self.received, **settings)

    def summariser(self, *answers: Any) -> Any:
        return ScriptedClient(*answers, log=self.summaries)

    async def ask(self, agent: Any, *given: Any, **settings: Any) -> str:
        self.runs += 1
        return (await agent.run(*given, **settings)).text

    async def stream(self, agent: Any, *given: Any, **settings: Any) -> str:
        self.runs += 1
        return await streamed(agent, *given, **settings)


QUESTIONS = ("the weather in Bonn?", "and in Ulm?", "and in Kiel, where we go on Sunday?", "and at home?", "thank you")


def two_rounds() -> list[Any]:
    """Answers to the questions: the first three call tools before they answer."""
    return [
        calling("a1", "a2"),
        "it rains",
        calling("b1", city="Ulm"),
        "it rains there too",
        calling("c1", city="Kiel"),
        calling("c2", "c3", city="Kiel"),
        "it rains in Kiel as well",
        "look out of the window",
        "you are welcome",
    ]


async def talk(stage: Stage, agent: Any, *, stream: bool = False) -> list[str]:
    session = agent.create_session(session_id="s1")
    ask = stage.stream if stream else stage.ask
    return [await ask(agent, question, session=session) for question in QUESTIONS]


def clerk(stage: Stage, **settings: Any) -> Agent:
    return Agent(stage.client(*two_rounds()), "You tell the weather.", name="clerk", tools=[weather], **settings)


async def tools_in_parallel(stage: Stage) -> list[str]:
    agent = Agent(stage.client(calling("1", "2", "3"), "rain"), "You tell the weather.", name="clerk", tools=[weather])
    return [await stage.ask(agent, "the weather?")]


async def streams(stage: Stage) -> list[str]:
    return await talk(stage, clerk(stage), stream=True)


async def a_stream_that_is_left(stage: Stage) -> list[str]:
    agent = clerk(stage)
    stage.runs += 1
    found = []
    async for update in agent.run(QUESTIONS[0], stream=True):
        found.append(update.text)
        if update.text:
            break
    return found


async def sub_agent_as_tool(stage: Stage) -> list[str]:
    expert = Agent(
        stage.client(calling("e1"), "rain, says the expert"),
        "You are an expert.",
        name="expert",
        description="knows the weather",
        tools=[weather],
    )
    boss = Agent(
        stage.client(calling("x1", "x2", name="expert", task="ask about Bonn"), "rain, I hear"),
        "You ask experts.",
        name="boss",
        tools=[expert.as_tool()],
    )
    return [await stage.ask(boss, "the weather?")]


async def resumed_from_saved_state(stage: Stage) -> list[str]:
    agent = clerk(stage)
    session = agent.create_session(session_id="s1")
    answers = []
    for question in QUESTIONS:
        answers.append(await stage.ask(agent, question, session=session))
        session = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    return answers


async def history_in_files(stage: Stage) -> list[str]:
    with TemporaryDirectory() as folder:
        agent = clerk(
            stage,
            context_providers=[FileHistoryProvider(folder)],
            compaction_strategy=SlidingWindowStrategy(keep_last_groups=3),
        )
        return await talk(stage, agent)


async def sliding_window(stage: Stage) -> list[str]:
    return await talk(stage, clerk(stage, compaction_strategy=SlidingWindowStrategy(keep_last_groups=3)))


async def sliding_window_in_a_stream(stage: Stage) -> list[str]:
    agent = clerk(stage, compaction_strategy=SlidingWindowStrategy(keep_last_groups=3))
    return await talk(stage, agent, stream=True)


async def truncation(stage: Stage) -> list[str]:
    return await talk(stage, clerk(stage, compaction_strategy=TruncationStrategy(max_n=6, compact_to=4)))


async def truncation_by_tokens(stage: Stage) -> list[str]:
    tokenizer = CharacterEstimatorTokenizer()
    strategy = TruncationStrategy(max_n=150, compact_to=100, tokenizer=tokenizer)
    return await talk(stage, clerk(stage, compaction_strategy=strategy, tokenizer=tokenizer))


async def selective_tool_calls(stage: Stage) -> list[str]:
    return await talk(stage, clerk(stage, compaction_strategy=SelectiveToolCallCompactionStrategy()))


async def tool_results(stage: Stage) -> list[str]:
    return await talk(stage, clerk(stage, compaction_strategy=ToolResultCompactionStrategy()))


async def summarization(stage: Stage) -> list[str]:
    summariser = stage.summariser("they asked for Bonn", "for Bonn and Ulm", "for Bonn, Ulm and Kiel")
    strategy = SummarizationStrategy(client=summariser, target_count=3, threshold=1)
    return await talk(stage, clerk(stage, compaction_strategy=strategy))


async def summarization_that_fails(stage: Stage) -> list[str]:
    summariser = stage.summariser(RuntimeError("no"), " ", "they asked for Bonn", RuntimeError("no"))
    strategy = SummarizationStrategy(client=summariser, target_count=3, threshold=1)
    return await talk(stage, clerk(stage, compaction_strategy=strategy))


async def composed(stage: Stage) -> list[str]:
    strategy = TokenBudgetComposedStrategy(
        token_budget=220,
        tokenizer=CharacterEstimatorTokenizer(),
        strategies=[ToolResultCompactionStrategy(), SlidingWindowStrategy(keep_last_groups=4)],
    )
    return await talk(stage, clerk(stage, compaction_strategy=strategy))


async def composed_down_to_the_fallback(stage: Stage) -> list[str]:
    strategy = TokenBudgetComposedStrategy(
        token_budget=90,
        tokenizer=CharacterEstimatorTokenizer(),
        strategies=[SummarizationStrategy(client=stage.summariser("short"), target_count=4)],
    )
    return await talk(stage, clerk(stage, compaction_strategy=strategy))


async def provider_before(stage: Stage) -> list[str]:
    providers = [
        InMemoryHistoryProvider(),
        CompactionProvider(before_strategy=SlidingWindowStrategy(keep_last_groups=2)),
    ]
    return await talk(stage, clerk(stage, context_providers=providers))


async def provider_after(stage: Stage) -> list[str]:
    providers = [
        InMemoryHistoryProvider(skip_excluded=True),
        CompactionProvider(after_strategy=TruncationStrategy(max_n=4, compact_to=3)),
    ]
    return await talk(stage, clerk(stage, context_providers=providers))


async def providers_and_strategy(stage: Stage) -> list[str]:
    summariser = stage.summariser("they asked for Bonn", "and for Ulm", "and for Kiel")
    providers = [
        InMemoryHistoryProvider(skip_excluded=True),
        CompactionProvider(
            before_strategy=SlidingWindowStrategy(keep_last_groups=4),
            after_strategy=SummarizationStrategy(client=summariser, target_count=3, threshold=1),
        ),
    ]
    return await talk(
        stage, clerk(stage, context_providers=providers, compaction_strategy=ToolResultCompactionStrategy())
    )


async def own_strategy(stage: Stage) -> list[str]:
    async def newest_five(messages: list[Message]) -> bool:
        """It knows nothing of annotations, and changes the list."""
        gone = len(messages) > 5
        del messages[:-5]
        return gone

    return await talk(stage, clerk(stage, compaction_strategy=newest_five))


async def middleware_that_edits(stage: Stage) -> list[str]:
    class OnlyTheNewest(ChatMiddleware):
        async def process(self, context: Any, call_next: Callable[..., Any]) -> None:
            context.messages = [
                Message("system", ["Be brief."]),
                *(m for m in context.messages if m.role != "assistant" or m.contents[0].type == "function_call"),
            ]
            await call_next()

    return await talk(stage, clerk(stage, middleware=[OnlyTheNewest()]))


async def middleware_that_edits_in_a_stream(stage: Stage) -> list[str]:
    @chat_middleware
    async def in_place(context: Any, call_next: Callable[..., Any]) -> None:
        context.messages.insert(0, Message("user", ["by the way, my name is Ada"]))
        await call_next()

    return await talk(stage, clerk(stage, middleware=[in_place]), stream=True)


async def middleware_that_retries(stage: Stage) -> list[str]:
    @chat_middleware
    async def retry(context: Any, call_next: Callable[..., Any]) -> None:
        for _ in range(2):
            try:
                await call_next()
            except ConnectionError:
                continue
            return
        context.messages = context.messages[-1:]
        await call_next()

    lost = ConnectionError("lost")
    client = stage.client("one", lost, lost, "two", lost, "three")
    agent = Agent(client, "You are patient.", name="clerk", middleware=[retry])
    session = agent.create_session()
    return [await stage.ask(agent, text, session=session) for text in ("first", "second", "third")]


async def retried_by_its_user(stage: Stage) -> list[str]:
    agent = Agent(stage.client(ConnectionError("lost"), "here"), "You are patient.", name="clerk")
    session = agent.create_session()
    try:
        await stage.ask(agent, "hello", session=session)
    except ConnectionError as lost:
        return [repr(lost), await stage.ask(agent, "hello", session=session)]
    return []


async def cancelled(stage: Stage) -> list[str]:
    class Slow(ScriptedClient):
        def _inner_get_response(self, **given: Any) -> Any:
            answer = super()._inner_get_response(**given)
            return self._never(answer) if len(self.received) == 2 else answer

        async def _never(self, answer: Any) -> Any:
            await answer
            self.called.set()
            await asyncio.Event().wait()

    client = stage.client(calling("1"), "lost", "here", kind=Slow)
    client.called = asyncio.Event()
    agent = Agent(client, "You tell the weather.", name="clerk", tools=[weather])
    session = agent.create_session()
    task = asyncio.create_task(stage.ask(agent, "the weather?", session=session))
    await client.called.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return ["cancelled", await stage.ask(agent, "and now?", session=session)]
    return []


async def workflow_of_two(stage: Stage) -> list[str]:
    writer = Agent(stage.client("a poem", "a better poem"), "You write.", name="writer")
    critic = Agent(stage.client("it is short", "it is good"), "You criticise.", name="critic")
    workflow = WorkflowBuilder(start_executor=writer).add_edge(writer, critic).build()
    stage.runs += 1
    found = (await workflow.run("about rain")).get_outputs()
    return [str(getattr(message, "text", message)) for message in found]


async def workflow_as_an_agent_in_a_stream(stage: Stage) -> list[str]:
    writer = Agent(stage.client(calling("1"), "a poem"), "You write.", name="writer", tools=[weather])
    critic = Agent(stage.client("it is short"), "You criticise.", name="critic")
    workflow = WorkflowBuilder(start_executor=writer).add_edge(writer, critic).build()
    return [await stage.stream(workflow.as_agent("team"), "about rain")]


async def structured_output(stage: Stage) -> list[str]:
    class Weather(BaseModel):
        city: str
        rain: bool

    answers = [calling("1"), '{"city": "Bonn", "rain": true}']
    agent = Agent(stage.client(*answers), "You tell the weather.", name="clerk", tools=[weather])
    stage.runs += 1
    return [repr((await agent.run("Bonn?", options={"response_format": Weather})).value)]


async def history_around_each_call(stage: Stage) -> list[str]:
    return await talk(
        stage,
        clerk(stage, context_providers=[InMemoryHistoryProvider()], require_per_service_call_history_persistence=True),
    )


async def a_provider_of_context(stage: Stage) -> list[str]:
    class Profile(ContextProvider):
        async def before_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:
            context.extend_instructions(self.source_id, "The user is called Ada.")
            context.extend_messages(self.source_id, [Message("user", ["I like umbrellas"])])
            context.extend_tools(self.source_id, [weather])

    agent = Agent(
        stage.client(calling("1"), "rain", "no"), "You help.", name="clerk", context_providers=[Profile("profile")]
    )
    session = agent.create_session()
    return [await stage.ask(agent, question, session=session) for question in QUESTIONS[:2]]


async def one_round_too_many(stage: Stage) -> list[str]:
    client = stage.client(*[calling(str(n)) for n in range(3)], "enough")
    client.function_invocation_configuration["max_iterations"] = 3
    return [await stage.ask(Agent(client, "You tell the weather.", name="clerk", tools=[weather]), "the weather?")]


async def a_client_of_ones_own(stage: Stage) -> list[str]:
    class Shorter(ScriptedClient):
        """It leaves messages out, and tries twice."""

        def _inner_get_response(self, *, messages: Any, **given: Any) -> Any:
            return self._twice(messages[-3:], given)

        async def _twice(self, messages: Any, given: Any) -> Any:
            try:
                return await super()._inner_get_response(messages=messages, **given)
            except ConnectionError:
                return await super()._inner_get_response(messages=messages[-1:], **given)

    client = stage.client("one", "two", ConnectionError("lost"), "three", kind=Shorter)
    agent = Agent(client, "You are patient.", name="clerk")
    session = agent.create_session()
    return [await stage.ask(agent, text, session=session) for text in ("first", "second", "third")]


async def without_any_layer(stage: Stage) -> list[str]:
    agent = RawAgent(stage.client("one", "two", kind=BareClient), "You are plain.", name="plain")
    session = agent.create_session()
    return [await stage.ask(agent, text, session=session) for text in ("first", "second")]


async def without_an_agent(stage: Stage) -> list[str]:
    client = stage.client(calling("1"), "rain", "hello")
    messages = [Message("system", ["You tell the weather."]), Message("user", ["Bonn?"])]
    stage.runs = 3  # there is no run: each call stands alone
    return [
        (await client.get_response(messages, options={"tools": [tool(weather)]})).text,
        "".join([update.text async for update in client.get_response(messages[1:], stream=True)]),
    ]


async def sessions_at_once(stage: Stage) -> list[str]:
    agent = Agent(
        stage.client(), "You help.", name="clerk", compaction_strategy=SlidingWindowStrategy(keep_last_groups=2)
    )

    async def one(name: str) -> list[str]:
        session = agent.create_session(session_id=name)
        return [await stage.ask(agent, f"{name} {number}", session=session) for number in range(3)]

    return [text for texts in await asyncio.gather(*map(one, "abcd")) for text in texts]


PROGRAMS = [
    tools_in_parallel,
    streams,
    a_stream_that_is_left,
    sub_agent_as_tool,
    resumed_from_saved_state,
    history_in_files,
    sliding_window,
    sliding_window_in_a_stream,
    truncation,
    truncation_by_tokens,
    selective_tool_calls,
    tool_results,
    summarization,
    summarization_that_fails,
    composed,
    composed_down_to_the_fallback,
    provider_before,
    provider_after,
    providers_and_strategy,
    own_strategy,
    middleware_that_edits,
    middleware_that_edits_in_a_stream,
    middleware_that_retries,
    retried_by_its_user,
    cancelled,
    workflow_of_two,
    workflow_as_an_agent_in_a_stream,
    structured_output,
    history_around_each_call,
    a_provider_of_context,
    one_round_too_many,
    a_client_of_ones_own,
    without_any_layer,
    without_an_agent,
    sessions_at_once,
]
