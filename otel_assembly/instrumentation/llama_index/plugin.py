"""`AssemblyMemory`, the plug-in for LlamaIndex: a memory that runs a policy chain on the messages of another memory.

The chain runs in ``aget`` and ``get``, or, with the model that ``memory.llm(…)`` returns, before each ``chat`` call.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.bridge.pydantic import PrivateAttr, SerializeAsAny
from llama_index.core.llms import LLM  # noqa: TC002  # the type of a field
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.llama_index.calls import READINGS, invoking_agent_of, model_of
from otel_assembly.instrumentation.llama_index.memory_reads import Read
from otel_assembly.instrumentation.llama_index.messages import prompt_of, schemas_of
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, PluginSettings, TurnInput
from otel_assembly.instrumentation.prompts import in_front

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


class WrappingMemory(BaseMemory):
    """A memory that stores its messages in another one. Its sync methods run the async methods to their end."""

    memory: SerializeAsAny[BaseMemory]

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002  # LlamaIndex's name
        messages: list[ChatMessage] = asyncio_run(self.aget(input, **kwargs))
        return messages

    def get_all(self) -> list[ChatMessage]:
        return self.memory.get_all()

    async def aget_all(self) -> list[ChatMessage]:
        return await self.memory.aget_all()

    def put(self, message: ChatMessage) -> None:
        asyncio_run(self.aput(message))

    async def aput(self, message: ChatMessage) -> None:
        await self.aput_messages([message])

    def put_messages(self, messages: list[ChatMessage]) -> None:
        asyncio_run(self.aput_messages(messages))

    def set(self, messages: list[ChatMessage]) -> None:
        asyncio_run(self.aset(messages))

    def reset(self) -> None:
        self.memory.reset()

    async def areset(self) -> None:
        await self.memory.areset()


class MemoryConversation(PluginConversation):
    """The conversation of a memory.

    Attributes:
        latest: The messages that the memory returned last, and those added since.
    """

    def __init__(self, plugin: Plugin[Any], memory: BaseMemory, agent_name: str | None) -> None:
        super().__init__(plugin, "llama_index", invoking_agent_of(memory).conversation_id)
        self.latest: list[Any] = []
        self._agent_name = agent_name
        #: The messages that the observers have received.
        self._received: IdentityWeakMap[bool] = IdentityWeakMap()

    async def show(self, events: Sequence[Any], *, are_added: bool = False) -> None:
        """Show the observers the messages that they have not received yet."""
        for message in events:  # a store may return copies, so one that equals one of the latest is not shown again
            if not self._received.get(message) and (are_added or not self.contains(message)):
                self._received.put(message, True)
                await self.stream.show(message)

    def contains(self, message: Any) -> bool:
        return any(same_content(message, latest) for latest in self.latest)

    async def run_policies(
        self, memory: BaseMemory, prompts: Sequence[str], messages: Sequence[Any], tools: Any, llm: LLM | None = None
    ) -> tuple[Sequence[str], list[ChatMessage]]:
        """Run the policy chain, and return the system prompts and messages of its output."""
        invoking_agent = invoking_agent_of(memory)
        turn_input = TurnInput(
            framework_object=memory,
            prompts=list(prompts),
            messages=messages,
            agent_name=self._agent_name or READINGS.with_agent_name(invoking_agent).agent_name,
            model=(model_of(llm) if llm is not None else None) or self.context.model,
            tools=schemas_of(tools or ()),
            client=llm,
        )
        async with self.turn(turn_input):
            assembly = await self.assemble(turn_input)
        sent = [event for event in assembly.events if isinstance(event, ChatMessage)]
        READINGS.record_read(Read(invoking_agent, sent, replaced_by_plugin=True))
        return assembly.prompts, sent


def _forward(method: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self.inner, method)(*args, **kwargs)


class AssemblingLLM(FunctionCallingLLM):
    """A model that runs the policy chain of a memory's conversation, and calls another model with the output."""

    otel_assembly_plugin: ClassVar[bool] = True

    inner: SerializeAsAny[LLM]
    _memory: BaseMemory = PrivateAttr()
    _conversation: MemoryConversation = PrivateAttr()

    def __init__(self, memory: BaseMemory, conversation: MemoryConversation, model: LLM) -> None:
        super().__init__(inner=model)
        self._memory, self._conversation = memory, conversation

    @property
    def metadata(self) -> Any:
        return self.inner.metadata

    @property
    def model(self) -> str | None:
        return model_of(self.inner)

    async def _assemble(self, messages: Sequence[ChatMessage], tools: Any = None, **_: Any) -> list[ChatMessage]:
        """Return the messages to send: the chain's output, with the system prompts as messages at the start.

        System messages at the start that come from the memory are not prompts, so that a policy can drop them.
        """
        conversation = self._conversation
        system, history = in_front(
            messages, lambda message: prompt_of(message) is not None and not conversation.contains(message)
        )
        await conversation.show(history)
        old_prompts = [str(prompt_of(message)) for message in system]
        prompts, sent = await conversation.run_policies(self._memory, old_prompts, history, tools, self.inner)
        if list(prompts) != old_prompts:
            system = [ChatMessage(prompt, role=self.metadata.system_role) for prompt in prompts]
        return [*system, *sent]

    async def _show(self, response: Any) -> None:
        """Show the observers a response; raise `HaltedError` if it has tool calls in a halted conversation."""
        message = response.message
        has_blocks = any(isinstance(block, ToolCallBlock) for block in message.blocks)
        has_tool_calls = has_blocks or bool(message.additional_kwargs.get("tool_calls"))
        await self._conversation.show_response([message], has_tool_calls=has_tool_calls)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        response = self.inner.chat(asyncio_run(self._assemble(messages, **kwargs)), **kwargs)
        asyncio_run(self._show(response))
        return response

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        response = await self.inner.achat(await self._assemble(messages, **kwargs), **kwargs)
        await self._show(response)
        return response

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        responses = self.inner.stream_chat(asyncio_run(self._assemble(messages, **kwargs)), **kwargs)

        def stream() -> Any:
            response = None
            for response in responses:
                yield response
            if response is not None:  # the last part contains the whole message
                asyncio_run(self._show(response))

        return stream()

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        responses = await self.inner.astream_chat(await self._assemble(messages, **kwargs), **kwargs)

        async def stream() -> Any:
            response = None
            async for response in responses:
                yield response
            if response is not None:  # as above
                await self._show(response)

        return stream()

    # The chain does not run for completions, because a single text is not a conversation.
    complete: ClassVar[Any] = _forward("complete")
    acomplete: ClassVar[Any] = _forward("acomplete")
    stream_complete: ClassVar[Any] = _forward("stream_complete")
    astream_complete: ClassVar[Any] = _forward("astream_complete")
    _prepare_chat_with_tools: ClassVar[Any] = _forward("_prepare_chat_with_tools")
    _prepare_chat_with_tools_compat: ClassVar[Any] = _forward("_prepare_chat_with_tools_compat")
    _validate_chat_with_tools_response: ClassVar[Any] = _forward("_validate_chat_with_tools_response")
    get_tool_calls_from_response: ClassVar[Any] = _forward("get_tool_calls_from_response")


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
