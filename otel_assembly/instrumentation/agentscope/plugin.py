"""`AssemblyMiddleware`: our policies between an AgentScope agent and its model."""

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
from otel_assembly.instrumentation.agentscope.conversation import AskedModel
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
    """Lets a chain of our policies decide what of an agent's context its model is sent.

    It works on messages as a provider is sent them, so that a long reply, which AgentScope keeps in one `Msg`, can be
    cut between its calls. What stays are the very messages and blocks that came in; the agent's own context stays whole
    and is still compressed by AgentScope where that finds it too long.

    An assembly is made once for a model call: retries, and the fallback model, are sent the same. A halted conversation
    calls no model and no tool any more: the reply ends as an interrupted one does, with AgentScope's own events and a
    final message whose ``finished_reason`` is ``interrupted``; the reason is the last text of the agent's context.

    Args:
        policies: The chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts; by default the one that is called.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}`` for the memory policies: a
            mapping, or a function of the agent that returns one, called before each assembly. AgentScope's own memories
            are middlewares that put into the prompt what they hold; there is no store of theirs to read.
        variables: Values for policies, by name; likewise.
        observers: Shown what each model call was billed for (`UsageEvent`) and each tool call (`ToolCallEvent`), before
            it runs.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    def context_of(self, conversation: Any) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: The agent, its state, or its session's id.
        """
        state = getattr(conversation, "state", conversation)
        return self._conversation(str(getattr(state, "session_id", state))).context

    def _begin(self, conversation_id: str | None) -> _Conversation:
        return _Conversation(self, str(conversation_id))

    async def on_model_call(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        """What AgentScope calls around each attempt to call the model.

        Raises:
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation = self._conversation(agent.state.session_id)
        try:
            messages = await conversation.assembled(agent, input_kwargs)
            conversation.context.guard.check()  # of an attempt that follows, halted since
        except HaltedError as halted:
            return _halted(halted)
        return await next_handler(messages=messages)

    async def on_reasoning(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """What AgentScope calls around each round: observers are shown what the model call was billed for."""
        async for event in next_handler(**input_kwargs):
            if isinstance(event, ModelCallEndEvent) and (event.input_tokens or event.output_tokens):
                usage = UsageEvent(usage=Usage(input_tokens=event.input_tokens, output_tokens=event.output_tokens))
                await self._conversation(agent.state.session_id).context.send(usage)
            yield event

    async def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """What AgentScope calls around each tool call: none starts once the conversation is halted."""
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
    """One session under one middleware."""

    def __init__(self, plugin: Plugin[Any], session_id: str) -> None:
        super().__init__(plugin, "agentscope", session_id)
        self._parts = MessageParts(_sent_parts, part_of)
        #: The messages of the last model call, and what it was sent: an attempt that follows is sent the same, or fails
        #: alike.
        self._last: tuple[Any, list[Msg] | AssemblyError] | None = None

    async def assembled(self, agent: Any, call: dict[str, Any]) -> list[Msg]:
        """What the model is to be sent instead of these messages."""
        given = call["messages"]
        last = self._last
        if last is None or last[0] is not given:
            try:
                last = given, await self._assemble(agent, call)
            except AssemblyError as error:
                last = given, error
            self._last = last
        sent = last[1]
        if isinstance(sent, AssemblyError):
            raise sent
        return sent

    async def _assemble(self, agent: Any, call: dict[str, Any]) -> list[Msg]:
        given = call["messages"]
        leading = [message for message in given[:1] if message.role == "system"]
        events: list[Any] = list(self._parts.of(given[len(leading) :]))
        if events and agent.state.summary and is_summary(given[len(leading)], agent.state.summary):
            events[0] = _as_summary(events[0])
        prompts = [text for message in leading if (text := message.get_text_content())]
        model = call["current_model"]
        async with self.turn(agent.name, model.model, call.get("tools") or (), model):
            assembly = await self.assemble(agent, prompts, events)
        sent = [*_system(leading, prompts, assembly), *_messages_of(e for e in assembly.events if isinstance(e, Part))]
        asked = CALL.get()
        if isinstance(asked, AskedModel):
            with asked.instrumentation.suppress_errors():
                asked.replaced_by_plugin(asked.read(sent)[0])
        return sent


def _sent_parts(messages: Iterable[Msg]) -> list[PartPlace]:
    """Messages as a provider is sent them: what the model said at once, with its calls, is one; each result is one."""
    found: list[PartPlace] = []
    for message, number, blocks, begins in block_parts(messages):
        if number and not (begins and message.role == "assistant"):
            _, first, earlier, _ = found.pop()
            found.append((message, first, (*earlier, *blocks), True))
        else:
            found.append((message, number, blocks, True))
    return found


def _as_summary(part: Part) -> Part:
    """A message that says what an agent's state holds as the summary of what was compressed."""
    return replace(part_of(None, part.blocks), message=part.message)


def _messages_of(parts: Iterable[Part]) -> list[Any]:
    """The messages that parts stand for: the very objects where all blocks are there, copies of them where some are."""
    found: list[Any] = []
    for _, group in groupby(parts, lambda part: id(part.message)):
        own = list(group)
        message: Any = own[0].message
        blocks = [block for part in own for block in part.blocks]
        whole = same_objects(blocks, message.content)
        found.append(message if whole else edited(message, content=blocks))
    return found


@summary_like.register(Part)
def _(event: Part, text: str, events: Sequence[Any]) -> Part:
    message = summary_like(event.message, text, events)
    return part_of(message, message.content)


register_results(Part, "blocks", result_of, with_result, lambda part, blocks: part_of(part.message, blocks))


def _system(leading: list[Msg], prompts: list[str], assembly: Assembly) -> list[Msg]:
    if list(assembly.prompts) == prompts:
        return leading
    return [SystemMsg("system", [TextBlock(text=prompt) for prompt in assembly.prompts])] if assembly.prompts else []


def _halted(halted: HaltedError) -> ChatResponse:
    return ChatResponse(content=[TextBlock(text=str(halted))], is_last=True, finished_reason=FinishedReason.INTERRUPTED)


__all__ = ["AssemblyMiddleware"]
