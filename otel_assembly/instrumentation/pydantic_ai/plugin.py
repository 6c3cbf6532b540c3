"""`AssemblyCapability`, the plug-in for Pydantic AI: runs a policy chain before each model request of an agent.

It implements ``before_model_request`` (or ``wrap_model_request``), ``after_model_request`` and ``before_tool_execute``.
"""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any, Final

from pydantic_ai._agent_graph import ModelRequestNode
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.messages import InstructionPart, ModelRequest, ModelResponse
from pydantic_ai.models import Model

from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, TurnInput
from otel_assembly.instrumentation.pydantic_ai.calls import CALLS, request_of
from otel_assembly.instrumentation.pydantic_ai.messages import (
    instructions_of,
    schemas_of,
    split_prompts,
    with_system_prompts,
)

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
    prepared are added after it, so the chain does not process them. Functions for `dependencies` and `variables` get
    the `RunContext`. The run's ``deps`` are also a dependency by their type.
    """

    _framework = "pydantic_ai"
    _message_types = (ModelRequest, ModelResponse)

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
            """Run the policy chain on a request, and send the request with the output. The errors are the same."""
            return await handler(await self._assemble(ctx, request_context))

    async def _assemble(self, ctx: Any, request_context: Any) -> Any:
        """Replace the messages and instructions of a request with the output of the policy chain."""
        parameters = [request_context.model_request_parameters] if _WITH_PARAMETERS else []
        # The prepared messages can be longer than those in the history, and a budget has to count the prepared ones.
        messages = request_context.model.prepare_messages(list(request_context.messages), *parameters)
        return await self._run_policies(self._conversation_of(ctx), (ctx, request_context, messages))

    async def _read_input(self, request: Any) -> TurnInput:
        ctx, request_context, messages = request
        parameters, model = request_context.model_request_parameters, request_context.model
        system, history = split_prompts(messages)
        return TurnInput(
            framework_object=ctx,
            prompts=[*system, *instructions_of(messages, parameters, model)],
            messages=history,
            agent_name=getattr(ctx.agent, "name", None),
            model=model.model_name,
            tools=schemas_of(parameters, model),
            client=model,
            shown=ctx.messages,
            dependencies={} if ctx.deps is None else {type(ctx.deps): ctx.deps},
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        _, request_context, prepared = request
        (system, history), before = split_prompts(prepared), turn_input.prompts
        parameters = request_context.model_request_parameters
        if prompts != before:
            parts = request_context.model._get_instruction_parts(prepared, parameters) or []  # noqa: SLF001
            added = prompts[len(before) :]
            if prompts[: len(before)] != before:  # not only additions: all prompts become instructions
                system, parts, added = [], [], prompts
            parts = [*parts, *(InstructionPart(content=prompt, dynamic=True) for prompt in added)]
            request_context.model_request_parameters = replace(parameters, instruction_parts=parts)
        if prompts != before or not same_objects(messages, history):
            request_context.messages = with_system_prompts(prepared, history, messages) if system else messages
        # If Pydantic AI is instrumented, the prepared call continues with the output.
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
        self._conversation_of(ctx).context.guard.check()
        return args

    @staticmethod
    def _is_same(left: Any, right: Any) -> bool:
        """Return whether two objects are the same message, by their time: the run keeps a copy of a response."""
        return type(left) is type(right) and left.timestamp is not None and bool(left.timestamp == right.timestamp)

    def _conversation_of(self, ctx: Any) -> PluginConversation:
        return self._conversation(ctx.conversation_id)
