"""The conversations of `AssemblyChatCompletion`: how they are found, and what their observers were shown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.semantic_kernel.calls import invoking_agent_of
from otel_assembly.instrumentation.semantic_kernel.messages import is_copy, split_prompts
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semantic_kernel.contents import ChatHistory

    from otel_assembly.instrumentation.plugin import PluginConversation


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

        None means that no agent is named, as in `AssemblyChatCompletion.context_of`: the part of the first agent. If no
        agent has a part yet, a new one is returned, and the first agent takes it over.
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
    """Finds the conversation of a history.

    An agent copies its thread's messages into a new history for each request, so messages identify a conversation too.

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
            for empty_history in self._empty_histories:
                # The program or an agent may have added messages to it since then.
                if any(message is messages[0] for message in getattr(empty_history(), "messages", ())):
                    conversation = known.get(empty_history())
        if conversation is None:
            conversation = AgentsConversation(partial(self._begin, invoking_agent_of(history).conversation_id))
            if not messages:
                existing = [empty_history for empty_history in self._empty_histories if empty_history() is not None]
                self._empty_histories = [*existing, ref(history)]
        for known_object in (history, *messages):
            known.put(known_object, conversation)
        return conversation
