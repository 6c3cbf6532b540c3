"""Hooks of Pydantic AI's agent runs and model requests.

A model call begins in ``CombinedCapability.before_model_request``, in which the capabilities change the messages. It is
recorded when ``Model.request`` or ``Model.request_stream`` receives the final messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.exceptions import ModelRetry, SkipModelRequest

from otel_assembly.instrumentation.clients import client, summariser_call
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.pydantic_ai.messages import instructions_of, schemas_of, split_prompts
from otel_assembly.instrumentation.reducers import known_of, limit_of
from otel_assembly.instrumentation.run_types import SequentialCalls
from otel_assembly.instrumentation.runs import run_argument_hook, run_hook
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.run_types import Preparing

#: True for model classes that only forward a request to another model, where it is recorded. `BatchedModel` derives
#: from `WrapperModel`, but sends its requests itself.
_FORWARDING_MODELS: Final = {"BatchedModel": False, "WrapperModel": True, "FallbackModel": True}
#: The prepared calls, by the run context that Pydantic AI passes to the capabilities and then to the model. A
#: capability raises these two exceptions to request a retry, or to answer instead of the model; neither is a failure.
CALLS: Final = SequentialCalls((ModelRetry, SkipModelRequest))


def _agent_name(ctx: Any) -> str | None:
    return getattr(ctx.agent, "name", None)


@run_hook
def prepare_call(instrumentation: Instrumentation, _: Any, ctx: Any, request: Any, **__: Any) -> Preparing:
    """Hook of ``CombinedCapability.before_model_request``: begin a model call, whose input is the run's history."""

    def create_call() -> ModelCall:
        invoking_agent, model = InvokingAgent.of(ctx.conversation_id, _agent_name(ctx)), request.model
        history, prompts, *_ = _with_prompts(ctx.messages, request.model_request_parameters, model)
        received = request_of(request)
        call = ModelCall(instrumentation, invoking_agent, messages=history, prompts=prompts, model=model.model_name)
        if not same_objects(history, received.messages):  # changed by a ``wrap_model_request``, which runs before
            report = StepReport("wrap_model_request", history, received.messages, kind=None, prompts=received.prompts)
            call.reduced(report)
        return call

    return CALLS.preparing(instrumentation, ctx, create_call)


def request_of(request_context: Any) -> ClientRequest:
    return _with_prompts(request_context.messages, request_context.model_request_parameters, request_context.model)


def _with_prompts(messages: Sequence[Any], parameters: Any, model: Any) -> ClientRequest:
    """Return the messages without leading system prompts, and as prompts these system prompts and the instructions."""
    system, events = split_prompts(messages)
    return ClientRequest(events, [*system, *instructions_of(messages, parameters, model)])


def _prepared_call(_: Instrumentation, model: Any, messages: Any, *args: Any, **kwargs: Any) -> ModelCall | None:
    """Return the call that was prepared for a request; None for a request by the program itself, without an agent."""
    return CALLS.of(argument(args, kwargs, 2, "run_context") or get_current_run_context())


def _client_request(model: Any, messages: Sequence[Any], *args: Any, **kwargs: Any) -> ClientRequest | None:
    """Return the request that a model receives; None if it forwards it, or only polls a job that the provider runs."""
    if known_of(type(model), _FORWARDING_MODELS, ("pydantic_ai.models",)):
        return None
    last = messages[-1] if messages else None
    if getattr(last, "state", "") == "suspended" and model.continuation_delay(last) is not None:
        return None  # a model with a polling interval: the messages were recorded when the job was submitted
    parameters = argument(args, kwargs, 1, "model_request_parameters")
    conversation = next((message.conversation_id for message in reversed(messages) if message.conversation_id), None)
    return _with_prompts(messages, parameters, model)._replace(
        tools=schemas_of(parameters, model),
        model=model.model_name,
        window=limit_of(model.profile, "context_window"),
        invoking_agent=InvokingAgent.of(conversation),
        unknown=_has_provider_history(messages, argument(args, kwargs, 0, "model_settings")),
    )


def _has_provider_history(messages: Sequence[Any], settings: Any) -> bool:
    """Return whether OpenAI stores the earlier messages of the conversation, so that only later ones are sent."""
    if not isinstance(settings, dict):
        return False
    for name in ("openai_previous_response_id", "openai_conversation_id"):
        reference = settings.get(name)
        if reference == "auto":  # refers to the latest response that has an id
            reference = any(getattr(message, "provider_response_id", None) for message in messages)
        if reference:
            return True
    return False


#: Hook of ``CombinedCapability.wrap_run``. The run begins in its argument ``handler``, because Pydantic AI's own span
#: is current only there.
run: Final = run_argument_hook(
    lambda instrumentation, _, ctx, **__: CALLS.run(instrumentation, _agent_name(ctx) or "agent", ctx.conversation_id),
    "handler",
)
#: Hook of ``Model.request`` and ``Model.request_stream``: records the request, and ends the call prepared for it.
model_request: Final = client(_client_request, lambda answer: answer.text or "", prepared=_prepared_call)
#: Hook of ``Model.compact_messages``: records a capability's compaction request to the provider under its step.
compaction_request: Final = summariser_call(
    lambda model, request, *_, **__: _client_request(model, request.messages, None, request.model_request_parameters)
)
