"""`compact_history`: summarizes turns of a conversation, and records their ids in the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import function, of_type, whole_number
from otel_assembly.budget.compacted_block import CompactedBlock, leaf_ids
from otel_assembly.budget.compaction import CompactorCall, Compactors
from otel_assembly.budget.extractive import ExtractiveCompactor, default_count
from otel_assembly.errors import CompactionError, ConfigurationError, DescribeError
from otel_assembly.events import CompactionSummary
from otel_assembly.history.view import View
from otel_assembly.knowledge.rendering import render_events
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_assembly.budget.attempt import Compacted, Watch
    from otel_assembly.budget.compaction import Compact

_EXTRACTIVE: Final = ExtractiveCompactor()


def compact_history(
    turns: Sequence[Any],
    target_tokens: int,
    summarizer: Compact | None = None,
    *,
    count: Callable[[str], int] | None = None,
    fallback: Compact | None = _EXTRACTIVE,
    attempts: int = 2,
    deadline: float = 30.0,
    watch: Watch | None = None,
    summaries: Mapping[str, CompactedBlock | CompactionSummary] | None = None,
) -> CompactedBlock:
    """Summarize turns of a conversation in at most `target_tokens`.

    The result lists the ids of the turns as its provenance. A turn's id is its ``event_id``, else the id that
    ``describe()`` returns for it, else its position in `turns` (in the whole history if `turns` is a part of a
    `History`). If a turn is itself a summary, the ids of the turns that it summarizes are listed instead.

    Args:
        turns: Messages of types that are registered with ``describe()``, or `CompactedBlock`s. If you pass a summarizer
            that can read them, any objects. They are not changed.
        target_tokens: The maximum number of tokens of the summary.
        summarizer: Returns the summary, called as ``summarizer(turns, target_tokens=n)``. None: the extractive
            compactor, which selects parts of the turns' text without a model.
        count: Returns the tokens of a text; None: ``counter_for(None).count``.
        fallback: The compactor that shortens the turns' text if the summarizer fails; by default the extractive one.
            None: no fallback.
        attempts: The maximum number of calls of the summarizer.
        deadline: The maximum duration of one attempt, in seconds.
        watch: Called with each `Attempt`; returns the context manager in which the attempt runs, such as a span. None:
            no context manager.
        summaries: Earlier summaries by id; None for none. If a turn's provenance contains the id of one of them, that
            id is replaced by the ids of the turns that it summarizes.

    Raises:
        ConfigurationError: There are no turns, the target is below 1, the summarizer is async, or it cannot be called
            with these arguments.
        DescribeError: There is no summarizer, and a turn's type is not registered with ``describe()``.
        CompactionError: Every attempt failed.
    """
    job = _Job(turns, target_tokens, summarizer, count, fallback, attempts, deadline, summaries)
    return job.block(job.compactors.run(job.text, target_tokens, job.count, watch))


async def compact_history_async(
    turns: Sequence[Any],
    target_tokens: int,
    summarizer: Compact | None = None,
    *,
    count: Callable[[str], int] | None = None,
    fallback: Compact | None = _EXTRACTIVE,
    attempts: int = 2,
    deadline: float = 30.0,
    watch: Watch | None = None,
    summaries: Mapping[str, CompactedBlock | CompactionSummary] | None = None,
) -> CompactedBlock:
    """Return the same as `compact_history`, without blocking the event loop.

    The arguments and the errors are those of `compact_history`, except that the summarizer may be async; a summarizer
    that is not async runs in a thread.
    """
    job = _Job(turns, target_tokens, summarizer, count, fallback, attempts, deadline, summaries)
    return job.block(await job.compactors.run_async(job.text, target_tokens, job.count, watch))


class _Job:
    """The checked arguments of `compact_history`: the text of the turns, and the compactors to call."""

    __slots__ = ("_summaries", "_target", "_turns", "compactors", "count", "text")

    def __init__(
        self,
        turns: Sequence[Any],
        target: int,
        summarizer: Compact | None,
        count: Callable[[str], int] | None,
        fallback: Compact | None,
        attempts: int,
        deadline: float,
        summaries: Mapping[str, CompactedBlock | CompactionSummary] | None,
    ) -> None:
        whole_number("compact_history: target_tokens", target, unit="tokens")
        if isinstance(turns, str | bytes | Mapping) or not isinstance(turns, Sequence):
            raise ConfigurationError(
                f"compact_history: turns must be a sequence of events, got a {type(turns).__name__}; give a list"
            )
        if not len(turns):
            raise ConfigurationError("compact_history: turns is empty; give at least one turn to summarize")
        self._turns = turns
        self._target = target
        if count is not None:
            function("compact_history: count", count)
        if summaries is not None:
            of_type("compact_history: summaries", summaries, Mapping, "give the summaries by their ids")
        self._summaries = summaries
        self.count = count or default_count()
        self.text = ""
        try:
            self.text = render_events(turns)
        except DescribeError:
            # A summarizer may read types that are not registered; only the extractive compactor needs the text.
            if summarizer is None:
                raise
            fallback = None
        call = None if summarizer is None else CompactorCall(summarizer, "summarizer", source=turns)
        self.compactors = Compactors(call, fallback=fallback, attempts=attempts, deadline=deadline)

    def block(self, compacted: Compacted) -> CompactedBlock:
        """Return the summary with the ids of the turns, or raise `CompactionError` if every attempt failed."""
        if compacted.text is None:
            raise CompactionError(len(self._turns), self._target, compacted.attempts)
        return CompactedBlock(compacted.text, _provenance(self._turns, self._summaries), _covered_turns(self._turns))


def _provenance(
    turns: Sequence[Any], summaries: Mapping[str, CompactedBlock | CompactionSummary] | None
) -> tuple[str, ...]:
    known = dict(summaries or {})
    ids: list[str] = []
    for turn, position in zip(turns, _positions(turns), strict=True):
        if isinstance(turn, CompactedBlock) and turn.provenance:
            ids += turn.provenance
            continue
        if isinstance(turn, CompactionSummary):
            known[turn.id] = turn
        ids.append(_id_of(turn, position))
    return leaf_ids(ids, known)


def _positions(turns: Sequence[Any]) -> Iterable[int]:
    return turns.positions() if isinstance(turns, View) else range(len(turns))


def _id_of(turn: Any, position: int) -> str:
    id_ = _field(turn, "event_id")
    if id_ is None:
        try:
            id_ = describe(turn).id
        except DescribeError:
            id_ = _field(turn, "id")
    return str(position if id_ is None else id_)


def _covered_turns(turns: Sequence[Any]) -> tuple[int, int]:
    """Return the numbers of the first and the last turn that the summary covers.

    In a `History`, a turn's number is its position. Otherwise it is the turn's attribute ``index``, or else it follows
    the number of the turn before. A summary among the turns counts as all turns that it covers.
    """
    first = last = -1
    next_number = next(iter(_positions(turns)))
    has_positions = isinstance(turns, View)
    for turn, position in zip(turns, _positions(turns), strict=True):
        turn_index = _field(turn, "index")
        if has_positions:
            start = end = position
        elif isinstance(turn, CompactedBlock):
            start, end = turn.covers_turns
        elif isinstance(turn, CompactionSummary):
            start, end = next_number, next_number + max(turn.event_count, 1) - 1
        elif type(turn_index) is int:  # lists and strings have a method of that name
            start = end = turn_index
        else:
            start = end = next_number
        next_number = end + 1
        first = start if first < 0 else min(first, start)
        last = max(last, end)
    return first, last


def _field(turn: Any, name: str) -> Any:
    return turn.get(name) if isinstance(turn, Mapping) else getattr(turn, name, None)
