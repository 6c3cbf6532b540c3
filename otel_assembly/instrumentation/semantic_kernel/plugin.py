"""`AssemblyChatCompletion`: runs a chain of policies before each request of a Semantic Kernel chat service."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from pydantic import Field, PrivateAttr
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.contents import ChatHistory, ChatMessageContent

from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, TurnInput, record_output
from otel_assembly.instrumentation.semantic_kernel.calls import invoking_agent_of, model_of, schemas_of
from otel_assembly.instrumentation.semantic_kernel.messages import (
    is_copy,
    is_prompt,
    split_prompts,
    with_output,
)
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssemblyChatCompletion(ChatCompletionClientBase, Plugin[PluginConversation]):
    """A chat service that applies a chain of policies to each request and sends the result to another service.

    Give it to an agent or a kernel in place of that service. The policies work on the framework's own message objects.
    They run before each request, including those between an agent's tool calls. A message that a policy drops is
    missing from that request alone: the agent's history and thread keep it. One object may serve any number of agents
    and threads. The instructions and the tools of a request are counted with its messages.

    A FATAL alert, from an observer or sent with ``context_of(thread).send(…)``, halts the conversation permanently: no
    model is called after it, and the caller of the agent gets a `HaltedError`. If a response requested several tools
    and the alert comes while one of them runs, the others still run, unless `tools` is one of the kernel's filters.
    The caller of the agent also gets the `ContextOverflowError` of a budget that is exceeded.

    Functions for `dependencies` and `variables` get the request's `ChatHistory`.

    Args:
        inner: The service that calls the model. `Plugin` has the other arguments.
    """

    _framework: ClassVar[str] = "semantic_kernel"
    _message_types: ClassVar[tuple[type, ...]] = (ChatMessageContent,)
    _hides_model_calls: ClassVar[bool] = True

    inner: ChatCompletionClientBase
    assembler: Any = Field(default=None, exclude=True)
    _observers: Any = PrivateAttr()
    _dependencies: Any = PrivateAttr()
    _variables: Any = PrivateAttr()
    _conversations: Any = PrivateAttr()
    _conversations_without_id: Any = PrivateAttr()
    #: The conversation of each history, and of each message in one.
    _conversation_of_object: IdentityWeakMap[_Conversation] = PrivateAttr(default_factory=IdentityWeakMap)
    #: Histories that were empty when `context_of` was called with them, and their conversations.
    _empty_histories: list[tuple[ref[ChatHistory], _Conversation]] = PrivateAttr(default_factory=list)

    #: The inner service's: it depends on the provider.
    SUPPORTS_FUNCTION_CALLING: ClassVar[Any] = property(lambda self: self.inner.SUPPORTS_FUNCTION_CALLING)

    def __init__(
        self,
        inner: ChatCompletionClientBase,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        if not isinstance(inner, ChatCompletionClientBase):
            raise ConfigurationError(f"inner must be a ChatCompletionClientBase, not {inner!r}")
        ChatCompletionClientBase.__init__(
            self,
            inner=inner,
            ai_model_id=inner.ai_model_id,
            service_id=inner.service_id,
            instruction_role=inner.instruction_role,
        )
        Plugin.__init__(
            self, policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )

    __init__.__doc__ = Plugin.__init__.__doc__  # `help` would show the one of pydantic's base class

    def context_of(self, conversation: Any) -> Context:
        """Return the context of a conversation: send alerts to it, or halt the conversation by its guard.

        Args:
            conversation: The conversation's `ChatHistory`, or its `ChatHistoryAgentThread`.

        Raises:
            ConfigurationError: The argument is neither of them.
        """
        history = getattr(conversation, "_chat_history", conversation)
        if not isinstance(history, ChatHistory):
            raise ConfigurationError(f"a conversation is a ChatHistory or a ChatHistoryAgentThread, not {history!r}")
        own_conversation = self._of(history)
        if not history.messages:
            self._empty_histories = [entry for entry in self._empty_histories if entry[0]() is not None]
            self._empty_histories.append((ref(history), own_conversation))
        return own_conversation.member(None).context

    async def tools(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:  # noqa: A002  # the framework's name
        """Call a tool unless its conversation is halted; add this to the kernel's auto function invocation filters.

        Raises:
            HaltedError: The conversation is halted.
        """
        self._of(context.chat_history).check()
        await next(context)

    async def _inner_get_chat_message_contents(self, chat_history: ChatHistory, settings: Any) -> Any:
        conversation, request = await self._assembled(chat_history, settings)
        responses = await self.inner._inner_get_chat_message_contents(request, settings)  # noqa: SLF001  # same method
        await conversation.show_responses(self._agent_name(chat_history), responses)
        return responses

    async def _inner_get_streaming_chat_message_contents(
        self, chat_history: ChatHistory, settings: Any, function_invoke_attempt: int = 0
    ) -> AsyncGenerator[Any, Any]:
        conversation, request = await self._assembled(chat_history, settings)
        choices: dict[int, list[Any]] = {}
        stream = self.inner._inner_get_streaming_chat_message_contents(  # noqa: SLF001  # same method
            request, settings, function_invoke_attempt
        )
        async for chunks in stream:
            for chunk in chunks:
                choices.setdefault(chunk.choice_index, []).append(chunk)
            yield chunks
        responses = [reduce(add, chunks) for chunks in choices.values()]
        await conversation.show_responses(self._agent_name(chat_history), responses)

    async def _assembled(self, chat_history: ChatHistory, settings: Any) -> tuple[_Conversation, ChatHistory]:
        """Return the conversation of a history, and a history with the messages to send.

        Raises:
            HaltedError: The conversation was halted; no model or tool may be called for it.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation, name = self._of(chat_history), self._agent_name(chat_history)
        conversation.check()
        await conversation.show(name, split_prompts(chat_history.messages)[1])
        return conversation, await self._run_policies(conversation.member(name), (chat_history, settings))

    async def _read_input(self, request: Any) -> TurnInput:
        history, settings = request
        prompts, messages = split_prompts(history.messages)
        name, model, tools = self._agent_name(history) or None, model_of(self, settings), schemas_of(settings)
        return TurnInput(history, prompts, list(messages), name, model, tools, self.inner, shown=())

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        sent = with_output(request[0].messages, prompts, messages)
        record_output(lambda: split_prompts(request[0].messages if sent is None else sent))
        return request[0] if sent is None else ChatHistory(messages=sent)

    def _agent_name(self, history: ChatHistory) -> str:
        """Return the name of the history's agent; an agent also sets it on the message with its instructions."""
        first = next(iter(history.messages), None)
        prompt_name = first.name if first is not None and is_prompt(first) else None
        return invoking_agent_of(history).agent_name or prompt_name or ""

    def _of(self, history: ChatHistory) -> _Conversation:
        """Return the conversation of a history, or of another history with one of its messages, or a new one.

        An agent copies its thread's messages into a new history for each request, so the history alone is not enough.
        """
        messages = split_prompts(history.messages)[1]
        known = self._conversation_of_object
        conversation = known.get(history) or next(filter(None, map(known.get, messages)), None)
        if conversation is None and messages:
            # Messages may have been added to a history that was empty when `context_of` was called.
            for history_ref, candidate in self._empty_histories:
                if any(message is messages[0] for message in getattr(history_ref(), "messages", ())):
                    conversation = candidate
                    break
        conversation = conversation or _Conversation(self, invoking_agent_of(history).conversation_id)
        for known_object in (history, *messages):
            known.put(known_object, conversation)
        return conversation

    # The inner service's methods, because they depend on the provider.

    def get_prompt_execution_settings_class(self) -> Any:
        """Return the class of the inner service's settings."""
        return self.inner.get_prompt_execution_settings_class()

    def service_url(self) -> str | None:
        """Return the inner service's address."""
        url: str | None = self.inner.service_url()
        return url

    def _verify_function_choice_settings(self, settings: Any) -> None:
        self.inner._verify_function_choice_settings(settings)  # noqa: SLF001  # same method

    def _update_function_choice_settings_callback(self) -> Any:
        return self.inner._update_function_choice_settings_callback()  # noqa: SLF001  # same method

    def _reset_function_choice_settings(self, settings: Any) -> None:
        self.inner._reset_function_choice_settings(settings)  # noqa: SLF001  # same method


class _Conversation:
    """One conversation: each of its agents has its own context and ledger; a halt of one agent halts them all."""

    def __init__(self, plugin: AssemblyChatCompletion, conversation_id: str | None) -> None:
        self._plugin = plugin
        self._id = conversation_id
        self._members: dict[str | None, PluginConversation] = {}
        #: Messages that observers were shown.
        self._shown: IdentityWeakMap[bool] = IdentityWeakMap()
        #: The newest responses that were shown. The history may get another object with the same content.
        self._responses: list[Any] = []

    def member(self, agent: str | None) -> PluginConversation:
        """Return an agent's part of the conversation.

        Without an agent, return the part of the first agent; if there is none yet, the first agent gets this part.
        """
        if agent is None and self._members:
            return next(iter(self._members.values()))
        if agent not in self._members:
            first = self._members.pop(None, None)
            self._members[agent] = self._plugin._begin(self._id) if first is None else first  # noqa: SLF001
        return self._members[agent]

    def check(self) -> None:
        """Raise the conversation's halt, if there is one.

        Raises:
            HaltedError: The conversation is halted.
        """
        for member in self._members.values():
            member.context.guard.check()

    async def show(self, agent: str, messages: Sequence[Any]) -> None:
        """Show the observers the messages of a history that they were not shown yet."""
        for message in messages:
            if self._shown.get(message) is None:
                self._shown.put(message, True)
                response = next((shown for shown in self._responses if is_copy(message, shown)), None)
                if response is None:
                    await self.member(agent).stream.show(message)
                else:
                    self._responses.remove(response)

    async def show_responses(self, agent: str, responses: Sequence[Any]) -> None:
        """Show the observers a model's responses.

        Raises:
            HaltedError: An observer halted the conversation, and a response requests tools, which must not be called.
        """
        for response in responses:
            self._shown.put(response, True)
            self._responses = [*self._responses, response][-len(responses) :]
            await self.member(agent).stream.show(response)
        if any(describe(response).opens for response in responses):
            self.check()
