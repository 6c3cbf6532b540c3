"""`AssemblyConversationManager`: a conversation manager for Strands agents that runs a policy chain."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from strands.agent.conversation_manager import ConversationManager
from strands.hooks import AgentInitializedEvent, BeforeToolCallEvent
from strands.types._events import ModelStopReason
from strands.types.exceptions import EventLoopException

from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, TurnInput, record_output
from otel_assembly.instrumentation.strands.calls import invoking_agent_of, model_of
from otel_assembly.instrumentation.strands.messages import (
    AlternatingRoles,
    model_messages,
    prompts_of,
    schemas_of,
    with_prompts,
)

try:
    from strands.middleware import InvokeModelStage
except ImportError:  # releases below 1.62
    try:
        from strands._middleware import InvokeModelStage
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "AssemblyConversationManager needs middleware, which strands-agents has since 1.51; "
            "install a later release: pip install 'strands-agents>=1.51,<2'"
        ) from missing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from otel_assembly.context import Context


class AssemblyConversationManager(Plugin[PluginConversation], ConversationManager):
    """Runs a policy chain before each model call of an agent, on Strands' own messages.

    Pass it to an agent: ``Agent(conversation_manager=AssemblyConversationManager(policies))``. It becomes the agent's
    last middleware. The agent's messages and its session are not changed: a message that a policy drops is missing from
    this model call only. One manager can serve any number of agents. Prompts that policies add become part of the
    system prompt, and a summary becomes a user message. Neighboring messages of one role are joined, because Bedrock
    rejects them otherwise. Functions for `dependencies` and `variables` get the `InvokeModelContext`.
    """

    _framework = "strands"
    _message_types = (dict,)
    _hides_model_calls = True
    _is_same = staticmethod(same_content)

    def _initialize(self) -> None:
        ConversationManager.__init__(self)
        self.assembler = self.assembler.followed_by([AlternatingRoles()])

    def context_of(self, agent: Any) -> Context:
        """Return the context of an agent's conversation, to send alerts to it or to halt it with its guard."""
        return self._conversation_of(agent).context

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        """Register callbacks that add the middleware, and that refuse tool calls while the conversation is halted."""
        super().register_hooks(registry, **kwargs)
        registry.add_callback(AgentInitializedEvent, self._add_middleware)
        registry.add_callback(BeforeToolCallEvent, self._cancel_tool)

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        """Do nothing: the policies run before each model call, and the agent's messages are not changed."""

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        """Raise the model's context overflow; the agent's messages are not changed.

        Running the policies again would not help: the budget is larger than the model's window.

        Raises:
            Exception: The context overflow, if `e` is passed.
        """
        if e is not None:
            raise e

    def _add_middleware(self, event: Any) -> None:
        registry = event.agent._middleware_registry  # noqa: SLF001  # older releases have no public name for it
        registry.add_middleware(InvokeModelStage, self._invoke_model)

    async def _invoke_model(self, context: Any, next_fn: Callable[[Any], Any]) -> AsyncGenerator[Any, None]:
        """Middleware: run the policies, call the model with the result, and show the response to the observers."""
        try:
            conversation = self._conversation_of(context.agent)
            async for event in next_fn(await self._run_policies(conversation, context)):
                if isinstance(event, ModelStopReason):
                    response = event["stop"][1]
                    has_tool_calls = any("toolUse" in block for block in response["content"])
                    await conversation.show_response([response], has_tool_calls=has_tool_calls)
                yield event
        except AssemblyError as error:  # the same object, so that its attributes and traceback are kept
            error.__class__ = _event_loop_error(type(error))  # type: ignore[arg-type]  # a class can be hashed
            raise

    async def _read_input(self, request: Any) -> TurnInput:
        """Read the input from an `InvokeModelContext`."""
        agent, model, tools = request.agent, request.model, schemas_of(request.tool_specs)
        # Middleware receives copies, which Strands gives the same ``tracking_id``; a changed copy is kept.
        originals = {message.get("tracking_id"): message for message in agent.messages}
        messages = []
        for copy in request.messages:
            original = originals.get(copy.get("tracking_id"))
            messages.append(original if original == copy else copy)
        return TurnInput(
            framework_object=request,
            prompts=prompts_of(request.system_prompt),
            messages=messages,
            agent_name=agent.name,
            model=model_of(model),
            tools=tools,
            client=model,
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        record_output(lambda: (prompts, model_messages(messages)))
        system_prompt = with_prompts(request.system_prompt, turn_input.prompts, prompts)
        return replace(request, messages=messages, system_prompt=system_prompt)

    def _cancel_tool(self, event: Any) -> None:
        refusal = self._conversation_of(event.agent).refusal
        if refusal is not None:
            event.cancel_tool = refusal

    def _conversation_of(self, agent: Any) -> PluginConversation:
        invoking_agent = invoking_agent_of(agent)
        session = invoking_agent.conversation_id
        return self._conversation(session, agent, key=f"{session}\0{invoking_agent.name}")


@lru_cache(maxsize=32)
def _event_loop_error(error_type: type[AssemblyError]) -> type[AssemblyError]:
    """Return a subclass of an error's class that is also an `EventLoopException`, with the same name.

    Strands' event loop wraps most other exceptions in an `EventLoopException`, which would hide the error's class.
    """
    if issubclass(error_type, EventLoopException):
        return error_type
    names = {"__module__": error_type.__module__, "__qualname__": error_type.__qualname__}
    return type(error_type.__name__, (error_type, EventLoopException), names)
