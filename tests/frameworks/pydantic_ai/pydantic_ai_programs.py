"""Programs of Pydantic AI as its users write them; each is given a stage, and returns what it came to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pydantic_ai
from packaging.version import Version
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, PromptedOutput, RunContext
from pydantic_ai.capabilities import AbstractCapability, Hooks, ProcessHistory
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    UserPromptPart,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai_models import Received, ScriptedModel, Stage, history, words

VERSION = Version(pydantic_ai.__version__)


def look(q: str = "x") -> str:
    """Look something up.

    Args:
        q: What to look for.
    """
    return f"found {q}: {words(10)}"


def fail(q: str = "x") -> str:
    """Find nothing."""
    raise ModelRetry(f"nothing is known of {q}")


class Answer(BaseModel):
    city: str
    price: int


async def plain(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "Hello."), name="greeter", system_prompt="You greet.", instructions="Be kind.")
    stage.runs = 2
    first = await agent.run("Hi")
    second = await agent.run("Again", message_history=first.all_messages())
    return first.output, second.output


async def parallel_tools(stage: Stage) -> Any:
    model = ScriptedModel(stage, ['call:look {"q": "a"}', 'call:look {"q": "b"}', "call:fail"], "call:look", "Done.")
    agent = Agent(model, name="looker", tools=[look, fail], instructions="Look.", system_prompt=("One.", "Two."))
    return (await agent.run("Find a and b")).output


async def streamed(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "call:look", "It is here."), name="streamer", tools=[look])
    async with agent.run_stream("Where?") as result:
        said = [text async for text in result.stream_text()]
    return said, len(result.all_messages())


async def streamed_events(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "call:look", "It is here."), name="streamer", tools=[look])
    kinds: list[str] = []

    async def handle(ctx: Any, events: Any) -> None:
        kinds.extend([type(event).__name__ async for event in events])

    return (await agent.run("Where?", event_stream_handler=handle)).output, kinds


async def iterated(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "call:look", "Done."), name="stepper", tools=[look], system_prompt="Step.")
    nodes = []
    async with agent.iter("Go") as run:
        async for node in run:
            nodes.append(type(node).__name__)
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass
    return nodes, run.result.output


async def stepped_by_hand(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "call:look", "Done."), name="stepper", tools=[look])
    async with agent.iter("Go") as run:
        node: Any = run.next_node
        while run.result is None:
            node = await run.next(node)
    return run.result.output


async def abandoned(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "call:look", "Done."), name="stepper", tools=[look])
    async with agent.iter("Go") as run:
        async for node in run:
            if Agent.is_call_tools_node(node):
                break
    return run.result


async def structured(stage: Stage) -> Any:
    model = ScriptedModel(
        stage, 'call:final_result {"city": "Bonn"}', "No tool at all.", 'call:final_result {"city": "Bonn", "price": 3}'
    )
    agent = Agent(model, name="structured", output_type=Answer, tools=[look], retries=5)
    return (await agent.run("Which?")).output


async def prompted(stage: Stage) -> Any:
    model = ScriptedModel(stage, '{"city": "Bonn"}', '{"city": "Bonn", "price": 3}')
    agent = Agent(model, name="prompted", output_type=PromptedOutput(Answer), instructions="Answer.", retries=3)
    return (await agent.run("Which?")).output


async def validated(stage: Stage) -> Any:
    agent: Any = Agent(ScriptedModel(stage, "bad", "good"), name="validated", retries=3)

    @agent.output_validator
    def check(output: str) -> str:
        if output == "bad":
            raise ModelRetry("Say it better.")
        return output

    first = await agent.run("Say it")
    stage.runs = 2
    return first.output, (await agent.run("Once more", message_history=first.all_messages())).output


async def falls_back(stage: Stage) -> Any:
    first = ScriptedModel(stage, ModelHTTPError(503, "first"), "First.", name="gpt-4o")
    agent = Agent(
        FallbackModel(first, ScriptedModel(stage, "call:look", name="gpt-4o-mini")), name="faller", tools=[look]
    )
    return (await agent.run("Go")).output


async def falls_back_streaming(stage: Stage) -> Any:
    first = ScriptedModel(stage, ModelHTTPError(503, "first"), name="gpt-4o")
    agent = Agent(FallbackModel(first, ScriptedModel(stage, "Second.", name="gpt-4o-mini")), name="faller")
    async with agent.run_stream("Go") as result:
        return await result.get_output()


async def wrapped(stage: Stage) -> Any:
    class Loud(WrapperModel):
        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> Any:
            messages = [*messages[:-1], replace(messages[-1], parts=[*messages[-1].parts, UserPromptPart("LOUD")])]
            return await super().request(messages, model_settings, model_request_parameters)

    class Named(WrapperModel):
        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> Any:
            return await self.wrapped.request(
                messages=messages, model_settings=model_settings, model_request_parameters=model_request_parameters
            )

    agent = Agent(Loud(Named(ScriptedModel(stage, "call:look", "Done."))), name="loud", tools=[look])
    return (await agent.run("Go")).output


async def subclassed_model(stage: Stage) -> Any:
    class Own(ScriptedModel):
        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> Any:
            return await super().request(messages, model_settings, model_request_parameters)

    return (await Agent(Own(stage, "call:look", "Done."), name="own", tools=[look]).run("Go")).output


async def delegated(stage: Stage) -> Any:
    helper = Agent(ScriptedModel(stage, "call:look", "It helps."), name="helper", tools=[look], instructions="Help.")
    boss: Any = Agent(ScriptedModel(stage, ["call:ask", "call:look"], "Done."), name="boss", tools=[look])

    @boss.tool
    async def ask(ctx: RunContext[None]) -> str:
        """Ask the helper."""
        return (await helper.run("Help me", usage=ctx.usage)).output

    return (await boss.run("Do it")).output


async def approved_later(stage: Stage) -> Any:
    model = ScriptedModel(stage, ["call:erase", "call:look"], "Erased.")
    agent: Any = Agent(model, name="eraser", tools=[look], output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def erase() -> str:
        """Erase everything."""
        return "erased"

    stage.runs = 2
    asked = await agent.run("Erase")
    saved = ModelMessagesTypeAdapter.dump_json(asked.all_messages())
    call = asked.output.approvals[0]
    answers = DeferredToolResults(approvals={call.tool_call_id: True})
    held = ModelMessagesTypeAdapter.validate_json(saved)
    return (await agent.run(message_history=held, deferred_tool_results=answers)).output


async def resumed_with_orphans(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, ["call:look", "call:look"], "Done."), name="cut", tools=[look])
    first = await agent.run("Look")
    stage.runs = 2
    messages = first.all_messages()
    return (await agent.run("And now?", message_history=messages[2:])).output


async def processed(stage: Stage) -> Any:
    def newest(messages: list[Any]) -> list[Any]:
        return messages[-3:] if len(messages) > 3 else messages

    model = ScriptedModel(stage, "One.", "call:look", "Two.")
    agent = Agent(model, name="processed", tools=[look], capabilities=[ProcessHistory(newest)], system_prompt="Short.")
    stage.runs = 2
    first = await agent.run("First", message_history=history(3))
    return first.output, (await agent.run("Second", message_history=first.all_messages())).output


async def processed_awaited(stage: Stage) -> Any:
    async def without_answers(ctx: RunContext[None], messages: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        return [message for message in messages if isinstance(message, ModelRequest)]

    async def louder(messages: list[Any]) -> list[Any]:
        last = messages[-1]
        return [*messages[:-1], replace(last, parts=[*last.parts, UserPromptPart("Louder!")])]

    capabilities = [ProcessHistory(without_answers), ProcessHistory(louder)]
    agent = Agent(ScriptedModel(stage, "One."), name="processed", capabilities=capabilities, instructions="Short.")
    return (await agent.run("First", message_history=history(3))).output


async def own_capabilities(stage: Stage) -> Any:
    @dataclass
    class Newest(AbstractCapability[Any]):
        keep: int = 2

        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            return replace(request_context, messages=request_context.messages[-self.keep :])

    @dataclass
    class Reminding(Newest):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            request_context = await super().before_model_request(ctx, request_context)
            last = request_context.messages[-1]
            told = replace(last, parts=[SystemPromptPart("Remember."), *last.parts])
            return replace(request_context, messages=[*request_context.messages[:-1], told])

    @dataclass
    class Wrapping(AbstractCapability[Any]):
        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
            request_context.messages = request_context.messages[1:]
            return await handler(request_context)

    def instructing(ctx: Any, request_context: Any) -> Any:
        parameters = request_context.model_request_parameters
        parts = [replace(part, content="Be brief.") for part in parameters.instruction_parts]
        return replace(request_context, model_request_parameters=replace(parameters, instruction_parts=parts))

    agent = Agent(
        ScriptedModel(stage, "Done."),
        name="capable",
        instructions="Be long.",
        capabilities=[Wrapping(), Reminding(keep=4), Hooks(before_model_request=instructing)],
    )
    return (await agent.run("Go", message_history=history(4))).output


async def cancelled(stage: Stage) -> Any:
    started = asyncio.Event()

    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel(stage, "call:wait", "Never."), name="waiting", tools=[wait])
    running = asyncio.create_task(agent.run("Wait"))
    await started.wait()
    running.cancel()
    return await asyncio.gather(running, return_exceptions=True) and len(stage.received)


async def raised(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, ConnectionError("gone")), name="raising")
    with_error = await asyncio.gather(agent.run("Go"), return_exceptions=True)
    return [type(error).__name__ for error in with_error]


async def at_once(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "Done."), name="many", instructions="Be quick.")
    stage.runs = 3
    return [message.output for message in await asyncio.gather(*(agent.run("Go") for _ in range(3)))]


async def direct(stage: Stage) -> Any:
    model = ScriptedModel(stage, "Direct.")
    answer = await model_request(model, [ModelRequest.user_text_prompt("Say it", instructions=None)])
    return answer.parts[0].content


async def several_models(stage: Stage) -> Any:
    agent = Agent(ScriptedModel(stage, "Done."), name="two", system_prompt="Short.")
    stage.runs = 2
    first = await agent.run("Go")
    other = ScriptedModel(stage, "Done too.", name="gpt-4o-mini")
    with agent.override(model=other):
        return (await agent.run("Go on", message_history=first.all_messages())).output


async def compacted_by_the_provider(stage: Stage) -> Any:
    class Compacts(ScriptedModel):
        async def compact_messages(self, request_context: Any, *, instructions: Any = None) -> Any:
            received = Received(list(request_context.messages), request_context.model_request_parameters)
            self.stage.summaries.append(received)
            return ModelResponse([CompactionPart("They talked.", provider_name="scripted")], model_name=self.name)

    @dataclass
    class Compaction(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            earlier = replace(request_context, messages=request_context.messages[:-1])
            summary = await request_context.model.compact_messages(earlier)
            request_context.messages = [ModelRequest.user_text_prompt("So far:"), summary, request_context.messages[-1]]
            return request_context

    agent = Agent(WrapperModel(Compacts(stage, "Done.")), name="compacts", capabilities=[Compaction()])
    return (await agent.run("Go", message_history=history(4))).output


PROGRAMS = [
    plain, parallel_tools, streamed, streamed_events, iterated, stepped_by_hand, abandoned, structured, prompted,
    validated, falls_back, falls_back_streaming, wrapped, subclassed_model, delegated, approved_later,
    resumed_with_orphans, processed, processed_awaited, own_capabilities, cancelled, raised, at_once, direct,
    several_models, compacted_by_the_provider,
]  # fmt: skip

if hasattr(pydantic_ai.capabilities, "BatchModelRequests"):
    from pydantic_ai.capabilities import BatchModelRequests
    from pydantic_ai.models._in_memory_batch import InMemoryBatchModel

    async def batched(stage: Stage) -> Any:
        class Batches(ScriptedModel, InMemoryBatchModel):
            pass

        moment = timedelta(milliseconds=1)
        capability: Any = BatchModelRequests(max_wait=moment, poll_interval=moment)
        model = Batches(stage, lambda messages: "call:look" if len(messages) == 1 else "Done.")
        agent = Agent(model, name="batched", tools=[look], capabilities=[capability])
        stage.runs = 2
        return [message.output for message in await asyncio.gather(agent.run("Go"), agent.run("Go"))]

    PROGRAMS.append(batched)

if find_spec("pydantic_ai_harness") is not None:
    from pydantic_ai_harness.compaction import (
        ClearToolResults,
        SlidingWindowCompaction,
        SummarizingCompaction,
        TieredCompaction,
    )

    async def _talk(stage: Stage, *capabilities: Any, lines: Any = (["call:look", "call:look"], "Said.")) -> Any:
        agent = Agent(
            ScriptedModel(stage, *(lines * 4)), name="long", tools=[look], capabilities=capabilities,
            system_prompt="Remember all.", instructions="Be exact.",
        )  # fmt: skip
        stage.runs = 4
        held: Any = None
        said = []
        for turn in range(4):
            result = await agent.run(f"Question {turn}", message_history=held)
            held = result.all_messages()
            said.append(result.output)
        return said, len(held)

    async def sliding_window(stage: Stage) -> Any:
        return await _talk(stage, SlidingWindowCompaction(max_messages=6, keep_messages=3))

    async def summarised(stage: Stage) -> Any:
        model = ScriptedModel(stage, "They looked for x.", name="gpt-4o-mini", summarises=True)
        return await _talk(stage, SummarizingCompaction(model=model, max_messages=6, keep_messages=3))

    async def summaries_fail(stage: Stage) -> Any:
        model = ScriptedModel(stage, ConnectionError("gone"), name="gpt-4o-mini", summarises=True)
        compaction: Any = SummarizingCompaction(model=model, max_messages=6, keep_messages=3)
        ended = await asyncio.gather(_talk(stage, compaction), return_exceptions=True)
        stage.runs = 2
        return [type(outcome).__name__ for outcome in ended], len(stage.received)

    async def cleared_results(stage: Stage) -> Any:
        return await _talk(stage, ClearToolResults(max_messages=4, keep_pairs=1))

    async def tiered(stage: Stage) -> Any:
        tiers: Any = [
            ClearToolResults(max_messages=1, keep_pairs=1),
            SlidingWindowCompaction(max_messages=4, keep_messages=3),
        ]
        return await _talk(stage, TieredCompaction(tiers=tiers, target_tokens=5))

    PROGRAMS += [sliding_window, summarised, summaries_fail, cleared_results, tiered]
