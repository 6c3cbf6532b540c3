"""Records AgentScope's reducers: context compression, the limit of images, and truncated tool results.

The hooked methods of ``Agent`` are ``compress_context`` and ``_compress_context_impl`` for the context,
``_limit_context_images`` for images, and ``_split_tool_result_for_compression`` with ``_save_to_context`` for tool
results. Their changes are recorded as steps of the agent's next model call.
"""

from __future__ import annotations

import math
from asyncio import CancelledError
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.agentscope.conversation import (
    REPLYING_AGENT,
    end_prepared_call,
    events_of,
    invoking_agent_of,
    prepared_call,
    step_name,
)
from otel_assembly.instrumentation.agentscope.messages import part_of
from otel_assembly.instrumentation.context_variables import CALL, REDUCTION
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.instrumented import argument, context_value, on_exit
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS, ClientRequest
from otel_assembly.instrumentation.reductions import Reduction, compacted_verdict, observe_edits, reducer, reducing
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation


_POLICY: Final = "compress_context"
_SETTINGS: Final = ("trigger_ratio", "reserve_ratio", "compression_fallback_to_truncation")


@observe_async_hook
def compress_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent.compress_context``, which calls the middlewares and AgentScope's own compression.

    A middleware may compress the context itself, before, after or instead of AgentScope. That is a separate step.
    """
    call, context_before = prepared_call(instrumentation, agent), agent.state.context
    middlewares = getattr(agent, "_compress_context_middlewares", ())
    policy = step_name(middlewares, "on_compress_context")
    by_middleware = call.middleware_reduction(policy, events_of(agent)) if middlewares else None
    call.compressing = by_middleware

    def record_result(error: BaseException | None) -> None:
        if by_middleware is not None and by_middleware.over:
            # AgentScope's compression ran inside: `split_context` ended this step. What follows is another step.
            call.middleware_reduction(policy, call.out).done(events_of(agent))
        elif by_middleware is not None:
            # After an exception, the step is recorded in any case, with the changes until then.
            step = by_middleware.open() if error is not None else None
            by_middleware.done(events_of(agent))
            if step is not None:
                step.failed(error)
        if isinstance(error, CancelledError) and agent.state.context is not context_before:
            error = None  # cancelled after the compression was applied, which stays in effect
        if error is not None or REPLYING_AGENT.get() is not agent:
            end_prepared_call(agent, error, stays=True)  # no model call of a reply follows

    with on_exit(record_result), call.current(), context_value(REDUCTION, by_middleware):
        yield


@observe_async_hook
def compress(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent._compress_context_impl``; `split_context` reads the messages, if they are too long."""
    config = argument(args, kwargs, 0, "context_config") or agent.context_config
    call = prepared_call(instrumentation, agent)
    size, context = agent.model.context_size, agent.state.context
    settings = {"context_size": size, **{name: getattr(config, name, None) for name in _SETTINGS}}
    trigger = int(config.trigger_ratio * size)
    # The call is resolved when the step opens, because a middleware may change its messages before that.
    compression = Reduction(instrumentation, StepReport(_POLICY, config=settings), find_call=lambda *_: (call, None))
    call.estimate = None

    def record_result(error: BaseException | None) -> None:
        has_begun = bool(compression.before)  # `split_context` sets the input when AgentScope begins to compress
        is_applied = agent.state.context is not context
        if has_begun and (error is None or is_applied):
            after = events_of(agent)
            compression.report = replace(
                compression.report,
                verdicts=[compacted_verdict(compression, after, *after[:1])],
                reason=DecisionReason.OVER_BUDGET,
                budget=trigger,
                of_prompt=True,
                stands_in=False,
            )
            compression.done(after)
        elif has_begun and error is not None:
            if isinstance(error, CancelledError) and compression.attempt is not None:
                # AgentScope raises this also for a summary that reports an interruption. It is recorded as cancelled.
                compression.attempt.outcome = None
            compression.failed(error)
        elif error is None:  # the context was short enough
            instrumentation.observed.declined(_POLICY, agent.name)
        elif isinstance(error, RuntimeError) and not context:  # the system prompt and the summary alone are too long
            compression.before = events_of(agent)
            step = compression.open()
            if step is not None:
                step.overflow(budget=trigger, needed=math.ceil(call.estimate or trigger))
                compression.done(compression.before)

    with on_exit(record_result), context_value(CALL, call), compression.running():
        yield


@observe_async_hook
def split_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent._split_context_for_compression``: if a context is too long, this opens the compression's step.

    The step of a middleware that changed the context before ends here.
    """
    compression, call = reducing(), prepared_call(instrumentation, agent)
    if compression is not None and compression is not call.compressing and not compression.before:
        events = events_of(agent)
        if call.compressing is not None and not call.compressing.over:
            call.compressing.done(events)
        call.record_prompt_changes(events)  # AgentScope has built the system prompt to count its tokens
        compression.before = events
        compression.open()
    yield


@reducer
def limit_images(_: Instrumentation, agent: Any, cfg: Any) -> ReducerObservation:
    """The hook of ``Agent._limit_context_images``, which replaces the oldest images in place."""
    # Lists, because a generator costs a call per block. Tool results and hints can contain further blocks.
    blocks = [block for message in agent.state.context for block in message.content]
    contents = [vars(block).get(attribute) for block in blocks for attribute in ("output", "hint")]
    blocks += [block for content in contents if isinstance(content, list) for block in content]
    images = [block for block in blocks if block.type == "data" and block.source.media_type.startswith("image/")]
    if len(images) <= cfg.max_image_num:
        return None
    report = StepReport("limit_images", config={"max_image_num": cfg.max_image_num})
    return (yield from observe_edits(report, lambda: ClientRequest(events_of(agent))))


#: The complete tool result of each truncated one that AgentScope is about to save in a context.
_COMPLETE_RESULTS: Final[IdentityWeakMap[Any]] = IdentityWeakMap()


@observe_async_hook
def split_tool_result(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent._split_tool_result_for_compression``, which returns the kept and the removed part of a result."""
    reserved, offloaded = yield
    if offloaded is not None:
        _COMPLETE_RESULTS.put(reserved, argument(args, kwargs, 0, "tool_result"))


@observe_hook
def save_to_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent._save_to_context``: a truncated tool result is a step of the agent's next model call."""
    yield
    message = agent.state.context[-1] if agent.state.context else None
    complete = _COMPLETE_RESULTS.pop(message.content[-1]) if message is not None and message.content else None
    if complete is not None:
        settings = {"tool_result_limit": agent.context_config.tool_result_limit}
        before, after = [part_of(message, [complete])], events_of(agent)[-1:]
        report = StepReport("truncate_tool_result", before, after, config=settings)
        DEFERRED_REDUCTIONS.put(invoking_agent_of(agent), report)
