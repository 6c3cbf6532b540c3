"""`AssemblyHook`: a hook for Haystack agents that runs a policy chain before each model call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haystack.core.serialization import default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.deserialization import deserialize_component_inplace

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.haystack.generators import schemas_of
from otel_assembly.instrumentation.haystack.messages import split_prompts
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class HaystackPlugin(Plugin[PluginConversation]):
    """The base of `AssemblyHook` and `AssemblyChatGenerator`.

    A conversation is found by the id that the program passes, else by its first message.
    """

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
        #: The conversations without an id, by the message with which each begins.
        self._by_first_message: IdentityWeakMap[PluginConversation] = IdentityWeakMap()

    def context_of(self, conversation: str) -> Context:
        """Return the context of a conversation, to send alerts to it or to halt it with its guard.

        Args:
            conversation: The conversation's ``conversation_id``.
        """
        return self._conversation(conversation).context

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "haystack", conversation_id)

    def _conversation_of(self, conversation_id: Any, messages: Sequence[ChatMessage]) -> PluginConversation:
        if conversation_id is not None:
            return self._conversation(str(conversation_id))
        first = next((message for message in messages if not message.is_from("system")), None)
        return self._by_first_message.get(first) or self._by_first_message.put(first, self._begin(None))

    async def _assemble(
        self,
        conversation: PluginConversation,
        turn: Any,
        messages: list[ChatMessage],
        tools: Any,
        model: str | None,
        client: Any = None,
    ) -> list[ChatMessage]:
        """Return the messages to send to the model. If a policy changes the system prompts, they become one message.

        Args:
            conversation: The conversation of the messages.
            turn: The argument for the user's functions for dependencies and variables.
            messages: The messages, with the system prompts in front.
            tools: The tools of the model call.
            model: The model's name.
            client: The chat generator; its class determines the provider.
        """
        call, (prompts, others) = CALL.get(), split_prompts(messages)
        agent_name = conversation.context.agent_name if call is None else call.invoking_agent.agent_name
        async with conversation.turn(agent_name, model, schemas_of(tools), client):
            await conversation.show(messages)
            assembly = await conversation.assemble(turn, prompts, others)
        front = list(messages[: len(prompts)])
        if list(assembly.prompts) != prompts:
            text = "\n\n".join(assembly.prompts)
            front = [ChatMessage.from_system(text)] if text else []
        sent = [*front, *(event for event in assembly.events if isinstance(event, ChatMessage))]
        if call is not None:
            with call.instrumentation.suppress_errors():
                prompts, others = split_prompts(sent)
                call.replaced_by_plugin(others, prompts=prompts)
        return sent

    def to_dict(self) -> dict[str, Any]:
        """Return the plugin as a dictionary for Haystack's serialization, with its policies in declarative form.

        Raises:
            ConfigurationError: The plugin has a custom policy, or observers, dependencies or variables.
        """
        if self._observers or self._dependencies is not None or self._variables is not None:
            raise ConfigurationError(
                f"{type(self).__name__} cannot be serialized: it has observers, dependencies or variables, which "
                "can only be passed in code; create it without them, or do not serialize it"
            )
        serialized: dict[str, Any] = default_to_dict(self, policies=self.assembler.to_config())
        return serialized

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Return a plugin from the dictionary that `to_dict` returned."""
        settings = data["init_parameters"]
        if "chat_generator" in settings:
            deserialize_component_inplace(settings, key="chat_generator")
        return default_from_dict(
            cls, {**data, "init_parameters": {**settings, "policies": Assembler.from_config(settings["policies"])}}
        )


class AssemblyHook(HaystackPlugin):
    """Runs a policy chain before each model call of an agent, on Haystack's own messages.

    Pass it to an agent, ``Agent(…, hooks={"before_llm": [plugin], "before_tool": [plugin.tools]})``, after all other
    hooks, because later hooks could change the messages again. The agent's state keeps the whole history: a message
    that a policy drops is missing from this model call only. One hook can serve any number of agents and conversations.
    A conversation is found by the ``conversation_id`` in the run's ``hook_context`` or in the agent's state, else by
    its first message.

    A FATAL alert from an observer, or from ``context_of(conversation).send(…)``, halts the conversation: no model is
    called after it, and no tool if `tools` is among the agent's hooks. The run raises `HaltedError`.

    Args:
        policies: The policy chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts tokens, and whose name determines the provider. Without it, neither is
            known, because Haystack does not pass the model to hooks.
        dependencies: Objects that policies need, by type, such as ``{KnowledgeStore: store}``. Either a mapping, or a
            function, async or not, that returns one; it is called with the agent's `State` before each assembly.
        variables: Values for policies, by name: a mapping or a function, as for `dependencies`.
        observers: Objects that receive each message once, and each alert. They receive a response before its tools run
            if `tools` is among the hooks.

    Attributes:
        tools: The hook for ``before_tool``.

    Raises:
        ConfigurationError: An argument has the wrong type, or `name` or `model` is passed together with an `Assembler`,
            which has its own.
    """

    allowed_hook_points = ("before_llm",)

    @property
    def tools(self) -> _Tools:
        """The hook for ``before_tool``: shows responses to the observers, and raises if the conversation is halted."""
        return _Tools(self)

    def run(self, state: Any) -> None:
        """Replace the messages of an agent's state by those to send to the model.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        finished(self.run_async(state))

    async def run_async(self, state: Any) -> None:
        """Async variant of `run`, for `Agent.run_async`."""
        messages = list(state.data.get("messages") or ())
        conversation = self._conversation_in(state, messages)
        sent = await self._assemble(conversation, state, messages, state.data.get("tools"), None)
        state.data["messages"] = _SentMessages(sent, messages)

    def _conversation_in(self, state: Any, messages: Sequence[ChatMessage]) -> PluginConversation:
        mappings = (state.data.get("hook_context") or {}, state.data)
        ids = (mapping.get("conversation_id") for mapping in mappings)
        return self._conversation_of(next((id_ for id_ in ids if id_ is not None), None), messages)


class _SentMessages(list[ChatMessage]):
    """The messages of one model call. Adding the response, as the agent does, returns the whole history with it."""

    def __init__(self, sent: Sequence[ChatMessage], history: list[ChatMessage]) -> None:
        super().__init__(sent)
        self._history = history

    def __add__(self, others: Any) -> Any:
        return self._history + others


class _Tools:  # its name is part of agents that users have serialized
    """The ``before_tool`` hook of an `AssemblyHook`."""

    otel_assembly_plugin = True
    allowed_hook_points = ("before_tool",)

    def __init__(self, plugin: AssemblyHook) -> None:
        self._plugin = plugin

    def run(self, state: Any) -> None:
        """Show the response to the observers, and stop its tool calls if the conversation is halted.

        Raises:
            HaltedError: The conversation is halted.
        """
        finished(self.run_async(state))

    async def run_async(self, state: Any) -> None:
        """Async variant of `run`, for `Agent.run_async`."""
        messages = state.data.get("messages") or ()
        conversation = self._plugin._conversation_in(state, messages)  # noqa: SLF001  # same module
        await conversation.show(messages)
        conversation.context.guard.check()

    def to_dict(self) -> dict[str, Any]:
        """Return the hook as a dictionary for Haystack's serialization, with its `AssemblyHook`."""
        serialized: dict[str, Any] = default_to_dict(self, plugin=self._plugin.to_dict())
        return serialized

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> _Tools:
        """Return a hook from the dictionary that `to_dict` returned; each hook gets a new `AssemblyHook`."""
        return cls(AssemblyHook.from_dict(data["init_parameters"]["plugin"]))
