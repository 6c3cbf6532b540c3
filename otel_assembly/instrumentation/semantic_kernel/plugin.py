"""`AssemblyChatCompletion`: runs a chain of policies before each request of a Semantic Kernel chat service."""

from __future__ import annotations

from functools import partial, reduce
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Unpack
from weakref import ref

from pydantic import Field
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.contents import ChatHistory, ChatMessageContent

from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, PluginSettings, TurnInput, record_output
from otel_assembly.instrumentation.semantic_kernel.calls import agent_name_of, invoking_agent_of, model_of, schemas_of
from otel_assembly.instrumentation.semantic_kernel.messages import is_copy, split_prompts, with_output
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


class AgentsConversation:
    """One conversation: each of its agents has its own context and ledger; a halt of one agent halts them all.

    Args:
        begin: Returns a new context with its ledger, for another agent.
    """

    def __init__(self, begin: Callable[[], PluginConversation]) -> None:
        self._begin = begin
        self._members: dict[str | None, PluginConversation] = {}
        #: Messages that observers were shown.
        self._shown: IdentityWeakMap[bool] = IdentityWeakMap()
        #: The newest responses that were shown. The history may get another object with the same content.
        self._responses: list[Any] = []

    def member(self, agent_name: str | None) -> PluginConversation:
        """Return the context and ledger of an agent in this conversation, created when they are first needed.

        Without a name, those of the first agent; if there is none yet, new ones, which the first agent takes over.
        """
        if agent_name is None and self._members:
            return next(iter(self._members.values()))
        if agent_name not in self._members:
            self._members[agent_name] = self._members.pop(None) if None in self._members else self._begin()
        return self._members[agent_name]

    def check(self) -> None:
        for member in self._members.values():
            member.context.guard.check()

    async def show(self, agent_name: str, messages: Sequence[Any]) -> None:
        """Show the observers the messages of a history that they were not shown yet, not even as a response."""
        for message in messages:
            if self._shown.get(message) is None:
                self._shown.put(message, True)
                response = next((shown for shown in self._responses if is_copy(message, shown)), None)
                if response is None:
                    await self.member(agent_name).stream.show(message)
                else:
                    self._responses.remove(response)

    async def show_responses(self, agent_name: str, responses: Sequence[Any]) -> None:
        """Show the observers a model's responses.

        Raises:
            HaltedError: An observer halted the conversation, and a response requests tools, which must not be called.
        """
        self._responses = list(responses)
        for response in responses:
            self._shown.put(response, True)
            await self.member(agent_name).stream.show(response)
        if any(describe(response).opens for response in responses):
            self.check()


class ConversationsByHistory:
    """Finds the conversation of a history, also by its messages: an agent copies them into a new history per request.

    Args:
        begin: Returns a new context with its ledger, for the conversation with an id; None if it has no id.
    """

    def __init__(self, begin: Callable[[str | None], PluginConversation]) -> None:
        self._begin = begin
        #: The conversation of each history, and of each message in one.
        self._known: IdentityWeakMap[AgentsConversation] = IdentityWeakMap()
        #: Histories without messages, of which `of` returned the conversation before any message was added.
        self._empty_histories: list[ref[ChatHistory]] = []

    def of(self, history: ChatHistory) -> AgentsConversation:
        """Return the conversation of a history, or of another history with one of its messages, or a new one."""
        known, messages = self._known, split_prompts(history.messages)[1]
        conversation = next(filter(None, map(known.get, (history, *messages))), None)
        if conversation is None and messages:
            for history_ref in self._empty_histories:
                # The program or an agent may have added messages to it since then.
                if any(message is messages[0] for message in getattr(history_ref(), "messages", ())):
                    conversation = known.get(history_ref())
        if conversation is None:
            conversation = AgentsConversation(partial(self._begin, invoking_agent_of(history).conversation_id))
            if not messages:
                existing = [history_ref for history_ref in self._empty_histories if history_ref() is not None]
                self._empty_histories = [*existing, ref(history)]
        for known_object in (history, *messages):
            known.put(known_object, conversation)
        return conversation


def _of_inner(name: str) -> property:
    """Return a property for an attribute or method that the inner service determines, because the provider does."""
    return property(attrgetter(f"inner.{name}"))


class AssemblyChatCompletion(ChatCompletionClientBase, Plugin[PluginConversation]):
    """A chat service that applies a chain of policies to each request and sends the result to another service.

    Give it to an agent or a kernel in place of that service. The policies work on the framework's own message objects,
    before each request, including those between an agent's tool calls. The instructions and tools count, too. A message
    that a policy drops is missing from that request only: the agent's history and thread keep it. One object can serve
    any number of agents and threads. Functions for `dependencies` and `variables` get the request's `ChatHistory`.

    A FATAL alert, from an observer or sent with ``context_of(thread).send(…)``, halts the conversation permanently: no
    model is called after it, and the caller of the agent gets a `HaltedError`. If a response requested several tools
    and the alert comes while one of them runs, the others still run, unless `tools` is one of the kernel's filters.

    Args:
        inner: The service that calls the model.
        settings: The other arguments of `Plugin`.
    """

    _framework: ClassVar[str] = "semantic_kernel"
    _message_types: ClassVar[tuple[type, ...]] = (ChatMessageContent,)
    _hides_model_calls: ClassVar[bool] = True

    inner: ChatCompletionClientBase
    assembler: Any = Field(default=None, exclude=True)

    SUPPORTS_FUNCTION_CALLING: ClassVar[Any] = _of_inner("SUPPORTS_FUNCTION_CALLING")
    service_url: ClassVar[Any] = _of_inner("service_url")
    get_prompt_execution_settings_class: ClassVar[Any] = _of_inner("get_prompt_execution_settings_class")
    _verify_function_choice_settings: ClassVar[Any] = _of_inner("_verify_function_choice_settings")
    _update_function_choice_settings_callback: ClassVar[Any] = _of_inner("_update_function_choice_settings_callback")
    _reset_function_choice_settings: ClassVar[Any] = _of_inner("_reset_function_choice_settings")

    def __init__(
        self,
        inner: ChatCompletionClientBase,
        policies: Sequence[AssemblyPolicy] | Assembler,
        **settings: Unpack[PluginSettings],
    ) -> None:
        if not isinstance(inner, ChatCompletionClientBase):
            raise ConfigurationError(f"inner must be a ChatCompletionClientBase, not {inner!r}")
        fields = {name: getattr(inner, name) for name in ("ai_model_id", "service_id", "instruction_role")}
        ChatCompletionClientBase.__init__(self, inner=inner, **fields)
        Plugin.__init__(self, policies, **settings)
        self._by_history = ConversationsByHistory(self._begin)

    __init__.__doc__ = Plugin.__init__.__doc__  # `help` would show the one of pydantic's base class

    def context_of(self, conversation: Any) -> Context:
        """Return the context of a conversation's first agent: send alerts to it, or halt all agents by its guard.

        Each agent has its own context, so the models of the other agents do not get the alerts. Before the first
        request, this is a new context, which the agent of that request takes over.

        Args:
            conversation: The conversation's `ChatHistory`, or its `ChatHistoryAgentThread`.

        Raises:
            ConfigurationError: The argument is neither of them.
        """
        history = getattr(conversation, "_chat_history", conversation)
        if not isinstance(history, ChatHistory):
            raise ConfigurationError(f"a conversation is a ChatHistory or a ChatHistoryAgentThread, not {history!r}")
        return self._by_history.of(history).member(None).context

    async def tools(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:  # noqa: A002  # the framework's name
        """Auto function invocation filter for the kernel: raise `HaltedError` if the tool's conversation is halted."""
        self._by_history.of(context.chat_history).check()
        await next(context)

    async def _inner_get_chat_message_contents(self, chat_history: ChatHistory, settings: Any) -> Any:
        conversation, request = await self._assembled(chat_history, settings)
        responses = await self.inner._inner_get_chat_message_contents(request, settings)  # noqa: SLF001  # same method
        await conversation.show_responses(agent_name_of(chat_history), responses)
        return responses

    async def _inner_get_streaming_chat_message_contents(
        self, chat_history: ChatHistory, settings: Any, function_invoke_attempt: int = 0
    ) -> AsyncGenerator[Any, Any]:
        conversation, request = await self._assembled(chat_history, settings)
        stream = self.inner._inner_get_streaming_chat_message_contents  # noqa: SLF001  # same method
        choices: dict[int, list[Any]] = {}
        async for chunks in stream(request, settings, function_invoke_attempt):
            for chunk in chunks:
                choices.setdefault(chunk.choice_index, []).append(chunk)
            yield chunks
        responses = [reduce(add, chunks) for chunks in choices.values()]
        await conversation.show_responses(agent_name_of(chat_history), responses)

    async def _assembled(self, chat_history: ChatHistory, settings: Any) -> tuple[AgentsConversation, ChatHistory]:
        """Run the policies for a request; return its conversation, and a history with the messages to send."""
        conversation, name = self._by_history.of(chat_history), agent_name_of(chat_history)
        conversation.check()
        await conversation.show(name, split_prompts(chat_history.messages)[1])
        return conversation, await self._run_policies(conversation.member(name), (chat_history, settings))

    async def _read_input(self, request: Any) -> TurnInput:
        history, settings = request
        prompts, messages = split_prompts(history.messages)
        return TurnInput(
            framework_object=history,
            prompts=prompts,
            messages=list(messages),
            agent_name=agent_name_of(history) or None,
            model=model_of(self, settings),
            tools=schemas_of(settings),
            client=self.inner,
            shown=(),  # `_assembled` has shown them
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        history, _ = request
        output = with_output(history.messages, prompts, messages)
        if output is not None:
            history = ChatHistory(messages=output)
        record_output(lambda: split_prompts(history.messages))
        return history
