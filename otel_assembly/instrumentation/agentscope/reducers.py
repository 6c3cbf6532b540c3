"""AgentScope's reducers: contexts that are compressed, images beyond a limit, and tool results that are too long."""

from __future__ import annotations

import math
from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.agentscope.conversation import (
    REPLYING,
    events_of,
    invoking_agent_of,
    named,
    not_called,
    prepared,
)
from otel_assembly.instrumentation.agentscope.messages import part_of
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredReduction
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.instrumented import argument, context_value, on_exit
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.reductions import REDUCTION, Reducer, Reduction, reducer, reducing
from otel_assembly.instrumentation.summaries import summed_up

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agentscope.messages import Part
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


_POLICY: Final = "compress_context"
_SETTINGS: Final = ("trigger_ratio", "reserve_ratio", "compression_fallback_to_truncation")


@observe_async_hook
def compress_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent.compress_context``: what is done in it is done for the agent's next model call.

    A middleware may compress in a way of its own, with or without AgentScope's.
    """
    call, before = prepared(instrumentation, agent), agent.state.context
    middlewares = getattr(agent, "_compress_context_middlewares", ())
    policy = named(middlewares, "on_compress_context")
    own = call.compressing = call.middleware(policy, events_of(agent)) if middlewares else None

    def over(error: BaseException | None) -> None:
        if own is not None and own.over:  # AgentScope's stood in it, and is told
            call.middleware(policy, call.out).done(events_of(agent))
        elif own is not None:
            step = own.open() if error is not None else None
            own.done(events_of(agent))
            if step is not None:
                step.failed(error)
        if isinstance(error, CancelledError) and agent.state.context is not before:
            error = None  # it came once that was applied, and does not undo it
        if error is not None or REPLYING.get() is not agent:
            not_called(agent, error, stays=True)

    with on_exit(over), call.current(), context_value(REDUCTION, own):
        yield


@observe_async_hook
def compress(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._compress_context_impl``, which almost always finds nothing to do: then nothing is read."""
    config, call = argument(args, kwargs, 0, "context_config") or agent.context_config, prepared(instrumentation, agent)
    size, context = agent.model.context_size, agent.state.context
    settings = {"context_size": size, **{name: getattr(config, name, None) for name in _SETTINGS}}
    trigger = int(config.trigger_ratio * size)
    # For the call as it stands once there is something to do.
    compression = Reduction(instrumentation, _POLICY, (), config=settings, finds=lambda *_: (call, None))
    call.estimate = None

    def over(error: BaseException | None) -> None:
        if compression.before and (error is None or agent.state.context is not context):
            after = events_of(agent)
            why = summed_up(compression, after, *after[:1])
            limit: dict[str, Any] = {"budget": trigger, "of_prompt": True, "reason": DecisionReason.OVER_BUDGET}
            compression.done(after, verdicts=why, stands_in=False, **limit)
        elif error is None:
            instrumentation.observed.declined(_POLICY, agent.name)
        elif compression.before:
            if isinstance(error, CancelledError) and compression.attempt is not None:
                compression.attempt.outcome = None  # also where the summariser only said so
            compression.failed(error)
        elif isinstance(error, RuntimeError) and not context:  # nothing is left to compress
            compression.before = events_of(agent)
            step = compression.open()
            if step is not None:
                step.overflow(budget=trigger, needed=math.ceil(call.estimate or trigger))
                compression.done(compression.before)

    with on_exit(over), context_value(CALL, call), compression.running():
        yield


@observe_async_hook
def split_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._split_context_for_compression``, which is called when a context is too long."""
    compression, call = reducing(), prepared(instrumentation, agent)
    if compression is not None and compression is not call.compressing and not compression.before:
        events = events_of(agent)
        if call.compressing is not None and not call.compressing.over:
            call.compressing.done(events)  # what a middleware took out before
        call.prompted(events)  # it was made by now, to be measured
        compression.before = events
        compression.open()
    yield


def _too_many_images(agent: Any, cfg: Any) -> list[Part] | None:
    held = [block for message in agent.state.context for block in message.content]
    inside = [vars(block).get(at) for block in held for at in ("output", "hint")]
    held += [block for blocks in inside if isinstance(blocks, list) for block in blocks]
    images = sum(block.type == "data" and block.source.media_type.startswith("image/") for block in held)
    return events_of(agent) if images > cfg.max_image_num else None


#: The hook of ``Agent._limit_context_images``, which replaces the oldest images in place.
limit_images = reducer(
    Reducer(
        _too_many_images,
        lambda _, agent, cfg: events_of(agent),
        "limit_images",
        config=lambda _, cfg: {"max_image_num": cfg.max_image_num},
    )
)

#: Tool results that were cut, whole, by what the context will have of each.
_WHOLE: Final[IdentityWeakMap[Any]] = IdentityWeakMap()


@observe_async_hook
def split_tool_result(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._split_tool_result_for_compression``, which says what of a tool result is kept."""
    reserved, offloaded = yield
    if offloaded is not None:
        _WHOLE.put(reserved, argument(args, kwargs, 0, "tool_result"))


@observe_hook
def save_to_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._save_to_context``: a result that was cut is told with the next model call, as it stands there."""
    yield
    message = agent.state.context[-1] if agent.state.context else None
    whole = _WHOLE.pop(message.content[-1]) if message is not None and message.content else None
    if whole is not None:
        settings = {"tool_result_limit": agent.context_config.tool_result_limit}
        before, after = [part_of(message, [whole])], events_of(agent)[-1:]
        DEFERRED_REDUCTIONS.put(
            invoking_agent_of(agent), DeferredReduction("truncate_tool_result", before, after, config=settings)
        )
