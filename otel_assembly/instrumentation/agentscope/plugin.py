"""`AssemblyMiddleware`: an AgentScope middleware that applies policies to the messages of each model call."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from agentscope.event import ModelCallEndEvent
from agentscope.message import Msg, SystemMsg, TextBlock, ToolResultState
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatResponse, FinishedReason
from agentscope.tool import ToolResponse

from otel_assembly.errors import AssemblyError, HaltedError
from otel_assembly.events import ToolCallEvent, Usage, UsageEvent
from otel_assembly.instrumentation.agentscope.conversation import AgentScopeCall
from otel_assembly.instrumentation.agentscope.message_parts import MessageParts
from otel_assembly.instrumentation.agentscope.messages import (
    Part,
    block_parts,
    is_summary,
    part_of,
    result_of,
    with_result,
)
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.messages import edited, register_results, summary_like

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.agentscope.message_parts import PartPlace


class AssemblyMiddleware(Plugin["_Conversation"], MiddlewareBase):
    """An AgentScope middleware: a chain of policies selects the messages that the agent's model receives.

    Policies receive the messages in the form that the provider receives them. Thus a long reply, which AgentScope
    stores in one `Msg`, can be cut between its tool calls. Kept messages and blocks are the original objects. The
    agent's context is not changed, and AgentScope still compresses it when it exceeds AgentScope's own limit.

    Each model call has one assembly, whose messages are also sent in retries and to the fallback model. After a
    conversation is halted, no model and no tool is called. The reply then ends like an interrupted reply: with
    AgentScope's own events, and a final message whose ``finished_reason`` is ``interrupted``. The reason is the last
    text of the agent's context.

    Args:
        policies: The policies in order, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The name of the model whose tokenizer counts. None: the model that is called.
        dependencies: Objects that policies look up by type, such as ``{KnowledgeStore: store}`` for the memory
            policies: a mapping, or a function that is called with the agent before each assembly and returns one.
            AgentScope's own memories are middlewares that add to the prompt; policies cannot read from them.
        variables: Values that policies look up by name: a mapping or a function, as for `dependencies`.
        observers: Receive a `UsageEvent` with the billed tokens after each model call, and a `ToolCallEvent` before
            each tool call.

    Raises:
        ConfigurationError: `name` or `model` is given together with an `Assembler`, which has its own, or an argument
            has the wrong type.
    """

    def context_of(self, conversation: Any) -> Context:
        """Return the `Context` of a conversation. Use it to send alerts, or to halt the conversation by its guard.

        Args:
            conversation: The agent, the agent's state, or the session's id.
        """
        state = getattr(conversation, "state", conversation)
        return self._conversation(str(getattr(state, "session_id", state))).context

    def _begin(self, conversation_id: str | None) -> _Conversation:
        return _Conversation(self, str(conversation_id))

    async def on_model_call(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        """Replace the messages of a model call by those of its assembly. AgentScope calls this for each attempt.

        Args:
            agent: The agent.
            input_kwargs: The arguments of the model call, such as ``messages`` and ``current_model``.
            next_handler: Calls the next middleware, or the model.

        Raises:
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation = self._conversation(agent.state.session_id)
        try:
            messages = await conversation.assemble_once(agent, input_kwargs)
            conversation.context.guard.check()  # it may have been halted between two attempts
        except HaltedError as halted:
            return _halted_response(halted)
        return await next_handler(messages=messages)

    async def on_reasoning(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Pass the events of an iteration on, and show observers the billed tokens of its model call.

        Args:
            agent: The agent.
            input_kwargs: The arguments for `next_handler`.
            next_handler: Calls the next middleware, or the iteration.
        """
        async for event in next_handler(**input_kwargs):
            if isinstance(event, ModelCallEndEvent) and (event.input_tokens or event.output_tokens):
                usage = UsageEvent(usage=Usage(input_tokens=event.input_tokens, output_tokens=event.output_tokens))
                await self._conversation(agent.state.session_id).context.send(usage)
            yield event

    async def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Show a tool call to the observers, then run it. If the conversation is halted, the tool is not called.

        Args:
            agent: The agent.
            input_kwargs: The arguments for `next_handler`, such as ``tool_call``.
            next_handler: Calls the next middleware, or the tool.
        """
        context, call = self._conversation(agent.state.session_id).context, input_kwargs["tool_call"]
        if not context.guard.halted and self._observers:
            await context.send(ToolCallEvent(id=call.id, name=call.name, arguments=call.input))
        if context.guard.halt is not None:
            text = TextBlock(text=f"Not called: {context.guard.halt.reason}")
            yield ToolResponse(content=[text], state=ToolResultState.INTERRUPTED)
            return
        async for item in next_handler(**input_kwargs):
            yield item


class _Conversation(PluginConversation):
    """The conversation of one AgentScope session with one middleware."""

    def __init__(self, plugin: Plugin[Any], session_id: str) -> None:
        super().__init__(plugin, "agentscope", session_id)
        self._parts = MessageParts(_provider_parts, part_of)
        #: The input of the last model call, and the result of its assembly. Another attempt gets the same result.
        self._last_result: tuple[Any, list[Msg] | AssemblyError] | None = None

    async def assemble_once(self, agent: Any, input_kwargs: dict[str, Any]) -> list[Msg]:
        """Return the messages for the model. Another attempt of the same call gets the same messages or exception."""
        messages = input_kwargs["messages"]
        last = self._last_result
        if last is None or last[0] is not messages:
            try:
                last = messages, await self._assemble(agent, input_kwargs)
            except AssemblyError as error:
                last = messages, error
            self._last_result = last
        result = last[1]
        if isinstance(result, AssemblyError):
            raise result
        return result

    async def _assemble(self, agent: Any, input_kwargs: dict[str, Any]) -> list[Msg]:
        messages = input_kwargs["messages"]
        leading = [message for message in messages[:1] if message.role == "system"]
        events: list[Any] = list(self._parts.of(messages[len(leading) :]))
        if events and agent.state.summary and is_summary(messages[len(leading)], agent.state.summary):
            events[0] = _as_summary(events[0])
        prompts = [text for message in leading if (text := message.get_text_content())]
        model = input_kwargs["current_model"]
        async with self.turn(agent.name, model.model, input_kwargs.get("tools") or (), model):
            assembly = await self.assemble(agent, prompts, events)
        parts = [event for event in assembly.events if isinstance(event, Part)]
        output = [*_system_messages(leading, prompts, assembly), *_messages_of(parts)]
        call = CALL.get()
        if isinstance(call, AgentScopeCall):
            with call.instrumentation.suppress_errors():
                call.replaced_by_plugin(call.read_messages(output)[0])
        return output


def _provider_parts(messages: Iterable[Msg]) -> list[PartPlace]:
    """Return one place per message that the provider receives: a model answer with its tool calls, or one result."""
    places: list[PartPlace] = []
    for message, number, blocks, framed in block_parts(messages):
        if number and not (framed and message.role == "assistant"):
            _, first, earlier, _ = places.pop()
            places.append((message, first, (*earlier, *blocks), True))
        else:
            places.append((message, number, blocks, True))
    return places


def _as_summary(part: Part) -> Part:
    """Return the part of AgentScope's summary message as an event of the kind summary."""
    return replace(part_of(None, part.blocks), message=part.message)


def _messages_of(parts: Iterable[Part]) -> list[Any]:
    """Return the messages of parts: the original object if all its blocks are kept, otherwise a shortened copy."""
    messages: list[Any] = []
    for _, group in groupby(parts, lambda part: id(part.message)):
        message_parts = list(group)
        message: Any = message_parts[0].message
        blocks = [block for part in message_parts for block in part.blocks]
        is_whole = same_objects(blocks, message.content)
        messages.append(message if is_whole else edited(message, content=blocks))
    return messages


@summary_like.register(Part)
def _(event: Part, text: str, events: Sequence[Any]) -> Part:
    message = summary_like(event.message, text, events)
    return part_of(message, message.content)


register_results(Part, "blocks", result_of, with_result, lambda part, blocks: part_of(part.message, blocks))


def _system_messages(leading: list[Msg], prompts: list[str], assembly: Assembly) -> list[Msg]:
    if list(assembly.prompts) == prompts:
        return leading
    return [SystemMsg("system", [TextBlock(text=prompt) for prompt in assembly.prompts])] if assembly.prompts else []


def _halted_response(halted: HaltedError) -> ChatResponse:
    return ChatResponse(content=[TextBlock(text=str(halted))], is_last=True, finished_reason=FinishedReason.INTERRUPTED)


__all__ = ["AssemblyMiddleware"]
