"""`AssemblyMemory`, the plug-in for LlamaIndex: a memory that runs a policy chain on the messages of another memory.

The chain runs in ``aget`` and ``get``, or, with the model that ``memory.llm(…)`` returns, before each ``chat`` call.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer

from otel_assembly.instrumentation.llama_index.calls import READINGS, invoking_agent_of
from otel_assembly.instrumentation.llama_index.memory_reads import Read
from otel_assembly.instrumentation.llama_index.wrappers import AssemblingLLM, MemoryConversation, WrappingMemory
from otel_assembly.instrumentation.plugin import Plugin, PluginSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.llms import LLM

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


class AssemblyMemory(WrappingMemory):
    """A LlamaIndex memory that wraps another memory and runs a policy chain on all its messages.

    The chain receives and returns LlamaIndex's own message objects. A message that a policy drops stays in the wrapped
    memory.

    Use ``memory.llm(model)`` as the model of the agent or engine: then the chain runs before each model call, and a
    budget covers the system prompt, the tools and the tool results of the current run. With any other model the chain
    runs when the memory is read. A budget then covers the history, with the arguments `prompts` and `tools`, but no
    messages that the agent adds later.

    An alert of severity FATAL halts the conversation: no model is called after it, and with ``memory.llm(…)`` no tool
    either. The agent's run raises `HaltedError`. An observer sends the alert, or your program with
    ``context.send(…)``. If a budget cannot be met, the run raises `ContextOverflowError`.

    Functions for `dependencies` and `variables` get this memory. With ``memory.llm(…)``, observers receive a response
    before its tools run.

    Args:
        memory: The memory to wrap; by default a new `ChatMemoryBuffer`.
        agent_name: The agent's name in telemetry, if the agent is not instrumented.
        prompts: System prompts that are sent with the messages. Not needed with ``memory.llm(…)``.
        tools: Tools that are offered to the model. Not needed with ``memory.llm(…)``.
        settings: The other arguments of `Plugin`.
    """

    #: Marks the class as a plug-in, which records its own assemblies, so that the instrumentation does not.
    otel_assembly_plugin: ClassVar[bool] = True

    _conversation: MemoryConversation = PrivateAttr()
    _prompts: Any = PrivateAttr()
    _tools: Any = PrivateAttr()
    #: Whether `llm` was called: the chain then runs before each model call, and not when the memory is read.
    _runs_in_llm: bool = PrivateAttr(default=False)

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        memory: BaseMemory | None = None,
        *,
        agent_name: str | None = None,
        prompts: Sequence[str] = (),
        tools: Sequence[Any] = (),
        **settings: Unpack[PluginSettings],
    ) -> None:
        plugin: Plugin[MemoryConversation] = Plugin(policies, **settings)
        super().__init__(memory=ChatMemoryBuffer.from_defaults() if memory is None else memory)
        self._conversation = MemoryConversation(plugin, self.memory, agent_name)
        self._prompts, self._tools = prompts, tools

    __init__.__doc__ = Plugin.__init__.__doc__  # `help` would show the one of pydantic's base class

    @property
    def context(self) -> Context:
        """The context of the conversation, which sends alerts and contains the guard that halts it."""
        return self._conversation.context

    @classmethod
    def from_defaults(cls, policies: Sequence[AssemblyPolicy] | Assembler = (), **kwargs: Any) -> AssemblyMemory:
        """Create a memory from keyword arguments, as other memories of LlamaIndex have it.

        Args:
            policies: The policy chain, or an `Assembler`.
            kwargs: Arguments of this class. All others are passed to ``ChatMemoryBuffer.from_defaults``, which creates
                the wrapped memory.
        """
        names = (signature(cls.__init__).parameters.keys() | PluginSettings.__annotations__.keys()) & kwargs.keys()
        own: dict[str, Any] = {name: kwargs.pop(name) for name in names}
        if kwargs:
            own["memory"] = ChatMemoryBuffer.from_defaults(**kwargs)
        return cls(policies, **own)

    def llm(self, model: LLM) -> LLM:
        """Wrap the model of an agent or engine with this memory, so that the policy chain runs before each call."""
        self._runs_in_llm = True
        return AssemblingLLM(self, self._conversation, model)

    async def aget(self, input: str | None = None, **_: Any) -> list[ChatMessage]:  # noqa: A002  # as a memory has it
        """Return the output of the policy chain; all messages if ``memory.llm(…)`` runs the chain later.

        Raises:
            HaltedError: The conversation is halted.
            ContextOverflowError: Content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised an exception.
        """
        messages = list(await self.memory.aget_all())
        await self._conversation.show(messages)
        self._conversation.latest = [*messages]
        if self._runs_in_llm:
            READINGS.record_read(Read(invoking_agent_of(self.memory), messages))  # `reducers.get` ignores this memory
            return messages
        return (await self._conversation.run_policies(self, self._prompts, messages, self._tools))[1]

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages to the wrapped memory, and pass them to the observers."""
        await self._conversation.show(messages, are_added=True)
        self._conversation.latest += messages
        await self.memory.aput_messages(messages)

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace all messages of the wrapped memory, and pass new ones to the observers."""
        await self._conversation.show(messages)
        await self.memory.aset(messages)
