"""`allocate`: blocks into a budget, recorded as it goes."""

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
    """Decide which blocks, and what of them, are in a prompt of at most ``window − output_reserve`` tokens.

    Blocks that may not be cut are reserved first, then each cuttable block's floor, then the rest is given out from the
    highest priority to the lowest. A block that does not fit whole is cut its own way (`Cut`), and compacted before it
    is dropped; with no room left, no compactor is called. The order of the input changes nothing.

    Blocks of turns (priorities 8 and 9) are one conversation: once a turn is dropped, no older turn stays, and newer
    turns may take the floor of older ones.

    Args:
        blocks: The blocks, each with a name of its own.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        count: The caller's own count of a text: a block then costs ``count(content)`` and no message framing. None: the
            model's tokenizer, with the framing of messages. What it has counted is remembered for as long as it lives,
            so pass the same function each time. Its counts are labelled ``estimated``, unless it has an attribute
            ``method`` that says ``exact``, or is the ``count`` of a `TokenCounter`.
        compact: ``compact(text, target_tokens)`` makes a text shorter; or `Compactors`, for deadlines, attempts and a
            fallback of one's own. None: the extractive compactor, which needs no model.
        model: The model whose tokenizer counts.
        provider: The provider that will be called, as `Context` takes it. If it refuses a prompt that does not start
            with a user's request, turns in front of the first request are dropped, reason ``before_user_message``. If
            None, the form of the events states the provider, else the model's name.

    Raises:
        ContextOverflowError: What may not be cut does not fit; raised before any compactor runs.
        ConfigurationError: Two blocks share a name, a floor is above the window, or a number cannot work.
        DescribeError: A block holds an event that nobody knows how to read.
        TokenizerError: The counter does not count; the message names the block.
    """
    compactors = _compactors(compact)
    measure = measure_for(count, model)
    steps = plan(blocks, window, output_reserve, measure, user_first=_user_first(provider, model))
    recording: AllocationRecording | None = DEFAULT.recorder.begin_allocation()
    if recording is None:
        return _finished(steps, compactors, None)
    with recording:
        recording.set_limits(window, output_reserve)
        allocation = _finished(steps, compactors, recording)
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
    """As `allocate`, for a compactor that is async, and without blocking the loop for one that is not."""
    compactors = _compactors(compact)
    measure = measure_for(count, model)
    await ready(measure.counter)
    steps = plan(blocks, window, output_reserve, measure, user_first=_user_first(provider, model))
    recording: AllocationRecording | None = DEFAULT.recorder.begin_allocation()
    if recording is None:
        return await finished_async(steps, answered_by(compactors, None))
    with recording:
        recording.set_limits(window, output_reserve)
        allocation = await finished_async(steps, answered_by(compactors, recording.watch))
        recording.finish(allocation)
        return allocation


def _user_first(provider: str | None, model: str | None) -> Callable[[str], bool]:
    return lambda form: rules_for(provider, form, model).is_user_first


def _compactors(compact: Compact | Compactors | None) -> Compactors:
    return _EXTRACTIVE if compact is None else compactors_of(compact)


def _finished(steps: Plan, compactors: Compactors, recording: AllocationRecording | None) -> Allocation:
    compacted: Compacted | None = None
    while True:
        try:
            request: CompactionRequest = next(steps) if compacted is None else steps.send(compacted)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # what a Plan returns
        watch = recording.watch(request.block) if recording is not None else None
        compacted = compactors.run(request.text, request.target, request.measure.text, watch)


async def finished_async(steps: Plan, answer: Callable[[CompactionRequest], Awaitable[Compacted]]) -> Allocation:
    """Run the rule to its end; `answer` compacts what it asks for, and may wait."""
    compacted: Compacted | None = None
    while True:
        try:
            request: CompactionRequest = next(steps) if compacted is None else steps.send(compacted)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # what a Plan returns
        compacted = await answer(request)


def answered_by(
    compactors: Compactors, watch: Callable[[Block], Watch | None] | None
) -> Callable[[CompactionRequest], Awaitable[Compacted]]:
    """What answers with these compactors, each attempt watched."""

    async def answer(request: CompactionRequest) -> Compacted:
        watched = watch(request.block) if watch is not None else None
        return await compactors.run_async(request.text, request.target, request.measure.text, watched)

    return answer
