"""`TokenBudgetPolicy`: a limit in tokens, of the whole rendered prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.decision import DecisionReason, Outcome, Overflow, OverflowCause
from otel_assembly.errors import ConfigurationError, ContextOverflowError
from otel_assembly.pairing import ORPHAN
from otel_assembly.policies.base import (
    DecidingPolicy,
    as_view,
    at_least,
    keep,
    keep_verdicts,
    leading,
    newest_atom,
    newest_response,
)
from otel_assembly.tokens import CharacterCounter, TokenMeter
from otel_assembly.view import View, to_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context

#: Bytes of text in a token, by rule of thumb; a step of the cut is so many bytes long for each of its tokens.
BYTES_PER_TOKEN = 4


class TokenBudgetPolicy(DecidingPolicy):
    """Keeps the newest atoms whose prompt, with all that is fixed, takes at most `max_tokens` tokens (seed 000).

    Counted is what is rendered: prompts, tool schemas, message framing and the full text of every event. Fixed are the
    prompts, the schemas, the reply's priming, the system messages that lead the events, calls that await an approval,
    and the newest user request.

    Args:
        max_tokens: The most tokens that the rendered prompt may take.
        chars_per_token: Estimate by this many characters a token instead of counting with the model's tokenizer.
        transparent: Append a note to the prompts when something was dropped, and there is room for it.
        step_tokens: The cut moves only at atoms that begin in another cell of ``4 × step_tokens`` bytes than the atom
            before them, so that the prompt's beginning stays the same, and cached, for most turns; 0 cuts at any atom.
        on_overflow: What to do where the newest atom does not fit although the fixed content does: ``raise`` or
            ``drop``, which leaves it out whole, reason ``over_budget``.

    Raises:
        ConfigurationError: A limit that cannot work.
    """

    name: ClassVar[str] = "token_budget"

    def __init__(
        self,
        max_tokens: int,
        chars_per_token: float | None = None,
        transparent: bool = False,
        step_tokens: int = 0,
        on_overflow: str = "raise",
    ) -> None:
        self.max_tokens = at_least(self.name, "max_tokens", max_tokens)
        self.step_tokens = at_least(self.name, "step_tokens", step_tokens, least=0)
        self.chars_per_token = chars_per_token
        self._meter = None if chars_per_token is None else TokenMeter(CharacterCounter(chars_per_token))
        self.transparent = bool(transparent)
        if on_overflow not in ("raise", "drop"):
            raise ConfigurationError(f"{self.name}: on_overflow must be 'raise' or 'drop', got {on_overflow!r}")
        self.on_overflow = on_overflow

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings as given."""
        return {
            "max_tokens": self.max_tokens,
            "chars_per_token": self.chars_per_token,
            "transparent": self.transparent,
            "step_tokens": self.step_tokens,
            "on_overflow": self.on_overflow,
        }

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return what fits.

        Raises:
            ContextOverflowError: The fixed content alone is over the budget; or the newest atom does not fit beside it
                and `on_overflow` is ``raise``.
        """
        view = as_view(events)
        fill = _Fill(view, self._meter or context.meter, prompts, context)
        if fill.fixed > self.max_tokens:
            raise ContextOverflowError(self.max_tokens, fill.fixed, fill.costs, policy=self.name)
        overflow = self._place_newest_atom(fill)
        cut = fill.cut(self.max_tokens, self.step_tokens)
        reserved = 0
        if self.transparent and cut > fill.first:
            # The note comes before any older item, also where there is no room for it: with a larger budget it would
            # else take the place of one.
            reserved = fill.meter.prompt(self._note(len(view), len(view)))
            cut = fill.cut(max(fill.taken, self.max_tokens - reserved), self.step_tokens)
        outcome = self._outcome(prompts, view, fill, cut, overflow)
        kept = len(outcome.events)
        if 0 < reserved <= self.max_tokens - fill.taken and kept < len(view):
            return replace(outcome, prompts=[*prompts, self._note(kept, len(view))])
        return outcome

    def _place_newest_atom(self, fill: _Fill) -> Overflow | None:
        needed = fill.fixed + fill.newest_tokens
        if needed <= self.max_tokens:
            fill.taken = needed
            return None
        if self.on_overflow == "raise":
            costs = {**fill.costs, "newest_atom": fill.newest_tokens}
            raise ContextOverflowError(
                self.max_tokens, needed, costs, cause=OverflowCause.NEWEST_ATOM.value, policy=self.name
            )
        fill.left_out = set(fill.newest)
        fill.newest = []
        return Overflow(self.max_tokens, needed, OverflowCause.NEWEST_ATOM)

    def _outcome(self, prompts: Sequence[str], view: View, fill: _Fill, cut: int, overflow: Overflow | None) -> Outcome:
        stays = {view.index_of(position) for position in (*fill.pinned, *fill.newest)}
        left_out = {view.index_of(position) for position in fill.left_out}
        before = sorted(index for index in stays if fill.first <= index < cut)
        runs = to_runs([*range(fill.first), *before])
        at = cut
        for index in sorted(index for index in left_out if index >= cut):
            runs.append((at, index))
            at = index + 1
        runs.append((at, len(view)))
        kept, verdicts = keep(view, [run for run in runs if run[0] < run[1]], DecisionReason.OVER_BUDGET)
        outside = {view.position(index) for index in before}
        verdicts += keep_verdicts(view, kept, outside & {fill.request}, DecisionReason.PINNED)
        verdicts += keep_verdicts(view, kept, outside & set(fill.awaiting), DecisionReason.PENDING_TOOL_CALL)
        return Outcome(prompts, kept, verdicts, budget=self.max_tokens, fixed=fill.fixed, overflow=overflow)

    def _note(self, kept: int, total: int) -> str:
        return f"[{self.name}] Showing {kept} of {total} events (token budget)."


class _Fill:
    """How the budget fills up: first what is fixed, then the newest atom, then atoms backwards from the newest."""

    __slots__ = (
        "_table",
        "_view",
        "awaiting",
        "costs",
        "first",
        "fixed",
        "left_out",
        "meter",
        "newest",
        "newest_tokens",
        "pinned",
        "request",
        "response",
        "taken",
    )

    def __init__(self, view: View, meter: TokenMeter, prompts: Sequence[str], context: Context) -> None:
        history = view.history
        self._view = view
        self._table = table = history.table(meter)
        self.meter = meter
        self.first = leading(view)
        self.response = newest_response(view)
        self.request = history.newest_request(view)
        self.awaiting = [position for position in history.pairing.awaiting(self.response) if view.holds(position)]
        self.costs = {
            **{f"prompt[{index}]": meter.prompt(prompt) for index, prompt in enumerate(prompts)},
            "tool_schemas": meter.tools(context.tools),
            "reply_priming": meter.priming,
            "leading_system": sum(table.tokens(view.position(index)) for index in range(self.first)),
            "pending_tool_calls": sum(table.tokens(position) for position in self.awaiting),
            "newest_request": table.tokens(self.request) if self.request >= 0 else 0,
        }
        self.costs = {name: tokens for name, tokens in self.costs.items() if tokens}
        self.fixed = sum(self.costs.values())
        self.pinned = {*self.awaiting, self.request} - {-1}
        self.newest = [
            position
            for position in newest_atom(view, self.response)
            if position not in self.pinned and position >= history.leading
        ]
        self.newest_tokens = sum(table.tokens(position) for position in self.newest)
        self.left_out: set[int] = set()
        self.taken = self.fixed

    def cut(self, budget: int, step_tokens: int) -> int:
        """The view's index of the oldest atom to keep; the number of items where none fits."""
        history, view, table = self._view.history, self._view, self._table
        pairing, response, left_out, first = history.pairing, self.response, self.left_out, self.first
        atoms, flags, incomplete = pairing.atoms, pairing.flags, pairing.incomplete
        # Where the view is a column's beginning, the call of every result in it is in it too.
        solid = len(view.segments) == 1 and view.segments[0][1] == 0
        paid = self.pinned | set(self.newest)
        cell = BYTES_PER_TOKEN * step_tokens
        room = budget - self.taken
        late: dict[int, int] = {}
        index = len(view)
        oldest, step_cut, previous = index, -1, -1
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
                if atom != position and (solid or view.holds(atom)):
                    late[atom] = late.get(atom, 0) + tokens
                    continue
                if cell and previous >= 0 and history.offset(previous) // cell != history.offset(position) // cell:
                    step_cut = oldest
                room -= tokens + late.pop(position, 0) if late else tokens
                if room < 0:
                    return step_cut if step_cut >= 0 else oldest
                oldest, previous = index, position
        return first
