"""`AssemblyCapability`: a chain of our policies as a capability of a Pydantic AI agent, on its own messages."""

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
from otel_assembly.instrumentation.pydantic_ai.calls import CALLS, read
from otel_assembly.instrumentation.pydantic_ai.messages import behind_prompts, instructions_of, schemas_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer

#: Whether a model's messages are prepared with what else it is sent.
_WITH_PARAMETERS: Final = "model_request_parameters" in signature(Model.prepare_messages).parameters

#: Whether what is done before a request is done to that alone; in earlier releases the run's history keeps it.
_SENDS_ALONE: Final = hasattr(ModelRequestNode, "_apply_before_model_request")


class AssemblyCapability(Plugin[PluginConversation], AbstractCapability[Any]):
    """Our policies before each of an agent's requests: Pydantic AI's messages go in and come out, the very objects.

    The message history is left alone: what a policy drops is out of this request, and still in ``all_messages()``. What
    policies add to the prompts is added to the instructions. One object may serve any number of agents and of
    conversations, each of which is one ``conversation_id``. It is put behind all other capabilities, so that it has the
    last word on what is sent; what is enqueued for the request that is being made is added after it.

    A FATAL alert, of an observer, or sent with ``context_of(conversation).send(…)``, halts the conversation: no model
    and no tool is called any more, and the run raises `HaltedError`. `ContextOverflowError` of a budget that cannot
    hold goes through to whoever runs the agent as well.

    Args:
        policies: The chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts; by default the one that is called.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}`` for the memory policies: a
            mapping, or a function of the `RunContext` that returns one, async or not, called before each assembly. The
            run's own ``deps`` are there by their type.
        variables: Values for policies, by name; likewise.
        observers: Shown every message once, a response as soon as it is there, before its tools run; and every alert.

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
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        Plugin.__init__(
            self, policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )

    def context_of(self, conversation: str) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: Its ``conversation_id``.
        """
        return self._conversation(conversation).context

    def get_ordering(self) -> CapabilityOrdering:
        """Where it stands among the agent's capabilities: behind all others."""
        return CapabilityOrdering(position="innermost")

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """It is given in code, and never by a specification."""
        return None

    if _SENDS_ALONE:

        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            """Work out what this request's model gets to see.

            Raises:
                HaltedError: The conversation was halted; nothing is to be called for it any more.
                ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
                PolicyFailedError: A policy raised.
            """
            return await self._assembled(ctx, request_context)

    else:

        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
            """Work out what this request's model gets to see, and request that.

            Raises:
                HaltedError: The conversation was halted; nothing is to be called for it any more.
                ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
                PolicyFailedError: A policy raised.
            """
            return await handler(await self._assembled(ctx, request_context))

    async def _assembled(self, ctx: Any, request_context: Any) -> Any:
        conversation, parameters, model = self._of(ctx), request_context.model_request_parameters, request_context.model
        # As the model will be sent them: the framework says some things at greater length than they are kept.
        messages = model.prepare_messages(list(request_context.messages), *([parameters] if _WITH_PARAMETERS else []))
        system, held = behind_prompts(messages)
        prompts = [*system, *instructions_of(messages, parameters, model)]
        dependencies = {} if ctx.deps is None else {type(ctx.deps): ctx.deps}
        name, tools = getattr(ctx.agent, "name", None), schemas_of(parameters, model)
        async with conversation.turn(name, model.model_name, tools, model):
            await conversation.show(ctx.messages)
            assembly = await conversation.assemble(ctx, prompts, held, dependencies=dependencies)
        events = [event for event in assembly.events if isinstance(event, ModelRequest | ModelResponse)]
        made = list(assembly.prompts)
        if made != prompts:
            parts = model._get_instruction_parts(messages, parameters) or []  # noqa: SLF001  # as every model does
            if made[: len(prompts)] == prompts:
                made = made[len(prompts) :]
            else:
                system, parts = [], []
            parts = [*parts, *(InstructionPart(content=prompt, dynamic=True) for prompt in made)]
            request_context.model_request_parameters = replace(parameters, instruction_parts=parts)
        if assembly.prompts != prompts or not same_objects(events, held):
            request_context.messages = _in_front(messages, held, events, prompted=bool(system))
        CALLS.replaced_by_plugin(lambda: read(request_context).messages)
        return request_context

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
        """Show the observers what the model has answered."""
        await self._of(ctx).show([response])
        return response

    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        """Call no tool once the conversation is halted.

        Raises:
            HaltedError: It is.
        """
        halt = self._of(ctx).context.guard.halt
        if halt is not None:
            raise HaltedError(halt.reason, halt.source)
        return args

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "pydantic_ai", conversation_id, same=_same)

    def _of(self, ctx: Any) -> PluginConversation:
        return self._begin(None) if ctx.conversation_id is None else self._conversation(ctx.conversation_id)


def _in_front(messages: Sequence[Any], held: Sequence[Any], events: list[Any], *, prompted: bool) -> list[Any]:
    """What is sent: the messages that stay, and the system prompts that were in front of all, if those stay."""
    if not prompted:
        return events
    first = len(messages) - len(held)
    if held and events and events[0] is held[0]:
        return [*messages[: first + 1], *events[1:]]
    parts: list[Any] = []
    for message in messages[: first + 1]:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if part.part_kind != "system-prompt":
                break
            parts.append(part)
    return [ModelRequest(parts=parts), *events]


def _same(one: Any, other: Any) -> bool:
    """Whether two objects are the same message: of a response, the run keeps a copy."""
    return type(one) is type(other) and one.timestamp is not None and one.timestamp == other.timestamp
