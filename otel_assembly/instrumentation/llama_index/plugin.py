"""`AssemblyMemory`: a chain of our policies as a memory of LlamaIndex, and in front of a model, on its own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

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
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation
from otel_assembly.instrumentation.prompts import in_front

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssemblyMemory(BaseMemory):
    """Our policies on all that a memory holds: LlamaIndex's messages go in and come out, the very objects.

    It stands in the place of a memory, which it asks for all that it holds; what a policy drops is still in there. By
    itself it assembles what it gives, with the prompts and tools that it was told of. An agent adds to that what its
    tools have answered in this run, and its system prompt: give it ``memory.llm(model)`` as well, and the policies
    stand in front of each call of the model, where all of that is known. Then a budget holds whatever the agent does.

    A FATAL alert, of an observer, or sent with ``context.send(…)``, halts the conversation: no model is called any
    more, and, with ``memory.llm(…)``, no tool is. Whoever runs the agent is raised `HaltedError`; so it is with the
    `ContextOverflowError` of a budget that cannot hold.

    Args:
        policies: The chain, or an `Assembler`.
        memory: What holds the messages; by default a `ChatMemoryBuffer`.
        name: Tells assemblers apart, as `Assembler` takes it.
        model: The model whose tokenizer counts; by default that of ``memory.llm(…)``.
        agent_name: The agent's name, for telemetry; an instrumented agent says its own.
        prompts: System prompts that will be sent with what it gives, where no ``memory.llm(…)`` sees them.
        tools: Tools that will be offered, likewise.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}``: a mapping, or a function of
            this memory that returns one, async or not, called before each assembly.
        variables: Values for policies, by name; likewise.
        observers: Shown every message once, with ``memory.llm(…)`` a response before its tools run; and every alert.

    Attributes:
        context: The context of the conversation, whose guard ends it and through which alerts can be sent.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    #: By this the instrumentation knows that its assemblies are told of already.
    otel_assembly_plugin: ClassVar[bool] = True

    memory: SerializeAsAny[BaseMemory]
    _conversation: PluginConversation = PrivateAttr()
    _agent_name: str | None = PrivateAttr()
    _beside: Any = PrivateAttr()
    _tools: Any = PrivateAttr()
    _before_model: bool = PrivateAttr(default=False)
    _shown: IdentityWeakMap[bool] = PrivateAttr(default_factory=IdentityWeakMap)
    _gave: list[ChatMessage] = PrivateAttr(default_factory=list)

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
        self._agent_name, self._beside, self._tools = agent_name, prompts, tools

    @property
    def context(self) -> Context:
        """The context of the conversation."""
        return self._conversation.context

    @classmethod
    def from_defaults(cls, policies: Sequence[AssemblyPolicy] | Assembler = (), **given: Any) -> AssemblyMemory:
        """One with these policies; the rest is for it, or else for the `ChatMemoryBuffer` that it stands for."""
        own: dict[str, Any] = {name: given.pop(name) for name in _OWN & given.keys()}
        if given:
            own["memory"] = ChatMemoryBuffer.from_defaults(**given)
        return cls(policies, **own)

    def llm(self, model: LLM) -> LLM:
        """The model with the policies in front of each of its calls, for an agent or an engine that has this memory."""
        self._before_model = True
        return _Assembling(self, model)

    async def aget(self, input: str | None = None, **_: Any) -> list[ChatMessage]:  # noqa: A002  # as a memory has it
        """What is to be sent to a model; with ``memory.llm(…)`` all that is held, for that to assemble.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        held = list(await self.memory.aget_all())
        await self.show(held)
        self._gave = [*held]
        if self._before_model:
            READINGS.given(Read(invoking_agent_of(self.memory), held))
            return held
        return (await self.assembled(self._beside, held, self._tools, None))[1]

    async def assembled(
        self, prompts: Sequence[str], held: Sequence[Any], tools: Any, llm: LLM | None
    ) -> tuple[Sequence[str], list[ChatMessage]]:
        """Return the system prompts and messages that the policies let pass, for a model if it is known."""
        agent_name = self._agent_name or READINGS.named(invoking_agent_of(self.memory)).agent_name
        model = (model_of(llm) if llm is not None else None) or self.context.model
        async with self._conversation.turn(agent_name, model, schemas_of(tools or ()), llm):
            assembly = await self._conversation.assemble(self, prompts, held)
        events = [event for event in assembly.events if isinstance(event, ChatMessage)]
        READINGS.given(Read(invoking_agent_of(self.memory), events, replaced_by_plugin=True))
        return assembly.prompts, events

    async def show(self, messages: Sequence[ChatMessage]) -> None:
        """Show the observers what they have not been shown; what a store gave is a copy of what they have."""
        for message in messages:
            if not self._shown.get(message) and not any(same_content(message, one) for one in self._gave):
                self._shown.put(message, True)
                await self._conversation.stream.show(message)

    def is_given(self, message: Any) -> bool:
        """Whether this is, or says, what was given last."""
        return any(same_content(message, one) for one in self._gave)

    def get(self, input: str | None = None, **given: Any) -> list[ChatMessage]:  # noqa: A002  # as above
        """The same, where nothing can be awaited."""
        found: list[ChatMessage] = asyncio_run(self.aget(input, **given))
        return found

    def get_all(self) -> list[ChatMessage]:
        """All that is held."""
        return self.memory.get_all()

    async def aget_all(self) -> list[ChatMessage]:
        """All that is held."""
        return await self.memory.aget_all()

    def put(self, message: ChatMessage) -> None:
        """Hold a message."""
        asyncio_run(self.aput(message))

    async def aput(self, message: ChatMessage) -> None:
        """Hold a message."""
        await self.aput_messages([message])

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Hold messages."""
        asyncio_run(self.aput_messages(messages))

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Hold messages."""
        for message in messages:
            if not self._shown.get(message):
                self._shown.put(message, True)
                await self._conversation.stream.show(message)
        self._gave += messages
        await self.memory.aput_messages(messages)

    def set(self, messages: list[ChatMessage]) -> None:
        """Hold these in the place of all others."""
        asyncio_run(self.aset(messages))

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Hold these in the place of all others."""
        await self.show(messages)
        await self.memory.aset(messages)

    def reset(self) -> None:
        """Hold nothing."""
        self.memory.reset()

    async def areset(self) -> None:
        """Hold nothing."""
        await self.memory.areset()


_OWN: Final = {"memory", "name", "model", "agent_name", "prompts", "tools", "dependencies", "variables", "observers"}


def _behind(method: str) -> Any:
    """What the model behind does: a text alone is no conversation."""
    return lambda self, *args, **kwargs: getattr(self.behind, method)(*args, **kwargs)


class _Assembling(FunctionCallingLLM):
    """A model that is called with what the policies of a memory let out."""

    otel_assembly_plugin: ClassVar[bool] = True

    behind: SerializeAsAny[LLM]
    _memory: AssemblyMemory = PrivateAttr()

    def __init__(self, memory: AssemblyMemory, model: LLM) -> None:
        super().__init__(behind=model)
        self._memory = memory

    @property
    def metadata(self) -> Any:
        return self.behind.metadata

    @property
    def model(self) -> str | None:
        return model_of(self.behind)

    async def _sent(self, messages: Sequence[ChatMessage], tools: Any) -> list[ChatMessage]:
        memory = self._memory
        front, held = in_front(messages, lambda one: prompt_of(one) is not None and not memory.is_given(one))
        await memory.show(held)
        said = [str(prompt_of(one)) for one in front]
        prompts, events = await memory.assembled(said, held, tools, self.behind)
        if list(prompts) != said:
            front = [ChatMessage(prompt, role=self.metadata.system_role) for prompt in prompts]
        return [*front, *events]

    async def _answered(self, answer: ChatMessage) -> None:
        """Show observers what the model said; its tools are not called where that halted the conversation."""
        await self._memory.show([answer])
        keywords = answer.additional_kwargs.get("tool_calls")
        if keywords or any(isinstance(block, ToolCallBlock) for block in answer.blocks):
            self._memory.context.guard.check()

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        answer = self.behind.chat(asyncio_run(self._sent(messages, kwargs.get("tools"))), **kwargs)
        asyncio_run(self._answered(answer.message))
        return answer

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        answer = await self.behind.achat(await self._sent(messages, kwargs.get("tools")), **kwargs)
        await self._answered(answer.message)
        return answer

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        answers = self.behind.stream_chat(asyncio_run(self._sent(messages, kwargs.get("tools"))), **kwargs)

        def stream() -> Any:
            answer = None
            for answer in answers:
                yield answer
            if answer is not None:
                asyncio_run(self._answered(answer.message))

        return stream()

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        answers = await self.behind.astream_chat(await self._sent(messages, kwargs.get("tools")), **kwargs)

        async def stream() -> Any:
            answer = None
            async for answer in answers:
                yield answer
            if answer is not None:
                await self._answered(answer.message)

        return stream()

    complete: ClassVar[Any] = _behind("complete")
    acomplete: ClassVar[Any] = _behind("acomplete")
    stream_complete: ClassVar[Any] = _behind("stream_complete")
    astream_complete: ClassVar[Any] = _behind("astream_complete")
    _prepare_chat_with_tools: ClassVar[Any] = _behind("_prepare_chat_with_tools")
    _prepare_chat_with_tools_compat: ClassVar[Any] = _behind("_prepare_chat_with_tools_compat")
    _validate_chat_with_tools_response: ClassVar[Any] = _behind("_validate_chat_with_tools_response")
    get_tool_calls_from_response: ClassVar[Any] = _behind("get_tool_calls_from_response")
