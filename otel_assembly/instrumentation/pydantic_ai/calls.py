"""Runs of an agent, and in them each model call from the capabilities that prepare it to the model that receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.exceptions import ModelRetry, SkipModelRequest

from otel_assembly.instrumentation.clients import client, summariser_call
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.pydantic_ai.messages import behind_prompts, instructions_of, schemas_of
from otel_assembly.instrumentation.reducers import limit_of
from otel_assembly.instrumentation.run_calls import SequentialCalls
from otel_assembly.instrumentation.runs import run_argument_hook, run_hook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.run_calls import Preparing

#: Whether a model hands on what it receives to others, which are told of; one sends it itself, with others' at once.
_HANDS_ON: Final = {"BatchedModel": False, "WrapperModel": True, "FallbackModel": True}
#: Known by the run context that is handed from where a call is prepared to where it is made. That a capability wants no
#: model called, or another request made, is no failure.
CALLS: Final = SequentialCalls("pydantic_ai", (ModelRetry, SkipModelRequest))


def _agent(ctx: Any) -> str | None:
    return getattr(ctx.agent, "name", None)


def _prepares(instrumentation: Instrumentation, _: Any, ctx: Any, request: Any, **__: Any) -> Preparing:
    """A call is prepared, each of whose steps is what a capability has done; what stands around all is the first."""

    def begun() -> ModelCall:
        invoking_agent, given = InvokingAgent.of(ctx.conversation_id, _agent(ctx)), read(request)
        held, prompts, *_ = _read(ctx.messages, request.model_request_parameters, request.model)
        call = ModelCall(
            instrumentation, invoking_agent, messages=held, prompts=prompts, model=request.model.model_name
        )
        if not same_objects(held, given.messages):
            call.reduced("wrap_model_request", held, given.messages, kind=None, prompts=given.prompts)
        return call

    return CALLS.prepares(instrumentation, ctx, begun)


def read(request: Any) -> ClientRequest:
    """What a request's messages are, as far as it is prepared, and what a model is told in front of them."""
    return _read(request.messages, request.model_request_parameters, request.model)


def _read(messages: Sequence[Any], parameters: Any, model: Any) -> ClientRequest:
    system, held = behind_prompts(messages)
    return ClientRequest(held, [*system, *instructions_of(messages, parameters, model)])


def _call_of(_: Instrumentation, model: Any, messages: Any, *args: Any, **kwargs: Any) -> ModelCall | None:
    """The call that was prepared for a request; None where there is none, as where a program calls a model itself."""
    return CALLS.of(argument(args, kwargs, 2, "run_context") or get_current_run_context())


def _sent(model: Any, messages: Sequence[Any], *args: Any, **kwargs: Any) -> ClientRequest | None:
    """What a model is given; None of one that hands it on."""
    if known_of(type(model), _HANDS_ON, ("pydantic_ai.models",)):
        return None
    last = messages[-1] if messages else None
    if getattr(last, "state", "") == "suspended" and model.continuation_delay(last) is not None:
        return None  # a job that runs at the provider is asked for what came of it: no model is called with that
    parameters = argument(args, kwargs, 1, "model_request_parameters")
    conversation = next((one.conversation_id for one in reversed(messages) if one.conversation_id), None)
    return _read(messages, parameters, model)._replace(
        tools=schemas_of(parameters, model),
        model=model.model_name,
        window=limit_of(model.profile, "context_window"),
        invoking_agent=InvokingAgent.of(conversation),
        unknown=_is_held(messages, argument(args, kwargs, 0, "model_settings")),
    )


def _is_held(messages: Sequence[Any], settings: Any) -> bool:
    """Whether OpenAI holds earlier messages of a request, so that it is sent the later ones alone."""
    if not isinstance(settings, dict):
        return False
    for name in ("openai_previous_response_id", "openai_conversation_id"):
        held = settings.get(name)
        if held == "auto":
            held = any(getattr(message, "provider_response_id", None) for message in messages)
        if held:
            return True
    return False


#: A run, around whose innermost handler the framework's own span is current.
run: Final = run_argument_hook(
    lambda instrumentation, _, ctx, **__: CALLS.run(instrumentation, _agent(ctx) or "agent", ctx.conversation_id),
    "handler",
)
prepared: Final = run_hook(_prepares)
#: A model's request, streamed or not: the end of the call that was prepared for it.
client_called: Final = client(_sent, lambda answer: answer.text or "", prepared=_call_of)
#: What a provider is given to compact, where a capability asks for that.
compaction_called: Final = summariser_call(
    lambda model, request, *_, **__: _sent(model, request.messages, None, request.model_request_parameters)
)
