"""How a budget fills up: what is fixed, then the newest atom, then summaries, then atoms backwards from the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.intervals import to_runs
from otel_assembly.decision import DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import ContextOverflowError
from otel_assembly.history.view import View
from otel_assembly.messages.tool_pairs import ORPHAN
from otel_assembly.policies.base import keep, keep_verdicts, leading, newest_atom, newest_request, newest_response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.decision import Verdict
    from otel_assembly.tokens import TokenMeter

#: Bytes of text in a token, by rule of thumb; a step of the cut is so many bytes long for each of its tokens.
BYTES_PER_TOKEN = 4
#: A cut at a step keeps at least one part in so many of what there is room for; else it is made at any atom.
LEAST_FILLED = 4


#: Of the fixed costs, those of events.
_OF_EVENTS = frozenset({"leading_system", "pending_tool_calls", "newest_request"})


class BudgetPlan:
    """How the budget fills up: first what is fixed, then the newest atom, then atoms backwards from the newest."""

    __slots__ = (
        "_table",
        "_view",
        "awaiting",
        "costs",
        "first",
        "fixed",
        "instead",
        "left_out",
        "meter",
        "newest",
        "newest_tokens",
        "pinned",
        "request",
        "response",
        "summaries",
        "taken",
    )

    def __init__(
        self,
        view: View,
        meter: TokenMeter,
        prompts: Sequence[str],
        context: Context,
        instead: Mapping[int, int] | None = None,
    ) -> None:
        history = view.history
        self._view = view
        self._table = table = history.table(meter)
        self.meter = meter
        #: Tokens of what stands in for an event, by the event's position.
        self.instead = dict(instead or {})
        self.first = leading(view)
        self.response = newest_response(view)
        self.request = newest_request(view)
        self.awaiting = [position for position in history.pairing.pending_calls(self.response) if view.holds(position)]
        self.costs = {
            **{f"prompt[{index}]": meter.prompt(prompt) for index, prompt in enumerate(prompts)},
            "tool_schemas": meter.tools(context.tools),
            "reply_priming": meter.priming,
            "leading_system": sum(table.tokens(view.position(index)) for index in range(self.first)),
            "pending_tool_calls": sum(table.tokens(position) for position in self.awaiting),
            "newest_request": sum(self.tokens(position) for position in self.request if position not in self.awaiting),
        }
        self.costs = {name: tokens for name, tokens in self.costs.items() if tokens}
        self.fixed = sum(self.costs.values())
        self.pinned = {*self.awaiting, *self.request}
        self.newest = [
            position
            for position in newest_atom(view, self.response)
            if position not in self.pinned and position >= history.leading
        ]
        self.newest_tokens = sum(map(self.tokens, self.newest))
        self.left_out: set[int] = set()
        #: Summaries that stay wherever the cut is; their tokens are in `taken`.
        self.summaries: list[int] = []
        self.taken = self.fixed

    def tokens(self, position: int) -> int:
        """What an event takes, or what stands in for it."""
        tokens = self.instead.get(position) if self.instead else None
        return self._table.tokens(position) if tokens is None else tokens

    def shorten(self, position: int, tokens: int) -> None:
        """Something of so many tokens stands in for an event of the newest atom."""
        self.newest_tokens += tokens - self.tokens(position)
        self.instead[position] = tokens

    @property
    def around(self) -> int:
        """Tokens of what is no event: prompts, tool schemas, the reply's priming."""
        return sum(tokens for name, tokens in self.costs.items() if name not in _OF_EVENTS)

    def sum(self, view: View) -> int:
        """Tokens of a view's items, as far as they are counted, with what stands in for some of them."""
        tokens = self._table.sum(view)
        for position, other in self.instead.items():
            if view.holds(position):
                tokens += other - self._table.tokens(position)
        return tokens

    def place_newest(self, budget: int, on_overflow: str, policy: str) -> Overflow | None:
        """Take the newest atom in, or leave it out whole.

        Raises:
            ContextOverflowError: It does not fit beside what is fixed, and `on_overflow` is ``raise``.
        """
        needed = self.fixed + self.newest_tokens
        if needed <= budget:
            self.taken = needed
            return None
        if on_overflow == "raise":
            costs = {**self.costs, "newest_atom": self.newest_tokens}
            raise ContextOverflowError(budget, needed, costs, cause=OverflowCause.NEWEST_ATOM.value, policy=policy)
        self.left_out = set(self.newest)
        self.newest = []
        return Overflow(budget, needed, OverflowCause.NEWEST_ATOM)

    def place_summaries(self, budget: int) -> None:
        """Take in the summaries that fit, the newest first: they stand for what is gone, and older turns do not."""
        history, view = self._view.history, self._view
        held = history.summaries
        for at in range(held.index(view.end) - 1, -1, -1):
            position = held.position(at)
            if position < history.leading or not view.holds(position) or position in self.newest:
                continue
            tokens = self._table.tokens(position)
            if self.taken + tokens > budget:
                return
            self.summaries.append(position)
            self.taken += tokens

    def selected(self, cut: int) -> tuple[View, list[Verdict]]:
        """What stays when everything older than an index goes but what is held, and why the rest goes."""
        view = self._view
        stays = {view.index_of(position) for position in (*self.pinned, *self.newest, *self.summaries)}
        left_out = {view.index_of(position) for position in self.left_out}
        before = sorted(index for index in stays if self.first <= index < cut)
        runs = to_runs([*range(self.first), *before])
        at = cut
        for index in sorted(index for index in left_out if index >= cut):
            runs.append((at, index))
            at = index + 1
        runs.append((at, len(view)))
        kept, verdicts = keep(view, [run for run in runs if run[0] < run[1]], DecisionReason.OVER_BUDGET)
        outside = {view.position(index) for index in before}
        verdicts += keep_verdicts(view, kept, outside & set(self.request), DecisionReason.PINNED)
        verdicts += keep_verdicts(view, kept, outside & set(self.awaiting), DecisionReason.PENDING_TOOL_CALL)
        return kept, verdicts

    def gone(self, verdicts: Sequence[Verdict]) -> View | None:
        """Of what is over the budget, what a summary can stand for: all but a newest atom that was left out."""
        for verdict in verdicts:
            view = verdict.events
            if verdict.reason is DecisionReason.OVER_BUDGET and isinstance(view, View):
                if self.left_out:
                    view = view.pick_positions(at for at in view.positions() if at not in self.left_out)
                return view or None
        return None

    def whole_tokens(self, positions: Iterable[int]) -> int:
        """What these events take themselves, whatever stands in for them."""
        return sum(map(self._table.tokens, positions))

    def cut(self, budget: int, step_tokens: int) -> int:
        """The view's index of the oldest atom to keep; the number of items where none fits."""
        history, view, table = self._view.history, self._view, self._table
        pairing, response, left_out, first = history.pairing, self.response, self.left_out, self.first
        atoms, flags, incomplete = pairing.atoms, pairing.flags, pairing.incomplete
        # Where the view is a column's beginning, the call of every result in it is in it too.
        solid = len(view.segments) == 1 and view.segments[0][1] == 0
        instead = self.instead
        paid = self.pinned | set(self.newest) | set(self.summaries)
        cell = BYTES_PER_TOKEN * step_tokens
        room = budget - self.taken
        late: dict[int, int] = {}
        index = len(view)
        free = room
        oldest, step_cut, step_room, previous = index, -1, room, -1
        for chunk in view.chunks_backward():
            for position, count in zip(chunk, table.peek(chunk), strict=True):
                index -= 1
                if index < first:
                    return first
                atom = atoms[position]
                if flags[position] & ORPHAN or position in left_out:
                    continue
                if atom in incomplete and not pairing.is_sendable(position, response):
                    continue
                tokens = 0 if position in paid else count - 1 if count else table.tokens(position)
                if instead and position in instead and position not in paid:
                    tokens = instead[position]
                if atom != position and (solid or view.holds(atom)):
                    late[atom] = late.get(atom, 0) + tokens
                    continue
                if cell and previous >= 0 and history.offset(previous) // cell != history.offset(position) // cell:
                    step_cut, step_room = oldest, room
                room -= tokens + late.pop(position, 0) if late else tokens
                if room < 0:
                    # A cut point right behind the newest message would throw away what there is room for.
                    worth = step_cut >= 0 and LEAST_FILLED * (free - step_room) >= free
                    return step_cut if worth else oldest
                oldest, previous = index, position
        return first
