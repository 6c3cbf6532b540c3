"""Runs of an agent, and in them each model call from the capabilities that prepare it to the model that receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.exceptions import ModelRetry, SkipModelRequest

from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.model_call import ModelCall, Sent
from otel_assembly.instrumentation.pydantic_ai.messages import behind_prompts, instructions_of, schemas_of
from otel_assembly.instrumentation.reductions import REDUCTION
from otel_assembly.instrumentation.run_calls import CallsInTurn
from otel_assembly.instrumentation.runs import within, within_argument
from otel_assembly.instrumentation.splicing import same_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.bound_runs import BoundRun
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.run_calls import Preparing

#: Models that hand on what they receive to others, which are told of; but one sends it on by itself, with what others
#: are to be sent.
_WRAPPERS: Final = frozenset({"WrapperModel", "FallbackModel"})
_BATCHED: Final = "BatchedModel"
#: Known by the run context that is handed from where a call is prepared to where it is made. That a capability wants no
#: model called, or another request made, is no failure.
CALLS: Final = CallsInTurn("pydantic_ai", (ModelRetry, SkipModelRequest))


def _run(instrumentation: Instrumentation, _: Any, ctx: Any, **__: Any) -> BoundRun:
    return CALLS.run(instrumentation, _agent(ctx) or "agent", ctx.conversation_id)


def _agent(ctx: Any) -> str | None:
    return getattr(ctx.agent, "name", None)


def _prepares(instrumentation: Instrumentation, _: Any, ctx: Any, request: Any, **__: Any) -> Preparing:
    """A call is prepared, each of whose steps is what a capability has done; what stands around all is the first."""

    def begun() -> ModelCall:
        conversation, name, given = ctx.conversation_id, _agent(ctx), read(request)
        asker = Asker(conversation, name or "", name, conversation)
        held, prompts, *_ = _read(ctx.messages, request.model_request_parameters, request.model)
        call = ModelCall(instrumentation, asker, messages=held, prompts=prompts, model=request.model.model_name)
        if not same_objects(held, given.messages):
            call.reduced("wrap_model_request", held, given.messages, kind=None, prompts=given.prompts)
        return call

    return CALLS.prepares(instrumentation, ctx, begun)


def read(request: Any) -> Sent:
    """What a request's messages are, as far as it is prepared, and what a model is told in front of them."""
    return _read(request.messages, request.model_request_parameters, request.model)


def _read(messages: Sequence[Any], parameters: Any, model: Any) -> Sent:
    system, held = behind_prompts(messages)
    return Sent(held, [*system, *instructions_of(messages, parameters, model)])


def _call_of(_: Instrumentation, model: Any, messages: Any, *args: Any, **kwargs: Any) -> ModelCall | None:
    """The call that was prepared for a request; None where there is none, as where a program calls a model itself."""
    return CALLS.of(argument(args, kwargs, 2, "run_context") or get_current_run_context())


def _sent(model: Any, messages: Sequence[Any], *args: Any, **kwargs: Any) -> Sent | None:
    """What a model is given; None of one that hands it on, and where it is asked whether it is done."""
    if _hands_on(model) or _is_awaited(model, messages):
        return None
    parameters, profile = argument(args, kwargs, 1, "model_request_parameters"), model.profile
    conversation = next((one.conversation_id for one in reversed(messages) if one.conversation_id), None)
    return _read(messages, parameters, model)._replace(
        tools=schemas_of(parameters, model),
        model=model.model_name,
        window=profile.get("context_window") if isinstance(profile, dict) else None,
        asker=Asker(conversation, "", None, conversation),
    )


def _hands_on(model: Any) -> bool:
    names = {one.__name__ for one in type(model).__mro__ if one.__module__.startswith("pydantic_ai.models.")}
    return bool(names & _WRAPPERS) and _BATCHED not in names


def _is_awaited(model: Any, messages: Sequence[Any]) -> bool:
    """Whether a job that runs at the provider is asked for what came of it: no model is called with that."""
    last = messages[-1] if messages else None
    return getattr(last, "state", "") == "suspended" and model.continuation_delay(last) is not None


def _text_of(answer: Any) -> str:
    return "\n".join(part.content for part in answer.parts if part.part_kind == "text")


def _compacted(model: Any, request_context: Any, *_: Any, **__: Any) -> Sent | None:
    """What a provider is given to compact, where a capability asks for that."""
    if REDUCTION.get() is None:
        return None
    return _sent(model, request_context.messages, None, request_context.model_request_parameters)


#: A run, around whose innermost handler the framework's own span is current.
run: Final = within_argument(_run, "handler")
prepared: Final = within(_prepares)
#: A model's request, streamed or not: the end of the call that was prepared for it.
client_called: Final = client(_sent, _text_of, prepared=_call_of)
#: A provider's own compaction.
compaction_called: Final = client(_compacted)
