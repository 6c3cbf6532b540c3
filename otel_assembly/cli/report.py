"""Print the results of a replay as tables or as JSON."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

from otel_assembly.cli.bars import fill_bar, legend
from otel_assembly.cli.comparison import comparison, dollars
from otel_assembly.cli.terminal import ASCII, UNICODE
from otel_assembly.decision import OverflowCause

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from otel_assembly.cli.tally import Gaps, ReplayedTurn, Tally, Variant
    from otel_assembly.transcripts import Transcript


#: The characters of a turn's bar, and the narrowest terminal on which bars are shown.
_BAR = 24
_WIDE = 96

#: The most characters of an id or a chain's name.
_LONGEST = 200

_COST_NOTE = (
    "Costs are estimates from list prices of input tokens, in US dollars: the stable prefix at the price of cached "
    "input, the rest at the full price. Output tokens and cache misses cost extra."
)
_NO_COST_NOTE = (
    "No cost is shown: {} has no list price, or the prices are not installed (pip install 'otel-assembly[prices]')."
)

_UNKNOWN_NOTE = (
    "Unknown, because the log does not contain them: {}. Their tokens are not counted, so each prompt was larger."
)

_CACHE_NOTE = (
    "The stable prefix is the leading tokens that equal those of the previous turn. A provider can read them from its "
    "cache until they expire there."
)


class Report(AbstractContextManager["Report"], Protocol):
    """A report: it receives the results of a replay and prints them."""

    def conversation(
        self, transcript: Transcript, variant: Variant, tally: Tally, turns: Sequence[ReplayedTurn]
    ) -> None:
        """Add the result of replaying one conversation with one policy chain.

        Args:
            transcript: The conversation.
            variant: The policy chain.
            tally: The sums of the conversation's turns.
            turns: The result of each turn.
        """
        ...

    def totals(self, variants: Sequence[Variant], gaps: Gaps) -> None:
        """Print the totals of all conversations, for each policy chain.

        Args:
            variants: The policy chains that were replayed, each with its totals.
            gaps: The parts of the prompts that the transcripts do not contain.
        """
        ...


def make_report(arguments: argparse.Namespace, variants: Sequence[Variant]) -> Report:
    """Return a report in JSON if ``--json`` is set, else a report in tables."""
    if arguments.json:
        return JsonReport()
    return TextReport(variants, turns=arguments.turns or arguments.conversation is not None)


class JsonReport:
    """A report that prints the totals as JSON."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Do nothing."""

    def conversation(
        self, transcript: Transcript, variant: Variant, tally: Tally, turns: Sequence[ReplayedTurn]
    ) -> None:
        """Do nothing: only the totals are printed."""

    def totals(self, variants: Sequence[Variant], gaps: Gaps) -> None:
        """Print one chain's totals as a JSON object; for several chains, an array with an object for each chain.

        The objects in the array also contain the chain's name and budget. If the transcripts do not contain all parts
        of the prompts, each object has a list ``unknown``.
        """
        unknown = {"unknown": gaps.unknown_parts} if gaps.unknown else {}
        if len(variants) == 1:
            print(json.dumps(variants[0].total.as_json() | unknown))
            return
        rows = [
            {"name": variant.name, "budget": variant.budget, **variant.total.as_json(), **unknown}
            for variant in variants
        ]
        print(json.dumps(rows))


class TextReport:
    """A report that prints tables.

    The turns of the first conversation are kept until the end: they are printed only if there is no other conversation.
    """

    def __init__(self, variants: Sequence[Variant], *, turns: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console: Console = Console(highlight=False, soft_wrap=False)
        self._console.on_broken_pipe = _raise  # type: ignore[method-assign]  # else rich ends the process
        self._bars = self._console.width >= _WIDE
        self._glyphs = UNICODE if "utf" in (self._console.encoding or "").lower() else ASCII
        self._kinds: set[str] = set()
        self._several = len(variants) > 1
        self._turns = turns
        self._results: list[tuple[Transcript, Variant, Tally, Sequence[ReplayedTurn]]] = []
        self._conversations = 0
        self._table: Table | None = None
        self._progress = Progress(
            TextColumn("replaying"),
            BarColumn(pulse_style="cyan"),
            MofNCompleteColumn(),
            TextColumn("conversations"),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("replay", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.stop()

    def conversation(
        self, transcript: Transcript, variant: Variant, tally: Tally, turns: Sequence[ReplayedTurn]
    ) -> None:
        """Add the result of a conversation with one policy chain, and print its turns if the options ask for turns."""
        if not self._results or self._results[-1][0] is not transcript:
            self._conversations += 1
            self._progress.advance(self._task)
        if self._turns:
            self._print_turns(transcript, variant, turns)
        elif self._conversations > 1:
            self._results = [(*result[:3], ()) for result in self._results]  # the turns will not be printed
            turns = ()
        self._results.append((transcript, variant, tally, () if self._turns else turns))

    def totals(self, variants: Sequence[Variant], gaps: Gaps) -> None:
        """Print the tables of turns and conversations that are still missing, then the totals of each policy chain."""
        self._progress.stop()
        for transcript, variant, _, turns in self._results:
            if turns:
                self._print_turns(transcript, variant, turns)
        if not self._turns and self._conversations > 1 and not self._several:
            self._print_conversations()
        self._print_totals(variants)
        if gaps.unknown:
            self._console.print(_UNKNOWN_NOTE.format(", ".join(gaps.unknown_parts)), style="yellow", markup=False)
        if not self._turns and self._conversations > 1:
            self._console.print(
                "To print every turn, add --turns, or --conversation ID for one conversation.",
                style="dim",
                markup=False,
            )

    def _print_turns(self, transcript: Transcript, variant: Variant, turns: Sequence[ReplayedTurn]) -> None:
        from rich.text import Text

        name = self._printable(transcript.id)
        title = f"{name}  ({self._printable(variant.name)})" if self._several else name
        self._console.print(Text(title, style="bold"))
        table = _table(
            ("turn", "right"),
            ("tokens in", "right"),
            ("out", "right"),
            ("events in", "right"),
            ("out", "right"),
            ("reuse", "right"),
            *([("tokens by kind", "left")] if self._bars else []),
            ("dropped or compacted", "left"),
        )
        for turn in turns:
            totals = turn.assembly.totals
            reuse = turn.assembly.prefix.reuse
            table.add_row(
                str(turn.number),
                f"{totals.tokens_in:,}",
                f"{totals.tokens_out:,}" if turn.sent else "-",
                str(totals.events_in),
                str(totals.events_out) if turn.sent else "-",
                f"{reuse:.0%}" if turn.sent and reuse is not None else "",
                *([self._bar(turn)] if self._bars else []),
                self._exits(turn),
            )
        self._console.print(table)
        if self._kinds:
            self._console.print(Text("  ").join(legend(self._kinds, self._glyphs)))
        self._console.print()

    def _printable(self, name: str) -> str:
        return self._glyphs.printable(name, _LONGEST)

    def _bar(self, turn: ReplayedTurn) -> Text:
        from rich.text import Text

        kinds = turn.assembly.kinds
        self._kinds.update(kinds)
        return fill_bar(kinds, turn.assembly.totals.budget or 0, _BAR, self._glyphs) if kinds else Text()

    def _exits(self, turn: ReplayedTurn) -> Text:
        from rich.text import Text

        text = Text()
        overflow = turn.assembly.totals.overflow
        if overflow is not None:
            what = "needs" if turn.sent is False else "newest message dropped; with it, the prompt needs"
            if overflow.cause is OverflowCause.WINDOW:
                what = "larger than the model window:"
            text.append(
                f"{self._glyphs.stop} overflow: {what} {overflow.needed:,} of {overflow.budget:,} {overflow.unit}",
                style="bold red",
            )
        counts: dict[tuple[str, str], list[int]] = {}
        for exit_ in turn.exits:
            count = counts.setdefault((exit_.policy, exit_.reason), [0, 0])
            count[0] += exit_.items
            count[1] += exit_.tokens
        for (policy, reason), (items, tokens) in counts.items():
            if text:
                text.append("\n")
            noun = "item" if items == 1 else "items"
            text.append(f"{policy}: {items} {noun}, {tokens:,} tokens, {reason}")
        for edit, numbers in turn.edits.items():
            if text:
                text.append("\n")
            values = ", ".join(f"{name} {value:,}" for name, value in numbers.items())
            text.append(f"{self._printable(edit)} (by the provider): {values or 'no numbers'}")
        return text

    def _print_conversations(self) -> None:
        priced = self._bars and any(tally.cost is not None for _, _, tally, _ in self._results)
        table = _table(
            ("conversation", "left"),
            ("turns", "right"),
            ("tokens in", "right"),
            ("out", "right"),
            ("dropped", "right"),
            ("overflows", "right"),
            ("orphans", "right"),
            ("reuse", "right"),
            *([("cost", "right")] if priced else []),
        )
        for transcript, _, tally, _ in self._results:
            table.add_row(
                self._printable(transcript.id),
                str(tally.turns),
                f"{tally.tokens_in:,}",
                f"{tally.tokens_out:,}",
                f"{tally.dropped:,}",
                _red_if_positive(tally.overflows),
                _red_if_positive(tally.orphans),
                f"{tally.prefix_reuse:.0%}",
                *([dollars(tally.cost)] if priced else []),
            )
        self._console.print(table)

    def _print_totals(self, variants: Sequence[Variant]) -> None:
        for table in comparison(variants, self._console.width, self._glyphs):
            self._console.print(table)
        self._console.print(_CACHE_NOTE, style="dim", markup=False)
        model = variants[0].assembler.model
        if any(variant.total.cost is not None for variant in variants):
            self._console.print(_COST_NOTE, style="dim", markup=False)
        elif model is not None:
            self._console.print(_NO_COST_NOTE.format(self._printable(model)), style="dim", markup=False)


def _table(*columns: tuple[str, Any]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for index, (name, justify) in enumerate(columns):
        is_name_column = index == 0 and justify == "left"
        table.add_column(
            name,
            justify=justify,
            no_wrap=is_name_column or justify == "right",
            overflow="ellipsis" if is_name_column else "fold",
            min_width=16 if is_name_column else None,
        )
    return table


def _raise() -> None:
    """Re-raise the current exception. rich calls this on a closed pipe; its own handler would end the process."""
    raise


def _red_if_positive(count: int) -> Any:
    from rich.text import Text

    return Text(f"{count:,}", style="bold red" if count else "")
