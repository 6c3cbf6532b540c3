"""Distributes a token budget over the prompts and events of a chain of policies, and reports the result.

The parts take tokens in this order: the fixed content, the newest atom, summaries, and older turns from the newest to
the oldest that fits (see `budget.rule`). An atom is kept or dropped as a whole: a tool call with its results, or a
single message. A cut is the index of the oldest kept atom.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from otel_assembly.budget.rule import BYTES_PER_TOKEN, Sharing
from otel_assembly.decision import BudgetEntry, BudgetReport, DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import ContextOverflowError
from otel_assembly.history.first_message import leading, newest_atom, newest_request, newest_response
from otel_assembly.history.tool_pairs import PAIRED
from otel_assembly.history.view import View
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.policies.base import keep_from, opening_request, start_with_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.decision import Compaction, Verdict
    from otel_assembly.tokens import TokenMeter

#: If keeping events from the beginning of a cell on uses less than 1/n of the available tokens, cells are ignored.
_LEAST_FILLED: Final = 4
#: The priorities of the blocks that report a chain's parts.
_PRIORITIES: Final = {
    EventKind.SYSTEM: 1,
    EventKind.SCHEMA: 2,
    EventKind.QUERY: 3,
    EventKind.STATE: 4,
    EventKind.SUMMARY: 7,
    EventKind.RECENT: 8,
    EventKind.OLDER: 9,
}


class BudgetPlan:
    """The parts of a prompt that share a token budget, with their tokens.

    Call `place_fixed`, `place_newest`, `place_summaries` and `cut` in this order; each takes free tokens. `selected`
    then returns the kept events.

    Args:
        view: The events.
        meter: Counts the events' tokens.
        prompts: The system-level texts in front of the events.
        context: The assembly's context.
        budget: The most tokens that the rendered prompt may have.
        shortened: The tokens of shortened events, by the position of the original.

    Attributes:
        leading: The number of system messages at the beginning of the view, which are never dropped.
        newest_response: The position of the newest response; −1 if there is none.
        newest_request: The positions of the newest user request. If an older call is never dropped, also of the request
            before it, if the prompt must start with a user's request.
        pending: The positions of the calls that await an approval.
        newest: The positions of the newest atom (a tool call with its results, or a message), newest first. Events of
            the fixed content are excluded.
        newest_tokens: The tokens of `newest`.
        left_out: The positions of the newest atom if it did not fit and was dropped.
        summaries: The positions of the summaries that are kept.
        pinned: The positions of `pending` and `newest_request`.
        fixed: The tokens of the fixed content, which is never dropped.
        sharing: The tokens that are still free.
    """

    __slots__ = (
        "_budget",
        "_leading_tokens",
        "_pending_tokens",
        "_prompts",
        "_request_tokens",
        "_table",
        "_tools",
        "_user_first",
        "_view",
        "fixed",
        "leading",
        "left_out",
        "meter",
        "newest",
        "newest_request",
        "newest_response",
        "newest_tokens",
        "pending",
        "pinned",
        "sharing",
        "shortened",
        "summaries",
    )

    def __init__(
        self,
        view: View,
        meter: TokenMeter,
        prompts: Sequence[str],
        context: Context,
        budget: int,
        shortened: Mapping[int, int] | None = None,
    ) -> None:
        history = view.history
        self._view = view
        self._budget = budget
        self._table = table = history.table(meter)
        self.meter = meter
        self.shortened = dict(shortened or {})
        self.leading = leading(view)
        self.newest_response = newest_response(view)
        self.newest_request = newest_request(view)
        pending = history.pairing.pending_calls(self.newest_response)
        self.pending = [position for position in pending if view.holds(position)] if pending else pending
        self._prompts = list(map(meter.prompt, prompts))
        self._tools = meter.tools(context.tools)
        self._leading_tokens = sum(map(table.tokens, map(view.position, range(self.leading))))
        self._pending_tokens = sum(map(table.tokens, self.pending))
        tokens = self.tokens if self.shortened else table.tokens
        self._request_tokens = sum(map(tokens, {*self.newest_request}.difference(self.pending)))
        events = self._leading_tokens + self._pending_tokens + self._request_tokens
        self.fixed = sum(self._prompts) + self._tools + meter.priming + events
        self.sharing = Sharing(budget - self.fixed)
        self.pinned = {*self.pending, *self.newest_request}
        self.newest = [
            position
            for position in newest_atom(view, self.newest_response)
            if position not in self.pinned and position >= history.leading
        ]
        self.newest_tokens = sum(map(tokens, self.newest))
        self.left_out: set[int] = set()
        self.summaries: list[int] = []
        self._user_first = context.provider_rules(view.history.provider).is_user_first
        if self._user_first:
            self._place_opening()

    def _place_opening(self) -> None:
        """Add the user request before the oldest fixed call to the fixed content, if one is needed and fits."""
        opening = opening_request(self._view, (*self.pinned, *self.newest))
        tokens = sum(map(self.tokens, opening))
        if opening and tokens + self.newest_tokens <= self.sharing.free:
            self.newest_request = [*opening, *self.newest_request]
            self.pinned.update(opening)
            self._request_tokens += tokens
            self.fixed += tokens
            self.sharing = Sharing(self._budget - self.fixed)

    @property
    def costs(self) -> dict[str, int]:
        """The tokens of each part of the fixed content, by the name of the part, without parts of 0 tokens."""
        costs = {
            **{f"prompt[{index}]": tokens for index, tokens in enumerate(self._prompts)},
            "tool_schemas": self._tools,
            "reply_priming": self.meter.priming,
            "leading_system": self._leading_tokens,
            "pending_tool_calls": self._pending_tokens,
            "newest_request": self._request_tokens,
        }
        return {name: tokens for name, tokens in costs.items() if tokens}

    def tokens(self, position: int) -> int:
        """Return an event's tokens, or those of its shortened version."""
        tokens = self.shortened.get(position) if self.shortened else None
        return self._table.tokens(position) if tokens is None else tokens

    def shorten(self, position: int, tokens: int) -> None:
        """Record that a shorter version with `tokens` tokens replaces an event of the newest atom."""
        self.newest_tokens += tokens - self.tokens(position)
        self.shortened[position] = tokens

    def sum(self, view: View) -> int:
        """Return a view's tokens; a shortened event counts as its shortened version."""
        tokens = self._table.sum(view)
        for position, short_tokens in self.shortened.items():
            if view.holds(position):
                tokens += short_tokens - self._table.tokens(position)
        return tokens

    # The parts, in the order in which they take tokens

    def place_fixed(self, policy: str) -> None:
        """Check that the fixed content fits.

        Raises:
            ContextOverflowError: The fixed content exceeds the budget.
        """
        if self.sharing.free < 0:
            raise ContextOverflowError(self._budget, self.fixed, self.costs, policy=policy)

    def place_newest(self, on_overflow: str, policy: str) -> Overflow | None:
        """Keep the newest atom (a tool call with its results, or a message) if it fits, or drop all of it.

        Returns:
            The overflow if the atom was dropped; None if it was kept.

        Raises:
            ContextOverflowError: The atom does not fit next to the fixed content, and `on_overflow` is ``raise``.
        """
        if self.newest_tokens <= self.sharing.free:
            self.sharing.free -= self.newest_tokens
            return None
        needed, cause = self.fixed + self.newest_tokens, OverflowCause.NEWEST_ATOM
        if on_overflow == "raise":
            costs = {**self.costs, "newest_atom": self.newest_tokens}
            raise ContextOverflowError(self._budget, needed, costs, cause=cause.value, policy=policy)
        self.left_out = set(self.newest)
        self.newest = []
        return Overflow(self._budget, needed, cause)

    def place_summaries(self) -> None:
        """Keep the summaries that fit, newest first, up to the first that does not fit.

        Summaries have priority over older turns, because the events that they replaced are no longer in the
        conversation.
        """
        history, view = self._view.history, self._view
        column = history.summaries
        for position in reversed(column.positions[: column.index(view.end)]):
            newest = position in self.newest or position in self.left_out
            if newest or position < history.leading or not view.holds(position):
                continue
            tokens = self._table.tokens(position)
            if tokens > self.sharing.free:
                return
            self.summaries.append(position)
            self.sharing.free -= tokens

    def cut(self, step_tokens: int, reserved: int = 0) -> int:
        """Return the index in the view of the oldest event to keep: from there on, all events fit.

        The result is the length of the view if no older turn fits. The index, found by bisection, is the beginning of
        an atom, which is kept or dropped as a whole: a tool call with its results, or a message.

        Args:
            step_tokens: Keep events from the beginning of a cell on: the conversation is divided into cells of
                ``4 × step_tokens`` bytes. 0 allows any atom to be the oldest.
            reserved: Tokens to keep free.
        """
        view, table, first = self._view, self._table, self.leading
        room = max(0, self.sharing.free - reserved)
        corrected = -1
        while corrected < len(table.corrected):
            corrected = len(table.corrected)
            corrections = self._corrections()
            fits = self._oldest_fitting(room, corrections)
            edge = max(first, fits - 1)  # whether this atom fits decides the result
            if table.estimated and edge < len(view) and view.position(edge) < table.estimated[-1][1]:
                table.exact(view.part(edge, view.length))
        if fits <= first:
            return first
        if step_tokens:
            # If the next cell begins close to the end, starting there would drop turns for which there is room.
            step = self._atom_from(self._cell_after(fits - 1, BYTES_PER_TOKEN * step_tokens))
            if step < len(view) and _LEAST_FILLED * self._taken_from(step, corrections) >= room:
                return step
        return self._atom_from(fits)

    def _corrections(self) -> list[tuple[int, int]]:
        """Return by how many tokens atoms (tool calls with their results, or messages) differ from the history's table.

        The table contains each atom's tokens, and this method corrects them to what the atom takes of the free tokens.
        Events that are already kept, and a newest atom that was dropped, take no further tokens. A shortened event
        takes fewer tokens. The table has no tokens for a call without a result, although the call may be kept.

        Returns:
            Pairs of the index in the view where an atom begins and the difference in tokens, newest first.
        """
        view, table, pairing = self._view, self._table, self._view.history.pairing
        decided = dict.fromkeys((*self.pinned, *self.newest, *self.summaries, *self.left_out), 0)
        tokens_to_take = {**self.shortened, **decided}
        differences: dict[int, int] = {}
        open_items = pairing.open_items(self.newest_response)
        for position in open_items.union(tokens_to_take):
            tokens = tokens_to_take.get(position)
            if tokens is None:
                tokens = table.tokens(position)
            if position not in open_items:
                if pairing.atoms[position] in pairing.incomplete:  # it may not be sent
                    continue
                tokens -= table.known(position)
            index = view.index_of(pairing.atoms[position])
            if tokens and (index >= 0 or (index := view.index_of(position)) >= 0):
                differences[index] = differences.get(index, 0) + tokens
        return sorted(differences.items(), reverse=True)

    def _oldest_fitting(self, room: int, corrections: Sequence[tuple[int, int]]) -> int:
        """Return the first index of the view from which on all tool calls with results and messages fit together.

        Args:
            room: The available tokens.
            corrections: The return value of `_corrections`.
        """
        begin, entries = self._view.length, iter([*corrections, (-1, 0)])
        at, difference = next(entries)
        sums = self._table.atom_sums(self._view.column)
        for low, stop in reversed(self._view.runs):
            begin -= stop - low
            if begin + stop - low <= self.leading:
                break
            high, lowest = stop, low + max(0, self.leading - begin)
            while True:
                # The corrections from `high` on are already subtracted from `room`; none is between `place` and `high`.
                place = low + at - begin
                floor = max(lowest, place + 1)
                fits = bisect_left(sums, sums[stop] - room, floor, high + 1)
                if fits > floor:
                    return begin + fits - low
                if place < lowest:
                    break
                room, high = room - difference, place
                at, difference = next(entries)
            room -= sums[stop] - sums[lowest]
        return self.leading

    def _taken_from(self, start: int, corrections: Sequence[tuple[int, int]]) -> int:
        """Return the tokens of all atoms (calls with results, or messages) that begin at the index `start` or later."""
        tokens = sum([difference for index, difference in corrections if index >= start])
        sums, part = self._table.atom_sums(self._view.column), self._view.part(start, self._view.length)
        return tokens + sum([sums[stop] - sums[low] for low, stop in part.runs])

    def _cell_after(self, index: int, cell: int) -> int:
        """Return the index of the first event that is in a later cell than the event at `index`.

        Args:
            index: An index of the view.
            cell: The bytes of a cell. The conversation is divided into cells of this size.
        """
        history, position = self._view.history, self._view.position
        boundary = (history.offset(position(index)) // cell + 1) * cell
        indexes = range(len(self._view))
        return bisect_left(indexes, boundary, index, key=lambda at: history.offset(position(at)))

    def _atom_from(self, start: int) -> int:
        """Return the first index from `start` on where the kept events can begin; else the view's length.

        Kept events cannot begin with a tool result whose call is before `start`, or with a call without its result.
        """
        view, pairing = self._view, self._view.history.pairing
        for index in range(start, view.length):
            position = view.position(index)
            if pairing.flags[position] & PAIRED:
                atom = pairing.atoms[position]
                if (atom != position and view.holds(atom)) or not pairing.is_sendable(position, self.newest_response):
                    continue
            if position not in self.left_out:
                return index
        return view.length

    def selected(self, cut: int, *, summarized: bool = False) -> tuple[View, list[Verdict]]:
        """Return the events from the index `cut` on, and the older events that are already decided to be kept.

        Args:
            cut: An index of the view.
            summarized: Whether a summary, which is a user's message, will precede the kept events. The prompt then
                starts with a user's message, as some providers require.

        Returns:
            The kept events, and the verdicts on the others.
        """
        kept, verdicts = keep_from(
            self._view,
            cut,
            DecisionReason.OVER_BUDGET,
            first=self.leading,
            always_kept={*self.pinned, *self.newest, *self.summaries},
            request=self.newest_request,
            pending=self.pending,
            left_out=self.left_out,
        )
        return start_with_user(kept, verdicts) if self._user_first and not summarized else (kept, verdicts)

    def summarizable(self, verdicts: Sequence[Verdict]) -> View | None:
        """Return the events that were dropped for the budget and that a summary can replace; None if there are none.

        A summary does not replace the newest atom, even if it was dropped.
        """
        for verdict in verdicts:
            view = verdict.events
            if verdict.reason is DecisionReason.OVER_BUDGET and isinstance(view, View):
                if self.left_out:
                    view = view.pick_positions(at for at in view.positions() if at not in self.left_out)
                return view or None
        return None

    # The report

    def report(
        self,
        window: int,
        kept: View | None,
        overflow: Overflow | None,
        *,
        drops_newest: bool,
        summary: Compaction | None = None,
        reserved: int = 0,
    ) -> BudgetReport:
        """Return how many tokens each part of the prompt takes, and whether it was kept.

        Args:
            window: The model's window, in tokens; the budget is the window minus the tokens reserved for the reply.
            kept: The kept events; None if nothing is sent. The entries then have the tokens that each part would take.
            overflow: The limit that was exceeded, if any.
            drops_newest: Whether the newest atom may be dropped.
            summary: The summary that replaces dropped events.
            reserved: The tokens that are reserved for a summary if an event is dropped, even if none was made.
        """
        is_sent = kept is not None
        summary_tokens = 0
        if summary is not None and summary.into is not None:
            summary_tokens = self.meter.event(describe(summary.into))
            if summary.reply is not None:
                summary_tokens += self.meter.event(describe(summary.reply))
        outside_events = sum(self._prompts) + self._tools + self.meter.priming
        used = 0 if kept is None else outside_events + self.sum(kept) + summary_tokens
        entries = [
            _entry(kind, tokens, items, self._budget, sent=is_sent, cuttable=False)
            for kind, tokens, items in (
                (EventKind.SYSTEM, self._leading_tokens + sum(self._prompts), self.leading),
                (EventKind.SCHEMA, self._tools, 0),
                (EventKind.QUERY, self._request_tokens, len(self.newest_request)),
                (EventKind.STATE, self._pending_tokens, len(self.pending)),
            )
            if tokens
        ]
        room = max(0, self._budget - self.fixed)
        newest = [*self.newest, *self.left_out]
        if newest:
            entry = _entry(
                EventKind.RECENT,
                self.newest_tokens,
                len(newest),
                room,
                sent=is_sent and not self.left_out,
                cuttable=drops_newest,
                short=sum([position in self.shortened for position in newest]),
                whole=sum(map(self._table.tokens, newest)),
            )
            entries.append(entry)
            room -= entry.tokens_out
        tokens = self.sum(self._view.pick_positions(self.summaries)) if self.summaries else 0
        if tokens:
            entries.append(_entry(EventKind.SUMMARY, tokens, len(self.summaries), room, sent=is_sent, cuttable=True))
            room -= tokens
        room = max(0, room)
        entries += self._older_entry(kept, room, summary if summary_tokens else None, summary_tokens, reserved)
        return BudgetReport(window, window - self._budget, self.fixed, used, entries, overflow)

    def _older_entry(
        self, kept: View | None, room: int, summary: Compaction | None, summary_tokens: int, reserved: int
    ) -> list[BudgetEntry]:
        """Return the report's entry for the older turns; an empty list if there are none.

        Args:
            kept: The kept events; None if nothing is sent.
            room: The tokens that were available for older turns.
            summary: The summary that replaces older turns, if one was made.
            summary_tokens: The tokens of the summary and of the reply to it.
            reserved: The tokens that are reserved for a summary.
        """
        view = self._view
        decided = {*self.pinned, *self.newest, *self.left_out, *self.summaries}
        items_in = len(view) - self.leading - len(decided)
        if items_in <= 0:
            return []
        items_out = tokens_out = 0
        if kept is not None:
            other_kept = view.pick_positions(decided - self.left_out)
            items_out = len(kept) - self.leading - len(other_kept)
            tokens_out = self.sum(kept) - self.sum(other_kept) - self._leading_tokens
        outcome, reason = DecisionOutcome.KEPT, DecisionReason.FITS
        if summary is not None:
            outcome, reason = DecisionOutcome.COMPACTED, DecisionReason.COMPACTED
        elif items_out < items_in:
            outcome = DecisionOutcome.KEPT if items_out else DecisionOutcome.DROPPED
            reason = DecisionReason.OVER_BUDGET
        injected = 0 if summary is None else 1 + (summary.reply is not None)
        entry = BudgetEntry(
            name=EventKind.OLDER.value,
            kind=EventKind.OLDER.value,
            priority=_PRIORITIES[EventKind.OLDER],
            cuttable=True,
            min_tokens=reserved,
            tokens_in=self.sum(view) - self.sum(view.pick_positions(decided)) - self._leading_tokens,
            tokens_out=tokens_out + summary_tokens,
            outcome=outcome,
            reason=reason,
            room=room,
            items_in=items_in,
            items_out=items_out + injected,
            items_injected=injected,
            compacted=len(summary.events) if summary is not None else 0,
        )
        return [entry]


def _entry(
    kind: EventKind,
    tokens: int,
    items: int,
    room: int,
    *,
    sent: bool,
    cuttable: bool,
    short: int = 0,
    whole: int | None = None,
) -> BudgetEntry:
    """Return the report's entry for one part of the prompt, which was kept, shortened or dropped.

    Args:
        kind: The part's kind.
        tokens: The part's tokens.
        items: The number of its events.
        room: The tokens that were available.
        sent: Whether the part is in the prompt.
        cuttable: Whether it may be dropped.
        short: The number of events that were shortened.
        whole: The part's tokens before events were shortened; by default `tokens`.
    """
    outcome, reason = DecisionOutcome.KEPT, DecisionReason.FITS if cuttable else DecisionReason.PINNED
    if not sent:
        outcome, reason, short = DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET, 0
    elif short:
        outcome, reason = DecisionOutcome.COMPACTED, DecisionReason.COMPACTED
    return BudgetEntry(
        name=kind.value,
        kind=kind.value,
        priority=_PRIORITIES[kind],
        cuttable=cuttable,
        min_tokens=0,
        tokens_in=tokens if whole is None else whole,
        tokens_out=tokens if sent else 0,
        outcome=outcome,
        reason=reason,
        room=room,
        items_in=items,
        items_out=items if sent else 0,
        items_injected=short,
        compacted=short,
    )
