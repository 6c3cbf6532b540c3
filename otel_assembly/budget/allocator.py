"""`allocate`: selects the blocks that fit in a token budget, and records the allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.budget.compaction import Compactors, compactors_of
from otel_assembly.budget.measure import measure_for
from otel_assembly.budget.plan import plan
from otel_assembly.messages.provider_rules import rules_for
from otel_assembly.tokens.models import ready

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.budget.attempt import Compacted, Watch
    from otel_assembly.budget.block import Block
    from otel_assembly.budget.compaction import Compact
    from otel_assembly.budget.plan import CompactionRequest, Plan
    from otel_assembly.budget.recording import AllocationRecording

_EXTRACTIVE = Compactors()


def allocate(
    blocks: Iterable[Block],
    window: int,
    output_reserve: int,
    count: Callable[[str], int] | None = None,
    compact: Compact | Compactors | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
) -> Allocation:
    """Return the blocks that fit in a prompt of at most ``window − output_reserve`` tokens.

    Blocks that cannot be cut come first. Then the floors of the other blocks are reserved, and the remaining tokens are
    given out from the highest priority to the lowest. A block that does not fit whole loses items as its `Cut` defines,
    and is compacted before it is dropped. No compactor is called if there is no room. The order of `blocks` has no
    effect.

    Blocks of turns (priorities 8 and 9) are one conversation: once a turn is dropped, no older turn stays, and newer
    turns may take the floor of older turns.

    Args:
        blocks: The blocks; each needs a unique name.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        count: Counts the tokens of a text. A block then costs ``count(content)``, without message framing. None: the
            model's tokenizer, with the framing of messages. Counts are cached as long as the function exists, so pass
            the same function each time. They are labeled ``estimated``, unless the function has an attribute ``method``
            with the value ``exact``, or is the ``count`` of a `TokenCounter`.
        compact: Shortens a text, called as ``compact(text, target_tokens)``; or `Compactors` with deadlines, attempts
            and a fallback. None: the extractive compactor, which needs no model.
        model: The model whose tokenizer counts.
        provider: The provider that will be called, as for `Context`. If the provider refuses a prompt that does not
            start with a user's request, turns in front of the first request are dropped, reason
            ``before_user_message``. None: the form of the events or the model's name determines the provider.

    Raises:
        ContextOverflowError: The content that cannot be cut does not fit. This is raised before any compactor runs.
        ConfigurationError: Two blocks have the same name, a floor is above the window, or a number is out of range.
        DescribeError: A block contains an event of an unregistered type.
        TokenizerError: The counter failed; the message names the block.
    """
    compactors = _compactors(compact)
    measure = measure_for(count, model)
    steps = plan(blocks, window, output_reserve, measure, user_first=_user_first(provider, model))
    recording: AllocationRecording | None = DEFAULT.recorder.begin_allocation()
    if recording is None:
        return _run_plan(steps, compactors, None)
    with recording:
        recording.set_limits(window, output_reserve)
        allocation = _run_plan(steps, compactors, recording)
        recording.finish(allocation)
        return allocation


async def allocate_async(
    blocks: Iterable[Block],
    window: int,
    output_reserve: int,
    count: Callable[[str], int] | None = None,
    compact: Compact | Compactors | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
) -> Allocation:
    """Return the same as `allocate`, without blocking the event loop.

    Compactors may be async; others run in a thread.
    """
    compactors = _compactors(compact)
    measure = measure_for(count, model)
    await ready(measure.counter)
    steps = plan(blocks, window, output_reserve, measure, user_first=_user_first(provider, model))
    recording: AllocationRecording | None = DEFAULT.recorder.begin_allocation()
    if recording is None:
        return await run_plan_async(steps, compact_requests_with(compactors, None))
    with recording:
        recording.set_limits(window, output_reserve)
        allocation = await run_plan_async(steps, compact_requests_with(compactors, recording.watch))
        recording.finish(allocation)
        return allocation


def _user_first(provider: str | None, model: str | None) -> Callable[[str], bool]:
    return lambda form: rules_for(provider, form, model).is_user_first


def _compactors(compact: Compact | Compactors | None) -> Compactors:
    return _EXTRACTIVE if compact is None else compactors_of(compact)


def _run_plan(steps: Plan, compactors: Compactors, recording: AllocationRecording | None) -> Allocation:
    compacted: Compacted | None = None
    while True:
        try:
            request: CompactionRequest = next(steps) if compacted is None else steps.send(compacted)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # what a Plan returns
        watch = recording.watch(request.block) if recording is not None else None
        compacted = compactors.run(request.text, request.target, request.measure.text, watch)


async def run_plan_async(steps: Plan, answer: Callable[[CompactionRequest], Awaitable[Compacted]]) -> Allocation:
    """Run a plan to its end, and await `answer` for each compaction that it requests."""
    compacted: Compacted | None = None
    while True:
        try:
            request: CompactionRequest = next(steps) if compacted is None else steps.send(compacted)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # what a Plan returns
        compacted = await answer(request)


def compact_requests_with(
    compactors: Compactors, watch: Callable[[Block], Watch | None] | None
) -> Callable[[CompactionRequest], Awaitable[Compacted]]:
    """Return a function that answers a plan's requests with these compactors.

    Args:
        compactors: Compact the texts.
        watch: Returns the context manager around each attempt for a block; None: no context manager.
    """

    async def answer(request: CompactionRequest) -> Compacted:
        watched = watch(request.block) if watch is not None else None
        return await compactors.run_async(request.text, request.target, request.measure.text, watched)

    return answer
