"""Programs as AutoGen's users write them. Each is given a log, which its models write what they receive in."""

from __future__ import annotations

import asyncio
import contextlib
import json

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, CodeExecutorAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import MultiModalMessage, TextMessage
from autogen_agentchat.teams import (
    RoundRobinGroupChat,
)
from autogen_agentchat.tools import AgentTool
from autogen_calls import Scripted, wants
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.memory import ListMemory, Memory, MemoryContent, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import AssistantMessage, SystemMessage, UserMessage
from autogen_ext.models.cache import ChatCompletionCache
from autogen_parts import BONN, MANY, picture, population, said, streamed, weather
from autogen_team_programs import TEAMS


async def tools_and_a_reflection(log):
    clerk = AssistantAgent(
        "clerk",
        Scripted(log, "clerk", wants(BONN, MANY, thought="two things"), "rain on many", "you are welcome"),
        tools=[weather, population],
        reflect_on_tool_use=True,
    )
    return said(await clerk.run(task="the weather in Bonn?")) + said(await clerk.run(task="thanks"))


async def tools_again_and_again(log):
    clerk = AssistantAgent(
        "clerk",
        Scripted(log, "clerk", wants(BONN), wants(MANY), "that is all"),
        tools=[weather, population],
        max_tool_iterations=3,
        model_context=BufferedChatCompletionContext(4),
    )
    return said(await clerk.run(task="all about Bonn"))


async def a_stream(log):
    clerk = AssistantAgent(
        "clerk",
        Scripted(log, "clerk", wants(BONN), "rain it is", "bye then"),
        tools=[weather],
        reflect_on_tool_use=True,
        model_client_stream=True,
        model_context=BufferedChatCompletionContext(3),
    )
    return await streamed(clerk.run_stream(task="the weather?")) + await streamed(clerk.run_stream(task="thanks"))


async def a_stream_without_a_system_message(log):
    clerk = AssistantAgent("clerk", Scripted(log, "clerk", "one", "two"), system_message=None, model_client_stream=True)
    return await streamed(clerk.run_stream(task="go")) + await streamed(clerk.run_stream(task="on"))


class Forgetful(BufferedChatCompletionContext):
    """A user's own, which leaves what the model thought out of what the buffer keeps."""

    async def get_messages(self):
        kept = await super().get_messages()
        return [message for message in kept if not (isinstance(message, AssistantMessage) and message.content == "hm")]


class Rewriting(UnboundedChatCompletionContext):
    """Gives copies, without what was thought."""

    async def get_messages(self):
        kept = await super().get_messages()
        return [
            message.model_copy(update={"thought": None}) if hasattr(message, "thought") else message for message in kept
        ]


class Summarising(UnboundedChatCompletionContext):
    """Asks a model of its own for a summary of what is old."""

    def __init__(self, client):
        super().__init__()
        self.client = client

    async def get_messages(self):
        if len(self._messages) <= 3:
            return self._messages
        old, new = self._messages[:-1], self._messages[-1:]
        asked = [SystemMessage(content="summarise"), *old]
        summary = await self.client.create(asked)
        return [UserMessage(content=f"so far: {summary.content}", source="summary"), *new]


def _context(kind):
    async def program(log):
        client = Scripted(log, "clerk", "hm", "hm, it is", wants(BONN), "rain", "ok")
        context = kind(client)
        clerk = AssistantAgent("clerk", client, tools=[weather], reflect_on_tool_use=True, model_context=context)
        shown = []
        for task in ("a table for Ann, who is allergic to nuts", "at eight", "will it rain?", "thank you"):
            shown += said(await clerk.run(task=task))
        return shown

    program.__name__ = f"context_{kind.__name__}"
    return program


def buffered(client):
    return BufferedChatCompletionContext(3)


def head_and_tail(client):
    return HeadAndTailChatCompletionContext(1, 2)


def token_limited(client):
    return TokenLimitedChatCompletionContext(client, token_limit=9)


def own(client):
    return Forgetful(4)


def copies(client):
    return Rewriting()


def two_agents_share(client):
    return BufferedChatCompletionContext(2, [SystemMessage(content="always polite")])


class Asking(ListMemory):
    """Asks the context what was said last, as AutoGen's vector memories do."""

    async def update_context(self, model_context):
        messages = await model_context.get_messages()
        await model_context.get_messages()
        return (
            await super().update_context(model_context)
            if messages
            else UpdateContextResult(memories=MemoryQueryResult(results=[]))
        )


class Unrelated:
    """A memory of no base class that asks as well."""

    async def update_context(self, model_context):
        asked = await model_context.get_messages()
        await model_context.add_message(SystemMessage(content=f"{len(asked)} messages were there"))
        return UpdateContextResult(memories=MemoryQueryResult(results=[]))


async def memories(log):
    memory = Asking()
    await memory.add(MemoryContent(content="likes tea", mime_type="text/plain"))
    plain = ListMemory()
    await plain.add(MemoryContent(content="dislikes milk", mime_type="text/plain"))
    clerk = AssistantAgent(
        "clerk",
        Scripted(log, "clerk", *"abc"),
        memory=[memory, plain, Unrelated()],
        model_context=BufferedChatCompletionContext(4),
    )
    return [message for task in "123" for message in said(await clerk.run(task=task))]


assert not issubclass(Unrelated, Memory)


async def sub_agents_at_once(log):
    writers = [
        AssistantAgent(
            f"writer_{number}",
            Scripted(log, f"writer_{number}", _later("a poem", number), _later("another", number)),
            description="Writes.",
            model_context=BufferedChatCompletionContext(1),
        )
        for number in range(3)
    ]
    called = [(writer.name, '{"task": "write"}') for writer in writers]
    main = AssistantAgent(
        "main",
        Scripted(log, "main", wants(*called), wants(*called[:2]), "done"),
        tools=[AgentTool(writer) for writer in writers],
        max_tool_iterations=3,
    )
    return said(await main.run(task="three poems"))


def _later(answer, turns):
    async def wait():
        for _ in range(turns):
            await asyncio.sleep(0)
        return answer

    return lambda messages: wait()


async def cancelled_and_asked_again(log):
    asked = asyncio.Event()

    async def never(messages=None):
        asked.set()
        await asyncio.Event().wait()

    clerk = AssistantAgent(
        "clerk", Scripted(log, "clerk", never, "here I am"), model_context=BufferedChatCompletionContext(2)
    )
    token = CancellationToken()
    task = asyncio.create_task(clerk.run(task="hello", cancellation_token=token))
    token.link_future(task)
    await asked.wait()
    token.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return said(await clerk.run(task="are you there?"))


async def a_model_that_is_down(log):
    clerk = AssistantAgent("clerk", Scripted(log, "clerk", ConnectionError("down"), "up again"))
    try:
        await clerk.run(task="hello")
    except ConnectionError as error:
        return [str(error), *said(await clerk.run(task="hello?"))]


async def resumed(log):
    def team():
        ann = AssistantAgent("ann", Scripted(log, "ann", "a", "b"), model_context=BufferedChatCompletionContext(3))
        bob = AssistantAgent("bob", Scripted(log, "bob", "c", "d"))
        return RoundRobinGroupChat([ann, bob], termination_condition=MaxMessageTermination(3))

    first = team()
    shown = said(await first.run(task="talk"))
    state = json.loads(json.dumps(await first.save_state()))
    second = team()
    await second.load_state(state)
    return shown + said(await second.run(task="go on"))


async def images_for_a_model_that_reads(log):
    clerk = AssistantAgent(
        "clerk", Scripted(log, "clerk", wants(BONN), "a cat", "yes"), tools=[weather], reflect_on_tool_use=True
    )
    shown = said(await clerk.run(task=MultiModalMessage(content=["what is", "this?", picture()], source="user")))
    return shown + said(await clerk.run(task=MultiModalMessage(content=["in", "parts"], source="user")))


class Poet(BaseChatAgent):
    """A user's own agent: it asks its context, and calls its model itself, each time twice."""

    def __init__(self, client):
        super().__init__("poet", "Writes poems.")
        self.client = client
        self.context = BufferedChatCompletionContext(2)

    @property
    def produced_message_types(self):
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        for message in messages:
            await self.context.add_message(message.to_model_message())
        held = await self.context.get_messages()
        draft = await self.client.create([SystemMessage(content="a poem, please"), *held])
        better = [
            SystemMessage(content="make it better"),
            *held,
            AssistantMessage(content=draft.content, source="poet"),
        ]
        final = await self.client.create(better)
        await self.context.add_message(AssistantMessage(content=final.content, source="poet"))
        return Response(chat_message=TextMessage(content=final.content, source="poet"))

    async def on_reset(self, cancellation_token):
        await self.context.clear()


async def an_agent_of_ones_own(log):
    poet = Poet(Scripted(log, "poet", "roses", "red roses", "violets", "blue violets"))
    return said(await poet.run(task="on roses")) + said(await poet.run(task="on violets"))


async def a_context_and_a_model_by_hand(log):
    context, client = BufferedChatCompletionContext(2), Scripted(log, "by hand", *"abc")
    shown = []
    for number in range(3):
        await context.add_message(UserMessage(content=f"question {number}", source="user"))
        held = await context.get_messages()
        answer = await client.create([SystemMessage(content="be brief"), *held])
        await context.add_message(AssistantMessage(content=answer.content, source="assistant"))
        shown.append(answer.content)
    return shown


class _Executor(CodeExecutor):
    component_type = "code_executor"

    def __init__(self, *codes):
        self.codes = list(codes)

    async def execute_code_blocks(self, code_blocks, cancellation_token):
        code = self.codes.pop(0)
        return CodeResult(exit_code=code, output="fine" if code == 0 else "it broke")

    async def start(self):
        pass

    stop = restart = start


async def a_code_executor_that_tries_again(log):
    code = "```python\nprint(1)\n```"
    coder = CodeExecutorAgent(
        "coder",
        _Executor(1, 0),
        model_client=Scripted(log, "coder", code, '{"retry": true, "reason": "why not"}', code, "it went well"),
        max_retries_on_error=1,
        model_context=BufferedChatCompletionContext(3),
    )
    return said(await coder.run(task="compute"))


async def a_summary_of_a_models(log):
    summarises = Scripted([], "summariser", "they talked", "they talked on")
    clerk = AssistantAgent(
        "clerk", Scripted(log, "clerk", "one", "two", "three"), model_context=Summarising(summarises)
    )
    return [message for task in "123" for message in said(await clerk.run(task=task))]


async def a_cache_in_front(log):
    cached = ChatCompletionCache(Scripted(log, "cached", wants(BONN), "rain", "bye"))
    clerk = AssistantAgent("clerk", cached, tools=[weather], reflect_on_tool_use=True, model_client_stream=True)
    return await streamed(clerk.run_stream(task="the weather?")) + said(await clerk.run(task="bye"))


#: Of each program, how many runs it makes: what holds no agent and no team is a run for each of its calls.
PROGRAMS = {
    tools_and_a_reflection: 2,
    tools_again_and_again: 1,
    a_stream: 2,
    a_stream_without_a_system_message: 2,
    **{_context(kind): 4 for kind in (buffered, head_and_tail, token_limited, own, copies, two_agents_share)},
    memories: 3,
    **TEAMS,
    sub_agents_at_once: 1,
    cancelled_and_asked_again: 2,
    a_model_that_is_down: 2,
    resumed: 2,
    images_for_a_model_that_reads: 2,
    an_agent_of_ones_own: 2,
    a_context_and_a_model_by_hand: 3,
    a_code_executor_that_tries_again: 1,
    a_summary_of_a_models: 3,
    a_cache_in_front: 2,
}
