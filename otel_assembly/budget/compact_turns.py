"""`compact_history`: turns of a conversation into one summary that keeps their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import function, of_type, whole_number
from otel_assembly.budget.compacted_block import CompactedBlock, leaves
from otel_assembly.budget.compaction import Calling, Compactors
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
    """Summarise turns in at most `target_tokens`, and keep the ids of what the summary was made from.

    A turn's id is its ``event_id``, else the id of its event, else its place: in the history where `turns`
    is a `History` or a part of one, otherwise among `turns`. A summary among the turns counts as what it was made from.

    Args:
        turns: Events of any described framework, `CompactedBlock`s, or, with a summariser that can read them, any
            objects. They are not changed.
        target_tokens: Tokens that the summary may have.
        summarizer: ``summarizer(turns, target_tokens=n)`` gives the summary. None: the extractive compactor, over the
            turns as `render_events` writes them.
        count: Counts the summary exactly; by default with ``counter_for(None)``.
        fallback: What is tried, with the rendered turns, when the summariser fails; None for nothing.
        attempts: How often the summariser is tried at most.
        deadline: Seconds that one attempt may take.
        watch: Stands around each attempt.
        summaries: Summaries that are not among the turns but may be named in the provenance of one that is, by id.

    Raises:
        ConfigurationError: No turns, a target below 1, a summariser that is async or cannot be called so.
        DescribeError: Without a summariser, a turn of a type that no ``describe()`` row covers.
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
    """As `compact_history`, for a summariser that is async, and without blocking the loop for one that is not."""
    job = _Job(turns, target_tokens, summarizer, count, fallback, attempts, deadline, summaries)
    return job.block(await job.compactors.run_async(job.text, target_tokens, job.count, watch))


class _Job:
    """Turns to compact: their text, who compacts it, and where the summary comes from."""

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
            raise ConfigurationError("compact_history: there are no turns; a summary of nothing has no provenance")
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
            # A summariser may well read what the engine cannot; only the extractive compactor needs the text.
            if summarizer is None:
                raise
            fallback = None
        calling = None if summarizer is None else Calling(summarizer, "summarizer", given=turns)
        self.compactors = Compactors(calling, fallback=fallback, attempts=attempts, deadline=deadline)

    def block(self, compacted: Compacted) -> CompactedBlock:
        """The summary with its provenance."""
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
    return leaves(ids, known)


def _places(turns: Sequence[Any]) -> Iterable[int]:
    return turns.positions() if isinstance(turns, View) else range(len(turns))


def _id_of(turn: Any, place: int) -> str:
    found = _field(turn, "event_id")
    if found is None:
        try:
            found = describe(turn).id
        except DescribeError:
            found = _field(turn, "id")
    return str(place if found is None else found)


def _covers(turns: Sequence[Any]) -> tuple[int, int]:
    """The first and the last turn: by the turns' own ``index``, else by place, behind what a summary covers."""
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
        elif type(own) is int:  # every list and string has a method of that name
            start = end = own
        else:
            start = end = following
        following = end + 1
        first = start if first < 0 else min(first, start)
        last = max(last, end)
    return first, last


def _field(turn: Any, name: str) -> Any:
    return turn.get(name) if isinstance(turn, Mapping) else getattr(turn, name, None)
