"""Runs of an agent, and in them each model call from the capabilities that prepare it to the model that receives it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.exceptions import ModelRetry, SkipModelRequest

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.conversation import Asker, ByIdentity
from otel_assembly.instrumentation.hooks import around_either, instead
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.pydantic_ai.messages import behind_prompts, instructions_of, schemas_of
from otel_assembly.instrumentation.pydantic_ai.reducers import before_request, read
from otel_assembly.instrumentation.reductions import REDUCTION, reducing
from otel_assembly.instrumentation.runs import awaited, within
from otel_assembly.instrumentation.splicing import same_objects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The step of capabilities that changed messages around the whole request, before any other.
_AROUND: Final = "wrap_model_request"
#: Models that hand on what they receive to others, which are told of; but one sends it on by itself, with what others
#: are to be sent.
_WRAPPERS: Final = frozenset({"WrapperModel", "FallbackModel"})
_BATCHED: Final = "BatchedModel"
#: What a capability does before a request; of some their own asks others, or does nothing.
_BEFORE: Final = "before_model_request"
_NO_REDUCERS: Final = frozenset({"AbstractCapability", "CombinedCapability", "WrapperCapability"})
#: What a plug-in of ours makes of a request.
_PLUGIN: Final = "_assembled"
#: What a capability raises so that no model is called, or another request is made.
_NO_ERRORS: Final = (ModelRetry, SkipModelRequest)


class Requests:
    """The requests of one run of an agent.

    Attributes:
        last: The model call that was prepared last; it may have been given up.
    """

    last: ModelCall | None = None

    def prepare(self, call: ModelCall | None = None) -> None:
        """Another call is prepared, or none any more: the one before is not made any more, if it was not."""
        if self.last is not None:
            self.last.end()
        self.last = call


#: The run whose body runs here; the framework itself carries what is set around its handler to where that is.
_REQUESTS: Final[ContextVar[Requests | None]] = ContextVar("otel_assembly_pydantic_ai_requests", default=None)
#: By the run context that the framework hands from where a call is prepared to where it is made.
_PREPARED: Final[ByIdentity[ModelCall]] = ByIdentity()


async def _run(
    instrumentation: Instrumentation,
    original: Callable[..., Awaitable[Any]],
    self: Any,
    ctx: Any,
    *args: Any,
    handler: Callable[[], Awaitable[Any]],
    **kwargs: Any,
) -> Any:
    """Run the innermost of a run's wrappers inside a run of ours: the framework's own span is current by then."""

    async def run() -> Any:
        opened, requests = None, Requests()
        with instrumentation.contained():
            opened = BoundRun(
                instrumentation,
                _agent(ctx) or "agent",
                {_REQUESTS: requests},
                conversation_id=ctx.conversation_id,
                ends=requests.prepare,
            )
        return await (handler() if opened is None else awaited(opened, handler()))

    return await original(self, ctx, *args, handler=run, **kwargs)


def _agent(ctx: Any) -> str | None:
    return getattr(ctx.agent, "name", None)


async def _prepared(
    instrumentation: Instrumentation,
    original: Callable[..., Awaitable[Any]],
    self: Any,
    ctx: Any,
    request_context: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Prepare a call, each of whose steps is what a capability has done.

    Capabilities in other ones are part of the same preparation. What an agent does that works for a reducer, such as a
    summariser, is that reducer's affair.
    """
    call, requests = CALL.get(), _REQUESTS.get()
    if requests is None or requests.last is not call:
        call = None
    if call is None and reducing() is None:
        with instrumentation.contained():
            call = _begun(instrumentation, ctx, request_context)
    with instrumentation.contained():
        _meet(instrumentation, self)
    try:
        with bound(CALL, call):
            return await original(self, ctx, request_context, *args, **kwargs)
    except BaseException as error:
        with instrumentation.contained():
            if call is not None:
                call.end(None if isinstance(error, _NO_ERRORS) else error)
        raise


def _begun(instrumentation: Instrumentation, ctx: Any, request: Any) -> ModelCall:
    conversation, name, given, requests = ctx.conversation_id, _agent(ctx), read(request), _REQUESTS.get()
    asker = Asker(conversation, name or "", name, conversation)
    call = _PREPARED.put(ctx, ModelCall(instrumentation, asker, model=request.model.model_name))
    if requests is not None:
        requests.prepare(call)
    instructions = instructions_of(request.model_request_parameters, request.model)
    system, held = behind_prompts(ctx.messages)
    call.came(held, prompts=[*system, *instructions])
    if not same_objects(held, given.messages):
        call.reduced(_AROUND, held, given.messages, kind=None, prompts=given.prompts)
    return call


def _meet(instrumentation: Instrumentation, capability: Any) -> None:
    """Wrap the hook of each capability's class, wherever that has it from; but never of the base of all."""
    waiting = [capability]
    while waiting:
        one = waiting.pop()
        waiting += getattr(one, "capabilities", None) or ()
        wrapped = getattr(one, "wrapped", None)
        if wrapped is not None:
            waiting.append(wrapped)
        if getattr(one, "otel_assembly_plugin", False):
            instrumentation.take(type(one), _PLUGIN, _told_by_itself)
            continue
        owner = next((base for base in type(one).__mro__ if _BEFORE in vars(base)), None)
        if owner is not None and owner.__name__ not in _NO_REDUCERS:
            instrumentation.take(owner, _BEFORE, before_request)


@around_either
def _told_by_itself(_: Instrumentation, *__: Any) -> Observation:
    """A plug-in of ours has made an assembly of the call that was prepared last."""
    requests, result = _REQUESTS.get(), (yield)
    if requests is not None and requests.last is not None:
        requests.last.by_plugin(read(result).messages)


def _call_of(_: Instrumentation, model: Any, messages: Any, *args: Any, **kwargs: Any) -> ModelCall | None:
    """The call that was prepared for a request; None where there is none, as where a program calls a model itself."""
    ctx = argument(args, kwargs, 2, "run_context") or get_current_run_context()
    return None if ctx is None or REDUCTION.get() is not None else _PREPARED.get(ctx)


def _sent(model: Any, messages: Sequence[Any], *args: Any, **kwargs: Any) -> Sent | None:
    """What a model is given; None of one that hands it on, and where it is asked whether it is done."""
    if _hands_on(model) or _is_awaited(model, messages):
        return None
    parameters = argument(args, kwargs, 1, "model_request_parameters")
    system, held = behind_prompts(messages)
    conversation = next((one.conversation_id for one in reversed(messages) if one.conversation_id), None)
    profile = model.profile
    return Sent(
        held,
        prompts=[*system, *instructions_of(parameters, model)],
        tools=schemas_of(parameters),
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


_told: Final = client(_sent, _text_of)
_within: Final = within(_call_of)
_compaction: Final = client(_compacted)

run: Final = instead(_run)
prepared: Final = instead(_prepared)


def client_called(original: Callable[..., Any], _: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """A model's request, streamed or not: the end of the call that was prepared for it."""
    return _within(_told(original, instrumentation), instrumentation)


def compaction_called(original: Callable[..., Any], _: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """A provider's own compaction."""
    return _compaction(original, instrumentation)
