"""`AssembledChatCompletionContext`: a model context whose messages are what our policies keep."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Self

from autogen_core import Component
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)
from pydantic import BaseModel, Field

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.autogen import messages as _rows  # noqa: F401  # the engine reads by them
from otel_assembly.instrumentation.autogen.conversation import client_of, model_of, schemas_of
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation
from otel_assembly.messages.provider_rules import provider_of_client
from otel_assembly.model_context.memory import asked_by_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer

#: What asks a context and then calls a model with it, by what it has beside the answer: all but the name is sent.
_ASKS: Final = {
    "_call_llm": ("agent_name", "system_messages", "model_client", "workbench", "handoff_tools"),
    "_reflect_on_tool_use_flow": ("agent_name", "system_messages", "model_client"),
    "_reflect_on_code_block_results_flow": ("agent_name", "system_messages", "model_client"),
}
#: So many functions may stand between an agent and its context, such as those of instrumentations.
_BETWEEN: Final = 16
_SENT: Final = (SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage)


class AssembledContextConfig(BaseModel):
    """What `AssembledChatCompletionContext` is dumped as."""

    assembler: dict[str, Any]
    initial_messages: list[LLMMessage] | None = None
    prompts: list[str] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    variables: dict[str, Any] = Field(default_factory=dict)
    agent_name: str | None = None


class AssembledChatCompletionContext(
    Plugin[PluginConversation], ChatCompletionContext, Component[AssembledContextConfig]
):
    """A model context of AutoGen that an `Assembler` reduces.

    The messages it gives are the very objects that were added, in their order; what policies put in front of the
    conversation comes as system messages. It is one conversation: a FATAL alert halts it for good, and no reset of an
    agent or a team opens it again. Its state is AutoGen's own and can be exchanged with that of AutoGen's contexts.

    Args:
        policies: The chain, or an `Assembler`.
        initial_messages: What the conversation begins with.
        name: Tells assemblers apart, as `Assembler` takes it.
        model: The model whose tokenizer counts, as `Assembler` takes it.
        prompts: The system messages that are sent in front of what this object gives; they are counted, and not
            returned. Where an agent of AgentChat asks, its own are taken instead.
        tools: The schemas of the tools that are offered; counted, and taken from such an agent, likewise.
        agent_name: The agent's name, for telemetry; else that of such an agent.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}`` for the memory policies: a
            mapping, or a function of this object that returns one, called before each assembly. AutoGen's memories
            (`Memory`) are an agent's, which puts what they hold into the context itself.
        variables: Values for policies, by name; likewise.
        observers: Shown every message that is added, and every alert. AutoGen's messages do not say what was billed for
            them.

    Raises:
        ConfigurationError: A policy or an observer is none, or a setting is given beside an `Assembler` that has it.
    """

    component_config_schema = AssembledContextConfig
    component_type = "chat_completion_context"

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        initial_messages: list[LLMMessage] | None = None,
        name: str | None = None,
        model: str | None = None,
        prompts: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        agent_name: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        ChatCompletionContext.__init__(self, initial_messages)
        Plugin.__init__(
            self, policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        self._prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        self._tools = tuple(tools)
        self._talk = PluginConversation(self, "autogen", None)
        self._talk.delivers = True  # its policies see every alert, whoever delivers them
        context = self._talk.context
        context.agent_name, context.tools = agent_name, self._tools
        self._agent_name = agent_name

    def context_of(self, conversation: Any = None) -> Context:
        """The context of the conversation, which is this object's one: ``await ….send(ObserverAlert(…))`` warns the
        model where an `AlertPolicy` is in the chain, and a FATAL one halts.
        """
        return self._talk.context

    async def add_message(self, message: LLMMessage) -> None:
        """Add a message, and show it to the observers.

        Raises:
            HaltedError: It asks for tool calls, and the conversation is halted: AutoGen runs them next, and has no
                other way of being stopped.
        """
        await super().add_message(message)
        await self._talk.stream.show(message)
        if isinstance(message, AssistantMessage) and not isinstance(message.content, str):
            self._talk.context.guard.check()

    async def get_messages(self) -> list[LLMMessage]:
        """What the model gets to see; a memory that asks in its ``update_context`` is given the conversation.

        Raises:
            HaltedError: The conversation was halted; nothing is to be called for it any more.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        if asked_by_memory(self):
            return await self._for_memory()
        context, prompts = self._talk.context, self._prompts
        provider = context.provider
        agents = _prepared_by_agent(self)
        if agents is not None:
            prompts = [message.content for message in agents["system_messages"]]
            context.agent_name = self._agent_name or agents.get("agent_name")
            context.model = model_of(agents["model_client"])
            context.provider = provider or provider_of_client(agents["model_client"])
            context.client = client_of(agents["model_client"])
            offered = [tool for bench in agents.get("workbench", ()) for tool in await bench.list_tools()]
            context.tools = schemas_of((*offered, *agents.get("handoff_tools", ())))
        try:
            assembly = await self._talk.assemble(self, prompts, self._held())
        finally:
            context.tools, context.agent_name, context.provider = self._tools, self._agent_name, provider
        given = Counter(prompts)
        given.subtract(assembly.prompts)
        added = [prompt for prompt in assembly.prompts if _taken(given, prompt)]
        sent = [event for event in assembly.events if type(event) in _SENT or isinstance(event, _SENT)]
        return self._given([*(SystemMessage(content=prompt) for prompt in added), *sent])

    def _held(self) -> Sequence[LLMMessage]:
        """What is held, for an assembly."""
        return self._messages

    def _given(self, sent: list[LLMMessage]) -> list[LLMMessage]:
        """What who asks is given of what an assembly sends."""
        return sent

    async def _for_memory(self) -> list[LLMMessage]:
        """What a memory is given, which is sent to no model: no assembly is told of it, and no alert delivered."""
        return list(self._messages)

    def _to_config(self) -> AssembledContextConfig:
        what = "observers" if self._observers else "dependencies" if self._dependencies else ""
        if what or callable(self._variables):
            what = what or "variables of a function"
            raise ConfigurationError(f"{what} cannot be written into a component's configuration")
        return AssembledContextConfig(
            assembler=self.assembler.to_config(),
            initial_messages=self._initial_messages,
            prompts=self._prompts,
            tools=[dict(tool) for tool in self._tools],
            agent_name=self._agent_name,
            variables=dict(self._variables or {}),
        )

    @classmethod
    def _from_config(cls, config: AssembledContextConfig) -> Self:
        return cls(
            Assembler.from_config(config.assembler),
            initial_messages=config.initial_messages,
            prompts=config.prompts,
            tools=config.tools,
            agent_name=config.agent_name,
            variables=config.variables,
        )


def _prepared_by_agent(context: Any) -> Mapping[str, Any] | None:
    """What an agent of AgentChat will send beside what its context answers; None where no such agent asks.

    AutoGen tells a context nothing of the call that it is asked for. What awaits the answer is looked at, instrumented
    or not, so that both have the same budget.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # the interpreter's
    for _ in range(_BETWEEN):
        names = _ASKS.get(frame.f_code.co_name)
        if names is not None and str(frame.f_globals.get("__name__")).startswith("autogen_agentchat."):
            held = frame.f_locals
            return {name: held[name] for name in names if name in held} if held["model_context"] is context else None
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _taken(given: Counter[str], prompt: str) -> bool:
    """Whether a prompt is more than what was given: each that was is passed over as often as it was."""
    if given[prompt] < 0:
        given[prompt] += 1
        return True
    return False


__all__ = ["AssembledChatCompletionContext", "AssembledContextConfig"]
