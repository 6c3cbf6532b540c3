"""Tokens of the views and prompts that the steps of one assembly share; each sum is made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.step import Step


class Sums:
    """Sums over one record, by the identity of what is summed: what one step lets out, the next one takes in."""

    __slots__ = ("_around", "_injected", "_items", "_meter", "_prompts", "_tables")

    def __init__(self, record: Record) -> None:
        self._meter = record.meter
        self._around = record.meter.priming + record.meter.tools(record.context.tools)
        self._tables: dict[int, TokenTable] = {}
        self._items: dict[int, int] = {}
        self._prompts: dict[int, int] = {}
        self._injected = {step.index: self._made(step) for step in record.steps if step.injected}

    def _made(self, step: Step) -> View:
        """What a step made, counted: a later step may have taken it out again before anything counted it."""
        made = set(step.injected)
        view = step.view_out
        here = [position for position in view.positions() if step.frame_out.ordinals.of(position) in made]
        table = self.table(view)
        for position in here:
            table.tokens(position)
        return view.pick_positions(here)

    def table(self, view: View) -> TokenTable:
        """The token table of a view's history."""
        table = self._tables.get(id(view.history))
        if table is None:
            table = self._tables[id(view.history)] = view.history.table(self._meter)
        return table

    def items(self, view: View) -> int:
        """Tokens of a view's items, as far as they are counted."""
        tokens = self._items.get(id(view))
        if tokens is None:
            tokens = self._items[id(view)] = self.table(view).sum(view)
        return tokens

    def rendered(self, prompts: tuple[str, ...], view: View) -> int:
        """Tokens of a rendered prompt, as far as its items are counted."""
        tokens = self._prompts.get(id(prompts))
        if tokens is None:
            tokens = self._prompts[id(prompts)] = sum(map(self._meter.prompt, prompts))
        return self._around + tokens + self.items(view)

    def injected(self, step: Step) -> tuple[int, int]:
        """How many of its output's items a step made, and their tokens."""
        view = self._injected.get(step.index)
        return (0, 0) if view is None else (len(view), self.items(view))
