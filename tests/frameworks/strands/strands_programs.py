"""Programs of Strands Agents as its users write them; each is given a stage, and returns what it came to."""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import (
    ConversationManager,
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookProvider,
    MessageAddedEvent,
)
from strands.multiagent import GraphBuilder, Swarm
from strands.session import FileSessionManager
from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException
from strands_models import ScriptedModel, Stage, history, words

try:
    from strands.middleware import InvokeModelStage
except ImportError:  # older releases
    InvokeModelStage = None
    if find_spec("strands._middleware") is not None:
        from strands._middleware import InvokeModelStage


@tool
def look(q: str = "x") -> str:
    """Look something up.

    Args:
        q: What to look for.
    """
    return f"found {q}: {words(10)}"


@tool
def fail() -> str:
    """Find nothing."""
    raise ValueError("nothing is known")


@tool
def report() -> str:
    """Give a long report."""
    return words(400, "line")


@tool
def log() -> str:
    """Give a very long report."""
    return words(2_000, "entry")


class Answer(BaseModel):
    """Where, and for how much."""

    city: str
    price: int


def agent(stage: Stage, *lines: Any, name: str = "clerk", tools: Any = (look,), **given: Any) -> Agent:
    model = given.pop("model", None) or ScriptedModel(stage, *lines)
    return Agent(model=model, name=name, tools=list(tools), callback_handler=None, **given)


def said(result: Any) -> str:
    return str(result).strip()


async def plain(stage: Stage) -> Any:
    greeter = agent(stage, "Hello.", "Hello again.", tools=(), system_prompt="You greet.")
    stage.runs = 2
    return said(await greeter.invoke_async("Hi")), said(await greeter.invoke_async("Again")), len(greeter.messages)


async def called(stage: Stage) -> Any:
    clerk = agent(stage, "call:look", "Done.", system_prompt=[{"text": "One."}, {"cachePoint": {"type": "default"}}])
    return said(await asyncio.to_thread(clerk, "Go"))


async def parallel_tools(stage: Stage) -> Any:
    lines = (["Wait.", 'call:look {"q": "a"}', 'call:look {"q": "b"}', "call:fail"], "call:look", "Done.")
    clerk = agent(stage, *lines, tools=(look, fail), system_prompt=[{"text": "One."}, {"text": "Two."}])
    return said(await clerk.invoke_async("Find a and b"))


async def streamed(stage: Stage) -> Any:
    clerk = agent(stage, "call:look", "It is here.")
    return [event["data"] async for event in clerk.stream_async("Where?") if "data" in event]


async def abandoned(stage: Stage) -> Any:
    clerk = agent(stage, "call:look", "It is here.")
    events = clerk.stream_async("Where?")
    async for event in events:
        if "data" in event:
            break
    await events.aclose()
    return len(clerk.messages)


async def blocks(stage: Stage) -> Any:
    clerk = agent(stage, "Seen.", "Both.")
    stage.runs = 3
    await clerk.invoke_async([{"text": "First part."}, {"text": "Second part."}])
    await clerk.invoke_async([*history(1), {"role": "user", "content": [{"text": "And now?"}]}])
    return said(await clerk.invoke_async()), len(clerk.messages)


async def blank(stage: Stage) -> Any:
    """What it says that is blank is sent as something else."""
    held = [
        *history(1),
        {"role": "user", "content": [{"text": "?"}]},
        {"role": "assistant", "content": [{"text": " "}]},
    ]
    return said(await agent(stage, "Done.", messages=held).invoke_async("Go"))


async def structured(stage: Stage) -> Any:
    lines = ("No tool at all.", 'call:Answer {"city": "Bonn"}', 'call:Answer {"city": "Bonn", "price": 3}')
    result = await agent(stage, *lines).invoke_async("Which?", structured_output_model=Answer)
    return result.structured_output


async def structured_alone(stage: Stage) -> Any:
    clerk = agent(stage, {"city": "Bonn", "price": 3}, messages=history(1), system_prompt="Answer.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return await clerk.structured_output_async(Answer, "Which?"), len(clerk.messages)


async def slides(stage: Stage) -> Any:
    manager = SlidingWindowConversationManager(4)
    clerk = agent(stage, "One.", "Two.", "call:look", "Three.", "Four.", conversation_manager=manager)
    stage.runs = 4
    return [said(await clerk.invoke_async(f"Question {turn}")) for turn in range(4)], len(clerk.messages)


async def slides_per_turn(stage: Stage) -> Any:
    manager = SlidingWindowConversationManager(4, per_turn=True)
    clerk = agent(stage, "call:look", "call:look", "call:look", "Done.", conversation_manager=manager)
    return said(
        await clerk.invoke_async(
            "Go",
        )
    ), len(clerk.messages)


def _too_long(messages: Any) -> Any:
    if sum(len(str(message)) for message in messages) > 1_000:
        raise ContextWindowOverflowException("too long")
    return "Done."


async def overflows(stage: Stage) -> Any:
    """The model finds it too long, twice: what it is sent then is less."""
    clerk = agent(stage, _too_long, messages=history(8), conversation_manager=SlidingWindowConversationManager(10))
    return said(await clerk.invoke_async("Go")), len(clerk.messages)


async def results_are_cut(stage: Stage) -> Any:
    def short(messages: Any) -> Any:
        if len(messages) == 1:
            return "call:report"
        return ContextWindowOverflowException("too long") if len(str(messages)) > 2_000 else "Done."

    return said(await agent(stage, short, tools=(report,)).invoke_async("Report"))


async def never_fits(stage: Stage) -> Any:
    clerk = agent(
        stage, ContextWindowOverflowException("too long"), messages=history(2),
        conversation_manager=NullConversationManager(),
    )  # fmt: skip
    return [
        type(message).__name__ for message in await asyncio.gather(clerk.invoke_async("Go"), return_exceptions=True)
    ]


async def summarised(stage: Stage) -> Any:
    manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=2)
    model = ScriptedModel(stage, _too_long, summary="They asked for words.")
    clerk = agent(stage, model=model, messages=history(8), conversation_manager=manager)
    stage.runs = 2
    return said(await clerk.invoke_async("Go")), said(await clerk.invoke_async("On")), len(clerk.messages)


async def summarised_by_an_agent(stage: Stage) -> Any:
    scribe = agent(stage, model=ScriptedModel(stage, "", name="gpt-4o-mini", summary="They asked for words."),
                   name="scribe", tools=(), system_prompt="You summarise: summary.")  # fmt: skip
    manager = SummarizingConversationManager(0.5, 2, summarization_agent=scribe)
    clerk = agent(stage, _too_long, messages=history(8), conversation_manager=manager)
    return said(await clerk.invoke_async("Go")), len(clerk.messages)


async def summaries_fail(stage: Stage) -> Any:
    model = ScriptedModel(stage, _too_long, summary=ConnectionError("gone"))
    clerk = agent(stage, model=model, messages=history(8), conversation_manager=SummarizingConversationManager(0.5, 2))
    ended = await asyncio.gather(clerk.invoke_async("Go"), return_exceptions=True)
    return [type(outcome).__name__ for outcome in ended]


async def compresses_early(stage: Stage) -> Any:
    manager = SlidingWindowConversationManager(6, proactive_compression={"compression_threshold": 0.5})
    model = ScriptedModel(stage, "One.", "Two.", context_window_limit=200)
    clerk = agent(stage, model=model, messages=history(8), conversation_manager=manager)
    stage.runs = 2
    return [said(await clerk.invoke_async(text)) for text in ("Go", "On")], len(clerk.messages)


class Newest(ConversationManager):
    """A manager of the user's own."""

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.keep = keep

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        agent.messages[:] = agent.messages[-self.keep :]

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        self.apply_management(agent)


async def own_manager(stage: Stage) -> Any:
    clerk = agent(stage, "One.", "Two.", "Three.", conversation_manager=Newest(2))
    stage.runs = 3
    return [said(await clerk.invoke_async(text)) for text in ("A", "B", "C")], len(clerk.messages)


class Hooked(HookProvider):
    """Hooks of the user's own that edit what an agent holds."""

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeModelCallEvent, self.trim)
        registry.add_callback(MessageAddedEvent, self.redact)
        registry.add_callback(AfterInvocationEvent, lambda event: event.agent.messages.pop(0))

    async def trim(self, event: Any) -> None:
        await asyncio.sleep(0)
        del event.agent.messages[:-3]

    def redact(self, event: Any) -> None:
        for block in event.message["content"]:
            if "text" in block:
                block["text"] = block["text"].replace("secret", "***")


async def own_hooks(stage: Stage) -> Any:
    clerk = agent(stage, "One secret.", "call:look", "Two.", hooks=[Hooked()], messages=history(3))
    stage.runs = 2
    return [said(await clerk.invoke_async(text)) for text in ("A secret", "B")], len(clerk.messages)


async def tried_again(stage: Stage) -> Any:
    class Again(HookProvider):
        times = 0

        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(AfterModelCallEvent, self.again)

        def again(self, event: Any) -> None:
            self.times += 1
            event.retry = self.times < 3
            if event.exception is not None:
                event.agent.messages.pop(0)

    clerk = agent(stage, ModelThrottledException("busy"), "Bad.", "Good.", hooks=[Again()], messages=history(1)[:1])
    return said(await clerk.invoke_async("Go")), len(clerk.messages)


async def raised(stage: Stage) -> Any:
    clerk = agent(stage, ConnectionError("gone"), "Now.")
    ended = await asyncio.gather(clerk.invoke_async("Go"), return_exceptions=True)
    stage.runs = 2
    return [type(outcome).__name__ for outcome in ended], said(await clerk.invoke_async("Again")), len(clerk.messages)


async def cancelled(stage: Stage) -> Any:
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    clerk = agent(stage, "call:wait", "Never.", tools=(wait,))
    running = asyncio.create_task(clerk.invoke_async("Wait"))
    await started.wait()
    running.cancel()
    return [type(message).__name__ for message in await asyncio.gather(running, return_exceptions=True)]


async def stopped(stage: Stage) -> Any:
    """Its own way of cancelling, between two calls."""

    @tool(context=True)
    def stop(tool_context: ToolContext) -> str:
        """Stop."""
        tool_context.agent.cancel()
        return "stopping"

    clerk = agent(stage, "call:stop", "Never.", tools=(stop,))
    return (await clerk.invoke_async("Stop")).stop_reason, len(clerk.messages)


async def interrupted(stage: Stage) -> Any:
    class Asks(HookProvider):
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(BeforeToolCallEvent, self.ask)

        def ask(self, event: Any) -> None:
            event.interrupt("may I", reason="to look")

    clerk = agent(stage, "call:look", "Done.", hooks=[Asks()])
    stage.runs = 2
    result = await clerk.invoke_async("Go")
    answers: Any = [
        {"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}} for interrupt in result.interrupts
    ]
    return result.stop_reason, said(await clerk.invoke_async(answers))


async def at_once(stage: Stage) -> Any:
    clerks = [agent(stage, "call:look", "Done.", name=f"clerk {number}") for number in range(3)]
    stage.runs = 3
    return [said(message) for message in await asyncio.gather(*(clerk.invoke_async("Go") for clerk in clerks))]


async def agents_as_tools(stage: Stage) -> Any:
    helper = agent(stage, "call:look", "It helps.", name="helper", description="Helps.", system_prompt="Help.")

    @tool
    async def ask(question: str) -> str:
        """Ask somebody else.

        Args:
            question: What to ask.
        """
        other = agent(stage, "Not I.", name="other", tools=())
        return said(await other.invoke_async(question))

    boss = agent(stage, 'call:helper {"input": "Help"}', 'call:ask {"question": "Who?"}', "Done.", name="boss",
                 tools=(helper.as_tool(), ask))  # fmt: skip
    return said(await boss.invoke_async("Do it"))


async def graph(stage: Stage) -> Any:
    builder = GraphBuilder()
    for name in ("first", "left", "right", "last"):
        builder.add_node(agent(stage, f"I am {name}.", name=name, tools=()), name)
    for start, end in (("first", "left"), ("first", "right"), ("left", "last"), ("right", "last")):
        builder.add_edge(start, end)
    builder.set_entry_point("first")
    builder.set_max_node_executions(10)
    result = await builder.build().invoke_async("Go")
    return sorted(node.node_id for node in result.execution_order)


async def swarm(stage: Stage) -> Any:
    first = agent(stage, 'call:handoff_to_agent {"agent_name": "second", "message": "You do it"}', "Handed.",
                  name="first", tools=())  # fmt: skip
    second = agent(stage, "Done.", name="second", tools=())
    result = await Swarm([first, second]).invoke_async("Go")
    return [node.node_id for node in result.node_history]


async def kept_in_a_session(stage: Stage) -> Any:
    """Another process goes on with the conversation."""
    stage.runs = 4
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(4):
            keeps = FileSessionManager(session_id="s-1", storage_dir=folder)
            manager = SlidingWindowConversationManager(4)
            clerk = agent(stage, "call:look", f"Turn {turn}.", session_manager=keeps, conversation_manager=manager)
            found.append((said(await clerk.invoke_async(f"Question {turn}")), len(clerk.messages)))
    return found


async def edited_between(stage: Stage) -> Any:
    clerk = agent(stage, "One.", "Two.", "Three.")
    stage.runs = 3
    await clerk.invoke_async("A")
    clerk.messages[0]["content"][0]["text"] = "Something else"
    await clerk.invoke_async("B")
    clerk.messages.clear()
    return said(await clerk.invoke_async("C"))


async def changes_model(stage: Stage) -> Any:
    clerk = agent(stage, "One.", system_prompt="First.")
    stage.runs = 2
    await clerk.invoke_async("A")
    clerk.model, clerk.system_prompt = ScriptedModel(stage, "Two.", name="gpt-4o-mini"), "Second."
    return said(await clerk.invoke_async("B"))


async def own_model(stage: Stage) -> Any:
    class Loud(ScriptedModel):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            last = {**messages[-1], "content": [*messages[-1]["content"], {"text": "LOUD"}]}
            async for event in super().stream([*messages[:-1], last], *args, **kwargs):
                yield event

    return said(await agent(stage, model=Loud(stage, "call:look", "Done.")).invoke_async("Go"))


async def direct(stage: Stage) -> Any:
    model = ScriptedModel(stage, "Direct.")
    stream = model.stream(history(1)[:1], None, "Be direct.")
    return len([chunk async for chunk in stream])


async def summarised_in_a_hook(stage: Stage) -> Any:
    """A reducer of the user's own, which has another agent summarise."""

    class Sums(HookProvider):
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(BeforeModelCallEvent, self.sums)

        async def sums(self, event: Any) -> None:
            messages = event.agent.messages
            if len(messages) > 6:
                scribe = agent(stage, model=ScriptedModel(stage, "", summary="Sums."), system_prompt="summary",
                               tools=(), name="scribe")  # fmt: skip
                told = await scribe.invoke_async(str([message["content"] for message in messages[:-1]]))
                messages[:-1] = [{"role": "user", "content": [{"text": said(told)}]}]

    clerk = agent(stage, "Done.", messages=history(4), hooks=[Sums()])
    return said(await clerk.invoke_async("Go")), len(clerk.messages)


PROGRAMS: list[Any] = [
    plain, called, parallel_tools, streamed, abandoned, blocks, blank, structured, structured_alone, slides,
    slides_per_turn, overflows, results_are_cut, never_fits, summarised, summarised_by_an_agent, summaries_fail,
    own_manager, own_hooks, tried_again, raised, cancelled, stopped, interrupted, at_once,
    graph, swarm, kept_in_a_session, edited_between, changes_model, own_model, direct,
    summarised_in_a_hook,
]  # fmt: skip


async def middleware(stage: Stage) -> Any:
    """Middleware of each phase; one asks a model for something else, one goes on twice."""

    def brief(context: Any) -> Any:
        return replace(context, system_prompt="Be brief.")

    async def newest(context: Any, next_fn: Any) -> Any:
        context.messages = context.messages[-3:]
        async for event in next_fn(context):
            yield event

    async def twice(context: Any, next_fn: Any) -> Any:
        first = [event async for event in next_fn(context)]
        assert first
        async for event in next_fn(context):
            yield event

    async def guards(context: Any, next_fn: Any) -> Any:
        guard = ScriptedModel(stage, "Fine.", name="gpt-4o-mini")
        assert [chunk async for chunk in guard.stream(context.messages[-1:], None, "Is it fine?")]
        async for event in next_fn(context):
            yield event

    def as_it_is(result: Any) -> Any:
        return result

    clerk = agent(stage, "Ignored.", "call:look", "Ignored.", "Done.", messages=history(3), system_prompt="Be long.")
    clerk._middleware_registry.add_middleware(InvokeModelStage, newest)
    clerk._middleware_registry.add_middleware(InvokeModelStage, twice)
    clerk._middleware_registry.add_middleware(InvokeModelStage, guards)
    clerk._middleware_registry.add_middleware(InvokeModelStage.Input, brief)
    clerk._middleware_registry.add_middleware(InvokeModelStage.Output, as_it_is)
    return said(await clerk.invoke_async("Go")), len(clerk.messages)


async def injected(stage: Stage) -> Any:
    from strands.vended_plugins.context_injector import ContextInjector

    injector = ContextInjector(lambda context: f"<now>{len(context.messages)}</now>")
    clerk = agent(stage, "call:look", "Done.", "On.", plugins=[injector])
    stage.runs = 2
    return [said(await clerk.invoke_async(text)) for text in ("Go", "On")], str(clerk.messages).count("<now>")


async def answers_itself(stage: Stage) -> Any:
    """Middleware that answers in the place of the model."""
    from strands.types._events import ModelStopReason

    async def answers(context: Any, next_fn: Any) -> Any:
        if len(context.messages) > 1:
            message: Any = {"role": "assistant", "content": [{"text": "From memory."}]}
            usage: Any = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
            yield ModelStopReason(stop_reason="end_turn", message=message, usage=usage, metrics={"latencyMs": 0})
            return
        context.messages = [*context.messages, *history(1)[:1]]
        async for event in next_fn(context):
            yield event

    clerk = agent(stage, "One.")
    clerk._middleware_registry.add_middleware(InvokeModelStage, answers)
    stage.runs = 2
    return [said(await clerk.invoke_async(text)) for text in ("A", "B")]


if hasattr(Agent, "as_tool"):
    PROGRAMS.append(agents_as_tools)
if hasattr(ConversationManager, "_on_before_model_call_threshold"):
    PROGRAMS.append(compresses_early)
if InvokeModelStage is not None:
    PROGRAMS += [middleware, injected, answers_itself]

if hasattr(Agent, "context_manager"):

    async def managed(stage: Stage) -> Any:
        """The context manager's own choice: results are cut as they come, and the rest is summarised."""
        model = ScriptedModel(
            stage, "call:report", "One.", "Two.", "Three.", summary="[A summary.]", context_window_limit=900
        )
        clerk = agent(stage, model=model, tools=(report,), context_manager="auto", messages=history(4))
        stage.runs = 3
        return [said(await clerk.invoke_async(message)) for message in ("Go", words(90), "On")], len(clerk.messages)

    async def managed_by_presets(stage: Stage) -> Any:
        class Own:
            name = "own"

            async def apply(self, context: Any) -> bool:
                held = len(context.messages)
                del context.messages[:-5]
                return len(context.messages) < held

        strategies: Any = ["large_tool_offloading", "stale_tool_cleanup", "overflow_protection", Own()]
        lines = (["call:log", "call:look"], "call:look", "One.", "call:look", "call:look", "Two.", _too_long)
        model = ScriptedModel(stage, *lines, context_window_limit=9_000)
        clerk = agent(stage, model=model, tools=(look, log), context_manager={"strategies": strategies})
        stage.runs = 3
        return [said(await clerk.invoke_async(message)) for message in ("Go", "On", words(90))], len(clerk.messages)

    async def manages_itself(stage: Stage) -> Any:
        lines = ("call:summarize_context", 'call:truncate_context {"keep_recent": 4}', "Done.", "On.")
        model = ScriptedModel(stage, *lines, summary="They asked for words.", context_window_limit=100_000)
        clerk = agent(stage, model=model, context_manager="agentic", messages=history(10))
        stage.runs = 2
        return [said(await clerk.invoke_async(text)) for text in ("Go", "On")], len(clerk.messages)

    PROGRAMS += [managed, managed_by_presets, manages_itself]
