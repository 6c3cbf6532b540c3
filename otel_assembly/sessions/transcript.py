"""The envelopes (messages) that a participant of a session has read, and the policy that keeps the newest ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.decision import Compaction, DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.events import CompactionSummary
from otel_assembly.history.first_message import essential_events, leading
from otel_assembly.history.history import CONVERSATION_KINDS
from otel_assembly.history.view import Edited
from otel_assembly.messages.event_facts import describe
from otel_assembly.policies.base import DecidingPolicy, as_view, keep_from
from otel_assembly.recorder import Projection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.history.view import View


def on_one_line(name: str) -> str:
    """Return a participant's name without line breaks, so that the name cannot imitate another line of a prompt."""
    return " ".join(name.split()) if len(name.splitlines()) > 1 else name


class Transcript:
    """Records which events of a participant's `History` are envelopes of the session, and who sent them.

    Attributes:
        envelopes: The number of envelopes that were read, including those without an event.
    """

    __slots__ = ("_first_numbers", "_numbers", "envelopes")

    def __init__(self) -> None:
        self.envelopes = 0
        #: For each event id, the number of events in the transcript before it.
        self._numbers: dict[str, int] = {}
        #: For each speaker's name, the number of events in the transcript before the speaker's first one.
        self._first_numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, event_id: str, speaker: str) -> None:
        """Add the event that is an envelope of this speaker."""
        if event_id not in self._numbers:
            self._first_numbers.setdefault(speaker, len(self._numbers))
            self._numbers[event_id] = len(self._numbers)

    def holds(self, event: Any) -> bool:
        """Return True if an event is an envelope of the session."""
        return getattr(event, "id", None) in self._numbers

    def speakers(self, count: int) -> list[str]:
        """Return the sorted names of the speakers of the transcript's first `count` events."""
        return sorted(name for name, first in self._first_numbers.items() if first < count)


class TranscriptPolicy(DecidingPolicy):
    """Keeps all entries of a session, or the newest entries and one line that replaces the older ones.

    An entry is an event that is an envelope, of any sender. A participant's own events between two entries, such as
    tool calls, are kept or dropped with these entries. As in every reduction, the newest request, the newest tool pair
    and pending approvals are kept.

    Args:
        view: The name of the view, which is also the policy's name.
        transcript: The entries of the session.
        recent_n: The number of newest entries to keep; None for all.
        step: The number of entries dropped at a time; up to `step` - 1 more entries are kept until then.
    """

    #: This policy drops only conversation events, so policies that inject other events can run after it.
    filters: ClassVar[frozenset[str] | None] = CONVERSATION_KINDS

    def __init__(self, view: str, transcript: Transcript, recent_n: int | None = None, step: int = 1) -> None:
        self.name = view
        self.recent_n = recent_n
        self.step = step
        self._transcript = transcript
        self._summary: tuple[int, CompactionSummary] | None = None

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """Return `recent_n` and `step`, where set; empty if all entries are kept."""
        settings = {} if self.recent_n is None else {"recent_n": self.recent_n}
        return settings if self.step == 1 else {**settings, "step": self.step}

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the kept events, and the line that replaces the others."""
        start_ns = time.time_ns()
        view, transcript = as_view(events), self._transcript
        drop_count = self._count_to_drop()
        cut = self._cut(view, len(transcript) - drop_count) if drop_count else None
        kept_entries = len(transcript) if cut is None else len(transcript) - drop_count
        outcome = Outcome(prompts, view) if cut is None else self._cut_at(prompts, view, cut, drop_count)
        if context.is_enabled:
            self._record(outcome, view, kept_entries, start_ns, context)
        return outcome

    def _count_to_drop(self) -> int:
        """Return how many of the oldest entries to drop."""
        if self.recent_n is None:
            return 0
        return max(len(self._transcript) - self.recent_n, 0) // self.step * self.step

    def _cut(self, view: View, recent_n: int) -> int | None:
        """Return the index in the view of the oldest of the newest `recent_n` entries.

        The search runs backwards, so that its cost does not grow with the session.
        """
        history, entries = view.history, 0
        for position in view.backward():
            if self._transcript.holds(history.events[position]):
                entries += 1
                if entries == recent_n:
                    return view.index_of(position)
        return None

    def _cut_at(self, prompts: Sequence[str], view: View, cut: int, count: int) -> Outcome:
        """Drop the events before an index, and insert a line that replaces them after the leading system messages.

        Args:
            prompts: The prompts, which stay unchanged.
            view: The events.
            cut: The index in the view of the oldest event to keep.
            count: The number of dropped entries, for the text of the line.
        """
        first = leading(view)
        kept_events, verdicts = keep_from(
            view,
            max(cut, first),
            DecisionReason.OUTSIDE_WINDOW,
            first=first,
            essential=essential_events(view),
        )
        dropped = next(
            (verdict.events for verdict in verdicts if verdict.reason is DecisionReason.OUTSIDE_WINDOW), None
        )
        if dropped is None:
            return Outcome(prompts, kept_events, verdicts)
        summary = self._summary_of(count)
        others = [verdict for verdict in verdicts if verdict.events is not dropped]
        compacted = Verdict(dropped, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, summary)
        edited = Edited(kept_events, first, [summary])
        return Outcome(prompts, edited, [compacted, *others], compactions=[Compaction(dropped, summary)])

    def _summary_of(self, count: int) -> CompactionSummary:
        """Return an event with the line that replaces the first `count` entries; for the same count, the same event."""
        if self._summary is None or self._summary[0] != count:
            messages = "1 message" if count == 1 else f"{count} messages"
            speakers = ", ".join(map(on_one_line, self._transcript.speakers(count)))
            line = f"Earlier in this session: {messages} from {speakers}."
            self._summary = count, CompactionSummary(summary=line, event_count=count)
        return self._summary[1]

    def _record(self, outcome: Outcome, view: View, kept_entries: int, start_ns: int, context: Context) -> None:
        """Record the size of the view in telemetry: counts only, no content."""
        identity, envelopes = context.identity, self._transcript.envelopes
        DEFAULT.recorder.projected(
            Projection(
                self.name,
                context.model,
                identity,
                start_ns,
                envelopes,
                kept_entries,
                None,
                token_measure(outcome, view, context),
            )
        )


def token_measure(outcome: Outcome, view: View, context: Context) -> Callable[[], tuple[int, int, str, str]]:
    """Return a function that counts the events and tokens that a view selected.

    Telemetry calls the function only if it records the result. The function returns the number of events, the number
    of tokens, the counting method (such as ``exact`` or ``estimated``) and the name of the encoding.
    """

    def measure() -> tuple[int, int, str, str]:
        meter = context.meter
        if isinstance(outcome.events, Edited):
            new_events = [
                event for event, at in zip(outcome.events, outcome.events.positions, strict=True) if at is None
            ]
            kept_events = outcome.events.view
            tokens = sum(meter.event(describe(event)) for event in new_events)
        else:
            new_events, kept_events, tokens = [], as_view(outcome.events), 0
        table = kept_events.history.table(meter)
        table.exact(kept_events)
        method = "estimated" if meter.method == "exact" and kept_events.history.any_media(kept_events) else meter.method
        return len(kept_events) + len(new_events), tokens + table.sum(kept_events), method, meter.encoding

    return measure
