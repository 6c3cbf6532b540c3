"""`AssembledChatCompletionContext`: an AutoGen model context whose messages are selected by policies."""

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
from otel_assembly.instrumentation.autogen import messages as _rows  # noqa: F401  # registers the readers
from otel_assembly.instrumentation.autogen.conversation import client_of, model_of, schemas_of
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation
from otel_assembly.messages.provider_rules import provider_of_client
from otel_assembly.model_context.memory import asked_by_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer

#: The local variables that are read from AgentChat's functions that read a context and then call the model.
_AGENT_VARIABLES: Final = {
    "_call_llm": ("agent_name", "system_messages", "model_client", "workbench", "handoff_tools"),
    "_reflect_on_tool_use_flow": ("agent_name", "system_messages", "model_client"),
    "_reflect_on_code_block_results_flow": ("agent_name", "system_messages", "model_client"),
}
#: The most stack frames between an agent's function and the context, such as those of instrumentations.
_MAX_FRAMES: Final = 16
_MESSAGE_TYPES: Final = (SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage)


class AssembledContextConfig(BaseModel):
    """The configuration of `AssembledChatCompletionContext`."""

    assembler: dict[str, Any]
    initial_messages: list[LLMMessage] | None = None
    prompts: list[str] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    variables: dict[str, Any] = Field(default_factory=dict)
    agent_name: str | None = None


class AssembledChatCompletionContext(
    Plugin[PluginConversation], ChatCompletionContext, Component[AssembledContextConfig]
):
    """A model context of AutoGen whose messages for the model are selected by policies.

    The returned messages are the objects that were added, in their order. Prompts that policies add precede them as
    system messages. The context is one conversation: a FATAL alert halts it permanently, and a reset of the agent or
    the team does not resume it. Its state has AutoGen's format and can be exchanged with AutoGen's contexts.

    Args:
        policies: The policies in order, or an `Assembler`.
        initial_messages: The first messages of the conversation. None: no messages.
        name: The assembler's name in telemetry, as for `Assembler`.
        model: The name of the model whose tokenizer counts, as for `Assembler`.
        prompts: The system prompts that the agent sends before the returned messages. They are counted but not
            returned. If an agent of AgentChat reads the context, the agent's own system messages are used instead.
        tools: The schemas of the agent's tools, which are counted. Also replaced by the tools of an AgentChat agent.
        agent_name: The agent's name in telemetry. None: the name of the AgentChat agent.
        dependencies: Objects that policies look up by type, such as ``{KnowledgeStore: store}`` for the memory
            policies: a mapping, or a function that is called with this object before each assembly and returns one.
            Policies cannot read AutoGen's memories (`Memory`): the agent itself adds their content to the context.
        variables: Values that policies look up by name: a mapping or a function, as for `dependencies`.
        observers: Receive each message that is added, and each alert. They receive no billed tokens, because AutoGen's
            messages do not contain them.

    Raises:
        ConfigurationError: An argument has the wrong type, or `name` or `model` is given together with an `Assembler`,
            which has its own.
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
        self._plugin_conversation = PluginConversation(self, "autogen", None)
        self._plugin_conversation.delivers = True  # also without an AlertPolicy in the chain
        context = self._plugin_conversation.context
        context.agent_name, context.tools = agent_name, self._tools
        self._agent_name = agent_name

    def context_of(self, conversation: Any = None) -> Context:
        """Return the `Context` of this object's only conversation. Use it to send alerts.

        ``await context_of().send(ObserverAlert(…))`` warns the model if the chain contains an `AlertPolicy`. A FATAL
        alert halts the conversation.

        Args:
            conversation: Ignored.
        """
        return self._plugin_conversation.context

    async def add_message(self, message: LLMMessage) -> None:
        """Add a message, and show it to the observers.

        Raises:
            HaltedError: The message requests tool calls, and the conversation is halted. Only an exception prevents
                AutoGen from running the tools.
        """
        await super().add_message(message)
        await self._plugin_conversation.stream.show(message)
        if isinstance(message, AssistantMessage) and not isinstance(message.content, str):
            self._plugin_conversation.context.guard.check()

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages for the model. Each call is recorded as an assembly.

        A memory that reads the context in its ``update_context`` method receives all messages. That is not recorded.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        if asked_by_memory(self):
            return await self._messages_for_memory()
        context, prompts = self._plugin_conversation.context, self._prompts
        provider = context.provider
        request = _agent_request(self)
        if request is not None:
            prompts = [message.content for message in request["system_messages"]]
            context.agent_name = self._agent_name or request.get("agent_name")
            context.model = model_of(request["model_client"])
            context.provider = provider or provider_of_client(request["model_client"])
            context.client = client_of(request["model_client"])
            tools = [tool for bench in request.get("workbench", ()) for tool in await bench.list_tools()]
            context.tools = schemas_of((*tools, *request.get("handoff_tools", ())))
        try:
            assembly = await self._plugin_conversation.assemble(self, prompts, self._events())
        finally:
            context.tools, context.agent_name, context.provider = self._tools, self._agent_name, provider
        added = [SystemMessage(content=prompt) for prompt in _added_prompts(prompts, assembly.prompts)]
        # The first test is the faster one, and true for almost all events.
        kept = [
            event for event in assembly.events if type(event) in _MESSAGE_TYPES or isinstance(event, _MESSAGE_TYPES)
        ]
        return self._given([*added, *kept])

    def _events(self) -> Sequence[LLMMessage]:
        """Return the conversation's messages as the input of an assembly."""
        return self._messages

    def _given(self, messages: list[LLMMessage]) -> list[LLMMessage]:
        """Return what `get_messages` returns for the output of an assembly."""
        return messages

    async def _messages_for_memory(self) -> list[LLMMessage]:
        """Return the messages for a memory. Because no model call follows, no assembly is recorded."""
        return list(self._messages)

    def _to_config(self) -> AssembledContextConfig:
        setting = "observers" if self._observers else "dependencies" if self._dependencies else ""
        if setting or callable(self._variables):
            setting = setting or "variables of a function"
            raise ConfigurationError(f"{setting} cannot be written into a component's configuration")
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


def _agent_request(context: Any) -> Mapping[str, Any] | None:
    """Return the system messages, tools and client of the AgentChat agent that reads a context; None without one.

    AutoGen passes none of them to a context. They are read from the call stack, also without instrumentation, so that
    the budget does not depend on the instrumentation.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # the only access to the call stack
    for _ in range(_MAX_FRAMES):
        names = _AGENT_VARIABLES.get(frame.f_code.co_name)
        if names is not None and str(frame.f_globals.get("__name__")).startswith("autogen_agentchat."):
            values = frame.f_locals
            if values["model_context"] is not context:
                return None
            return {name: values[name] for name in names if name in values}
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _added_prompts(original: Sequence[str], assembled: Sequence[str]) -> list[str]:
    """Return the prompts that policies added. A prompt can occur several times, so occurrences are counted."""
    surplus = Counter(assembled)
    surplus.subtract(original)
    added: list[str] = []
    for prompt in assembled:
        if surplus[prompt] > 0:
            surplus[prompt] -= 1
            added.append(prompt)
    return added


__all__ = ["AssembledChatCompletionContext", "AssembledContextConfig"]
