"""`AssembledChatCompletionContext`: an AutoGen model context whose messages are selected by policies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from autogen_core import Component
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, LLMMessage, SystemMessage, UserMessage
from pydantic import BaseModel, Field

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.autogen import messages as _rows  # noqa: F401  # registers the readers
from otel_assembly.instrumentation.autogen.conversation import agent_request_on_stack, client_of, model_of, schemas_of
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, PluginSettings, TurnInput
from otel_assembly.model_context.memory import is_memory_on_stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


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

    Pass it to an agent: ``AssistantAgent(…, model_context=context)``. The returned messages are the objects that were
    added, in their order; the prompts that policies add precede them as system messages. A FATAL alert halts the
    context permanently, also after a reset of the agent or the team. AutoGen's contexts can load its saved state.

    Functions for `dependencies` and `variables` get this object. Policies cannot read AutoGen's memories (`Memory`):
    the agent adds their content to the context. Observers receive a message when it is added, without billed tokens.

    Args:
        initial_messages: The first messages of the conversation.
        prompts: The agent's system prompts, which are counted but not returned. An AgentChat agent's own replace them.
        tools: The schemas of the agent's tools, which are counted. An AgentChat agent's own replace them.
        agent_name: The agent's name in telemetry. None: the name of the AgentChat agent.
        settings: The other arguments of `Plugin`.
    """

    _framework = "autogen"
    _message_types = (SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage)
    #: As for `PluginConversation`. True: any policy of the user's can read alerts, even if the chain has no
    #: `AlertPolicy`. Alerts that are left in the output are not sent, because they are no messages of AutoGen.
    _inserts_alerts: ClassVar[bool] = True
    component_config_schema = AssembledContextConfig

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        initial_messages: list[LLMMessage] | None = None,
        prompts: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        agent_name: str | None = None,
        **settings: Unpack[PluginSettings],
    ) -> None:
        ChatCompletionContext.__init__(self, initial_messages)
        Plugin.__init__(self, policies, **settings)
        self._prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        self._tools = tuple(tools)
        self._agent_name = agent_name
        self._plugin_conversation = PluginConversation(
            self, self._framework, None, same=self._is_same, inserts_alerts=self._inserts_alerts
        )
        self._plugin_conversation.context.agent_name = agent_name

    def context_of(self, conversation: Any = None) -> Context:
        """Return the context of the only conversation, to send alerts to it or to halt it; the argument is ignored."""
        return self._plugin_conversation.context

    async def add_message(self, message: LLMMessage) -> None:
        """Add a message, and show it to the observers.

        Raises:
            HaltedError: The message contains tool calls, which AutoGen would run, and the conversation is halted.
        """
        await super().add_message(message)
        await self._plugin_conversation.stream.show(message)
        if isinstance(message, AssistantMessage) and not isinstance(message.content, str):
            self._plugin_conversation.context.guard.check()

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages for the model. A memory that reads the context in ``update_context`` gets all messages.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        # AutoGen passes no information about the caller, so the frames of the call stack are inspected.
        if is_memory_on_stack(self):
            return list(self._messages)
        request = agent_request_on_stack(self)
        messages: list[LLMMessage] = await self._run_policies(self._plugin_conversation, request)
        return messages

    async def _read_input(self, request: Any) -> TurnInput:
        """Read the input from the variables of an AgentChat agent, or without one from the arguments of `__init__`.

        The request has the agent's variables (`agent_request_on_stack`); it is None without an agent. Nothing is shown
        to the observers, because `add_message` has shown each message.
        """
        turn_input = TurnInput(
            framework_object=self,
            prompts=self._prompts,
            messages=self._messages,
            agent_name=self._agent_name,
            model=self._plugin_conversation.context.model,
            tools=self._tools,
            shown=(),
        )
        if request is None:
            return turn_input
        client = request["model_client"]
        tools = [tool for bench in request.get("workbench", ()) for tool in await bench.list_tools()]
        return replace(
            turn_input,
            prompts=[message.content for message in request["system_messages"]],
            agent_name=self._agent_name or request.get("agent_name"),
            model=model_of(client),
            tools=schemas_of((*tools, *request.get("handoff_tools", ()))),
            client=client,
            client_rules=client_of(client),
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        added = Counter(prompts) - Counter(turn_input.prompts)  # a prompt can occur several times
        return [*(SystemMessage(content=prompt) for prompt in added.elements()), *messages]

    def _to_config(self) -> AssembledContextConfig:
        setting = "observers" if self._observers else "dependencies" if self._dependencies else ""
        if not setting and callable(self._variables):
            setting = "variables of a function"
        if setting:
            raise ConfigurationError(f"{setting} cannot be written into a component's configuration")
        settings: dict[str, Any] = {
            "initial_messages": self._initial_messages,
            "prompts": self._prompts,
            "tools": self._tools,
            "variables": self._variables or {},
            "agent_name": self._agent_name,
        }
        return AssembledContextConfig(assembler=self.assembler.to_config(), **settings)

    @classmethod
    def _from_config(cls, config: AssembledContextConfig) -> Self:
        settings = {name: getattr(config, name) for name in type(config).model_fields if name != "assembler"}
        return cls(Assembler.from_config(config.assembler), **settings)
