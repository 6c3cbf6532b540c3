"""`AssemblyChatGenerator`: a Haystack component that runs a policy chain before it calls a chat generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from haystack import component
from haystack.core.serialization import component_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.async_utils import _execute_component_async

from otel_assembly.instrumentation.haystack.messages import input_messages
from otel_assembly.instrumentation.haystack.plugin import HaystackPlugin, PolicyRequest
from otel_assembly.instrumentation.plugin import finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.instrumentation.plugin import PluginConversation, PluginSettings
    from otel_assembly.policies.base import AssemblyPolicy


@component
class AssemblyChatGenerator(HaystackPlugin):
    """Runs a policy chain on the messages of each call, and calls a chat generator with the result.

    Use it in place of the chat generator: in a pipeline, in an agent, or alone. The caller keeps the history: a message
    that a policy drops is missing from this call only. A conversation is found by the input ``conversation_id``, else
    by its first message. In a pipeline, pass the id: pipelines copy the messages for each run.

    A FATAL alert halts the conversation: the generator is not called after it, and a response with tool calls is not
    returned if the alert was raised for it. In both cases `HaltedError` is raised, which a pipeline wraps in its own
    error. Functions for `dependencies` and `variables` get the messages.

    Args:
        chat_generator: The chat generator.
        policies: The policy chain, or an `Assembler`.
        settings: The other arguments of `Plugin`.
    """

    def __init__(
        self, chat_generator: Any, policies: Sequence[AssemblyPolicy] | Assembler, **settings: Unpack[PluginSettings]
    ) -> None:
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
        """Run the policies on the messages, call the generator with the result, and return the generator's output."""
        history, options = input_messages(messages), _options(streaming_callback, generation_kwargs, tools)
        if history is None:  # the generator raises its own error
            return dict(self.chat_generator.run(messages=messages, **options))
        conversation = self._conversation_of(conversation_id, history)
        request = PolicyRequest(conversation, history, history, tools, self.chat_generator)
        sent = finished(self._run_policies(conversation, request))
        response = self.chat_generator.run(messages=sent, **options)
        finished(_show_replies(conversation, response))
        return dict(response)

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
        """Async variant of `run`, for `Agent.run_async` and async pipelines."""
        history, options = input_messages(messages), _options(streaming_callback, generation_kwargs, tools)
        if history is None:
            return dict(await _execute_component_async(self.chat_generator, messages=messages, **options))
        conversation = self._conversation_of(conversation_id, history)
        request = PolicyRequest(conversation, history, history, tools, self.chat_generator)
        sent = await self._run_policies(conversation, request)
        response = await _execute_component_async(self.chat_generator, messages=sent, **options)
        await _show_replies(conversation, response)
        return dict(response)

    def warm_up(self) -> None:
        """Warm up the chat generator, if it supports that."""
        if hasattr(self.chat_generator, "warm_up"):
            self.chat_generator.warm_up()

    def close(self) -> None:
        """Release the chat generator's resources, such as connections."""
        if hasattr(self.chat_generator, "close"):
            self.chat_generator.close()

    async def close_async(self) -> None:
        """Async variant of `close`; calls the chat generator's `close` if it has no `close_async`."""
        if hasattr(self.chat_generator, "close_async"):
            await self.chat_generator.close_async()
        else:
            self.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a dictionary for Haystack's serialization, with the chat generator and the policies.

        Raises:
            ConfigurationError: The component has a custom policy, or observers, dependencies or variables.
        """
        serialized = HaystackPlugin.to_dict(self)
        serialized["init_parameters"]["chat_generator"] = component_to_dict(self.chat_generator, name="chat_generator")
        return serialized


def _options(streaming_callback: Any, generation_kwargs: Any, tools: Any) -> dict[str, Any]:
    """Return the arguments that were passed, without those that are None: not every chat generator accepts all."""
    arguments = {"streaming_callback": streaming_callback, "generation_kwargs": generation_kwargs, "tools": tools}
    return {name: value for name, value in arguments.items() if value is not None}


async def _show_replies(conversation: PluginConversation, response: Any) -> None:
    """Show the replies to the observers; raise if a reply has tool calls and the conversation is halted."""
    replies = response.get("replies") or ()
    await conversation.show_response(replies, has_tool_calls=any(message.tool_calls for message in replies))
