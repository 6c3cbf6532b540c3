"""`AssemblyMiddleware`: an AgentScope middleware that applies policies to the messages of each model call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentscope.event import ModelCallEndEvent
from agentscope.message import Msg, TextBlock, ToolResultState
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatResponse, FinishedReason
from agentscope.tool import ToolResponse

from otel_assembly.errors import AssemblyError, HaltedError
from otel_assembly.events import ToolCallEvent, Usage, UsageEvent
from otel_assembly.instrumentation.agentscope.conversation import AgentScopeCall
from otel_assembly.instrumentation.agentscope.message_parts import MessageParts
from otel_assembly.instrumentation.agentscope.messages import (
    Part,
    is_summary,
    part_of,
    provider_parts,
    split_prompts,
    with_output,
)
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, TurnInput, record_output

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from otel_assembly.context import Context


class _Conversation(PluginConversation):
    """The conversation of one AgentScope session with one middleware."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts = MessageParts(provider_parts, part_of)
        #: The input of the last model call, and the result of its assembly. Another attempt gets the same result.
        self.last_result: tuple[Any, list[Msg] | AssemblyError] = None, []


class AssemblyMiddleware(Plugin[_Conversation], MiddlewareBase):
    """An AgentScope middleware: a chain of policies selects the messages that the agent's model receives.

    Policies receive the messages in the form that the provider receives them. Thus a long reply, which AgentScope
    stores in one `Msg`, can be cut between its tool calls. Kept messages and blocks are the original objects. The
    agent's context is not changed, and AgentScope still compresses it when it exceeds AgentScope's own limit.

    Each model call has one assembly, whose messages are also sent in retries and to the fallback model. After a
    conversation is halted, no model and no tool is called. The reply then ends like an interrupted reply: with
    AgentScope's own events, and a final message whose ``finished_reason`` is ``interrupted``. The reason is the last
    text of the agent's context.

    Functions for `dependencies` and `variables` get the agent. AgentScope's own memories are middlewares that add to
    the prompt; policies cannot read from them. Observers receive no messages, but a `UsageEvent` with the billed tokens
    after each model call, and a `ToolCallEvent` before each tool call.
    """

    _framework = "agentscope"
    _message_types = (Part,)
    _conversation_type = _Conversation

    def context_of(self, conversation: Any) -> Context:
        """Return the `Context` of a conversation. Use it to send alerts, or to halt the conversation by its guard.

        Args:
            conversation: The agent, the agent's state, or the session's id.
        """
        state = getattr(conversation, "state", conversation)
        return self._conversation(str(getattr(state, "session_id", state))).context

    async def on_model_call(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        """Replace the messages of a model call by those of its assembly. AgentScope calls this for each attempt."""
        conversation = self._conversation(agent.state.session_id)
        try:
            messages = await self._assemble_once(conversation, agent, input_kwargs)
            conversation.context.guard.check()  # it may have been halted between two attempts
        except HaltedError as halted:
            text = TextBlock(text=str(halted))
            return ChatResponse(content=[text], is_last=True, finished_reason=FinishedReason.INTERRUPTED)
        return await next_handler(messages=messages)

    async def on_reasoning(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Pass the events of an iteration on, and show observers the billed tokens of its model call."""
        async for event in next_handler(**input_kwargs):
            if isinstance(event, ModelCallEndEvent) and (event.input_tokens or event.output_tokens):
                usage = UsageEvent(usage=Usage(input_tokens=event.input_tokens, output_tokens=event.output_tokens))
                await self._conversation(agent.state.session_id).context.send(usage)
            yield event

    async def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Show a tool call to the observers, then run it. If the conversation is halted, the tool is not called."""
        conversation, call = self._conversation(agent.state.session_id), input_kwargs["tool_call"]
        if not conversation.context.guard.halted and self._observers:
            await conversation.context.send(ToolCallEvent(id=call.id, name=call.name, arguments=call.input))
        refusal = conversation.refusal
        if refusal is not None:
            yield ToolResponse(content=[TextBlock(text=refusal)], state=ToolResultState.INTERRUPTED)
            return
        async for item in next_handler(**input_kwargs):
            yield item

    async def _assemble_once(self, conversation: _Conversation, agent: Any, input_kwargs: dict[str, Any]) -> list[Msg]:
        """Return the messages for the model. Another attempt of the same call gets the same messages or exception."""
        messages, (last_messages, result) = input_kwargs["messages"], conversation.last_result
        if messages is not last_messages:
            try:
                result = await self._run_policies(conversation, (conversation, agent, input_kwargs))
            except AssemblyError as error:
                result = error
            conversation.last_result = messages, result
        if isinstance(result, AssemblyError):
            raise result
        return result

    async def _read_input(self, request: Any) -> TurnInput:
        conversation, agent, input_kwargs = request
        prompts, messages = split_prompts(input_kwargs["messages"])
        events: list[Any] = list(conversation.parts.of(messages))
        if events and agent.state.summary and is_summary(messages[0], agent.state.summary):
            events[0] = replace(part_of(None, events[0].blocks), message=events[0].message)  # of the kind summary
        model = input_kwargs["current_model"]
        return TurnInput(
            framework_object=agent,
            prompts=prompts,
            messages=events,
            agent_name=agent.name,
            model=model.model,
            tools=input_kwargs.get("tools") or (),
            client=model,
            shown=(),  # observers get no messages
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> list[Msg]:
        output = with_output(request[2]["messages"], messages, None if prompts == turn_input.prompts else prompts)
        call = CALL.get()
        if isinstance(call, AgentScopeCall):  # `read_messages` returns the prompts last
            record_output(lambda: call.read_messages(output)[::-1])
        return output
