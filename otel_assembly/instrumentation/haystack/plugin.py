"""Our policies in Haystack, on its own messages: `AssemblyHook` for agents, `AssemblyChatGenerator` for all else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haystack import component
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.async_utils import _execute_component_async
from haystack.utils.deserialization import deserialize_component_inplace

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.conversation import ByIdentity
from otel_assembly.instrumentation.haystack.generators import model_of, schemas_of
from otel_assembly.instrumentation.haystack.messages import behind_prompts, given_to
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class _HaystackPlugin(Plugin[PluginConversation]):
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
        self._opened: ByIdentity[PluginConversation] = ByIdentity()

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
        self, conversation: PluginConversation, turn: Any, messages: list[ChatMessage], tools: Any, model: str | None
    ) -> list[ChatMessage]:
        """What a model gets to see of these; the system prompts are one message where a policy has changed them."""
        context, call = conversation.context, CALL.get()
        context.model = model
        if call is not None:
            context.agent_name = call.asker.agent_name
        context.tools = tuple(schemas_of(tools))
        prompts, held = behind_prompts(messages)
        await conversation.show(messages)
        assembly = await conversation.assemble(turn, prompts, held)
        front = list(messages[: len(prompts)])
        if list(assembly.prompts) != prompts:
            text = "\n\n".join(assembly.prompts)
            front = [ChatMessage.from_system(text)] if text else []
        sent = [*front, *(event for event in assembly.events if isinstance(event, ChatMessage))]
        if call is not None:
            with call.instrumentation.contained():
                prompts, held = behind_prompts(sent)
                call.by_plugin(held, prompts=prompts)
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


class AssemblyHook(_HaystackPlugin):
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
        model: The model whose tokenizer counts: an agent's hooks do not know it.
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
            ContextOverflowError: What may not be dropped does not fit a policy's budget.
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


@component
class AssemblyChatGenerator(_HaystackPlugin):
    """A chat generator with our policies in front of it: in a pipeline, in an agent, or by itself.

    What a policy drops is out of this call's prompt; whoever calls it keeps the history. A conversation is known by its
    ``conversation_id``, an input of the component, and else by its first message, which a pipeline copies for each run.

    A FATAL alert halts the conversation: the generator is not called any more, and an answer upon which it came is not
    handed on where it asks for tools; `HaltedError` is raised, which a pipeline wraps in an error of its own.

    Args:
        chat_generator: The generator.
        policies: The chain, or an `Assembler`.
        name: Tells assemblers apart, as `Assembler` takes it.
        model: The model whose tokenizer counts; by default the generator's, as far as it says its name.
        dependencies: As `AssemblyHook` takes it; a function is called with the messages.
        variables: Likewise.
        observers: Shown every message once, a response as soon as it is there; and every alert.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    def __init__(self, chat_generator: Any, policies: Sequence[AssemblyPolicy] | Assembler, **settings: Any) -> None:
        _HaystackPlugin.__init__(self, policies, **settings)
        self.chat_generator = chat_generator

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: Any = None,
        conversation_id: str | None = None,
    ) -> dict[str, Any]:
        """Work out what the generator gets to see, and call it with that.

        Raises:
            HaltedError: The conversation was halted, or its response halted it and asks for tools.
            ContextOverflowError: What may not be dropped does not fit a policy's budget.
            PolicyFailedError: A policy raised.
        """
        given = given_to(messages)
        conversation = self._of(conversation_id, given)
        sent = finished(self._assembled(conversation, given, given, self._tools(tools), self._model()))
        answer = self.chat_generator.run(messages=sent, **_options(streaming_callback, generation_kwargs, tools))
        finished(_answered(conversation, answer))
        return dict(answer)

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: Any = None,
        conversation_id: str | None = None,
    ) -> dict[str, Any]:
        """As `run`, for whoever awaits it."""
        given = given_to(messages)
        conversation = self._of(conversation_id, given)
        sent = await self._assembled(conversation, given, given, self._tools(tools), self._model())
        options = _options(streaming_callback, generation_kwargs, tools)
        answer = await _execute_component_async(self.chat_generator, messages=sent, **options)
        await _answered(conversation, answer)
        return dict(answer)

    def warm_up(self) -> None:
        """Warm up the generator."""
        if hasattr(self.chat_generator, "warm_up"):
            self.chat_generator.warm_up()

    def close(self) -> None:
        """Release what the generator holds."""
        if hasattr(self.chat_generator, "close"):
            self.chat_generator.close()

    async def close_async(self) -> None:
        """Likewise, on the event loop."""
        if hasattr(self.chat_generator, "close_async"):
            await self.chat_generator.close_async()
        else:
            self.close()

    def to_dict(self) -> dict[str, Any]:
        """The generator and the policies.

        Raises:
            ConfigurationError: It has a policy of the program's own, or what else is given in code alone.
        """
        written = _HaystackPlugin.to_dict(self)
        written["init_parameters"]["chat_generator"] = component_to_dict(self.chat_generator, name="chat_generator")
        return written

    def _tools(self, tools: Any) -> Any:
        return tools or getattr(self.chat_generator, "tools", None)

    def _model(self) -> str | None:
        return model_of(self.chat_generator)


def _options(streaming_callback: Any, generation_kwargs: Any, tools: Any) -> dict[str, Any]:
    """What a generator is called with beside the messages: not each takes all of it."""
    given = {"streaming_callback": streaming_callback, "generation_kwargs": generation_kwargs, "tools": tools}
    return {name: value for name, value in given.items() if value is not None}


async def _answered(conversation: PluginConversation, answer: Any) -> None:
    """Show observers what the model said; its tools are not called where that halted the conversation."""
    replies = answer.get("replies") or ()
    await conversation.show(replies)
    if any(message.tool_calls for message in replies):
        conversation.context.guard.check()
