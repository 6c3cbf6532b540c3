"""Programs as AG2's users write them; each prints and returns what it comes to, and gets its models from a `Log`."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ag2_package import AssemblerMiddleware, BaseMiddleware, MemoryStream, ag2, alert, ask, call, events, part
from ag2_package import policies as built_in
from test_ag2_persisted import KeptStorage, exchanges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ag2_received import Log

    Program = Callable[[Log], Awaitable[Any]]

compact, aggregate, knowledge = part("compact"), part("aggregate"), part("knowledge")
agents = part("agent")


def limiting(name: str) -> Any:
    modules = {"HistoryLimiter": "history_limiter", "TokenLimiter": "token_limiter", "RetryMiddleware": "llm_retry"}
    return getattr(part(f"middleware.builtin.{modules[name]}"), name)


def assembler(*chain: Any) -> Any:
    return ag2.Middleware(AssemblerMiddleware, policies=list(chain))


def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


async def wait(seconds: str) -> str:
    """Wait a while."""
    await asyncio.sleep(0)
    return f"waited {seconds}"


class Edits(BaseMiddleware):
    """Takes out the oldest event, and reminds of the time in the prompt and behind the events."""

    async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> Any:
        before, context.prompt = context.prompt, [*context.prompt, "Be brief."]
        try:
            return await call_next([*events[1:], ask("Mind the time.")], context)
        finally:
            context.prompt = before


class FallsBack(BaseMiddleware):
    """Asks again, with less, where the model has failed."""

    async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> Any:
        try:
            return await call_next(events, context)
        except ConnectionError:
            return await call_next(events[-1:], context)


async def plain(log: Log) -> Any:
    agent = ag2.Agent("support", "You help.", config=log.model(call("look", '{"place": "here"}'), "no", "bye"))
    agent.tool(look)
    reply = await agent.ask("is it here?")
    print(reply.body)
    return reply.body, (await reply.ask("thanks")).body


async def policies(log: Log) -> Any:
    agent = ag2.Agent(
        "support",
        ["You help.", "You are kind."],
        config=log.model(*"abcdef"),
        assembly=[
            built_in.AlertPolicy(),
            built_in.ConversationPolicy(),
            built_in.SlidingWindowPolicy(5, transparent=True),
            built_in.TokenBudgetPolicy(60),
        ],
    )
    stream = MemoryStream()
    await stream.history.replace([*exchanges(3), alert("Slow.")])
    return [(await agent.ask(f"question {turn}", stream=stream)).body for turn in range(5)]


async def middlewares(log: Log) -> Any:
    agent = ag2.Agent(
        "support",
        "You help.",
        config=log.model("one", ConnectionError(), ConnectionError(), "two", "three"),
        middleware=[
            limiting("RetryMiddleware")(max_retries=1),
            assembler(built_in.ConversationPolicy()),
            ag2.Middleware(Edits),
            limiting("HistoryLimiter")(max_events=9),
            limiting("RetryMiddleware")(max_retries=1),
            limiting("TokenLimiter")(max_tokens=40),
        ],
    )
    stream = MemoryStream()
    await stream.history.replace(list(exchanges(4)))
    return [(await agent.ask(f"question {turn}", stream=stream)).body for turn in range(3)]


async def edits_alone(log: Log) -> Any:
    agent = ag2.Agent("support", "You help.", config=log.model("one", "two"), middleware=[ag2.Middleware(Edits)])
    stream = MemoryStream()
    await stream.history.replace(list(exchanges(2)))
    return [(await agent.ask(text, stream=stream)).body for text in ("first", "second")]


async def edits_before_and_behind(log: Log) -> Any:
    agent = ag2.Agent(
        "support",
        "You help.",
        config=log.model("one", "two"),
        middleware=[ag2.Middleware(Edits)],
        assembly=[built_in.SlidingWindowPolicy(4)],
    )
    reply = await agent.ask("first", middleware=[ag2.Middleware(Edits)])
    return reply.body, (await reply.ask("second", middleware=[ag2.Middleware(Edits)])).body


async def falls_back(log: Log) -> Any:
    agent = ag2.Agent(
        "support",
        config=log.model("one", ConnectionError(), "two"),
        middleware=[ag2.Middleware(FallsBack)],
        assembly=[built_in.ConversationPolicy()],
    )
    reply = await agent.ask("first")
    return reply.body, (await reply.ask("second")).body


async def retries_what_no_policy_touches(log: Log) -> Any:
    agent = ag2.Agent(
        "support", config=log.model(ConnectionError(), "one"), middleware=[limiting("RetryMiddleware")(1)]
    )
    return (await agent.ask("first")).body


async def streams(log: Log) -> Any:
    """What arrives in pieces is printed as it comes."""

    async def piece(event: events.ModelMessageChunk) -> None:
        print(event.content, end=" ")

    agent = ag2.Agent("support", config=log.model(*_in_pieces("It", "is"), call("look", '{"place": "a"}'), "end"))
    agent.tool(look)
    stream = MemoryStream()
    stream.where(events.ModelMessageChunk).subscribe(piece)
    return [(await agent.ask(text, stream=stream)).body for text in ("where?", "really?")]


def _in_pieces(*texts: str) -> list[Any]:
    return [*map(events.ModelMessageChunk, texts), " ".join(texts)]


@dataclass
class Location:
    room: str
    floor: int


async def structured(log: Log) -> Any:
    agent = ag2.Agent(
        "support",
        config=log.model('{"room": 3}', "no idea", '{"room": "a", "floor": 1}'),
        response_schema=Location,
    )
    reply = await agent.ask("where?")
    return await reply.content(retries=2)


async def parallel_tools(log: Log) -> Any:
    calls = [call("wait", '{"seconds": "1"}', id="a"), call("look", '{"place": "b"}', id="b")]
    agent = ag2.Agent("support", config=log.model(calls, calls[:1], "done"), tools=[wait, look])
    return (await agent.ask("both")).body


async def subtasks(log: Log) -> Any:
    agent = ag2.Agent(
        "support",
        config=log.model(call("run_subtasks", '{"tasks": ["one", "two", "three"]}'), "all done"),
        tasks=agents.TaskConfig(config=log.model(*["done"] * 3, name="gpt-4o-mini")),
    )
    return (await agent.ask("do it all")).body


async def delegation(log: Log) -> Any:
    helper = ag2.Agent("helper", "You look.", config=log.model(call("look", '{"place": "x"}'), "no"), tools=[look])
    boss = ag2.Agent(
        "boss",
        config=log.model(call("task_helper", '{"objective": "look"}'), "it is not"),
        tools=[helper.as_tool(description="Looks for things.")],
    )
    return (await boss.ask("is it there?")).body


async def compacts_and_aggregates(log: Log) -> Any:
    """Compaction and aggregation, each with its own summariser, after each turn that needs it."""
    agent = ag2.Agent(
        "support",
        "You help.",
        config=log.model(*"abcdef"),
        knowledge=agents.KnowledgeConfig(
            store=knowledge.MemoryKnowledgeStore(),
            compact=compact.SummarizeCompact(target=3, config=log.summariser(*["They talked."] * 9)),
            compact_trigger=compact.CompactTrigger(max_events=6),
            aggregate=aggregate.WorkingMemoryAggregate(config=log.summariser(*["They talk a lot."] * 9)),
            aggregate_trigger=aggregate.AggregateTrigger(every_n_turns=2),
        ),
        assembly=[built_in.WorkingMemoryPolicy(), built_in.ConversationPolicy()],
    )
    stream = MemoryStream()
    return [(await agent.ask(f"question {turn}", stream=stream)).body for turn in range(6)]


async def asks_a_summariser(log: Log) -> Any:
    """A policy of the user's that has an agent summarise what it takes out."""
    writer = ag2.Agent("writer", "You summarise.", config=log.summariser(*["They talked."] * 9))

    class Summarises:
        name = "summarises"

        async def apply(self, prompts: Any, given: Any, context: Any) -> Any:
            if len(given) < 4:
                return prompts, given
            text = (await writer.ask("\n".join(map(str, given[:-2])), stream=MemoryStream())).body
            return prompts, [compact.CompactionSummary(summary=text, event_count=len(given) - 2), *given[-2:]]

    agent = ag2.Agent("support", config=log.model(*"abc"), assembly=[Summarises()])
    stream = MemoryStream()
    return [(await agent.ask(f"question {turn}", stream=stream)).body for turn in range(3)]


async def is_guarded(log: Log) -> Any:
    """A middleware that has another agent look at each prompt, between two that reduce it."""
    guard = ag2.Agent("guard", "You watch.", config=log.model(*["fine"] * 3, name="gpt-4o-mini"))

    class Guarded(BaseMiddleware):
        async def on_llm_call(self, call_next: Any, given: Any, context: Any) -> Any:
            verdict = await guard.ask(str(len(given)), stream=MemoryStream())
            return await call_next([*given, ask(verdict.body)], context)

    agent = ag2.Agent(
        "support",
        config=log.model(*"abc"),
        middleware=[assembler(built_in.ConversationPolicy()), ag2.Middleware(Guarded)],
        assembly=[built_in.SlidingWindowPolicy(3)],
    )
    stream = MemoryStream()
    return [(await agent.ask(f"question {turn}", stream=stream)).body for turn in range(3)]


async def halts(log: Log) -> Any:
    """An observer halts the run when a tool has said enough."""

    async def stop(event: events.ToolResultsEvent, context: ag2.Context) -> None:
        await context.send(events.HaltEvent(reason="Enough.", source="guard"))

    agent = ag2.Agent(
        "support",
        config=log.model(call("look", '{"place": "here"}'), "no", "never"),
        tools=[look],
        observers=[ag2.observer(events.ToolResultsEvent, stop)],
        assembly=[built_in.ConversationPolicy()],
    )
    reply = await agent.ask("is it here?")
    return reply.body, (await reply.ask("really?")).body


async def is_cancelled(log: Log) -> Any:
    """A run is cancelled in a tool; the conversation goes on."""
    started = asyncio.Event()

    async def hang() -> str:
        """Hang."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent = ag2.Agent("support", config=log.model(call("hang"), "again"), tools=[hang])
    stream = MemoryStream()
    task = asyncio.create_task(agent.ask("go", stream=stream))
    await started.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return (await agent.ask("and now?", stream=stream)).body


async def is_resumed(log: Log) -> Any:
    """A stream that is kept serialised, gone on with by another agent object, as another process would."""
    storage = KeptStorage(*exchanges(2))
    bodies = []
    for turn in range(3):
        agent = ag2.Agent("support", "You help.", config=log.model(call("look", '{"place": "a"}'), f"no {turn}"))
        agent.tool(look)
        policy = [built_in.SlidingWindowPolicy(7)]
        middleware = [assembler(*policy)] if turn == 1 else []
        stream = MemoryStream(storage, id="kept")
        bodies.append((await agent.ask(f"where {turn}?", stream=stream, middleware=middleware)).body)
    return bodies


PROGRAMS: dict[str, Program] = {
    function.__name__: function
    for function in (
        plain,
        policies,
        middlewares,
        edits_alone,
        edits_before_and_behind,
        falls_back,
        retries_what_no_policy_touches,
        streams,
        structured,
        parallel_tools,
        subtasks,
        delegation,
        compacts_and_aggregates,
        asks_a_summariser,
        is_guarded,
        halts,
        is_cancelled,
        is_resumed,
    )
}
