"""`AssemblyChatGenerator`: a chain of our policies in front of a chat generator of Haystack's, as a component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haystack import component
from haystack.core.serialization import component_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.async_utils import _execute_component_async

from otel_assembly.instrumentation.haystack.generators import model_of
from otel_assembly.instrumentation.haystack.messages import given_to
from otel_assembly.instrumentation.haystack.plugin import HaystackPlugin
from otel_assembly.instrumentation.plugin import finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.instrumentation.plugin import PluginConversation
    from otel_assembly.policies.base import AssemblyPolicy


@component
class AssemblyChatGenerator(HaystackPlugin):
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
        HaystackPlugin.__init__(self, policies, **settings)
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
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        given = given_to(messages)
        conversation = self._of(conversation_id, given)
        offered, client = self._tools(tools), self.chat_generator
        sent = finished(self._assembled(conversation, given, given, offered, self._model(), client))
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
        offered, client = self._tools(tools), self.chat_generator
        sent = await self._assembled(conversation, given, given, offered, self._model(), client)
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
        written = HaystackPlugin.to_dict(self)
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
