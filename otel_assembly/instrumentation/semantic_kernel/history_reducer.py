"""`AssemblyHistoryReducer`: a Semantic Kernel chat history that a chain of policies reduces."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, PrivateAttr
from semantic_kernel.contents import ChatMessageContent
from semantic_kernel.contents.history_reducer.chat_history_reducer import ChatHistoryReducer

from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, TurnInput
from otel_assembly.instrumentation.semantic_kernel.messages import split_prompts, with_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


_logger = logging.getLogger("otel_assembly")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class AssemblyHistoryReducer(ChatHistoryReducer, Plugin[PluginConversation]):
    """A `ChatHistoryReducer` that a chain of policies reduces: messages that a policy drops are deleted from it.

    The policies run when the program or `ChatHistoryAgentThread.reduce` calls ``reduce()`` and, with `auto_reduce`,
    whenever a message is added. A `ChatHistoryAgentThread` adds messages without awaiting anything, so policies that
    await, such as those with a store or a summarizer, cannot run then: call ``await thread.reduce()`` after each turn
    if you use them. Messages that an agent's run adds, such as tool results, are sent unreduced. The policies do not
    know the agent's instructions and tools either. Use `AssemblyChatCompletion` to bound each request.

    Functions for `dependencies` and `variables` get this history.

    Args:
        messages: The initial messages. `Plugin` has the arguments that are not listed here.
        system_message: A system prompt in front of them.
        auto_reduce: Whether to reduce the history when a message is added by ``add_message_async``, or by
            ``add_message`` while an event loop is running.
    """

    _framework: ClassVar[str] = "semantic_kernel"
    _message_types: ClassVar[tuple[type, ...]] = (ChatMessageContent,)

    target_count: int = Field(default=1, exclude=True, description="Not used: the policies decide what is kept.")
    assembler: Any = Field(default=None, exclude=True)
    #: Whether a policy awaited something when a message was added; `add_message` then no longer reduces.
    _is_async: bool = PrivateAttr(default=False)

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
        self._history_conversation = self._begin(None)

    __init__.__doc__ = Plugin.__init__.__doc__  # `help` would show the one of pydantic's base class

    @property
    def context(self) -> Context:
        """The context of the history's conversation; send alerts to it."""
        return self._history_conversation.context

    def add_message(
        self,
        message: ChatMessageContent | dict[str, Any],
        encoding: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Add a message, and reduce the history if `auto_reduce` is set.

        Args:
            message: The message, or a mapping of its fields.
            encoding: As for `ChatHistory.add_message`.
            metadata: As for `ChatHistory.add_message`.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        super().add_message(message, encoding, metadata)
        if self.auto_reduce and not self._is_async and _in_event_loop():
            self._reduce_without_await()

    def _reduce_without_await(self) -> None:
        """Run the coroutine of `reduce` up to its first suspension; close it if it awaits something."""
        coroutine = self.reduce()
        try:
            coroutine.send(None)
        except StopIteration:
            return
        coroutine.close()
        self._is_async = True
        _logger.warning(
            "otel-assembly: a policy of AssemblyHistoryReducer awaits something, which add_message() cannot do: the "
            "history is not reduced when messages are added to it. Call `await thread.reduce()` after each turn"
        )

    async def reduce(self) -> Self | None:
        """Delete the messages that the policies drop; return this history, or None if nothing changed.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        reduced: list[Any] | None = await self._run_policies(self._history_conversation, self)
        if reduced is None:
            return None
        self.messages = reduced
        return self

    async def _read_input(self, request: Any) -> TurnInput:
        prompts, messages = split_prompts(request.messages)
        return TurnInput(framework_object=self, prompts=prompts, messages=list(messages), shown=())

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        return with_output(request.messages, prompts, messages)
