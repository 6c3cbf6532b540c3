"""AutoGen's reducers: model contexts and memories, read from what went in and what came out.

The four contexts that AutoGen brings leave one contiguous range out, and strip at most one message at each edge of it:
what stays is looked at, however long the conversation has grown. Where one asks another, as a class does that calls its
base, each is a step. What a memory puts into a context is a step of the next call; AutoGen leaves it in the context, so
that from then on it is part of what comes in. Where a memory fails no call follows, for the run fails with it: then it
is the last step of an assembly that sends nothing.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.autogen.conversation import answered, asked_again, invoking_agent
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.instrumented import argument, context_value
from otel_assembly.instrumentation.known_reducers import ReducerSpec
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import CALL, ModelCall
from otel_assembly.instrumentation.reducers import is_ours
from otel_assembly.instrumentation.reductions import REDUCTION, Reduction
from otel_assembly.messages.context_messages import reported_skips
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


def stored_messages(context: Any) -> list[Any]:
    """What AutoGen's base class holds; nothing, of a class that holds its messages elsewhere."""
    stored = getattr(context, "_messages", None)
    return stored if isinstance(stored, list) else []


def _size(context: Any, attribute: str) -> int:
    return int(getattr(context, attribute, 0))


def _newest(context: Any, inputs: Sequence[Any], _: Sequence[Any]) -> Sequence[Any]:
    return inputs[max(0, len(inputs) - _size(context, "_buffer_size")) :]


def _ends(context: Any, inputs: Sequence[Any], _: Sequence[Any]) -> Sequence[Any]:
    head = _size(context, "_head_size")
    return [*inputs[:head], *inputs[max(head, len(inputs) - _size(context, "_tail_size")) :]]


def _skipped(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> int | None:
    """What stands in their place says how many they were, and nothing of what they said: they are dropped."""
    head = _size(context, "_head_size")
    notes = result[max(0, head - 1) : head + 1] if len(inputs) > head + _size(context, "_tail_size") else ()
    return next((skips for skips in map(reported_skips, notes) if skips is not None), None)


def _oldest(_: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Sequence[Any]:
    """It pops the middle, so that the oldest message is the last to go; then one result is stripped if it leads."""
    return inputs[:1] if result or (len(inputs) == 1 and describe(inputs[0]).closes) else ()


def _token_limit(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> int | None:
    """Where only the model's client knows it, it is asked when nothing is left: that is how much it has left then."""
    limit: int | None = getattr(context, "_token_limit", None)
    client = getattr(context, "_model_client", None)
    if limit is not None or client is None or result or not inputs:
        return limit
    return max(0, int(client.remaining_tokens([], tools=getattr(context, "_tool_schema", []))))


_OUTSIDE: Final = DecisionReason.OUTSIDE_WINDOW
_KNOWN: Final[Mapping[str, ReducerSpec]] = {
    "UnboundedChatCompletionContext": ReducerSpec("unbounded"),
    "BufferedChatCompletionContext": ReducerSpec(
        "buffered", reason=_OUTSIDE, settings={"buffer_size": "_buffer_size"}, stays=_newest
    ),
    "HeadAndTailChatCompletionContext": ReducerSpec(
        "head_and_tail",
        reason=_OUTSIDE,
        settings={"head_size": "_head_size", "tail_size": "_tail_size"},
        stays=_ends,
        reported=_skipped,
    ),
    "TokenLimitedChatCompletionContext": ReducerSpec(
        "token_limited",
        reason=DecisionReason.OVER_BUDGET,
        settings={"token_limit": "_token_limit"},
        stays=_oldest,
        limit=_token_limit,
    ),
}


def observed_context(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """``get_messages`` of one class: one of AutoGen's own, or a custom one, named by the class's name."""
    builtin = _KNOWN.get(owner.__name__) if owner.__module__.startswith("autogen_core.") else None
    known = builtin or ReducerSpec(owner.__name__)

    @observe_async_hook
    def get_messages(instrumentation: Instrumentation, context: Any, /, *_: Any, **__: Any) -> Observation:
        prepared, around = CALL.get(), REDUCTION.get()
        if around is not None and (prepared is None or around.call is not prepared):
            around = None
        if _REMEMBERING.get() or (around is not None and around.step is not None):
            return  # a context that has asked a model is one step, with all that it asks
        if around is None:
            asked_again(context)
        call = prepared or ModelCall(instrumentation, invoking_agent(context))
        if is_ours(context):
            call.replaced_by_plugin((yield))
        else:
            yield from _reduces(instrumentation, context, known, call)
        if prepared is None:
            answered(context, call)

    return get_messages(original, instrumentation)


def _reduces(instrumentation: Instrumentation, context: Any, known: ReducerSpec, call: ModelCall) -> Observation:
    stored, seen = stored_messages(context), call.messages
    reduction = Reduction(instrumentation, known.policy, stored, config=known.config(context), call=call)
    alone = CALL.get() is None
    try:
        with context_value(CALL, call), reduction.tracked():
            result = yield
    except BaseException as error:
        if alone:
            call.end(error)
        raise
    if result is None:
        return  # of the base class, which defines nothing
    if call.messages is not seen:  # it has asked others
        reduction.before = [*call.out]
    elif result and _stores_by_itself(context) and locate(reduction.before, result) is None:
        call.unknown, reduction.before = True, [*result]
    known.done(reduction, context, result)


def _stores_by_itself(context: Any) -> bool:
    """Whether a class takes messages in by a method of its own, so that only the class knows where they are."""
    owner = next((one for one in type(context).__mro__ if "add_message" in vars(one)), type(context))
    return not owner.__module__.startswith("autogen_core.")


#: Whether a memory puts what it has into a context here: what it asks that context is no model's to see.
_REMEMBERING: Final[ContextVar[bool]] = ContextVar("otel_assembly_autogen_remembering", default=False)


def observed_memory(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """``update_context`` of one class."""
    policy = "memory" if owner.__module__.startswith(("autogen_core.", "autogen_ext.")) else owner.__name__

    @observe_async_hook
    def update_context(instrumentation: Instrumentation, _: Any, /, *args: Any, **kwargs: Any) -> Observation:
        if _REMEMBERING.get():
            return
        context = argument(args, kwargs, 0, "model_context")
        identity = invoking_agent(context)
        reduction = Reduction(instrumentation, policy, stored_messages(context), kind="injection")
        try:
            with context_value(_REMEMBERING, True):
                yield
        except BaseException as error:
            reduction.ended(error, identity)
            raise
        if len(after := stored_messages(context)) > len(reduction.before):
            reduction.done(after, invoking_agent=identity)

    return update_context(original, instrumentation)
