"""`AssemblyCapability`, the plug-in for Pydantic AI: runs a policy chain before each model request of an agent.

It implements ``before_model_request`` (or ``wrap_model_request``), ``after_model_request`` and ``before_tool_execute``.
"""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai._agent_graph import ModelRequestNode
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.messages import InstructionPart, ModelRequest, ModelResponse
from pydantic_ai.models import Model

from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.instrumentation.pydantic_ai.calls import CALLS, request_of
from otel_assembly.instrumentation.pydantic_ai.messages import instructions_of, schemas_of, split_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer

#: Whether ``Model.prepare_messages`` also takes the request's parameters, which depends on the release.
_WITH_PARAMETERS: Final = "model_request_parameters" in signature(Model.prepare_messages).parameters

#: Whether ``before_model_request`` changes only the request. In earlier releases its changes are kept in the run's
#: history, so the plug-in uses ``wrap_model_request`` there.
_CHANGES_REQUEST_ONLY: Final = hasattr(ModelRequestNode, "_apply_before_model_request")


class AssemblyCapability(Plugin[PluginConversation], AbstractCapability[Any]):
    """A Pydantic AI capability that runs a policy chain on the messages of each model request.

    The chain receives and returns Pydantic AI's own message objects. The run's history stays complete: a message that a
    policy drops is missing from the request, but not from ``all_messages()``. Prompts that policies inject are added to
    the instructions.

    One object can serve any number of agents and conversations; a conversation is identified by its
    ``conversation_id``. The capability runs after all others. Only messages that are enqueued while the request is
    prepared are added after it, so the chain does not process them.

    An alert of severity FATAL halts the conversation: no model and no tool is called after it, and the run raises
    `HaltedError`. An observer sends the alert, or your program with ``context_of(conversation).send(…)``. If a budget
    cannot be met, the run raises `ContextOverflowError`.

    Args:
        policies: The policy chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The name of the model whose tokenizer counts the tokens; by default the model that is called.
        dependencies: Objects that policies need, by type, such as ``{KnowledgeStore: store}`` for the memory policies.
            Either a mapping, or a sync or async function that takes the `RunContext` and returns a mapping; it is
            called before each assembly. The run's ``deps`` are added by their type.
        variables: Values for policies, by name: a mapping, or a function as for `dependencies`.
        observers: Receive each message once, and each alert. They receive a response before its tools run.

    Raises:
        ConfigurationError: `name` or `model` is passed together with an `Assembler`, which has its own; or an argument
            has the wrong type.
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

    def context_of(self, conversation: str) -> Context:
        """Return the context of a conversation, which sends alerts and contains the guard that halts the conversation.

        Args:
            conversation: The conversation's ``conversation_id``.
        """
        return self._conversation(conversation).context

    def get_ordering(self) -> CapabilityOrdering:
        """Return the capability's position among those of the agent: after all others."""
        return CapabilityOrdering(position="innermost")

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: an agent specification cannot contain this capability, because policies are objects."""
        return None

    if _CHANGES_REQUEST_ONLY:

        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            """Run the policy chain on a request, and replace the request's messages and instructions with the output.

            Raises:
                HaltedError: The conversation is halted.
                ContextOverflowError: Content that must not be dropped exceeds a policy's budget.
                PolicyFailedError: A policy raised an exception.
            """
            return await self._assemble(ctx, request_context)

    else:

        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
            """Run the policy chain on a request, and send the request with the output.

            Raises:
                HaltedError: The conversation is halted.
                ContextOverflowError: Content that must not be dropped exceeds a policy's budget.
                PolicyFailedError: A policy raised an exception.
            """
            return await handler(await self._assemble(ctx, request_context))

    async def _assemble(self, ctx: Any, request_context: Any) -> Any:
        """Replace the messages and instructions of a request with the output of the policy chain."""
        parameters, model = request_context.model_request_parameters, request_context.model
        conversation = self._conversation_of(ctx)
        # The prepared messages can be longer than those in the history, and a budget has to count the prepared ones.
        messages = model.prepare_messages(list(request_context.messages), *([parameters] if _WITH_PARAMETERS else []))
        system, history = split_prompts(messages)
        prompts = [*system, *instructions_of(messages, parameters, model)]
        dependencies = {} if ctx.deps is None else {type(ctx.deps): ctx.deps}
        name, tools = getattr(ctx.agent, "name", None), schemas_of(parameters, model)
        async with conversation.turn(name, model.model_name, tools, model):
            await conversation.show(ctx.messages)
            assembly = await conversation.assemble(ctx, prompts, history, dependencies=dependencies)
        events = [event for event in assembly.events if isinstance(event, ModelRequest | ModelResponse)]
        new_prompts = list(assembly.prompts)
        if new_prompts != prompts:
            parts = model._get_instruction_parts(messages, parameters) or []  # noqa: SLF001  # as every model does
            if new_prompts[: len(prompts)] == prompts:  # the chain only added prompts: keep the instructions' parts
                new_prompts = new_prompts[len(prompts) :]
            else:  # all prompts become instructions
                system, parts = [], []
            parts = [*parts, *(InstructionPart(content=prompt, dynamic=True) for prompt in new_prompts)]
            request_context.model_request_parameters = replace(parameters, instruction_parts=parts)
        if assembly.prompts != prompts or not same_objects(events, history):
            request_context.messages = _with_system_prompts(messages, history, events, keeps_prompts=bool(system))
        CALLS.replaced_by_plugin(lambda: request_of(request_context).messages)
        return request_context

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
        """Pass the model's response to the observers."""
        await self._conversation_of(ctx).show([response])
        return response

    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        """Prevent a tool call if the conversation is halted.

        Raises:
            HaltedError: The conversation is halted.
        """
        halt = self._conversation_of(ctx).context.guard.halt
        if halt is not None:
            raise HaltedError(halt.reason, halt.source)
        return args

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "pydantic_ai", conversation_id, same=_is_same_message)

    def _conversation_of(self, ctx: Any) -> PluginConversation:
        return self._begin(None) if ctx.conversation_id is None else self._conversation(ctx.conversation_id)


def _with_system_prompts(
    messages: Sequence[Any], history: Sequence[Any], events: list[Any], *, keeps_prompts: bool
) -> list[Any]:
    """Return the chain's output with the system prompts that the request began with.

    Args:
        messages: The request's messages before the chain ran.
        history: These messages without the system prompts at their start.
        events: The chain's output.
        keeps_prompts: Whether the system prompts are kept; if not, the output is returned as it is.
    """
    if not keeps_prompts:
        return events
    first = len(messages) - len(history)  # the first message that contains more than system prompts
    if history and events and events[0] is history[0]:
        return [*messages[: first + 1], *events[1:]]
    parts: list[Any] = []
    for message in messages[: first + 1]:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if part.part_kind != "system-prompt":
                break
            parts.append(part)
    return [ModelRequest(parts=parts), *events]


def _is_same_message(left: Any, right: Any) -> bool:
    """Return whether two objects are the same message, by their time: the run keeps a copy of a response."""
    return type(left) is type(right) and left.timestamp is not None and left.timestamp == right.timestamp
