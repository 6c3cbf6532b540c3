"""`allocate`: selects the blocks that fit in a token budget, and records the decisions as spans."""

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
    """Select the content of blocks that fits in a prompt of at most ``window − output_reserve`` tokens.

    Blocks that cannot be cut are kept. Then the floors of the other blocks (`Block.min_tokens`) are reserved, and the
    remaining tokens are distributed from the highest priority to the lowest. If a block does not fit whole, items are
    dropped as its `Cut` defines, or a compactor shortens a text; if nothing useful fits, the block is dropped. No
    compactor is called if there is no room for its result. The order of `blocks` has no effect.

    Blocks of turns (priorities 8 and 9) are one conversation: once a turn is dropped, all older turns are dropped too,
    and newer turns may use the floors of older turns.

    Args:
        blocks: The blocks; each needs a unique name.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        count: Returns the tokens of a text; tokens that a provider adds to each message are then not counted. None: use
            the model's tokenizer, and count those tokens too. Counts are cached as long as the function exists, so pass
            the same function each time. They are labeled ``estimated``, unless the function has an attribute ``method``
            with the value ``exact``, or is the ``count`` of a `TokenCounter`.
        compact: Shortens a text, called as ``compact(text, target_tokens)``; or `Compactors` with deadlines, attempts
            and a fallback. None: the extractive compactor, which needs no model.
        model: The name of the model whose tokenizer counts, if `count` is None.
        provider: The provider that will be called, as for `Context`. If the provider requires a user's request as the
            first message, earlier messages are dropped with the reason ``before_user_message``. None: the provider is
            determined from the format of the messages, else from the model's name.

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

    The arguments and the errors are those of `allocate`, except that compactors may be async; a compactor that is not
    async runs in a thread.
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
    """Run an allocation to its end, and await `answer` for each text that it needs compacted."""
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
    """Return an async function that compacts the text of a request with the given compactors.

    Args:
        compactors: Shorten the texts.
        watch: Returns the `Watch` of a block, which records the attempts; None to record nothing.
    """

    async def answer(request: CompactionRequest) -> Compacted:
        block_watch = watch(request.block) if watch is not None else None
        return await compactors.run_async(request.text, request.target, request.measure.text, block_watch)

    return answer
