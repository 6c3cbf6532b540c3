"""`AssemblyMemory`, the plug-in for LlamaIndex: a memory that runs a policy chain on the messages of another memory.

The chain runs in ``aget`` and ``get``, or, with the model that ``memory.llm(…)`` returns, before each ``chat`` call.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr, SerializeAsAny
from llama_index.core.llms import LLM  # noqa: TC002  # the type of a field
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.llama_index.calls import READINGS, invoking_agent_of, model_of
from otel_assembly.instrumentation.llama_index.memory_reads import Read
from otel_assembly.instrumentation.llama_index.messages import prompt_of, schemas_of
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, TurnInput
from otel_assembly.instrumentation.prompts import in_front

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssemblyMemory(BaseMemory):
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
        memory: The memory to wrap; by default a new `ChatMemoryBuffer`. `Plugin` has the arguments that are not listed
            here.
        agent_name: The agent's name in telemetry, if the agent is not instrumented.
        prompts: System prompts that are sent with the messages. Not needed with ``memory.llm(…)``.
        tools: Tools that are offered to the model. Not needed with ``memory.llm(…)``.

    Attributes:
        context: The context of the conversation, which sends alerts and contains the guard that halts it.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    #: Marks the class as a plug-in, which records its own assemblies, so that the instrumentation does not.
    otel_assembly_plugin: ClassVar[bool] = True

    memory: SerializeAsAny[BaseMemory]
    _conversation: PluginConversation = PrivateAttr()
    _agent_name: str | None = PrivateAttr()
    _prompts: Any = PrivateAttr()
    _tools: Any = PrivateAttr()
    #: Whether `llm` was called: the chain then runs before each model call, and not when the memory is read.
    _runs_in_llm: bool = PrivateAttr(default=False)
    #: The messages that the observers have received.
    _shown: IdentityWeakMap[bool] = PrivateAttr(default_factory=IdentityWeakMap)
    #: The messages that the wrapped memory returned last, and those added since.
    _latest: list[ChatMessage] = PrivateAttr(default_factory=list)

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        memory: BaseMemory | None = None,
        *,
        name: str | None = None,
        model: str | None = None,
        agent_name: str | None = None,
        prompts: Sequence[str] = (),
        tools: Sequence[Any] = (),
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        plugin: Plugin[PluginConversation] = Plugin(
            policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        super().__init__(memory=ChatMemoryBuffer.from_defaults() if memory is None else memory)
        self._conversation = PluginConversation(plugin, "llama_index", invoking_agent_of(self.memory).conversation_id)
        self._agent_name, self._prompts, self._tools = agent_name, prompts, tools

    __init__.__doc__ = Plugin.__init__.__doc__  # `help` would show the one of pydantic's base class

    @property
    def context(self) -> Context:
        """The context of the conversation."""
        return self._conversation.context

    @classmethod
    def from_defaults(cls, policies: Sequence[AssemblyPolicy] | Assembler = (), **kwargs: Any) -> AssemblyMemory:
        """Create a memory from keyword arguments, as other memories of LlamaIndex have it.

        Args:
            policies: The policy chain, or an `Assembler`.
            kwargs: Arguments of this class. All others are passed to ``ChatMemoryBuffer.from_defaults``, which creates
                the wrapped memory.
        """
        names = signature(cls.__init__).parameters.keys() & kwargs.keys()
        own: dict[str, Any] = {name: kwargs.pop(name) for name in names}
        if kwargs:
            own["memory"] = ChatMemoryBuffer.from_defaults(**kwargs)
        return cls(policies, **own)

    def llm(self, model: LLM) -> LLM:
        """Wrap a model so that the policy chain runs before each of its calls.

        Args:
            model: The model of an agent or engine whose memory is this one.
        """
        self._runs_in_llm = True
        return _AssemblingLLM(self, model)

    async def aget(self, input: str | None = None, **_: Any) -> list[ChatMessage]:  # noqa: A002  # as a memory has it
        """Return the output of the policy chain; all messages if ``memory.llm(…)`` runs the chain later.

        Raises:
            HaltedError: The conversation is halted.
            ContextOverflowError: Content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised an exception.
        """
        messages = list(await self.memory.aget_all())
        await self.show(messages)
        self._latest = [*messages]
        if self._runs_in_llm:
            READINGS.record_read(Read(invoking_agent_of(self.memory), messages))
            return messages
        return (await self.assemble(self._prompts, messages, self._tools, None))[1]

    async def assemble(
        self, prompts: Sequence[str], messages: Sequence[Any], tools: Any, llm: LLM | None
    ) -> tuple[Sequence[str], list[ChatMessage]]:
        """Run the policy chain, and return the system prompts and messages of its output.

        Args:
            prompts: The system prompts.
            messages: The other messages.
            tools: The tools that the model is offered; they count toward a budget.
            llm: The model that is called; None if it is unknown.
        """
        agent_name = self._agent_name or READINGS.with_agent_name(invoking_agent_of(self.memory)).agent_name
        model = (model_of(llm) if llm is not None else None) or self.context.model
        turn_input = TurnInput(self, list(prompts), messages, agent_name, model, schemas_of(tools or ()), llm)
        async with self._conversation.turn(turn_input):
            assembly = await self._conversation.assemble(turn_input)
        events = [event for event in assembly.events if isinstance(event, ChatMessage)]
        READINGS.record_read(Read(invoking_agent_of(self.memory), events, replaced_by_plugin=True))
        return assembly.prompts, events

    async def show(self, messages: Sequence[ChatMessage]) -> None:
        """Pass messages to the observers that have not received them yet.

        A store may return copies of its messages, so a message that equals one of the latest is not passed again.
        """
        for message in messages:
            if not self._shown.get(message) and not self.contains(message):
                self._shown.put(message, True)
                await self._conversation.stream.show(message)

    def contains(self, message: Any) -> bool:
        """Return whether a message, or a copy of it, is among those that the memory returned last or got since."""
        return any(same_content(message, latest) for latest in self._latest)

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002  # as above
        """Return what `aget` returns, for code that cannot await it."""
        messages: list[ChatMessage] = asyncio_run(self.aget(input, **kwargs))
        return messages

    def get_all(self) -> list[ChatMessage]:
        """Return all messages of the wrapped memory."""
        return self.memory.get_all()

    async def aget_all(self) -> list[ChatMessage]:
        """Return all messages of the wrapped memory."""
        return await self.memory.aget_all()

    def put(self, message: ChatMessage) -> None:
        """Add a message to the wrapped memory, and pass it to the observers."""
        asyncio_run(self.aput(message))

    async def aput(self, message: ChatMessage) -> None:
        """Add a message to the wrapped memory, and pass it to the observers."""
        await self.aput_messages([message])

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages to the wrapped memory, and pass them to the observers."""
        asyncio_run(self.aput_messages(messages))

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages to the wrapped memory, and pass them to the observers."""
        for message in messages:
            if not self._shown.get(message):
                self._shown.put(message, True)
                await self._conversation.stream.show(message)
        self._latest += messages
        await self.memory.aput_messages(messages)

    def set(self, messages: list[ChatMessage]) -> None:
        """Replace all messages of the wrapped memory, and pass new ones to the observers."""
        asyncio_run(self.aset(messages))

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace all messages of the wrapped memory, and pass new ones to the observers."""
        await self.show(messages)
        await self.memory.aset(messages)

    def reset(self) -> None:
        """Remove all messages from the wrapped memory."""
        self.memory.reset()

    async def areset(self) -> None:
        """Remove all messages from the wrapped memory."""
        await self.memory.areset()


def _delegate(method: str) -> Any:
    """Return a method that calls the wrapped model's method unchanged."""
    return lambda self, *args, **kwargs: getattr(self.inner, method)(*args, **kwargs)


class _AssemblingLLM(FunctionCallingLLM):
    """A model that runs the policy chain of an `AssemblyMemory`, and calls another model with the output."""

    otel_assembly_plugin: ClassVar[bool] = True

    inner: SerializeAsAny[LLM]
    _memory: AssemblyMemory = PrivateAttr()

    def __init__(self, memory: AssemblyMemory, model: LLM) -> None:
        super().__init__(inner=model)
        self._memory = memory

    @property
    def metadata(self) -> Any:
        return self.inner.metadata

    @property
    def model(self) -> str | None:
        return model_of(self.inner)

    async def _assemble(self, messages: Sequence[ChatMessage], tools: Any) -> list[ChatMessage]:
        """Return the messages to send: the chain's output, with the system prompts as messages at the start.

        System messages at the start that come from the memory are not prompts, so that a policy can drop them.
        """
        memory = self._memory
        system, history = in_front(
            messages, lambda message: prompt_of(message) is not None and not memory.contains(message)
        )
        await memory.show(history)
        old_prompts = [str(prompt_of(message)) for message in system]
        prompts, events = await memory.assemble(old_prompts, history, tools, self.inner)
        if list(prompts) != old_prompts:
            system = [ChatMessage(prompt, role=self.metadata.system_role) for prompt in prompts]
        return [*system, *events]

    async def _observe_response(self, response: ChatMessage) -> None:
        """Pass a response to the observers, and prevent its tool calls if the conversation is halted.

        Raises:
            HaltedError: The conversation is halted, and the response contains tool calls.
        """
        await self._memory.show([response])
        tool_calls = response.additional_kwargs.get("tool_calls")
        if tool_calls or any(isinstance(block, ToolCallBlock) for block in response.blocks):
            self._memory.context.guard.check()

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        response = self.inner.chat(asyncio_run(self._assemble(messages, kwargs.get("tools"))), **kwargs)
        asyncio_run(self._observe_response(response.message))
        return response

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        response = await self.inner.achat(await self._assemble(messages, kwargs.get("tools")), **kwargs)
        await self._observe_response(response.message)
        return response

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        responses = self.inner.stream_chat(asyncio_run(self._assemble(messages, kwargs.get("tools"))), **kwargs)

        def stream() -> Any:
            response = None
            for response in responses:
                yield response
            if response is not None:  # the last part contains the whole message
                asyncio_run(self._observe_response(response.message))

        return stream()

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        responses = await self.inner.astream_chat(await self._assemble(messages, kwargs.get("tools")), **kwargs)

        async def stream() -> Any:
            response = None
            async for response in responses:
                yield response
            if response is not None:  # as above
                await self._observe_response(response.message)

        return stream()

    # The chain does not run for completions, because a single text is not a conversation.
    complete: ClassVar[Any] = _delegate("complete")
    acomplete: ClassVar[Any] = _delegate("acomplete")
    stream_complete: ClassVar[Any] = _delegate("stream_complete")
    astream_complete: ClassVar[Any] = _delegate("astream_complete")
    _prepare_chat_with_tools: ClassVar[Any] = _delegate("_prepare_chat_with_tools")
    _prepare_chat_with_tools_compat: ClassVar[Any] = _delegate("_prepare_chat_with_tools_compat")
    _validate_chat_with_tools_response: ClassVar[Any] = _delegate("_validate_chat_with_tools_response")
    get_tool_calls_from_response: ClassVar[Any] = _delegate("get_tool_calls_from_response")
