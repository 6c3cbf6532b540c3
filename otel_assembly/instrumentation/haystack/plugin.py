"""`AssemblyHook`: a hook for Haystack agents that runs a policy chain before each model call."""

from __future__ import annotations

from typing import Any, NamedTuple

from haystack.core.serialization import default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.deserialization import deserialize_component_inplace

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.haystack.generators import model_of, schemas_of
from otel_assembly.instrumentation.haystack.messages import split_prompts
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, TurnInput, finished, record_output


class PolicyRequest(NamedTuple):
    """What a plug-in reads its input from. Functions of the program get the `framework_object`."""

    conversation: PluginConversation
    framework_object: Any
    messages: list[ChatMessage]
    tools: Any
    generator: Any = None


class HaystackPlugin(Plugin[PluginConversation]):
    """The base of `AssemblyHook` and `AssemblyChatGenerator`."""

    _framework = "haystack"
    _message_types = (ChatMessage,)

    def _conversation_of(self, conversation_id: Any, messages: list[ChatMessage]) -> PluginConversation:
        """Return the conversation with the id that the program passes; without one, that of the first message."""
        first = next((message for message in messages if not message.is_from("system")), None)
        return self._conversation(None if conversation_id is None else str(conversation_id), first)

    async def _read_input(self, request: PolicyRequest) -> TurnInput:
        call, (prompts, others), client = CALL.get(), split_prompts(request.messages), request.generator
        return TurnInput(
            framework_object=request.framework_object,
            prompts=prompts,
            messages=others,
            agent_name=request.conversation.context.agent_name if call is None else call.invoking_agent.agent_name,
            model=model_of(client),
            tools=schemas_of(request.tools or getattr(client, "tools", None)),
            client=client,
            shown=request.messages,
        )

    def _write_output(
        self, request: PolicyRequest, turn_input: TurnInput, prompts: list[str], messages: list[Any]
    ) -> list[Any]:
        if prompts == turn_input.prompts:
            front = request.messages[: len(prompts)]  # the original message objects
        else:
            front = [ChatMessage.from_system(text)] if (text := "\n\n".join(prompts)) else []
        sent = [*front, *messages]
        record_output(lambda: split_prompts(sent))
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
        return dict(default_to_dict(self, policies=self.assembler.to_config()))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Return a plugin from the dictionary that `to_dict` returned."""
        settings = dict(data["init_parameters"])
        if "chat_generator" in settings:
            deserialize_component_inplace(settings, key="chat_generator")
        settings["policies"] = Assembler.from_config(settings["policies"])
        return default_from_dict(cls, {**data, "init_parameters": settings})


class AssemblyHook(HaystackPlugin):
    """Runs a policy chain before each model call of an agent, on Haystack's own messages.

    Pass it to an agent, ``Agent(…, hooks={"before_llm": [plugin], "before_tool": [plugin.tools]})``, after all other
    hooks, which could change the messages again. Without `tools`, tools are called after a halt, and before observers
    receive the response. The agent's state keeps the whole history: a message that a policy drops is missing from this
    model call only. One hook can serve any number of agents and conversations. A conversation is found by the
    ``conversation_id`` in the run's ``hook_context`` or in the agent's state, else by its first message. Haystack does
    not pass the model to hooks: without `model`, neither the model nor its provider is known. Functions for
    `dependencies` and `variables` get the agent's `State`.
    """

    allowed_hook_points = ("before_llm",)

    @property
    def tools(self) -> _Tools:
        """The hook for ``before_tool``: shows responses to the observers, and raises if the conversation is halted."""
        return _Tools(self)

    def run(self, state: Any) -> None:
        """Replace the messages of an agent's state by those to send to the model, or raise an error of the policies."""
        finished(self.run_async(state))

    async def run_async(self, state: Any) -> None:
        """Async variant of `run`, for `Agent.run_async`."""
        conversation, messages = self._read_state(state)
        request = PolicyRequest(conversation, state, messages, state.data.get("tools"))
        state.data["messages"] = _SentMessages(await self._run_policies(conversation, request), messages)

    def _read_state(self, state: Any) -> tuple[PluginConversation, list[ChatMessage]]:
        """Return the conversation of an agent's state, and the state's messages."""
        messages = list(state.data.get("messages") or ())
        ids = (values.get("conversation_id") for values in (state.data.get("hook_context") or {}, state.data))
        return self._conversation_of(next((id_ for id_ in ids if id_ is not None), None), messages), messages


class _SentMessages(list[ChatMessage]):
    """The messages of one model call. Adding the response, as the agent does, returns the whole history with it."""

    def __init__(self, sent: list[ChatMessage], history: list[ChatMessage]) -> None:
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
        """Show the response to the observers, and raise `HaltedError` if the conversation is halted."""
        finished(self.run_async(state))

    async def run_async(self, state: Any) -> None:
        """Async variant of `run`, for `Agent.run_async`."""
        conversation, messages = self._plugin._read_state(state)  # noqa: SLF001  # same module
        await conversation.show(messages)
        conversation.context.guard.check()

    def to_dict(self) -> dict[str, Any]:
        """Return the hook as a dictionary for Haystack's serialization, with its `AssemblyHook`."""
        return dict(default_to_dict(self, plugin=self._plugin.to_dict()))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> _Tools:
        """Return a hook from the dictionary that `to_dict` returned; each hook gets a new `AssemblyHook`."""
        return cls(AssemblyHook.from_dict(data["init_parameters"]["plugin"]))
