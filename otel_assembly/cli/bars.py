"""Bars for the terminal that show how many of a prompt's tokens each kind of content takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rich.text import Text

    from otel_assembly.cli.terminal import Glyphs

# The letter distinguishes the kinds without color; the number is the background in the 256-color palette.
_KINDS: dict[str, tuple[str, int]] = {
    "prompt": ("P", 111),
    "system": ("S", 75),
    "tool_schemas": ("D", 147),
    "schema": ("X", 183),
    "request": ("U", 114),
    "query": ("Q", 120),
    "response": ("R", 180),
    "tool_call": ("C", 216),
    "tool_result": ("T", 209),
    "summary": ("Y", 222),
    "alert": ("A", 203),
    "state": ("W", 152),
    "evidence": ("E", 159),
    "memory": ("M", 177),
    "recent": ("N", 150),
    "older": ("L", 187),
    "other": ("O", 250),
    "framing": ("F", 246),
    "separators": ("=", 242),
}
_UNKNOWN_KIND = ("?", 245)


def fill_bar(tokens: Mapping[str, int], budget: int, cells: int, glyphs: Glyphs) -> Text:
    """Return a bar in which each kind of content is as wide as its share of the tokens.

    The end of the bar is empty if the budget is not used up. If it is exceeded, a mark shows where the budget ends.

    Args:
        tokens: The tokens of each kind of content; no zeros.
        budget: The token limit; 0 if there is none.
        cells: The width of the bar, in characters.
        glyphs: The characters to draw with.
    """
    from rich.text import Text

    counts = Counter(tokens)
    total = counts.total()
    filled = max(1, cells * total // max(total, budget))
    bar = Text()
    for name, width in share(counts, filled).items():
        letter, shade = _KINDS.get(name, _UNKNOWN_KIND)
        bar.append(letter * width, f"black on color({shade})")
    bar.append(glyphs.free * (cells - filled), "dim")
    if 0 < budget < total:
        position = cells * budget // total
        bar = bar[:position].append(glyphs.limit, "bold red").append_text(bar[position + 1 :])
    return bar


def legend(kinds: Collection[str], glyphs: Glyphs) -> list[Text]:
    """Return the legend of a bar: the letter and the name of each kind of content, and the mark of free budget."""
    from rich.text import Text

    entries = []
    for name in [*(name for name in _KINDS if name in kinds), *sorted(set(kinds) - _KINDS.keys())]:
        letter, shade = _KINDS.get(name, _UNKNOWN_KIND)
        entry = Text().append(letter, f"black on color({shade})")
        entries.append(entry.append(f" {glyphs.printable(name, 40)}"))
    return [*entries, Text(f"{glyphs.free} free")]


def share(tokens: Mapping[str, int], cells: int) -> dict[str, int]:
    """Distribute the cells of a bar among the kinds of content, in proportion to their tokens.

    Each kind gets at least one cell if there are enough cells. Token counts of 0 are not allowed.
    """
    total = sum(tokens.values())
    least = 1 if cells >= len(tokens) else 0
    exact = {name: cells * count / total for name, count in tokens.items()}
    widths = {name: max(least, int(part)) for name, part in exact.items()}
    while (excess := sum(widths.values()) - cells) < 0:
        widths[max(widths, key=lambda name: exact[name] - widths[name])] += 1
    for _ in range(excess):
        widths[max((name for name in widths if widths[name] > least), key=lambda name: widths[name] - exact[name])] -= 1
    return widths
