"""`AssemblyHistoryReducer`: a history of Semantic Kernel's that our policies reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, PrivateAttr
from semantic_kernel.contents import AuthorRole, ChatMessageContent
from semantic_kernel.contents.history_reducer.chat_history_reducer import ChatHistoryReducer

from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.semantic_kernel.messages import behind_prompts, is_prompt
from otel_assembly.instrumentation.splicing import same_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy


class AssemblyHistoryReducer(ChatHistoryReducer, Plugin[PluginConversation]):
    """A history that our policies reduce wherever Semantic Kernel reduces one: what they drop is gone from it.

    It does so when ``reduce()`` is called, by a program or by `ChatHistoryAgentThread.reduce`, and, with `auto_reduce`,
    in ``add_message_async``. What is added in between, such as the results of tools in an agent's run, is sent as it
    is, with the agent's instructions and tools, which it does not know: `AssemblyChatCompletion` bounds each request.

    Args:
        policies: The chain, or an `Assembler`.
        messages: What was said so far.
        system_message: A system prompt in front of it.
        auto_reduce: Whether ``add_message_async`` reduces.
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

    async def reduce(self) -> Self | None:
        """Leave out what the policies leave out; None where that is nothing.

        Raises:
            HaltedError: The conversation was halted.
            ContextOverflowError: What may not be dropped does not fit a policy's budget.
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
