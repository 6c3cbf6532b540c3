"""The plug-in for agent-framework: `AssemblyMiddleware` runs otel-assembly's policies as chat middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from agent_framework import ChatMiddleware, ChatResponse, FunctionMiddleware, Message, ResponseStream

import otel_assembly.instrumentation.agent_framework.messages  # noqa: F401  # registers the messages
from otel_assembly.instrumentation.agent_framework.calls import RUNS, prompts_of, schemas_of
from otel_assembly.instrumentation.agent_framework.chat_middleware import MIDDLEWARE_INPUT
from otel_assembly.instrumentation.clients import model_in
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, PluginSettings, TurnInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.policies.base import AssemblyPolicy


class AssemblyMiddleware(Plugin[PluginConversation], ChatMiddleware):
    """Runs a chain of otel-assembly's policies before each model call of an agent.

    Pass it to an agent, ``Agent(client, middleware=[plugin, plugin.tools])``, or to a client. The policies process
    agent-framework's own message objects. Dropped messages are not sent to the model, but stay in the session. The
    agent's instructions and tools count toward the budget. One `AssemblyMiddleware` can serve several sessions. Put it
    after middleware that changes messages, and do not combine it with a ``compaction_strategy``, which would run later.

    The id of a conversation is the ``session_id`` of its session. A FATAL alert halts the conversation: no model is
    called after it, and no tool if `tools` is in the agent's middleware. Functions for `dependencies` and `variables`
    get the call's `ChatContext`.

    Args:
        agent_name: The agent's name in telemetry. Default: the name of the agent, while it is instrumented.
        settings: The other arguments of `Plugin`.

    Attributes:
        tools: Function middleware for the agent. In a halted conversation, it answers tool calls without calling tools.
    """

    _framework = "agent_framework"
    _message_types = (Message,)
    _is_same = staticmethod(same_content)

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        agent_name: str | None = None,
        **settings: Unpack[PluginSettings],
    ) -> None:
        super().__init__(policies, **settings)
        self._agent_name = agent_name
        self.tools: FunctionMiddleware = _Tools(self)

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Assemble the messages for a model call, then make the call with them. The framework calls this.

        Raises:
            HaltedError: The conversation is halted, or the response halted it and contains tool calls.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation = self._conversation(_session_id(context), next(iter(context.messages), None))
        await self._run_policies(conversation, context)
        await call_next()
        if isinstance(context.result, ResponseStream):
            context.result = context.result.with_result_hook(lambda response: _show_response(conversation, response))
        elif context.result is not None:
            await _show_response(conversation, context.result)

    async def _read_input(self, request: Any) -> TurnInput:
        """Read the input from a `ChatContext`."""
        options, invoking_agent = request.options or {}, RUNS.invoking_agent
        return TurnInput(
            framework_object=request,
            prompts=prompts_of(options),
            messages=list(request.messages),
            agent_name=self._agent_name or (invoking_agent.agent_name if invoking_agent is not None else None),
            model=model_in(options, request.client),
            tools=schemas_of(options.get("tools")),
            client=request.client,
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> None:
        request.messages = messages
        if prompts != turn_input.prompts:
            request.options = {**(request.options or {}), "instructions": "\n\n".join(prompts)}
        middleware_input = MIDDLEWARE_INPUT.get()
        if middleware_input is not None:
            middleware_input.plugin = turn_input.messages, list(messages), prompts_of(request.options or {})


class _Tools(FunctionMiddleware):
    """Function middleware that calls no tool in a halted conversation."""

    def __init__(self, plugin: AssemblyMiddleware) -> None:
        self._plugin = plugin

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Call a tool, or answer with the reason of the halt if the conversation is halted."""
        session_id = _session_id(context)
        refusal = self._plugin._conversation(session_id).refusal if session_id is not None else None  # noqa: SLF001
        if refusal is None:
            await call_next()
        else:
            context.result = refusal


def _session_id(context: Any) -> str | None:
    session_id: str | None = getattr(context.session, "session_id", None)
    return session_id


async def _show_response(conversation: PluginConversation, response: ChatResponse) -> None:
    """Show a response to the observers. Raise `HaltedError` if that halts the conversation and it has tool calls."""
    contents = [content for message in response.messages for content in message.contents]
    has_tool_calls = any(content.type == "function_call" for content in contents)
    await conversation.show_response(response.messages, has_tool_calls=has_tool_calls)
