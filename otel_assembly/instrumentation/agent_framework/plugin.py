"""The plug-in for agent-framework: `AssemblyMiddleware` runs otel-assembly's policies as chat middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_framework import ChatMiddleware, ChatResponse, FunctionMiddleware, Message, ResponseStream

import otel_assembly.instrumentation.agent_framework.messages  # noqa: F401  # registers the messages
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
    """Runs a chain of otel-assembly's policies before each model call of an agent.

    Pass it to an agent, ``Agent(client, middleware=[plugin, plugin.tools])``, or to a client. The policies process
    agent-framework's own message objects. Dropped messages are not sent to the model, but stay in the session. The
    agent's instructions and tools count toward the budget. One `AssemblyMiddleware` can serve several sessions. Put it
    after middleware that changes messages, and do not combine it with a ``compaction_strategy``, which would run later.

    A FATAL alert halts the conversation. An observer sends it, or your program with
    ``context_of(session_id).send(…)``. After that, no model is called, and runs of the agent raise `HaltedError`. If
    `tools` is in the agent's middleware, no tool is called either.

    Args:
        policies: The chain, or an `Assembler`.
        name: The assembler's name, as for `Assembler`.
        model: The model whose tokenizer counts tokens. Default: the client's model, if its name is known.
        agent_name: The agent's name in telemetry. Default: the name of the agent, while it is instrumented.
        dependencies: Objects for the policies by type, such as ``{KnowledgeStore: store}``: a mapping, or a sync or
            async function that returns one. The function is called with the call's `ChatContext` before each assembly.
        variables: Values for the policies by name, likewise.
        observers: Receive every message once, and every alert. They receive a response before its tools run.

    Attributes:
        tools: Function middleware for the agent. In a halted conversation, it answers tool calls without calling tools.

    Raises:
        ConfigurationError: A name or model is passed together with an `Assembler`, which has its own; or an argument
            is invalid.
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
        #: The conversations of runs without a session, by first message.
        self._runs: IdentityWeakMap[PluginConversation] = IdentityWeakMap()
        self.tools: FunctionMiddleware = _Tools(self)

    def context_of(self, conversation: str) -> Context:
        """Return the context of a conversation. Use it to send alerts to the conversation, or to halt it.

        Args:
            conversation: The ``session_id`` of the conversation's session.
        """
        return self._conversation(conversation).context

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Assemble the messages for a model call, then make the call with them. The framework calls this.

        Raises:
            HaltedError: The conversation is halted, or the response halted it and contains tool calls.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation, options = self._conversation_of(context), context.options or {}
        invoking_agent = RUNS.invoking_agent
        agent_name = self._agent_name or (invoking_agent.agent_name if invoking_agent is not None else None)
        messages, prompts = list(context.messages), prompts_of(options)
        client, tools = context.client, schemas_of(options.get("tools"))
        async with conversation.turn(agent_name, model_in(options, client), tools, client):
            await conversation.show(messages)
            assembly = await conversation.assemble(context, prompts, messages)
        context.messages = _messages(assembly)
        if assembly.prompts != prompts:
            context.options = {**options, "instructions": "\n\n".join(assembly.prompts)}
        middleware_input = MIDDLEWARE_INPUT.get()
        if middleware_input is not None:
            middleware_input.plugin = messages, list(context.messages), prompts_of(context.options)
        await call_next()
        if isinstance(context.result, ResponseStream):
            context.result = context.result.with_result_hook(lambda response: _show_response(conversation, response))
        elif context.result is not None:
            await _show_response(conversation, context.result)

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "agent_framework", conversation_id, same=same_content)

    def _conversation_of(self, context: Any) -> PluginConversation:
        session_id = _session_id(context)
        if session_id is not None:
            return self._conversation(session_id)
        first = next(iter(context.messages), None)
        return self._runs.get(first) or self._runs.put(first, self._begin(None))


class _Tools(FunctionMiddleware):
    """Function middleware that calls no tool in a halted conversation."""

    def __init__(self, plugin: AssemblyMiddleware) -> None:
        self._plugin = plugin

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Call a tool, or answer with the reason of the halt if the conversation is halted."""
        session_id = _session_id(context)
        halt = self._plugin.context_of(session_id).guard.halt if session_id is not None else None
        if halt is None:
            await call_next()
        else:
            context.result = f"Not called: {halt.reason}"


def _session_id(context: Any) -> str | None:
    session_id: str | None = getattr(context.session, "session_id", None)
    return session_id


def _messages(assembly: Assembly) -> list[Message]:
    return [event for event in assembly.events if isinstance(event, Message)]


async def _show_response(conversation: PluginConversation, response: ChatResponse) -> None:
    """Show a response to the observers. Raise `HaltedError` if that halts the conversation and it has tool calls."""
    await conversation.show(response.messages)
    if any(content.type == "function_call" for message in response.messages for content in message.contents):
        conversation.context.guard.check()
