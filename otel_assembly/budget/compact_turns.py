"""`compact_history`: makes a summary of turns that keeps their ids."""

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
    """Return a summary of turns in at most `target_tokens`, with the ids of its sources.

    A turn's id is its ``event_id``, else the id of its event, else its position. The position is that in the history if
    `turns` is a `History` or a part of one, otherwise that among `turns`. A summary among the turns is replaced by its
    sources.

    Args:
        turns: Events of any registered type, `CompactedBlock`s, or, with a summarizer that can read them, any objects.
            They are not changed.
        target_tokens: The most tokens of the summary.
        summarizer: Returns the summary, called as ``summarizer(turns, target_tokens=n)``. None: the extractive
            compactor, applied to the text of `render_events`.
        count: Counts the summary's tokens; by default ``counter_for(None)``.
        fallback: The compactor of the rendered turns if the summarizer fails; None for none.
        attempts: The most calls of the summarizer.
        deadline: The most seconds of one attempt.
        watch: Returns the context manager around each attempt.
        summaries: Summaries that are not among the turns but may be named in the provenance of one, by id.

    Raises:
        ConfigurationError: There are no turns, the target is below 1, or the summarizer is async or cannot be called
            so.
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

    The summarizer may be async; otherwise it runs in a thread.
    """
    job = _Job(turns, target_tokens, summarizer, count, fallback, attempts, deadline, summaries)
    return job.block(await job.compactors.run_async(job.text, target_tokens, job.count, watch))


class _Job:
    """The text of the turns to compact, their compactors, and the provenance of the summary."""

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
        calling = None if summarizer is None else CompactorCall(summarizer, "summarizer", source=turns)
        self.compactors = Compactors(calling, fallback=fallback, attempts=attempts, deadline=deadline)

    def block(self, compacted: Compacted) -> CompactedBlock:
        """Return the summary with its provenance."""
        if compacted.text is None:
            raise CompactionError(len(self._turns), self._target, compacted.attempts)
        return CompactedBlock(compacted.text, _provenance(self._turns, self._summaries), _covers(self._turns))


def _provenance(
    turns: Sequence[Any], summaries: Mapping[str, CompactedBlock | CompactionSummary] | None
) -> tuple[str, ...]:
    known = dict(summaries or {})
    ids: list[str] = []
    for turn, place in zip(turns, _places(turns), strict=True):
        if isinstance(turn, CompactedBlock) and turn.provenance:
            ids += turn.provenance
            continue
        if isinstance(turn, CompactionSummary):
            known[turn.id] = turn
        ids.append(_id_of(turn, place))
    return leaf_ids(ids, known)


def _places(turns: Sequence[Any]) -> Iterable[int]:
    return turns.positions() if isinstance(turns, View) else range(len(turns))


def _id_of(turn: Any, place: int) -> str:
    id_ = _field(turn, "event_id")
    if id_ is None:
        try:
            id_ = describe(turn).id
        except DescribeError:
            id_ = _field(turn, "id")
    return str(place if id_ is None else id_)


def _covers(turns: Sequence[Any]) -> tuple[int, int]:
    """Return the first and last turn that a summary covers.

    A turn's number is its own ``index`` if it has one, otherwise its position after the turns that a summary covers.
    """
    first = last = -1
    following = next(iter(_places(turns)))
    placed = isinstance(turns, View)
    for turn, place in zip(turns, _places(turns), strict=True):
        own = _field(turn, "index")
        if placed:
            start = end = place
        elif isinstance(turn, CompactedBlock):
            start, end = turn.covers_turns
        elif isinstance(turn, CompactionSummary):
            start, end = following, following + max(turn.event_count, 1) - 1
        elif type(own) is int:  # lists and strings have a method of that name
            start = end = own
        else:
            start = end = following
        following = end + 1
        first = start if first < 0 else min(first, start)
        last = max(last, end)
    return first, last


def _field(turn: Any, name: str) -> Any:
    return turn.get(name) if isinstance(turn, Mapping) else getattr(turn, name, None)
