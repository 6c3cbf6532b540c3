"""`AssemblyConversationManager`: a conversation manager for Strands agents that runs a policy chain."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from strands.agent.conversation_manager import ConversationManager
from strands.hooks import AgentInitializedEvent, BeforeToolCallEvent
from strands.types._events import ModelStopReason
from strands.types.exceptions import EventLoopException

from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.instrumentation.reductions import plugin_scope
from otel_assembly.instrumentation.strands.calls import invoking_agent_of, model_of
from otel_assembly.instrumentation.strands.messages import model_messages, prompts_of, schemas_of

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
    from collections.abc import AsyncGenerator, Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssemblyConversationManager(Plugin[PluginConversation], ConversationManager):
    """Runs a policy chain before each model call of an agent, on Strands' own messages.

    Pass it to an agent: ``Agent(conversation_manager=AssemblyConversationManager(policies))``. It becomes the agent's
    last middleware. The agent's messages and its session are not changed: a message that a policy drops is missing from
    this model call only. One manager can serve any number of agents. Prompts that policies add become part of the
    system prompt, and a summary becomes a user message. Neighboring messages of one role are joined, because Bedrock
    rejects them otherwise.

    A FATAL alert from an observer, or from ``context_of(agent).send(…)``, halts the conversation: no model and no tool
    is called after it, and the run raises `HaltedError`. The run also raises `ContextOverflowError` if a budget is
    exceeded by messages that must not be dropped.

    Args:
        policies: The policy chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts tokens; by default the model that is called.
        dependencies: Objects that policies need, by type, such as ``{KnowledgeStore: store}``. Either a mapping, or a
            function, async or not, that returns one; it is called with the `InvokeModelContext` before each assembly.
        variables: Values for policies, by name: a mapping or a function, as for `dependencies`.
        observers: Objects that receive each message once, and each alert. They receive a response before its tools run.

    Raises:
        ConfigurationError: An argument has the wrong type, or `name` or `model` is passed together with an `Assembler`,
            which has its own.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        Plugin.__init__(
            self, policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        ConversationManager.__init__(self)
        self.assembler = self.assembler.followed_by([_AlternatingRoles()])
        #: The conversations of agents without a session.
        self._by_agent: IdentityWeakMap[PluginConversation] = IdentityWeakMap()

    def context_of(self, agent: Any) -> Context:
        """Return the context of an agent's conversation, to send alerts to it or to halt it with its guard.

        Args:
            agent: The agent.
        """
        return self._conversation_of(agent).context

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        """Register callbacks that add the middleware to the agent, and that run before each tool."""
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
            context = await self._assemble(conversation, context)
            async for event in next_fn(context):
                if isinstance(event, ModelStopReason):
                    message = event["stop"][1]
                    await conversation.show([message])
                    if any("toolUse" in block for block in message["content"]):
                        conversation.context.guard.check()
                yield event
        except AssemblyError as error:
            error.__class__ = _event_loop_error(type(error))  # type: ignore[arg-type]  # a class can be hashed
            raise

    async def _assemble(self, conversation: PluginConversation, context: Any) -> Any:
        """Return a copy of an `InvokeModelContext` with the messages and the system prompt to send to the model."""
        agent, call = context.agent, CALL.get()
        prompts, history = prompts_of(context.system_prompt), _originals(agent.messages, context.messages)
        model, tools = context.model, schemas_of(context.tool_specs)
        async with conversation.turn(agent.name, model_of(model), tools, model):
            await conversation.show(history)
            with nullcontext() if call is None else plugin_scope(call.instrumentation, call):
                assembly = await conversation.assemble(context, prompts, history)
        messages, new_prompts = _messages(assembly.events), list(assembly.prompts)
        if call is not None:
            with call.instrumentation.suppress_errors():
                call.replaced_by_plugin(model_messages(messages), prompts=new_prompts)
        system_prompt = _system_prompt(context.system_prompt, prompts, new_prompts)
        return replace(context, messages=messages, system_prompt=system_prompt)

    def _cancel_tool(self, event: Any) -> None:
        """Cancel a tool call if the conversation is halted."""
        halt = self._conversation_of(event.agent).context.guard.halt
        if halt is not None:
            event.cancel_tool = f"Not called: {halt.reason}"

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        # See `_conversation_of`: the session's id, and the agent's.
        session = conversation_id.partition("\0")[0] if conversation_id is not None else None
        return PluginConversation(self, "strands", session, same=same_content)

    def _conversation_of(self, agent: Any) -> PluginConversation:
        invoking_agent = invoking_agent_of(agent)
        if invoking_agent.conversation_id is not None:
            return self._conversation(f"{invoking_agent.conversation_id}\0{invoking_agent.name}")
        return self._by_agent.get_or_create(agent, lambda _: self._begin(None))


class _AlternatingRoles:
    """A policy that joins neighboring messages of one role, because Bedrock requires alternating roles."""

    name = "alternating_roles"
    kind = "reduction"

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the prompts, and the events with neighboring messages of one role joined.

        Other events between two messages, such as alerts, do not separate them.
        """
        message_ids, last_index = set(map(id, _messages(events))), 0
        joined: list[Any] = []
        last: Any = None
        for event in events:
            if last is not None and id(event) in message_ids and event["role"] == last["role"]:
                last = {**last, "content": [*last["content"], *event["content"]]}
                joined[last_index] = last
            else:
                last_index, last = (len(joined), event) if id(event) in message_ids else (last_index, last)
                joined.append(event)
        return prompts, joined


def _originals(messages: Sequence[Any], copies: Sequence[Any]) -> list[Any]:
    """Return the agent's own messages for the copies that middleware receives; changed copies are kept.

    Args:
        messages: The agent's messages.
        copies: The copies, which Strands gives the same ``tracking_id``.
    """
    by_id = {message.get("tracking_id"): message for message in messages}
    return [original if (original := by_id.get(copy.get("tracking_id"))) == copy else copy for copy in copies]


def _messages(events: Sequence[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, dict)]


def _system_prompt(system_prompt: Any, prompts: list[str], new_prompts: list[str]) -> Any:
    """Return the system prompt to send.

    If policies only added prompts, these follow the content blocks of the original, which can include cache points.

    Args:
        system_prompt: The original system prompt: a text or content blocks.
        prompts: The texts of the original.
        new_prompts: The texts after the policies.
    """
    if new_prompts == prompts:
        return system_prompt
    blocks = system_prompt if isinstance(system_prompt, list) else [{"text": text} for text in prompts]
    if new_prompts[: len(prompts)] == prompts:
        return [*blocks, *({"text": text} for text in new_prompts[len(prompts) :])]
    return [{"text": text} for text in new_prompts]


@lru_cache(maxsize=32)
def _event_loop_error(error_type: type[AssemblyError]) -> type[AssemblyError]:
    """Return a subclass of an error's class that is also an `EventLoopException`, with the same name.

    Strands' event loop wraps most other exceptions in an `EventLoopException`, which would hide the error's class.
    """
    if issubclass(error_type, EventLoopException):
        return error_type
    names = {"__module__": error_type.__module__, "__qualname__": error_type.__qualname__}
    return type(error_type.__name__, (error_type, EventLoopException), names)
