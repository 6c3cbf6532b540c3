"""A chain's budget: its parts, what each of them takes of it, and the report on that.

The rule is `budget.rule`. What it is asked for here are parts of one conversation: first what is fixed, then the newest
atom, then summaries, then older turns backwards from the newest, as far as there is room and no further.
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
from otel_assembly.policies.base import is_user_first, keep_from, opening_request, start_with_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.decision import Compaction, Verdict
    from otel_assembly.tokens import TokenMeter

#: A cut at a step keeps at least one part in so many of what there is room for; else it is made at any atom.
_LEAST_FILLED: Final = 4
#: The priorities of the blocks that a chain's parts are reported as.
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
    """The parts of a chain's budget, and how much of it they take.

    Args:
        view: The events.
        meter: Counts them.
        prompts: The prompts in front of them.
        context: The assembly's.
        budget: The tokens that the rendered prompt may take.
        shortened: Tokens of what stands for an event in its place, by the event's position.

    Attributes:
        leading: How many events lead the view that are prompts.
        newest_response: The position of the newest response; −1 where there is none.
        newest_request: The positions of the newest user request; and of the one that the prompt has to start with, if
            a call that no cut drops is older than the newest.
        pending: The positions of the calls that await an approval.
        newest: The positions of the newest atom, newest first, as far as they are not fixed.
        newest_tokens: What those take.
        left_out: The newest atom, where it did not fit.
        summaries: The positions of the summaries that stay wherever the cut is.
        fixed: Tokens of what is fixed.
        sharing: What is left of the budget.
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
        self.pending = [position for position in pending if view.holds(position)]
        self._prompts = list(map(meter.prompt, prompts))
        self._tools = meter.tools(context.tools)
        self._leading_tokens = sum([table.tokens(view.position(index)) for index in range(self.leading)])
        self._pending_tokens = sum(map(table.tokens, self.pending))
        self._request_tokens = sum([self.tokens(at) for at in self.newest_request if at not in self.pending])
        of_events = self._leading_tokens + self._pending_tokens + self._request_tokens
        self.fixed = sum(self._prompts) + self._tools + meter.priming + of_events
        self.sharing = Sharing(budget - self.fixed)
        self.pinned = {*self.pending, *self.newest_request}
        self.newest = [
            position
            for position in newest_atom(view, self.newest_response)
            if position not in self.pinned and position >= history.leading
        ]
        self.newest_tokens = sum(map(self.tokens, self.newest))
        self.left_out: set[int] = set()
        self.summaries: list[int] = []
        self._user_first = is_user_first(view, context)
        if self._user_first:
            self._place_opening()

    def _place_opening(self) -> None:
        """Fix the request in front of a call that no cut drops, if there is room for it."""
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
        """Tokens of what is fixed, by what it is."""
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
        """What an event takes, or what stands for it in its place."""
        tokens = self.shortened.get(position) if self.shortened else None
        return self._table.tokens(position) if tokens is None else tokens

    def shorten(self, position: int, tokens: int) -> None:
        """Something of so many tokens stands for an event of the newest atom."""
        self.newest_tokens += tokens - self.tokens(position)
        self.shortened[position] = tokens

    def sum(self, view: View) -> int:
        """Tokens of a view's items, with what stands for some of them."""
        tokens = self._table.sum(view)
        for position, other in self.shortened.items():
            if view.holds(position):
                tokens += other - self._table.tokens(position)
        return tokens

    # What the parts take, in this order

    def place_fixed(self, policy: str) -> None:
        """Take in what may not be cut.

        Raises:
            ContextOverflowError: That alone is over the budget.
        """
        if self.sharing.free < 0:
            raise ContextOverflowError(self._budget, self.fixed, self.costs, policy=policy)

    def place_newest(self, on_overflow: str, policy: str) -> Overflow | None:
        """Take the newest atom in, or leave it out whole.

        Raises:
            ContextOverflowError: It does not fit beside what is fixed, and `on_overflow` is ``raise``.
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
        """Take in the summaries that fit, the newest first: they stand for what is gone, and older turns do not."""
        history, view = self._view.history, self._view
        column = history.summaries
        for at in range(column.index(view.end) - 1, -1, -1):
            position = column.position(at)
            newest = position in self.newest or position in self.left_out
            if newest or position < history.leading or not view.holds(position):
                continue
            tokens = self._table.tokens(position)
            if tokens > self.sharing.free:
                return
            self.summaries.append(position)
            self.sharing.free -= tokens

    def cut(self, step_tokens: int, reserved: int = 0) -> int:
        """Where older turns are cut: the view's index of the oldest atom to keep, the number of items where none fits.

        Of the view's atoms, from the newest backwards, it is the last that survives (see `budget.rule`), found by
        bisection.

        Args:
            step_tokens: Atoms lie in cells of ``4 × step_tokens`` bytes of the conversation, between which the cut
                moves; 0 moves it to any atom.
            reserved: Tokens that are kept free for something else.
        """
        view, table, first = self._view, self._table, self.leading
        room = max(0, self.sharing.free - reserved)
        corrected = -1
        while corrected < len(table.corrected):
            corrected = len(table.corrected)
            corrections = self._corrections()
            fits = self._oldest_fitting(room, corrections)
            edge = max(first, fits - 1)  # the one in front decides the cut
            if table.estimated and edge < len(view) and view.position(edge) < table.estimated[-1][1]:
                table.exact(view.pick([(edge, len(view))]))
        if fits <= first:
            return first
        if step_tokens:
            # A step right behind the newest atom would throw away what there is room for.
            step = self._atom_from(self._cell_after(fits - 1, BYTES_PER_TOKEN * step_tokens))
            if step < len(view) and _LEAST_FILLED * self._taken_from(step, corrections) >= room:
                return step
        return self._atom_from(fits)

    def _corrections(self) -> list[tuple[int, int]]:
        """What atoms take otherwise than the table says, by the view's index of where each begins; newest first.

        What has been taken in already takes nothing more, and so does what is left out; a shorter text stands for some
        events; and an atom with an unanswered call, of which the table says nothing, may stand there.
        """
        view, table, pairing = self._view, self._table, self._view.history.pairing
        held = dict.fromkeys((*self.pinned, *self.newest, *self.summaries, *self.left_out), 0)
        priced = {**self.shortened, **held}
        found: dict[int, int] = {}
        for position in {*pairing.open_items(self.newest_response), *priced}:
            is_open = pairing.atoms[position] in pairing.incomplete
            tokens = priced.get(position)
            if is_open and not pairing.is_sendable(position, self.newest_response):
                continue
            if tokens is None:
                tokens = table.tokens(position)
            if not is_open:
                tokens -= table.known(position)
            index = view.index_of(pairing.atoms[position])
            if tokens and (index >= 0 or (index := view.index_of(position)) >= 0):
                found[index] = found.get(index, 0) + tokens
        return sorted(found.items(), reverse=True)

    def _oldest_fitting(self, room: int, corrections: Sequence[tuple[int, int]]) -> int:
        """The first index of the view from which on all atoms together fit the room."""
        begin, entries = len(self._view), iter([*corrections, (-1, 0)])
        at, more = next(entries)
        for column, low, stop in reversed(self._view.segments):
            begin -= stop - low
            if begin + stop - low <= self.leading:
                break
            sums, high, lowest = self._table.atoms(column), stop, low + max(0, self.leading - begin)
            while True:
                # What atoms take otherwise from `high` on is in `room`, and between `place` and there is none of them.
                place = low + at - begin
                floor = max(lowest, place + 1)
                fits = bisect_left(sums, sums[stop] - room, floor, high + 1)
                if fits > floor:
                    return begin + fits - low
                if place < lowest:
                    break
                room, high = room - more, place
                at, more = next(entries)
            room -= sums[stop] - sums[lowest]
        return self.leading

    def _taken_from(self, start: int, corrections: Sequence[tuple[int, int]]) -> int:
        """What the atoms take that begin at an index of the view or behind it."""
        tokens = sum([more for index, more in corrections if index >= start])
        for column, low, stop in self._view.pick([(start, len(self._view))]).segments:
            sums = self._table.atoms(column)
            tokens += sums[stop] - sums[low]
        return tokens

    def _cell_after(self, index: int, cell: int) -> int:
        """The view's index of the first item that begins in a later cell than the item at an index."""
        history, position = self._view.history, self._view.position
        boundary = (history.offset(position(index)) // cell + 1) * cell
        everything = range(len(self._view))
        return bisect_left(everything, boundary, index, key=lambda at: history.offset(position(at)))

    def _atom_from(self, start: int) -> int:
        """The first index of the view, from one on, at which an atom begins that may be sent; its length for none."""
        view, pairing = self._view, self._view.history.pairing
        for index in range(start, len(view)):
            position = view.position(index)
            if pairing.flags[position] & PAIRED:
                atom = pairing.atoms[position]
                if (atom != position and view.holds(atom)) or not pairing.is_sendable(position, self.newest_response):
                    continue
            if position not in self.left_out:
                return index
        return len(view)

    def selected(self, cut: int, *, summarized: bool = False) -> tuple[View, list[Verdict]]:
        """Return what stays if everything older than an index is dropped but what is held, and why the rest is not.

        Args:
            cut: The index.
            summarized: Whether a summary, which is a user's message, stands in front of what stays.
        """
        kept, verdicts = keep_from(
            self._view,
            cut,
            DecisionReason.OVER_BUDGET,
            first=self.leading,
            held={*self.pinned, *self.newest, *self.summaries},
            request=self.newest_request,
            pending=self.pending,
            left_out=self.left_out,
        )
        return start_with_user(kept, verdicts) if self._user_first and not summarized else (kept, verdicts)

    def gone(self, verdicts: Sequence[Verdict]) -> View | None:
        """Of what is over the budget, what a summary can stand for: all but a newest atom that was left out."""
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
        """How the budget was shared out, in numbers.

        Args:
            window: The model's window, of which the budget is what the reply leaves.
            kept: What stays; None where nothing is sent, and each part says what it would take.
            overflow: The limit that could not hold.
            drops_newest: Whether the newest atom may be left out.
            summary: What stands for events that were cut.
            reserved: What is kept free for a summary once something is cut, whether one was made or not.
        """
        sent = kept is not None
        made = 0
        if summary is not None and summary.into is not None:
            made = self.meter.event(describe(summary.into))
            if summary.reply is not None:
                made += self.meter.event(describe(summary.reply))
        around = sum(self._prompts) + self._tools + self.meter.priming
        used = 0 if kept is None else around + self.sum(kept) + made
        entries = [
            _entry(kind, tokens, items, self._budget, sent=sent, cuttable=False)
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
                sent=sent and not self.left_out,
                cuttable=drops_newest,
                short=sum([position in self.shortened for position in newest]),
                whole=sum(map(self._table.tokens, newest)),
            )
            entries.append(entry)
            room -= entry.tokens_out
        tokens = self.sum(self._view.pick_positions(self.summaries)) if self.summaries else 0
        if tokens:
            entries.append(_entry(EventKind.SUMMARY, tokens, len(self.summaries), room, sent=sent, cuttable=True))
            room -= tokens
        entries += self._older_entry(kept, max(0, room), summary if made else None, made, reserved)
        return BudgetReport(window, window - self._budget, self.fixed, used, entries, overflow)

    def _older_entry(
        self, kept: View | None, room: int, summary: Compaction | None, made: int, reserved: int
    ) -> list[BudgetEntry]:
        """All the rest: the turns that the cut goes through; its floor is what is kept free for their summary."""
        view = self._view
        held = {*self.pinned, *self.newest, *self.left_out, *self.summaries}
        items_in = len(view) - self.leading - len(held)
        if items_in <= 0:
            return []
        items_out = tokens_out = 0
        if kept is not None:
            stayed = view.pick_positions(held - self.left_out)
            items_out = len(kept) - self.leading - len(stayed)
            tokens_out = self.sum(kept) - self.sum(stayed) - self._leading_tokens
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
            tokens_in=self.sum(view) - self.sum(view.pick_positions(held)) - self._leading_tokens,
            tokens_out=tokens_out + made,
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
    """A part that is kept, `short` of its items in a shorter form than the `whole` one, or not at all."""
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
