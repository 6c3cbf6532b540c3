"""Agents with a plug-in and a scripted model, in one shape for all frameworks.

Each framework has a module ``plugin_<framework>.py`` with a class `Talk`, a subclass of `BaseTalk`. It is imported when
the first test of that framework runs, because not every environment has every framework.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from programs import HERE, own_warnings_ignored
from recount import Read, pair

from otel_assembly import HaltedError, ObserverAlert, Severity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

#: The ways in which each framework runs an agent with its plug-in.
WAYS = {
    "ag2": ("awaited",),
    "autogen": ("awaited", "streamed"),
    "agentscope": ("awaited", "streamed"),
    "langchain": ("awaited", "blocking"),
    "pydantic_ai": ("awaited", "streamed"),
    "agent_framework": ("awaited", "streamed"),
    "openai_agents": ("awaited", "streamed"),
    "google_adk": ("awaited", "streamed"),
    "strands": ("awaited", "blocking"),
    "llama_index": ("awaited", "streamed"),
    "haystack": ("awaited", "blocking"),
    "semantic_kernel": ("awaited", "streamed"),
}
#: Further ways, in which a plug-in gets no conversation's id.
WAYS_WITHOUT_CONVERSATION = {"haystack": ("generator",)}
#: The plug-ins that are one conversation each.
ONE_CONVERSATION = {"autogen", "llama_index"}

SYSTEM_PROMPT = "You look."


def words(number: int) -> str:
    """Return a text of so many words."""
    return " ".join(f"word{index}" for index in range(number))


async def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


@dataclass
class Call:
    """What the model's client received in one call, read and counted without the package's own code.

    Attributes:
        prompts: The system prompts.
        events: The other messages.
        tokens: The tokens of the prompts, the messages and the tools.
    """

    prompts: list[str]
    events: list[Read]
    tokens: int

    @property
    def texts(self) -> list[str]:
        """All texts of the messages."""
        return [text for event in self.events for text in event.texts]

    @property
    def prompt(self) -> str:
        """All system prompts in one text."""
        return "\n\n".join(self.prompts)


class BaseTalk:
    """One conversation with an agent. A subclass builds the agent of its framework and asks it.

    A line of the model is a text; ``call:NAME``; a list of such calls, which are requested together; or an exception.
    After the last line the model repeats it.

    Attributes:
        plugin: The plug-in.
        lines: What the model answers.
        tools: Async functions without arguments.
        conversation: The conversation's id, for frameworks that have one.
        way: One of the framework's `WAYS`.
        stage: Has what the model's client received.
    """

    stage: Any

    plugin_type: ClassVar[type]
    #: The agent's name in telemetry, and the span that is the parent of its assemblies.
    agent_name: ClassVar[str] = "bob"
    run_span: ClassVar[str] = "invoke_agent bob"
    #: The type of the argument that functions for dependencies and variables receive.
    turn_type: ClassVar[str]
    #: Policies that the plug-in adds to the chain.
    own_steps: ClassVar[tuple[str, ...]] = ()
    #: How a summary's message begins, and what it is.
    summary: ClassVar[tuple[str, str]] = "[Earlier messages, summarised", "request"
    #: What observers see of a run with a tool call, and of a run without one.
    observed: ClassVar[tuple[str, ...]] = ("request", "response", "tool_result", "response", "request", "response")
    #: Whether the framework keeps a message that equals an earlier one.
    keeps_equal_messages: ClassVar[bool] = True
    #: How many tools of a response run although an observer halts the conversation because of the response.
    tools_before_halt: ClassVar[int] = 0
    #: Whether a run in a halted conversation returns an answer that says so, and raises no error.
    answers_when_halted: ClassVar[bool] = False
    #: Whether policies get the agent's name.
    policies_get_agent_name: ClassVar[bool] = True
    #: The model's name that policies get; None if the framework passes no model to plug-ins.
    model: str | None = "gpt-4o"

    def __init__(
        self,
        plugin: Any,
        lines: Sequence[Any],
        tools: Sequence[Callable[[], Awaitable[str]]],
        conversation: str,
        way: str,
    ) -> None:
        self.plugin, self.lines, self.tools, self.conversation, self.way = plugin, lines, tools, conversation, way
        self.start()

    def start(self) -> None:
        """Create the agent, with a model that writes what it receives to `stage`."""
        raise NotImplementedError

    @classmethod
    def plugin_of(cls, policies: Any, way: str, **settings: Any) -> Any:
        """Return the framework's plug-in."""
        return cls.plugin_type(policies, **settings)

    async def ask(self, text: str) -> str:
        """Ask the agent, and return its answer.

        Raises:
            HaltedError: The conversation is halted, also if the framework answers so instead of raising.
        """
        raise NotImplementedError

    @property
    def calls(self) -> list[Call]:
        """What the model's client received."""
        return [Call(received.prompts, received.events, received.tokens) for received in self.stage.received]

    @property
    def context(self) -> Any:
        """The context of the conversation."""
        return self.plugin.context_of(self.conversation)

    @property
    def conversation_id(self) -> str | None:
        """The conversation's id in telemetry; None if the framework has none."""
        return self.conversation

    def accepts(self, call: Call) -> bool:
        """Return whether a provider accepts a call: each tool call has its result, and each result its call."""
        pairs = pair(call.events)
        return not pairs.orphans and all(each.answered is not None for each in pairs.calls)

    async def history(self) -> list[Any]:
        """Return the messages that the framework keeps."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what the framework leaves open."""


@dataclass
class Adapter:
    """Makes plug-ins and talks of one framework, in one way to run an agent."""

    framework: str
    way: str
    _talks: list[BaseTalk] = field(default_factory=list, repr=False)

    @cached_property
    def talk_type(self) -> type[BaseTalk]:
        """The framework's class; its folder is put on the path for its scripted models."""
        folder = str(Path(__file__).parents[1] / self.framework)
        if folder not in sys.path:
            sys.path.append(folder)
        talk_type: type[BaseTalk] = import_module(f"plugin_{self.framework}").Talk
        return talk_type

    def plugin(self, policies: Any, **settings: Any) -> Any:
        """Return a plug-in with a chain of policies, or an assembler."""
        return self.talk_type.plugin_of(policies, self.way, **settings)

    def talk(self, plugin: Any, *lines: Any, tools: Sequence[Any] = (look,), conversation: str = "one") -> BaseTalk:
        """Return a new conversation with an agent that has the plug-in, and whose model says these lines."""
        talk = self.talk_type(plugin, list(lines or ["Done."]), tools, conversation, self.way)
        self._talks.append(talk)
        return talk

    def close(self) -> None:
        """Close all talks, and forget them, so that what they hold can be collected."""
        while self._talks:
            self._talks.pop().close()


def _adapters(chosen: Iterable[tuple[str, str]]) -> Any:
    params = [pytest.param((name, way), id=f"{name}-{way}", marks=own_warnings_ignored(name)) for name, way in chosen]
    return pytest.mark.parametrize("adapter", params, indirect=True)


_ways = [(framework, way) for framework in HERE for way in WAYS[framework]]
_further = [(framework, way) for framework in HERE for way in WAYS_WITHOUT_CONVERSATION.get(framework, ())]
#: For tests of each framework, in each way to run an agent, and of the plug-ins that serve many conversations.
each_framework = _adapters((framework, WAYS[framework][0]) for framework in HERE)
each_way = _adapters(_ways)
each_way_of_calls = _adapters([*_ways, *_further])
each_shared = _adapters((framework, WAYS[framework][0]) for framework in HERE if framework not in ONE_CONVERSATION)


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    """Return an alert that halts a conversation."""
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def halted(reason: str | None) -> HaltedError:
    """Return the error for a reply by which a framework says that the conversation is halted."""
    return HaltedError(str(reason), "reply")


def blocking(function: Callable[[], Awaitable[str]]) -> Callable[[], str]:
    """Return an async function as one that blocks, for tools that run in a thread without an event loop."""

    def run() -> str:
        return asyncio.run(function())  # an async function returns a coroutine

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run
