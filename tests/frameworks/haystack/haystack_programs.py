"""Programs of Haystack as its users write them; each is given a stage, and returns what it came to."""

from __future__ import annotations

import asyncio
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import haystack
from haystack import Pipeline, SuperComponent, component
from haystack.components.agents import Agent
from haystack.components.agents.state import State, replace_values
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import FallbackChatGenerator
from haystack.components.generators.chat.llm import LLM
from haystack.components.routers import ConditionalRouter
from haystack.dataclasses import ChatMessage, TextContent
from haystack.hooks import hook
from haystack.hooks.human_in_the_loop import (
    AlwaysAskPolicy,
    BlockingConfirmationStrategy,
    ConfirmationHook,
    ConfirmationUIResult,
)
from haystack.hooks.tool_result_offloading import AlwaysOffload, FileSystemToolResultStore, ToolResultOffloadHook
from haystack.tools import ComponentTool, Toolset, create_tool_from_function, tool
from haystack_models import AwaitedGenerator, Received, ScriptedGenerator, Stage, history, words

_COMPACTION = Path(haystack.__file__).parent / "hooks" / "compaction"
COMPACTORS = _COMPACTION.exists()
OFFLOADS = (_COMPACTION / "tool_result_offloading.py").exists()
SUMMARISES = (_COMPACTION / "summarization.py").exists()

asked = ChatMessage.from_user


@tool
def look(q: str = "x") -> str:
    """Look something up."""
    return f"found {q}: {words(10)}"


@tool
def fail(q: str = "x") -> str:
    """Find nothing."""
    raise ValueError(f"nothing is known of {q}")


def _said(result: Any) -> Any:
    return result["last_message"].text, len(result["messages"])


def plain(stage: Stage) -> Any:
    stage.runs = 2
    agent = Agent(chat_generator=ScriptedGenerator(stage, "Hello.", "Again."), system_prompt="You greet.")
    first = agent.run([asked("Hi")])
    return _said(first), _said(agent.run([*first["messages"], asked("And?")]))


def parallel_tools(stage: Stage) -> Any:
    generator = ScriptedGenerator(
        stage, ['call:look {"q": "ä"}', 'call:look {"q": "b"}', "call:fail"], ["Once more.", "call:look"], "Done."
    )
    agent = Agent(chat_generator=generator, tools=[look, fail], system_prompt="Look.")
    return _said(agent.run([asked("Find ä and b")]))


async def awaited(stage: Stage) -> Any:
    agent = Agent(chat_generator=AwaitedGenerator(stage, ["call:look", "call:look"], "Done."), tools=Toolset([look]))
    return _said(await agent.run_async([asked("Find")]))


async def awaited_in_a_thread(stage: Stage) -> Any:
    agent = Agent(chat_generator=ScriptedGenerator(stage, ["call:look", "call:look"], "Done."), tools=[look])
    return _said(await agent.run_async([asked("Find")]))


def streamed(stage: Stage) -> Any:
    said: list[str] = []
    agent = Agent(chat_generator=ScriptedGenerator(stage, "call:look", "It is here."), tools=[look])
    result = agent.run([asked("Where?")], streaming_callback=lambda chunk: said.append(chunk.content))
    return said, _said(result)


async def streamed_awaited(stage: Stage) -> Any:
    said: list[str] = []

    async def heard(chunk: Any) -> None:
        said.append(chunk.content)

    agent = Agent(chat_generator=AwaitedGenerator(stage, "call:look", "It is here."), tools=[look])
    return _said(await agent.run_async([asked("Where?")], streaming_callback=heard)), said


def templated(stage: Stage) -> Any:
    agent = Agent(
        chat_generator=ScriptedGenerator(stage, "call:look", "Done."), tools=[look],
        system_prompt="You translate to {{ language }}.",
        user_prompt="Translate: {{ text }}",
        required_variables=["language", "text"],
    )  # fmt: skip
    return _said(agent.run(messages=[], language="French", text="The rain in Spain"))


def exits_on_a_tool(stage: Stage) -> Any:
    agent = Agent(
        chat_generator=ScriptedGenerator(stage, "Thinking.", "call:look"), tools=[look], exit_conditions=["look"]
    )
    return len(agent.run([asked("Go")])["messages"])


def runs_out_of_steps(stage: Stage) -> Any:
    agent = Agent(chat_generator=ScriptedGenerator(stage, "call:look"), tools=[look], max_agent_steps=3)
    return len(agent.run([asked("Go")])["messages"])


def delegated(stage: Stage) -> Any:
    helper = Agent(chat_generator=ScriptedGenerator(stage, "call:look", "It helps.", model="gpt-4o-mini"), tools=[look])
    ask = ComponentTool(
        helper, name="helper", description="Ask the helper.", outputs_to_string={"source": "last_message"},
        parameters={"type": "object", "properties": {"messages": {"type": "array", "items": {"type": "object"}}}},
    )  # fmt: skip
    task = '{"messages": [{"role": "user", "content": [{"text": "Help me"}]}]}'
    boss = Agent(
        chat_generator=ScriptedGenerator(stage, [f"call:helper {task}", "call:look"], "Done."), tools=[ask, look]
    )
    return _said(boss.run([asked("Do it")]))


def asks_a_model_in_a_tool(stage: Stage) -> Any:
    inner = ScriptedGenerator(stage, "Yes.", model="gpt-4o-mini")

    def judge(q: str) -> str:
        """Judge."""
        return str(inner.run([ChatMessage.from_system("Judge."), asked(q)])["replies"][0].text)

    judging = create_tool_from_function(judge)
    agent = Agent(chat_generator=ScriptedGenerator(stage, 'call:judge {"q": "right?"}', "Done."), tools=[judging])
    return _said(agent.run([asked("Is it right?")]))


def falls_back(stage: Stage) -> Any:
    first = ScriptedGenerator(stage, ConnectionError("down"), "First.")
    generator = FallbackChatGenerator([first, ScriptedGenerator(stage, "call:look", model="gpt-4o-mini")])
    return _said(Agent(chat_generator=generator, tools=[look]).run([asked("Go")]))


async def falls_back_awaited(stage: Stage) -> Any:
    first = ScriptedGenerator(stage, ConnectionError("down"))
    generator = FallbackChatGenerator([first, AwaitedGenerator(stage, "Second.", model="gpt-4o-mini")])
    return _said(await Agent(chat_generator=generator).run_async([asked("Go")]))


def wraps_a_generator(stage: Stage) -> Any:
    @component
    class Newest:
        def __init__(self, generator: Any):
            self.generator = generator

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
            return dict(self.generator.run(messages=messages[-2:], tools=tools))

    agent = Agent(chat_generator=Newest(ScriptedGenerator(stage, "call:look", "Done.")), tools=[look])
    return _said(agent.run([*history(2), asked("Go")]))


def subclassed_generator(stage: Stage) -> Any:
    class Louder(ScriptedGenerator):
        def run(self, messages: Any, *, tools: Any = None) -> Any:
            return super().run([*messages, asked("LOUDER")], tools=tools)

    @component
    class Own(ScriptedGenerator):
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
            return dict(super(Own, self).run(messages[-3:], tools=tools))  # noqa: UP008  # as its decorator needs it

    stage.runs = 2
    said = []
    for made in (Louder, Own):
        agent = Agent(chat_generator=made(stage, "call:look", "Done."), tools=[look])
        said.append(_said(agent.run([*history(1), asked("Go")])))
    return said


class Duck:
    """A generator that is no component."""

    model = "gpt-4o-mini"

    def __init__(self, stage: Stage):
        self.answer = ScriptedGenerator(stage, "call:look", "Done.", model=self.model)._answer

    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        return {"replies": [self.answer(messages, tools)]}


def no_component(stage: Stage) -> Any:
    agent = Agent(chat_generator=Duck(stage), tools=[look], system_prompt="Quack.")
    return _said(agent.run([asked("Go")]))


@hook
def newest(state: State) -> None:
    """Keep what was said last."""
    messages = state.data["messages"]
    state.set("messages", [*messages[:1], *messages[1:][-3:]], handler_override=replace_values)


@hook
async def reminds(state: State) -> None:
    """Remind of something, and wait for it."""
    await asyncio.sleep(0)
    if len(state.data["messages"]) < 6:
        state.set("messages", [asked("Remember.")])


class Briefing:
    """A hook of a class of its own, which changes the system prompt."""

    def run(self, state: State) -> None:
        first, *others = state.data["messages"]
        if first.text != "Be brief.":
            state.data["messages"] = [ChatMessage.from_system("Be brief."), *others]


def hooks_of_its_own(stage: Stage) -> Any:
    @hook
    def greets(state: State) -> None:
        state.set("messages", [asked("Please.")])

    @hook
    def shortens(state: State) -> None:
        *others, last = state.data["messages"]
        result = ChatMessage.from_tool("found", last.tool_call_result.origin)
        state.set("messages", [*others, result], handler_override=replace_values)

    @hook
    def insists(state: State) -> None:
        if state.data["step_count"] < 4:
            state.set("messages", [asked("Are you sure?")])
            state.set("continue_run", True)

    agent = Agent(
        chat_generator=ScriptedGenerator(stage, "call:look", "call:look", "Done."), tools=[look], system_prompt="Look.",
        hooks={
            "before_run": [greets], "before_llm": [newest, Briefing()], "after_tool": [shortens], "on_exit": [insists],
        },
    )  # fmt: skip
    return _said(agent.run([*history(1), asked("Go")]))


async def hooks_awaited(stage: Stage) -> Any:
    agent = Agent(
        chat_generator=AwaitedGenerator(stage, "call:look", "Done."), tools=[look], system_prompt="Look.",
        hooks={"before_llm": [reminds, newest]},
    )  # fmt: skip
    return _said(await agent.run_async([asked("Go")]))


def asks_first(stage: Stage) -> Any:
    class Says:
        def __init__(self, *actions: str):
            self.actions = list(actions)

        def get_user_confirmation(self, tool_name: str, tool_description: str, tool_params: Any) -> Any:
            action = self.actions.pop(0)
            params = {"q": "other"} if action == "modify" else tool_params
            return ConfirmationUIResult(action=action, feedback="Not now.", new_tool_params=params)

    strategy = BlockingConfirmationStrategy(
        confirmation_policy=AlwaysAskPolicy(), confirmation_ui=Says("reject", "confirm", "modify")
    )
    agent = Agent(
        chat_generator=ScriptedGenerator(stage, ["call:look", "call:look"], "call:look", "Done."), tools=[look],
        hooks={"before_tool": [ConfirmationHook(confirmation_strategies={"look": strategy})]},
    )  # fmt: skip
    return _said(agent.run([asked("Go")]))


def offloaded(stage: Stage) -> Any:
    with tempfile.TemporaryDirectory() as root:
        hooks = [ToolResultOffloadHook(FileSystemToolResultStore(root), {"*": AlwaysOffload()}, preview_chars=5)]
        agent = Agent(
            chat_generator=ScriptedGenerator(stage, ["call:look", "call:look"], "call:look", "Done."), tools=[look],
            hooks={"after_tool": hooks},
        )  # fmt: skip
        result = agent.run([asked("Go")])
    # Each run has a folder of its own.
    stage.received = [
        Received(_elsewhere(request.messages, root), request.tools, request.model) for request in stage.received
    ]
    return _said(result)


def _elsewhere(messages: list[Any], root: str) -> list[Any]:
    return [
        ChatMessage.from_dict(json.loads(json.dumps(message.to_dict()).replace(root, "/root"))) for message in messages
    ]


def in_a_pipeline(stage: Stage) -> Any:
    pipeline = Pipeline(metadata={"name": "translation"})
    pipeline.add_component("prompt", ChatPromptBuilder(
        [ChatMessage.from_system("Translate."), asked("{{ text }}")], required_variables="*"
    ))  # fmt: skip
    pipeline.add_component(
        "translator", Agent(chat_generator=ScriptedGenerator(stage, "call:look", "Done."), tools=[look])
    )
    pipeline.add_component("reviewer", ScriptedGenerator(stage, "Fine.", model="gpt-4o-mini"))
    pipeline.connect("prompt.prompt", "translator.messages")
    pipeline.connect("translator.messages", "reviewer.messages")
    return pipeline.run({"prompt": {"text": "Rain"}})["reviewer"]["replies"][0].text


async def in_an_awaited_pipeline(stage: Stage) -> Any:
    pipeline = Pipeline()
    for name in ("one", "other"):
        pipeline.add_component(name, AwaitedGenerator(stage, "Done."))
    messages = {"messages": [asked("Go")]}
    return sorted(await pipeline.run_async({"one": messages, "other": messages}))


async def in_a_streaming_pipeline(stage: Stage) -> Any:
    pipeline = Pipeline()
    pipeline.add_component("agent", Agent(chat_generator=AwaitedGenerator(stage, "call:look", "Done."), tools=[look]))
    handle = pipeline.stream({"agent": {"messages": [asked("Go")]}}, streaming_components=["agent"])
    said = [chunk.content async for chunk in handle]
    return said, _said(handle.result["agent"])


async def in_steps(stage: Stage) -> Any:
    pipeline = Pipeline()
    pipeline.add_component("first", AwaitedGenerator(stage, "One."))
    pipeline.add_component("second", ScriptedGenerator(stage, "Two."))
    pipeline.connect("first.replies", "second.messages")
    steps = pipeline.run_async_generator({"first": {"messages": [asked("Go")]}}, {"first"})
    return [sorted(partial) async for partial in steps]


def loops(stage: Stage) -> Any:
    routes = [
        {"condition": "{{ replies[0].text == 'Good.' }}", "output": "{{ replies }}", "output_name": "done",
         "output_type": list[ChatMessage]},
        {"condition": "{{ True }}", "output": "{{ replies[0].text }}", "output_name": "again", "output_type": str},
    ]  # fmt: skip
    pipeline = Pipeline(max_runs_per_component=5)
    pipeline.add_component("prompt", ChatPromptBuilder(
        [asked("Write. {% if again %}Not: {{ again }}{% endif %} {{ text }}")], required_variables=["text"]
    ))  # fmt: skip
    pipeline.add_component("llm", ScriptedGenerator(stage, "Bad.", "Good."))
    pipeline.add_component("router", ConditionalRouter(routes, unsafe=True))
    pipeline.connect("prompt.prompt", "llm.messages")
    pipeline.connect("llm.replies", "router.replies")
    pipeline.connect("router.again", "prompt.again")
    return pipeline.run({"prompt": {"text": "Go"}})["router"]["done"][0].text


def in_a_super_component(stage: Stage) -> Any:
    inside = Pipeline()
    inside.add_component("llm", ScriptedGenerator(stage, "Inside."))
    pipeline = Pipeline()
    pipeline.add_component("super", SuperComponent(inside))
    return pipeline.run({"super": {"messages": [asked("Go")]}})["super"]["replies"][0].text


def with_an_llm(stage: Stage) -> Any:
    llm = LLM(chat_generator=ScriptedGenerator(stage, "Done."), system_prompt="Be kind.", user_prompt="Do {{ what }}")
    return llm.run(what="it")["last_message"].text


def chats_by_itself(stage: Stage) -> Any:
    generator = ScriptedGenerator(stage, "One.", "Two.")
    stage.runs = 2
    messages = [ChatMessage.from_system("Chat."), asked("Hi")]
    for said in ("And?", ""):
        messages += generator.run(messages=messages)["replies"]
        messages += [asked(said)] if said else []
    return [message.text for message in messages]


def says_much(stage: Stage) -> Any:
    from haystack.dataclasses import ReasoningContent, ToolCall

    thought = ChatMessage.from_assistant(
        "I look.", tool_calls=[ToolCall("look", {"q": {"deep": [1, "ü"]}}, "1")], name="bob",
        reasoning=ReasoningContent("Hm, hm."),
    )  # fmt: skip
    result = ChatMessage.from_tool([TextContent("one"), TextContent("two")], thought.tool_calls[0])
    messages = [asked("Hi", name="ann"), thought, result, ChatMessage.from_user(content_parts=["a", "b"])]
    return ScriptedGenerator(stage, "Done.").run(messages)["replies"][0].text


def raised(stage: Stage) -> Any:
    agent = Agent(chat_generator=ScriptedGenerator(stage, ConnectionError("gone")))
    try:
        agent.run([asked("Go")])
    except ConnectionError as error:
        return str(error)
    return None


def a_hook_raises(stage: Stage) -> Any:
    @hook
    def breaks(state: State) -> None:
        if state.data["step_count"]:
            raise RuntimeError("hook")

    agent = Agent(chat_generator=ScriptedGenerator(stage, "call:look"), tools=[look], hooks={"before_llm": [breaks]})
    try:
        agent.run([asked("Go")])
    except RuntimeError as error:
        return str(error)
    return None


async def cancelled(stage: Stage) -> Any:
    started = asyncio.Event()

    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(
        chat_generator=AwaitedGenerator(stage, "call:wait", "Never."), tools=[create_tool_from_function(wait)]
    )
    running = asyncio.create_task(agent.run_async([asked("Wait")]))
    await started.wait()
    running.cancel()
    return len(await asyncio.gather(running, return_exceptions=True)), len(stage.received)


async def at_once(stage: Stage) -> Any:
    agent = Agent(
        chat_generator=AwaitedGenerator(stage, lambda messages: "Done." if len(messages) > 3 else "call:look"),
        tools=[look], system_prompt="Be quick.",
    )  # fmt: skip
    stage.runs = 3
    runs = [agent.run_async([asked(f"Go {number}")]) for number in range(3)]
    return [run["last_message"].text for run in await asyncio.gather(*runs)]


PROGRAMS = [
    plain, parallel_tools, awaited, awaited_in_a_thread, streamed, streamed_awaited, templated, exits_on_a_tool,
    runs_out_of_steps, delegated, asks_a_model_in_a_tool, falls_back, falls_back_awaited, wraps_a_generator,
    subclassed_generator, no_component, hooks_of_its_own, hooks_awaited, asks_first, in_a_pipeline,
    in_an_awaited_pipeline, in_a_streaming_pipeline, in_steps, loops, in_a_super_component, with_an_llm,
    chats_by_itself, says_much, raised, a_hook_raises, cancelled, at_once,
]  # fmt: skip

if COMPACTORS:
    from haystack.hooks.compaction import CompactionHook, SlidingWindowCompactor, ToolResultPruningCompactor

    def compacting(stage: Stage, compactor: Any, lines: Any = None, **settings: Any) -> Any:
        """An agent that looks up and up, whose conversation is compacted."""
        made = {"context_window": 300, "compact_at": 0.7, "compact_to": 0.4, **settings}
        lines = lines or [*([f'call:look {{"q": "{letter}"}}'] * 2 for letter in "abc"), "Done."]
        generator = ScriptedGenerator(stage, *lines)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hooks: Any = {"before_llm": [CompactionHook(compactor() if callable(compactor) else compactor, **made)]}
        return Agent(chat_generator=generator, tools=[look], system_prompt="Remember all.", hooks=hooks)

    def sliding_window(stage: Stage) -> Any:
        agent = compacting(stage, lambda: SlidingWindowCompactor(min_keep_steps=1))
        stage.runs = 2
        first = agent.run([*history(3), asked("Find")])
        return _said(first), _said(agent.run([*first["messages"], asked("Go on")]))

    def pruned(stage: Stage) -> Any:
        agent = compacting(stage, lambda: ToolResultPruningCompactor(min_keep_steps=1, min_tokens=5))
        return _said(agent.run([*history(3), asked("Find")]))

    def a_compactor_of_its_own(stage: Stage) -> Any:
        class Halves:
            def compact(self, messages: Any, target_tokens: int, token_counter: Any) -> Any:
                return [messages[0], *messages[len(messages) // 2 :]]

        return _said(compacting(stage, Halves(), ["One."]).run([*history(12), asked("Find")]))

    PROGRAMS += [sliding_window, pruned, a_compactor_of_its_own]

if SUMMARISES:
    from haystack.hooks.compaction import SummarizationCompactor

    def _summarising(stage: Stage, *lines: Any, made: Any = ScriptedGenerator) -> Any:
        return lambda: SummarizationCompactor(
            made(stage, *lines, model="gpt-4o-mini", summarises=True), min_keep_steps=1, approximate_summary_tokens=20
        )

    def summarised(stage: Stage) -> Any:
        agent = compacting(stage, _summarising(stage, "They looked for x."))
        stage.runs = 2
        first = agent.run([*history(4), asked("Find")])
        return _said(first), _said(agent.run([*first["messages"], asked("Go on")]))

    async def summarised_awaited(stage: Stage) -> Any:
        agent = compacting(stage, _summarising(stage, "They looked for x.", made=AwaitedGenerator))
        return _said(await agent.run_async([*history(4), asked("Find")]))

    def summaries_fail(stage: Stage) -> Any:
        agent = compacting(stage, _summarising(stage, ConnectionError("gone")))
        return _said(agent.run([*history(4), asked("Find")]))

    PROGRAMS += [summarised, summarised_awaited, summaries_fail]
