"""`AssemblyChatCompletion`: a chain of our policies around a chat service of Semantic Kernel, on its own messages."""

from __future__ import annotations

from contextlib import nullcontext
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from pydantic import Field, PrivateAttr
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.contents import AuthorRole, ChatHistory, ChatMessageContent

from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.reductions import plugin_scope
from otel_assembly.instrumentation.semantic_kernel.calls import invoking_agent_of, model_of, schemas_of
from otel_assembly.instrumentation.semantic_kernel.messages import behind_prompts, is_prompt
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssemblyChatCompletion(ChatCompletionClientBase, Plugin["_Conversation"]):
    """Our policies before each request of a chat service: its messages go in and come out, the very objects.

    It is a service that hands on to another one, and is given to an agent or a kernel in the place of that. Each
    request passes it, also those between an agent's tool calls; the history that those are added to, and the thread's,
    stay whole: what a policy drops is out of this request alone. One object may serve any number of agents and threads.
    The instructions and the tools of a request are counted with its messages.

    A FATAL alert, of an observer, or sent with ``context_of(thread).send(…)``, halts the conversation for good: no
    model is called any more, and whoever runs the agent gets a `HaltedError`. So that no tool is called either that
    was asked for at once with the one during which the alert came, add `tools` to the kernel's filters.
    `ContextOverflowError` of a budget that cannot hold goes through to whoever runs the agent as well.

    Args:
        inner: The service that is asked.
        policies: The chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts; by default the service's.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}``: a mapping, or a function of
            the request's `ChatHistory` that returns one, async or not, called before each assembly.
        variables: Values for policies, by name; likewise.
        observers: Shown every message once, a response as soon as it is there, before its tools run; and every alert.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    inner: ChatCompletionClientBase
    assembler: Any = Field(default=None, exclude=True)
    _observers: Any = PrivateAttr()
    _dependencies: Any = PrivateAttr()
    _variables: Any = PrivateAttr()
    _conversations: Any = PrivateAttr()
    #: The conversations, by their histories and by the messages in those.
    _known: IdentityWeakMap[_Conversation] = PrivateAttr(default_factory=IdentityWeakMap)
    #: Those that were asked for before their first request.
    _met: list[tuple[ref[ChatHistory], _Conversation]] = PrivateAttr(default_factory=list)

    #: Whether functions are called is the inner service's to say, as all else that depends on a provider.
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

    def context_of(self, conversation: Any) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: Its `ChatHistory`, or the `ChatHistoryAgentThread` that has it.
        """
        history = getattr(conversation, "_chat_history", conversation)
        if not isinstance(history, ChatHistory):
            raise ConfigurationError(f"a conversation is a ChatHistory or a ChatHistoryAgentThread, not {history!r}")
        found = self._of(history)
        if not history.messages:
            self._met = [one for one in self._met if one[0]() is not None]
            self._met.append((ref(history), found))
        return found.member(None).context

    async def tools(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:  # noqa: A002  # so it is called
        """A filter of a kernel's auto function invocations: no tool is called once its conversation is halted.

        Raises:
            HaltedError: It is.
        """
        self._of(context.chat_history).check()
        await next(context)

    async def _inner_get_chat_message_contents(self, chat_history: ChatHistory, settings: Any) -> Any:
        conversation, given = await self._assembled(chat_history, settings)
        answers = await self.inner._inner_get_chat_message_contents(given, settings)  # noqa: SLF001  # what it wraps
        await conversation.answered(self._name_in(chat_history), answers)
        return answers

    async def _inner_get_streaming_chat_message_contents(
        self, chat_history: ChatHistory, settings: Any, function_invoke_attempt: int = 0
    ) -> AsyncGenerator[Any, Any]:
        conversation, given = await self._assembled(chat_history, settings)
        said: dict[int, list[Any]] = {}
        stream = self.inner._inner_get_streaming_chat_message_contents(  # noqa: SLF001  # what it wraps
            given, settings, function_invoke_attempt
        )
        async for parts in stream:
            for part in parts:
                said.setdefault(part.choice_index, []).append(part)
            yield parts
        await conversation.answered(self._name_in(chat_history), [reduce(add, parts) for parts in said.values()])

    async def _assembled(self, chat_history: ChatHistory, settings: Any) -> tuple[_Conversation, ChatHistory]:
        """The conversation, and what its model gets to see on this request.

        Raises:
            HaltedError: The conversation was halted; nothing is to be called for it any more.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation, call = self._of(chat_history), CALL.get()
        conversation.check()
        prompts, held = behind_prompts(chat_history.messages)
        name = self._name_in(chat_history)
        await conversation.show(name, held)
        with plugin_scope(call.instrumentation, call) if call is not None else nullcontext():
            assembly = await conversation.assemble(name, chat_history, prompts, list(held), self, settings)
        given = _given(chat_history, prompts, assembly)
        if call is not None:
            with call.instrumentation.suppress_errors():
                left, sent = behind_prompts(given.messages)
                call.replaced_by_plugin(sent, prompts=left)
        return conversation, given

    def _name_in(self, history: ChatHistory) -> str:
        """The name of the agent that asks with a history: an agent writes it on its instructions."""
        first = next(iter(history.messages), None)
        named = first.name if first is not None and is_prompt(first) else None
        return invoking_agent_of(history).agent_name or named or ""

    def _begin(self, conversation_id: str | None) -> _Conversation:
        return _Conversation(self, conversation_id)

    def _of(self, history: ChatHistory) -> _Conversation:
        """The conversation of a history: of the same one, or of one with the same messages, or else a new one."""
        held = behind_prompts(history.messages)[1]
        found = self._known.get(history) or next(filter(None, map(self._known.get, held)), None)
        if found is None and held:
            opened = ((getattr(kept(), "messages", ()), one) for kept, one in self._met)
            found = next((one for messages, one in opened if any(message is held[0] for message in messages)), None)
        found = found or self._begin(invoking_agent_of(history).conversation_id)
        for one in (history, *held):
            self._known.put(one, found)
        return found

    # What depends on the provider is the inner service's.

    def get_prompt_execution_settings_class(self) -> Any:
        """The class of the inner service's settings."""
        return self.inner.get_prompt_execution_settings_class()

    def service_url(self) -> str | None:
        """The inner service's address."""
        url: str | None = self.inner.service_url()
        return url

    def _verify_function_choice_settings(self, settings: Any) -> None:
        self.inner._verify_function_choice_settings(settings)  # noqa: SLF001  # what it wraps

    def _update_function_choice_settings_callback(self) -> Any:
        return self.inner._update_function_choice_settings_callback()  # noqa: SLF001  # what it wraps

    def _reset_function_choice_settings(self, settings: Any) -> None:
        self.inner._reset_function_choice_settings(settings)  # noqa: SLF001  # what it wraps


class _Conversation:
    """One conversation: each agent in it has a context and a ledger of its own; what halts one of them halts it."""

    def __init__(self, plugin: AssemblyChatCompletion, conversation_id: str | None) -> None:
        self._plugin = plugin
        self._id = conversation_id
        self._members: dict[str | None, PluginConversation] = {}
        #: Messages that observers were shown, and answers of which the history has another object, or will have.
        self._shown: IdentityWeakMap[bool] = IdentityWeakMap()
        self._answers: list[Any] = []

    def member(self, agent: str | None) -> PluginConversation:
        """What an agent has of it; the first agent that asks has what was there before it."""
        if agent is None and self._members:
            return next(iter(self._members.values()))
        if agent not in self._members:
            first = self._members.pop(None, None)
            self._members[agent] = first or PluginConversation(self._plugin, "semantic_kernel", self._id)
        return self._members[agent]

    def check(self) -> None:
        """Nothing is called any more once it is halted.

        Raises:
            HaltedError: It is.
        """
        for member in self._members.values():
            member.context.guard.check()

    async def assemble(
        self,
        agent: str,
        history: ChatHistory,
        prompts: Sequence[str],
        held: Sequence[Any],
        service: AssemblyChatCompletion,
        settings: Any,
    ) -> Assembly:
        """What an agent's model is sent of a history."""
        member = self.member(agent)
        async with member.turn(agent or None, model_of(service, settings), schemas_of(settings), service.inner):
            return await member.assemble(history, prompts, held)

    async def show(self, agent: str, messages: Sequence[Any]) -> None:
        """Show the observers what is new among the messages of a history."""
        for message in messages:
            if self._shown.get(message) is None:
                self._shown.put(message, True)
                answer = next((one for one in self._answers if _says_the_same(one, message)), None)
                if answer is None:
                    await self.member(agent).stream.show(message)
                else:
                    self._answers.remove(answer)

    async def answered(self, agent: str, answers: Sequence[Any]) -> None:
        """Show them what a model has said.

        Raises:
            HaltedError: That has halted it, and asks for tools, which are not called.
        """
        for answer in answers:
            self._shown.put(answer, True)
            self._answers = [*self._answers, answer][-len(answers) :]
            await self.member(agent).stream.show(answer)
        if any(describe(answer).opens for answer in answers):
            self.check()


def _says_the_same(one: ChatMessageContent, other: ChatMessageContent) -> bool:
    """Whether a message is what a model has said, as its history has it: in one piece, by its agent's name."""
    answer, kept = describe(one), describe(other)
    return other.role == AuthorRole.ASSISTANT and (answer.text, answer.opens) == (kept.text, kept.opens)


def _given(history: ChatHistory, prompts: Sequence[str], assembly: Assembly) -> ChatHistory:
    """A history of what a model gets to see; where that is all, the very same."""
    front, held = in_front(history.messages, is_prompt)
    events = [event for event in assembly.events if isinstance(event, ChatMessageContent)]
    made = list(assembly.prompts)
    if made == prompts and same_objects(events, held):
        return history
    said = dict(zip(prompts, front, strict=True))
    in_their_place = [said.get(one) or ChatMessageContent(role=AuthorRole.SYSTEM, content=one) for one in made]
    return ChatHistory(messages=[*in_their_place, *events])
