"""`AssembledChatCompletionContext`: a model context whose messages are what our policies keep."""

from __future__ import annotations

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
from otel_assembly.instrumentation.autogen.conversation import current_call
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer

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
        prompts: The system messages of the agent. AutoGen adds them after the context was asked, so that a budget knows
            of them only from here; they are counted, and not returned.
        tools: The schemas of the tools that the agent offers; counted likewise.
        agent_name: The agent's name, for telemetry.
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
        self._talk = PluginConversation(self, "autogen", None)
        self._talk.delivers = True  # its policies see every alert, whoever delivers them
        context = self._talk.context
        context.agent_name, context.tools = agent_name, tuple(tools)

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
        """What the model gets to see.

        Raises:
            HaltedError: The conversation was halted; nothing is to be called for it any more.
            ContextOverflowError: What may not be dropped does not fit a policy's budget.
            PolicyFailedError: A policy raised.
        """
        call = current_call()
        if call is not None and call.context is self:
            self._talk.context.model = call.model
        assembly = await self._talk.assemble(self, self._prompts, self._messages)
        given = Counter(self._prompts)
        given.subtract(assembly.prompts)
        added = [prompt for prompt in assembly.prompts if _taken(given, prompt)]
        sent = [event for event in assembly.events if isinstance(event, _SENT)]
        return [*(SystemMessage(content=prompt) for prompt in added), *sent]

    def _to_config(self) -> AssembledContextConfig:
        what = "observers" if self._observers else "dependencies" if self._dependencies else ""
        if what or callable(self._variables):
            what = what or "variables of a function"
            raise ConfigurationError(f"{what} cannot be written into a component's configuration")
        return AssembledContextConfig(
            assembler=self.assembler.to_config(),
            initial_messages=self._initial_messages,
            prompts=self._prompts,
            tools=[dict(tool) for tool in self._talk.context.tools],
            agent_name=self._talk.context.agent_name,
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


def _taken(given: Counter[str], prompt: str) -> bool:
    """Whether a prompt is more than what was given: each that was is passed over as often as it was."""
    if given[prompt] < 0:
        given[prompt] += 1
        return True
    return False


__all__ = ["AssembledChatCompletionContext", "AssembledContextConfig"]
