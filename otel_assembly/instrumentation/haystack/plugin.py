"""`AssemblyHook`: a chain of our policies as a hook of a Haystack agent, on Haystack's own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haystack.core.serialization import default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.deserialization import deserialize_component_inplace

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.haystack.generators import schemas_of
from otel_assembly.instrumentation.haystack.messages import behind_prompts
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class HaystackPlugin(Plugin[PluginConversation]):
    """What both have: conversations, by an id that a program gives them or by their first message, and assemblies."""

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__(
            policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        self._opened: IdentityWeakMap[PluginConversation] = IdentityWeakMap()

    def context_of(self, conversation: str) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: Its ``conversation_id``.
        """
        return self._conversation(conversation).context

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "haystack", conversation_id)

    def _of(self, conversation_id: Any, messages: Sequence[ChatMessage]) -> PluginConversation:
        if conversation_id is not None:
            return self._conversation(str(conversation_id))
        first = next((message for message in messages if not message.is_from("system")), None)
        return self._opened.get(first) or self._opened.put(first, self._begin(None))

    async def _assembled(
        self,
        conversation: PluginConversation,
        turn: Any,
        messages: list[ChatMessage],
        tools: Any,
        model: str | None,
        client: Any = None,
    ) -> list[ChatMessage]:
        """What a model gets to see of these; the system prompts are one message where a policy has changed them."""
        call, (prompts, held) = CALL.get(), behind_prompts(messages)
        agent_name = conversation.context.agent_name if call is None else call.invoking_agent.agent_name
        async with conversation.turn(agent_name, model, schemas_of(tools), client):
            await conversation.show(messages)
            assembly = await conversation.assemble(turn, prompts, held)
        front = list(messages[: len(prompts)])
        if list(assembly.prompts) != prompts:
            text = "\n\n".join(assembly.prompts)
            front = [ChatMessage.from_system(text)] if text else []
        sent = [*front, *(event for event in assembly.events if isinstance(event, ChatMessage))]
        if call is not None:
            with call.instrumentation.suppress_errors():
                prompts, held = behind_prompts(sent)
                call.replaced_by_plugin(held, prompts=prompts)
        return sent

    def to_dict(self) -> dict[str, Any]:
        """Its policies, as `Assembler.to_config` writes them.

        Raises:
            ConfigurationError: It has a policy of the program's own, or what else is given in code alone.
        """
        if self._observers or self._dependencies is not None or self._variables is not None:
            raise ConfigurationError(f"{type(self).__name__} cannot write down observers, dependencies and variables")
        written: dict[str, Any] = default_to_dict(self, policies=self.assembler.to_config())
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """One that does the same as the one that was written down."""
        settings = data["init_parameters"]
        if "chat_generator" in settings:
            deserialize_component_inplace(settings, key="chat_generator")
        return default_from_dict(
            cls, {**data, "init_parameters": {**settings, "policies": Assembler.from_config(settings["policies"])}}
        )


class AssemblyHook(HaystackPlugin):
    """Our policies before each model call of an agent: Haystack's messages go in and come out, the very objects.

    It is given to an agent, ``Agent(…, hooks={"before_llm": [plugin], "before_tool": [plugin.tools]})``, behind all
    other hooks, so that it has the last word on what is sent. The agent's state keeps the whole history: what a policy
    drops is out of this call's prompt, and is there again as soon as the model has answered. One object may serve any
    number of agents and of conversations, each known by its ``conversation_id`` in the run's ``hook_context`` or in the
    agent's state, and else by its first message.

    A FATAL alert, of an observer, or sent with ``context_of(conversation).send(…)``, halts the conversation: no model
    is called any more, and, where `tools` is among the agent's hooks, no tool is; the run raises `HaltedError`.

    Args:
        policies: The chain, or an `Assembler`.
        name: Tells assemblers apart, as `Assembler` takes it.
        model: The model whose tokenizer counts, and whose name states the provider: an agent's hooks do not know it.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}``: a mapping, or a function of
            the agent's `State` that returns one, async or not, called before each assembly.
        variables: Values for policies, by name; likewise.
        observers: Shown every message once, a response before its tools run where `tools` is among the hooks; and every
            alert.

    Attributes:
        tools: The hook for ``before_tool``.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    allowed_hook_points = ("before_llm",)

    @property
    def tools(self) -> _Tools:
        """No tool is called for a conversation that is halted; observers are shown what asks for it."""
        return _Tools(self)

    def run(self, state: Any) -> None:
        """Work out what the model gets to see.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        finished(self.run_async(state))

    async def run_async(self, state: Any) -> None:
        """As `run`, for agents that are awaited."""
        messages = list(state.data.get("messages") or ())
        conversation = self._met(state, messages)
        sent = await self._assembled(conversation, state, messages, state.data.get("tools"), None)
        state.data["messages"] = _Sent(sent, messages)

    def _met(self, state: Any, messages: Sequence[ChatMessage]) -> PluginConversation:
        places = (state.data.get("hook_context") or {}, state.data)
        known = (place.get("conversation_id") for place in places)
        return self._of(next((one for one in known if one is not None), None), messages)


class _Sent(list[ChatMessage]):
    """What a model is sent; an agent adds what it answers to the whole history."""

    def __init__(self, sent: Sequence[ChatMessage], whole: list[ChatMessage]) -> None:
        super().__init__(sent)
        self._whole = whole

    def __add__(self, others: Any) -> Any:
        return self._whole + others


class _Tools:
    """Stands in front of an agent's tools."""

    otel_assembly_plugin = True
    allowed_hook_points = ("before_tool",)

    def __init__(self, plugin: AssemblyHook) -> None:
        self._plugin = plugin

    def run(self, state: Any) -> None:
        """Call no tool once the conversation is halted.

        Raises:
            HaltedError: It is.
        """
        finished(self.run_async(state))

    async def run_async(self, state: Any) -> None:
        """As `run`, for agents that are awaited."""
        messages = state.data.get("messages") or ()
        conversation = self._plugin._met(state, messages)  # noqa: SLF001  # a part of it
        await conversation.show(messages)
        conversation.context.guard.check()

    def to_dict(self) -> dict[str, Any]:
        """Its plug-in's."""
        written: dict[str, Any] = default_to_dict(self, plugin=self._plugin.to_dict())
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> _Tools:
        """One for a plug-in of the same policies."""
        return cls(AssemblyHook.from_dict(data["init_parameters"]["plugin"]))
