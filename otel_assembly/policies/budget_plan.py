"""Distributes a token budget over the prompts and events of a chain of policies, and reports the result.

The parts take tokens in this order: the fixed content, the newest atom, summaries, and older turns from the newest to
the oldest that fits (see `budget.rule`). An atom is kept or dropped as a whole: a tool call with its results, or a
single message. A cut is the index of the oldest kept atom.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_assembly.budget.rule import BYTES_PER_TOKEN
from otel_assembly.decision import BudgetEntry, BudgetReport, DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import ContextOverflowError
from otel_assembly.history.first_message import Essential, essential_events, leading, opening_request
from otel_assembly.history.tool_pairs import PAIRED
from otel_assembly.history.view import View
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.policies.base import keep_from, start_with_user

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
        leading: The number of items at the beginning of the view up to the last system message there; none is dropped.
        request: The positions of the newest user request. If an older call is never dropped and the prompt must start
            with a user's request, also of the request before that call.
        pending: The positions of the calls that await an approval.
        newest: The positions of the newest atom, newest first, without events of the fixed content.
        newest_tokens: The tokens of `newest`.
        left_out: The positions of the newest atom if it did not fit and was dropped.
        summaries: The positions of the summaries that are kept.
        fixed: The tokens of the fixed content, which is never dropped.
        free: The tokens that no part uses yet; negative if the fixed content exceeds the budget.
    """

    def __init__(
        self,
        view: View,
        meter: TokenMeter,
        prompts: Sequence[str],
        context: Context,
        budget: int,
        shortened: Mapping[int, int] = {},
    ) -> None:
        history = view.history
        self._view = view
        self._budget = budget
        self._table = table = history.table(meter)
        self.meter = meter
        self.shortened = dict(shortened)
        self.leading = leading(view)
        self.request, self.pending, newest, self._response = essential_events(view)
        fixed = {*self.request, *self.pending}
        self.newest = [position for position in newest if position not in fixed and position >= history.leading]
        tokens = self.tokens if self.shortened else table.tokens
        self.newest_tokens = sum(map(tokens, self.newest))
        self.left_out: set[int] = set()
        self.summaries: list[int] = []
        self._prompts = list(map(meter.prompt, prompts))
        #: The tokens of each part of the fixed content without prompts, by the name of the part.
        self._costs = {
            "tool_schemas": meter.tools(context.tools),
            "reply_priming": meter.priming,
            "leading_system": sum(map(table.tokens, map(view.position, range(self.leading)))),
            "pending_tool_calls": sum(map(table.tokens, self.pending)),
            "newest_request": sum(map(tokens, fixed.difference(self.pending))),
        }
        self.fixed = sum(self._prompts) + sum(self._costs.values())
        self.free = budget - self.fixed
        self._user_first = context.provider_rules(history.provider).is_user_first
        opening = opening_request(view, (*fixed, *self.newest)) if self._user_first else []
        opening_tokens = sum(map(self.tokens, opening))
        if opening and opening_tokens + self.newest_tokens <= self.free:
            self.request = [*opening, *self.request]
            self._costs["newest_request"] += opening_tokens
            self.fixed += opening_tokens
            self.free -= opening_tokens

    @property
    def costs(self) -> dict[str, int]:
        """The tokens of each part of the fixed content, by the name of the part, without parts of 0 tokens."""
        costs = {f"prompt[{number}]": tokens for number, tokens in enumerate(self._prompts)} | self._costs
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
        if self.free < 0:
            raise ContextOverflowError(self._budget, self.fixed, self.costs, policy=policy)

    def place_newest(self, on_overflow: str, policy: str) -> Overflow | None:
        """Keep the newest atom if it fits, or drop all of it and return the overflow.

        Raises:
            ContextOverflowError: The atom does not fit next to the fixed content, and `on_overflow` is ``raise``.
        """
        if self.newest_tokens <= self.free:
            self.free -= self.newest_tokens
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
            if tokens > self.free:
                return
            self.summaries.append(position)
            self.free -= tokens

    def cut(self, step_tokens: int, reserved: int = 0) -> int:
        """Return the index in the view of the oldest event to keep: from there on, all events fit.

        The result is the length of the view if no older turn fits. The index, found by bisection, is the beginning of
        an atom.

        Args:
            step_tokens: Keep events from the beginning of a cell on: the conversation is divided into cells of
                ``4 × step_tokens`` bytes. 0 allows any atom to be the oldest.
            reserved: Tokens to keep free.
        """
        view, table, first = self._view, self._table, self.leading
        room = max(0, self.free - reserved)
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
            cell, offsets = BYTES_PER_TOKEN * step_tokens, view.history.offsets
            boundary = (offsets[view.position(fits - 1)] // cell + 1) * cell
            indexes = range(len(view))
            step = self._atom_from(bisect_left(indexes, boundary, fits - 1, key=lambda at: offsets[view.position(at)]))
            if step < len(view):
                sums, part = table.sums(view.column, by_atom=True), view.part(step, view.length)
                taken = sum([sums[stop] - sums[start] for start, stop in part.ranges])
                taken += sum([difference for index, difference in corrections if index >= step])
                if _LEAST_FILLED * taken >= room:
                    return step
        return self._atom_from(fits)

    def _corrections(self) -> list[tuple[int, int]]:
        """Return by how many tokens atoms differ from the history's table, in which each has the tokens of its events.

        Events that are already kept, and a newest atom that was dropped, take no further tokens. A shortened event
        takes fewer tokens. The table has no tokens for a call without a result, although the call may be kept.

        Returns:
            Pairs of the index in the view where an atom begins and the difference in tokens, newest first.
        """
        view, table, pairing = self._view, self._table, self._view.history.pairing
        tokens_to_take = {**self.shortened, **dict.fromkeys(self._decided(), 0)}
        differences: dict[int, int] = {}
        open_items = pairing.open_items(self._response)
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

    def _decided(self) -> set[int]:
        """Return the positions of the events that are already kept or dropped, without leading system messages."""
        return {*self.request, *self.pending, *self.newest, *self.summaries, *self.left_out}

    def _oldest_fitting(self, room: int, corrections: Sequence[tuple[int, int]]) -> int:
        """Return the first index of the view from which on all atoms fit in `room` tokens together."""
        begin, entries = self._view.length, iter([*corrections, (-1, 0)])
        at, difference = next(entries)
        sums = self._table.sums(self._view.column, by_atom=True)
        for low, stop in reversed(self._view.ranges):
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

    def _atom_from(self, start: int) -> int:
        """Return the first index from `start` on where the kept events can begin; else the view's length.

        Kept events cannot begin with a tool result whose call is before `start`, or with a call without its result.
        """
        view, pairing = self._view, self._view.history.pairing
        for index in range(start, view.length):
            position = view.position(index)
            if pairing.flags[position] & PAIRED:
                atom = pairing.atoms[position]
                if (atom != position and view.holds(atom)) or not pairing.is_sendable(position, self._response):
                    continue
            if position not in self.left_out:
                return index
        return view.length

    def selected(self, cut: int, *, summarized: bool = False) -> tuple[View, list[Verdict]]:
        """Return the events from the index `cut` on with the older events that are kept, and verdicts on the others.

        If `summarized` is true, a summary, which is a user's message, will precede the kept events. So the prompt
        starts with a user's message, as some providers require.
        """
        kept, verdicts = keep_from(
            self._view,
            cut,
            DecisionReason.OVER_BUDGET,
            first=self.leading,
            essential=Essential(self.request, self.pending, self.newest, self._response),
            summaries=self.summaries,
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
                return view.minus(self._view.pick_positions(self.left_out)) or None
        return None

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
        view, costs, is_sent = self._view, self._costs, kept is not None
        leading_tokens, priming = costs["leading_system"], costs["reply_priming"]
        pending, request, schemas = costs["pending_tool_calls"], costs["newest_request"], costs["tool_schemas"]
        outside_events = self.fixed - leading_tokens - pending - request
        made = [] if summary is None else [event for event in (summary.into, summary.reply) if event is not None]
        made_tokens = sum([self.meter.event(describe(event)) for event in made])
        used = 0 if kept is None else outside_events + self.sum(kept) + made_tokens
        fixed_parts = (
            (EventKind.SYSTEM, outside_events - schemas - priming + leading_tokens, self.leading),
            (EventKind.SCHEMA, schemas, 0),
            (EventKind.QUERY, request, len(self.request)),
            (EventKind.STATE, pending, len(self.pending)),
        )
        entries = [
            _entry(kind, self._budget, (tokens, tokens * is_sent), (items, items * is_sent), cuttable=False)
            for kind, tokens, items in fixed_parts
            if tokens
        ]
        room = max(0, self._budget - self.fixed)
        newest = [*self.newest, *self.left_out]
        if newest:
            tokens, items = self.newest_tokens, len(newest)
            if not is_sent or self.left_out:
                tokens = items = 0
            short = sum([position in self.shortened for position in newest]) if items else 0
            whole = sum(map(self._table.tokens, newest))
            entries.append(
                _entry(EventKind.RECENT, room, (whole, tokens), (len(newest), items), cuttable=drops_newest, made=short)
            )
            room -= tokens
        items = len(self.summaries)
        tokens = self.sum(view.pick_positions(self.summaries)) if items else 0
        if tokens:
            entries.append(_entry(EventKind.SUMMARY, room, (tokens, tokens * is_sent), (items, items * is_sent)))
            room -= tokens
        decided = self._decided()
        older = len(view) - self.leading - len(decided)
        if older > 0:
            items_out = tokens_out = 0
            if kept is not None:
                other_kept = view.pick_positions(decided - self.left_out)
                items_out = len(kept) - self.leading - len(other_kept)
                tokens_out = self.sum(kept) - self.sum(other_kept) - leading_tokens
            tokens_in = self.sum(view) - self.sum(view.pick_positions(decided)) - leading_tokens
            compacted = len(summary.events) if summary is not None and made else 0
            all_tokens, all_items = (tokens_in, tokens_out + made_tokens), (older, items_out + len(made))
            entry = _entry(EventKind.OLDER, max(0, room), all_tokens, all_items, made=len(made), compacted=compacted)
            entries.append(replace(entry, min_tokens=reserved))
        return BudgetReport(window, window - self._budget, self.fixed, used, entries, overflow)


def _entry(
    kind: EventKind,
    room: int,
    tokens: tuple[int, int],
    items: tuple[int, int],
    *,
    cuttable: bool = True,
    made: int = 0,
    compacted: int | None = None,
) -> BudgetEntry:
    """Return the report's entry for one part of the prompt.

    `tokens` and `items` are those of the whole part, and of the part in the prompt. The latter include those of events
    that compaction made, by default from as many events.
    """
    outcome, reason = DecisionOutcome.KEPT, DecisionReason.FITS if cuttable else DecisionReason.PINNED
    if made:
        outcome, reason = DecisionOutcome.COMPACTED, DecisionReason.COMPACTED
    elif items[1] < items[0] or (not items[0] and tokens[1] < tokens[0]):
        outcome, reason = DecisionOutcome.KEPT if items[1] else DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET
    return BudgetEntry(
        name=kind.value,
        kind=kind.value,
        priority=_PRIORITIES[kind],
        cuttable=cuttable,
        min_tokens=0,
        tokens_in=tokens[0],
        tokens_out=tokens[1],
        outcome=outcome,
        reason=reason,
        room=room,
        items_in=items[0],
        items_out=items[1],
        items_injected=made,
        compacted=made if compacted is None else compacted,
    )
