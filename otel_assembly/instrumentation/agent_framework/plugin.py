"""`AssemblyMiddleware`: a chain of our policies as chat middleware of agent-framework, on its own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_framework import ChatMiddleware, ChatResponse, FunctionMiddleware, Message, ResponseStream

import otel_assembly.instrumentation.agent_framework.messages  # noqa: F401  # how the messages are read
from otel_assembly.instrumentation.agent_framework.calls import RUNS, prompts_of, schemas_of
from otel_assembly.instrumentation.clients import model_in
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.middleware_calls import MIDDLEWARE_INPUT
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssemblyMiddleware(Plugin[PluginConversation], ChatMiddleware):
    """Our policies around each model call of an agent: agent-framework's messages go in and come out, the very objects.

    It is given to an agent, ``Agent(client, middleware=[plugin, plugin.tools])``, or to a client. What a policy drops
    is out of this call's prompt, and still in the session. One object may serve any number of sessions. Put it behind
    middleware that changes the messages, and use no ``compaction_strategy`` beside it, so that it has the last word on
    what is sent. The instructions and the tools of the agent are counted with the messages.

    A FATAL alert, of an observer, or sent with ``context_of(session_id).send(…)``, halts the conversation: no model is
    called any more, and, where `tools` is among the agent's middleware, no tool is; a run of the agent raises.

    Args:
        policies: The chain, or an `Assembler`.
        name: Tells assemblers apart, as `Assembler` takes it.
        model: The model whose tokenizer counts; by default the client's, as far as it says its name.
        agent_name: The agent's name, for telemetry; an instrumented agent says its own.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}``: a mapping, or a function of
            the call's `ChatContext` that returns one, async or not, called before each assembly.
        variables: Values for policies, by name; likewise.
        observers: Shown every message once, a response as soon as it is there, before its tools run; and every alert.

    Attributes:
        tools: Function middleware that answers tool calls of a halted conversation in the place of their tools.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        agent_name: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__(
            policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        self._agent_name = agent_name
        #: The conversations of runs without a session, by their first message.
        self._runs: IdentityWeakMap[PluginConversation] = IdentityWeakMap()
        self.tools: FunctionMiddleware = _Tools(self)

    def context_of(self, conversation: str) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: The ``session_id`` of its session.
        """
        return self._conversation(conversation).context

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Work out what this call's model gets to see, and call it with that.

        Raises:
            HaltedError: The conversation was halted, or its response halted it and asks for tools.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation, options, invoking_agent = self._of(context), context.options or {}, RUNS.invoking_agent
        agent_name = self._agent_name or (invoking_agent.agent_name if invoking_agent is not None else None)
        given, prompts = list(context.messages), prompts_of(options)
        client, tools = context.client, schemas_of(options.get("tools"))
        async with conversation.turn(agent_name, model_in(options, client), tools, client):
            await conversation.show(given)
            assembly = await conversation.assemble(context, prompts, given)
        context.messages = _messages(assembly)
        if assembly.prompts != prompts:
            context.options = {**options, "instructions": "\n\n".join(assembly.prompts)}
        handed = MIDDLEWARE_INPUT.get()
        if handed is not None:
            handed.plugin = given, list(context.messages), prompts_of(context.options)
        await call_next()
        if isinstance(context.result, ResponseStream):
            context.result = context.result.with_result_hook(lambda answer: _answered(conversation, answer))
        elif context.result is not None:
            await _answered(conversation, context.result)

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "agent_framework", conversation_id, same=same_content)

    def _of(self, context: Any) -> PluginConversation:
        own = _session_id(context)
        if own is not None:
            return self._conversation(own)
        first = next(iter(context.messages), None)
        return self._runs.get(first) or self._runs.put(first, self._begin(None))


class _Tools(FunctionMiddleware):
    """No tool is called for a conversation that is halted."""

    def __init__(self, plugin: AssemblyMiddleware) -> None:
        self._plugin = plugin

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Call a tool, unless its conversation was halted since the model asked for it."""
        own = _session_id(context)
        halt = self._plugin.context_of(own).guard.halt if own is not None else None
        if halt is None:
            await call_next()
        else:
            context.result = f"Not called: {halt.reason}"


def _session_id(context: Any) -> str | None:
    """The id of the session that a call is made in."""
    found: str | None = getattr(context.session, "session_id", None)
    return found


def _messages(assembly: Assembly) -> list[Message]:
    return [event for event in assembly.events if isinstance(event, Message)]


async def _answered(conversation: PluginConversation, answer: ChatResponse) -> None:
    """Show observers what the model said; its tools are not called where that halted the conversation."""
    await conversation.show(answer.messages)
    if any(content.type == "function_call" for message in answer.messages for content in message.contents):
        conversation.context.guard.check()
