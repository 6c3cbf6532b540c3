"""`AssemblyHistoryReducer`: a history of Semantic Kernel's that our policies reduce."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, PrivateAttr
from semantic_kernel.contents import AuthorRole, ChatMessageContent
from semantic_kernel.contents.history_reducer.chat_history_reducer import ChatHistoryReducer

from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.semantic_kernel.messages import behind_prompts, is_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy


_logger = logging.getLogger("otel_assembly")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class AssemblyHistoryReducer(ChatHistoryReducer, Plugin[PluginConversation]):
    """A history that our policies reduce wherever Semantic Kernel reduces one: what they drop is gone from it.

    It does so when ``reduce()`` is called, by a program or by `ChatHistoryAgentThread.reduce`, and, with `auto_reduce`,
    whenever a message is added. A `ChatHistoryAgentThread` adds messages without awaiting anything: policies that wait
    for something, such as a store or a summarizer, cannot run then, so call ``await thread.reduce()`` after each turn
    if you use them. What is added in an agent's run, such as the results of tools, is sent as it is, with the agent's
    instructions and tools, which it does not know: `AssemblyChatCompletion` bounds each request.

    Args:
        policies: The chain, or an `Assembler`.
        messages: What was said so far.
        system_message: A system prompt in front of it.
        auto_reduce: Whether it is reduced when a message is added, by ``add_message_async``, or by ``add_message``
            while an event loop is running.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts.
        dependencies: What policies ask for by type: a mapping, or a function of this history that returns one.
        variables: Values for policies, by name; likewise.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    target_count: int = Field(default=1, exclude=True, description="Of no use: its policies say what stays.")
    assembler: Any = Field(default=None, exclude=True)
    _observers: Any = PrivateAttr()
    _dependencies: Any = PrivateAttr()
    _variables: Any = PrivateAttr()
    _conversations: Any = PrivateAttr()
    _own: Any = PrivateAttr()
    #: Whether a policy had to wait when a message was added.
    _waits: bool = PrivateAttr(default=False)

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        messages: Sequence[ChatMessageContent] = (),
        system_message: str | None = None,
        auto_reduce: bool = False,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
    ) -> None:
        ChatHistoryReducer.__init__(
            self, target_count=1, messages=list(messages), system_message=system_message, auto_reduce=auto_reduce
        )
        Plugin.__init__(self, policies, name=name, model=model, dependencies=dependencies, variables=variables)
        self._own = PluginConversation(self, "semantic_kernel", None)

    @property
    def context(self) -> Context:
        """The context of its conversation, through which alerts can be sent."""
        own: PluginConversation = self._own
        return own.context

    def add_message(
        self,
        message: ChatMessageContent | dict[str, Any],
        encoding: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Add a message, and reduce the history if `auto_reduce` is set.

        Args:
            message: The message, or what one is made of.
            encoding: As for `ChatHistory.add_message`.
            metadata: Likewise.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        super().add_message(message, encoding, metadata)
        if self.auto_reduce and not self._waits and _in_event_loop():
            self._reduce_without_waiting()

    def _reduce_without_waiting(self) -> None:
        work = self.reduce()
        try:
            work.send(None)
        except StopIteration:
            return
        work.close()
        self._waits = True
        _logger.warning(
            "otel-assembly: a policy of AssemblyHistoryReducer has to wait, and add_message() cannot: the history is "
            "not reduced when messages are added to it. Call `await thread.reduce()` after each turn"
        )

    async def reduce(self) -> Self | None:
        """Leave out what the policies leave out; None where that is nothing.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        history: Any = self  # of a type that is not known where Semantic Kernel is not installed
        (prompts, _), (front, held) = behind_prompts(history.messages), in_front(history.messages, is_prompt)
        assembly = await self._own.assemble(self, prompts, list(held))
        events = [event for event in assembly.events if isinstance(event, ChatMessageContent)]
        made = list(assembly.prompts)
        if made == prompts and same_objects(events, held):
            return None
        said = dict(zip(prompts, front, strict=True))
        self.messages = [
            *(said.get(one) or ChatMessageContent(role=AuthorRole.SYSTEM, content=one) for one in made),
            *events,
        ]
        return self
