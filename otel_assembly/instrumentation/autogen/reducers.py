"""Records AutoGen's reducers: ``get_messages`` of model contexts and ``update_context`` of memories.

AutoGen's own four contexts drop one contiguous range, and at most one more message at each end of it. If a context
reads another one, such as a subclass that calls its base class, each is a step. The messages that a memory injects are
a step of the next model call. AutoGen keeps them in the context, so they belong to the input of later calls.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.autogen.conversation import end_unsent_call, invoking_agent, remember_call
from otel_assembly.instrumentation.context_variables import CALL, REDUCTION
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.instrumented import argument, context_value
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.model_call import ModelCall
from otel_assembly.instrumentation.reducers import ReducerSpec, is_ours
from otel_assembly.instrumentation.reductions import Reduction
from otel_assembly.messages.context_messages import reported_skips
from otel_assembly.messages.event_facts import describe
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


def stored_messages(context: Any) -> list[Any]:
    """Return the messages that AutoGen's base class stores; empty for a class that stores them elsewhere."""
    stored = getattr(context, "_messages", None)
    return stored if isinstance(stored, list) else []


def _size(context: Any, attribute: str) -> int:
    return int(getattr(context, attribute, 0))


def _newest_messages(context: Any, inputs: Sequence[Any], _: Sequence[Any]) -> Sequence[Any]:
    return inputs[max(0, len(inputs) - _size(context, "_buffer_size")) :]


def _head_and_tail(context: Any, inputs: Sequence[Any], _: Sequence[Any]) -> Sequence[Any]:
    # Without overlap, because AutoGen returns a short conversation whole.
    head = _size(context, "_head_size")
    return [*inputs[:head], *inputs[max(head, len(inputs) - _size(context, "_tail_size")) :]]


def _skipped_count(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> int | None:
    """Return the count in the note that replaces the dropped messages; None without such a note."""
    head = _size(context, "_head_size")
    notes = result[max(0, head - 1) : head + 1] if len(inputs) > head + _size(context, "_tail_size") else ()
    return next((count for count in map(reported_skips, notes) if count is not None), None)


def _oldest_message(_: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Sequence[Any]:
    """Return what the token limit keeps for certain: the oldest message, because AutoGen drops from the middle."""
    # AutoGen then also removes the oldest message if it is a tool result. Without any output, that is the reason only
    # if the input was one tool result; otherwise the limit was too small for all messages.
    return inputs[:1] if result or (len(inputs) == 1 and describe(inputs[0]).closes) else ()


def _token_limit(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> int | None:
    """Return the token limit of a context; None if it is that of the client and was not exceeded."""
    limit: int | None = getattr(context, "_token_limit", None)
    client = getattr(context, "_model_client", None)
    is_exceeded = inputs and not result
    if limit is not None or client is None or not is_exceeded:
        return limit
    # To read the remaining tokens, the client counts those of the tools. So this is done for an overflow only.
    return max(0, int(client.remaining_tokens([], tools=getattr(context, "_tool_schema", []))))


_OUTSIDE: Final = DecisionReason.OUTSIDE_WINDOW
_BUILTIN_CONTEXTS: Final[Mapping[str, ReducerSpec]] = {
    "UnboundedChatCompletionContext": ReducerSpec("unbounded"),
    "BufferedChatCompletionContext": ReducerSpec(
        "buffered", reason=_OUTSIDE, settings={"buffer_size": "_buffer_size"}, keeps=_newest_messages
    ),
    "HeadAndTailChatCompletionContext": ReducerSpec(
        "head_and_tail",
        reason=_OUTSIDE,
        settings={"head_size": "_head_size", "tail_size": "_tail_size"},
        keeps=_head_and_tail,
        reported=_skipped_count,
    ),
    "TokenLimitedChatCompletionContext": ReducerSpec(
        "token_limited",
        reason=DecisionReason.OVER_BUDGET,
        settings={"token_limit": "_token_limit"},
        keeps=_oldest_message,
        limit=_token_limit,
    ),
}


def context_hook(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """Hook ``get_messages`` of one class of model contexts. The step of a custom class has the name of the class.

    If custom code reads the context, no call is prepared: the read begins one, which the client's request continues.
    """
    builtin = _BUILTIN_CONTEXTS.get(owner.__name__) if owner.__module__.startswith("autogen_core.") else None
    spec = builtin or ReducerSpec(owner.__name__)

    @observe_async_hook
    def get_messages(instrumentation: Instrumentation, context: Any, /, *_: Any, **__: Any) -> Observation:
        prepared, reduction = CALL.get(), REDUCTION.get()
        # The context that reads this one. In an agent that a reducer runs, the reduction belongs to another call.
        outer = reduction if reduction is not None and prepared is not None and reduction.call is prepared else None
        is_in_open_step = outer is not None and outer.step is not None  # the outer context called a summarizer before
        if UPDATING_CONTEXT.get() or is_in_open_step:  # read by a memory, or as a part of the outer context's step
            return
        if outer is None:
            end_unsent_call(context)  # the messages of the last read were not sent
        call = prepared or ModelCall(instrumentation, invoking_agent(context))
        if is_ours(context):
            messages = yield
            call.replaced_by_plugin(messages)
        else:
            yield from _observe_reduction(instrumentation, context, spec, call)
        if prepared is None:  # the client's request will find the call by its messages
            remember_call(context, call)

    return get_messages(original, instrumentation)


def _observe_reduction(
    instrumentation: Instrumentation, context: Any, spec: ReducerSpec, call: ModelCall
) -> Observation:
    """Observe ``get_messages`` of a context, and record what it drops as a step of the call."""
    stored, call_messages = stored_messages(context), call.messages
    reduction = Reduction(instrumentation, StepReport(spec.policy, stored, config=spec.config(context)), call=call)
    is_unprepared = CALL.get() is None
    try:
        with context_value(CALL, call), reduction.tracked():
            result = yield
    except BaseException as error:
        if is_unprepared:  # nothing else knows the call, so nothing else ends it
            call.end(error)
        raise
    if result is None:
        return  # the abstract method of the base class
    if call.messages is not call_messages:  # this context has read other contexts, whose output is its input
        reduction.before = [*call.out]
    else:
        # A class outside of AutoGen that implements ``add_message`` may store messages elsewhere.
        owner = next((base for base in type(context).__mro__ if "add_message" in vars(base)), type(context))
        has_own_storage = not owner.__module__.startswith("autogen_core.")
        if result and has_own_storage and locate(reduction.before, result) is None:
            call.unknown, reduction.before = True, [*result]  # the input is not known, so the output is taken for it
    spec.done(reduction, context, result)


#: True while a memory updates a context, except in an agent that the memory runs. Messages that the memory reads from
#: the context are not for a model.
UPDATING_CONTEXT: Final[ContextVar[bool]] = ContextVar("otel_assembly_autogen_updating_context", default=False)


def memory_hook(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """Hook ``update_context`` of one class of memories. The step of a custom class has the name of the class.

    AutoGen updates the context before it prepares a model call, so the step is deferred to the agent's next call. Only
    added messages are a step: a memory that rewrites the context injects nothing.
    """
    policy = "memory" if owner.__module__.startswith(("autogen_core.", "autogen_ext.")) else owner.__name__

    @observe_async_hook
    def update_context(instrumentation: Instrumentation, _: Any, /, *args: Any, **kwargs: Any) -> Observation:
        if UPDATING_CONTEXT.get():
            return  # called by another memory, as a part of its step
        context = argument(args, kwargs, 0, "model_context")
        agent = invoking_agent(context)
        reduction = Reduction(instrumentation, StepReport(policy, stored_messages(context), kind="injection"))
        try:
            with context_value(UPDATING_CONTEXT, True):
                yield
        except BaseException as error:
            reduction.prevented_call(error, agent)  # the agent's run fails, so no model call follows
            raise
        if len(after := stored_messages(context)) > len(reduction.before):
            reduction.done(after, invoking_agent=agent)

    return update_context(original, instrumentation)
