"""`AssembledChatCompletionContext`: an AutoGen model context whose messages are selected by policies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Self

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
from otel_assembly.instrumentation.autogen.conversation import agent_request, client_of, model_of, schemas_of
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, TurnInput
from otel_assembly.model_context.memory import asked_by_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


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

    Functions for `dependencies` and `variables` get this object. Policies cannot read AutoGen's memories (`Memory`):
    the agent itself adds their content to the context. Observers receive a message when it is added. They receive no
    billed tokens, because AutoGen's messages do not contain them.

    Args:
        initial_messages: The first messages of the conversation. None: no messages. `Plugin` has the arguments that
            are not listed here.
        prompts: The system prompts that the agent sends before the returned messages. They are counted but not
            returned. If an agent of AgentChat reads the context, the agent's own system messages are used instead.
        tools: The schemas of the agent's tools, which are counted. Also replaced by the tools of an AgentChat agent.
        agent_name: The agent's name in telemetry. None: the name of the AgentChat agent.
    """

    _framework = "autogen"
    _message_types = (SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage)

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
        self._plugin_conversation = self._begin(None)
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
        context = self._plugin_conversation.context
        try:
            messages: list[LLMMessage] = await self._run_policies(self._plugin_conversation, agent_request(self))
        finally:
            context.tools, context.agent_name = self._tools, self._agent_name
        return messages

    async def _read_input(self, request: Any) -> TurnInput:
        model, events = self._plugin_conversation.context.model, self._events()
        if request is None:
            return TurnInput(self, self._prompts, events, self._agent_name, model, self._tools, shown=())
        prompts, client = [message.content for message in request["system_messages"]], request["model_client"]
        name, rules = self._agent_name or request.get("agent_name"), client_of(client)
        tools = [tool for bench in request.get("workbench", ()) for tool in await bench.list_tools()]
        schemas = schemas_of((*tools, *request.get("handoff_tools", ())))
        return TurnInput(self, prompts, events, name, model_of(client), schemas, client, rules, shown=())

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        added = [SystemMessage(content=prompt) for prompt in _added_prompts(turn_input.prompts, prompts)]
        return self._given([*added, *messages])

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
        settings = {name: getattr(config, name) for name in type(config).model_fields if name != "assembler"}
        return cls(Assembler.from_config(config.assembler), **settings)


def _added_prompts(original: Sequence[str], assembled: Sequence[str]) -> list[str]:
    """Return the prompts that policies added. A prompt can occur several times, so occurrences are counted."""
    surplus = Counter(assembled) - Counter(original)
    added: list[str] = []
    for prompt in assembled:
        if surplus[prompt] > 0:
            surplus[prompt] -= 1
            added.append(prompt)
    return added


__all__ = ["AssembledChatCompletionContext", "AssembledContextConfig"]
