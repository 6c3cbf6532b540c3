"""What blocks cost: their texts as they are rendered, joined, in messages or by the caller's own count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from otel_assembly.budget.sections import is_text, item_text, splits, spoken
from otel_assembly.errors import TokenizerError
from otel_assembly.facts import describe
from otel_assembly.tokens import TokenMeter, counter_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.tokens.counters import CountMethod

#: Characters of the longest text whose count is remembered: a document, not just a message.
_LONGEST_TEXT = 4_000_000


class Rendered(NamedTuple):
    """The tokens of a block in the prompt; `tokens` is the sum of the rest.

    Attributes:
        tokens: All of it.
        items: Its items, each alone.
        framing: Message marks, and an instruction that is said once more.
        separators: What joining its items added; below 0 where the tokenizer merges them.
    """

    tokens: int
    items: int
    framing: int
    separators: int


NOTHING = Rendered(0, 0, 0, 0)


class Measure:
    """Counts blocks: by a meter with the framing of messages, or by the caller's own count without any.

    Args:
        meter: What counts.
        framed: Whether each message costs its marks, and the prompt the reply's priming.
    """

    __slots__ = ("_framed", "_meter", "overhead", "priming", "text")

    def __init__(self, meter: TokenMeter, *, framed: bool) -> None:
        self._meter = meter
        self._framed = framed
        self.overhead = meter.framing.prompt() if framed else 0
        self.priming = meter.priming if framed else 0
        self.text: Callable[[str], int] = meter.text

    @property
    def method(self) -> CountMethod:
        """How far the counts can be trusted."""
        return self._meter.method

    @property
    def encoding(self) -> str:
        """What counted."""
        return self._meter.encoding

    def item(self, item: BlockItem) -> int:
        """The tokens of one item, alone; of an event with the marks of its message."""
        if is_text(item):
            return self.text(item_text(item))
        facts = describe(item.content)
        return self._meter.event(facts) if self._framed else sum(map(self.text, facts.texts))

    def rendered(self, block: Block, items: Sequence[BlockItem], kept: Sequence[int]) -> Rendered:
        """The tokens of a block with these of its items."""
        if not kept:
            return NOTHING
        parts = spoken(block, items, kept)
        joined = [texts for _, said in parts for texts in said]
        shown = [items[index] for section, _ in parts for index in section.items]
        alone = sum(map(self.item, shown))
        framing = self.overhead * len(joined) + (self.text(block.restated) if block.restated else 0)
        tokens = sum(self.item(item) for item in shown if not is_text(item))
        tokens += self.overhead * len(joined) + sum(self.text(block.separator.join(texts)) for texts in joined)
        return Rendered(tokens, alone, framing, tokens - alone - framing)

    def charges(self, block: Block, costs: Iterable[tuple[int, bool]]) -> list[int]:
        """What each of a block's items is charged as it is taken in, so that their sum bounds the rendered block.

        A text is charged what stands before it too: the marks of a message where it begins one, else a separator. The
        joined text can only be shorter, by a token here and there; that rest stays unused, so that every decision
        follows from the numbers alone and can be worked out again from the traces.

        Args:
            block: The block.
            costs: Of each item, its tokens alone, and whether it is a text.
        """
        costs = list(costs)
        # Among events, a text is a message of its own.
        apart = (3 if splits(block) else 2) if all(text for _, text in costs) else len(costs)
        between = self.text(block.separator) if block.separator else 0
        # Behind events alone it is a message of its own.
        start = self.text(block.restated) + max(self.overhead, between) if block.restated else 0
        charged: list[int] = []
        texts = 0
        for tokens, text in costs:
            if text:
                texts += 1
                tokens += self.overhead if texts == 1 else max(self.overhead, between) if texts <= apart else between
            charged.append(tokens + start)
            start = 0
        return charged


class _Counted:
    """A caller's own count as a counter."""

    method: CountMethod = "estimated"
    generation = 0

    def __init__(self, count: Callable[[str], Any]) -> None:
        self.name = str(getattr(count, "__name__", type(count).__name__)).strip("<>")
        self._count = count

    def count(self, text: str) -> int:
        tokens = self._count(text)
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            found = tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else type(tokens).__name__
            raise TokenizerError(f"the given count returned {found!s}; it must return a whole number, 0 or more")
        return tokens


_default: dict[str | None, Measure] = {}
_own: WeakKeyDictionary[Any, Measure] = WeakKeyDictionary()


def measure_for(count: Callable[[str], int] | None, model: str | None = None) -> Measure:
    """What counts for these blocks; it remembers what it has counted, for as long as `count` lives.

    Args:
        count: The caller's own count of a text, in tokens; None: the model's tokenizer, with the framing of messages.
        model: The model; without one, the default tokenizer.
    """
    if count is None:
        measure = _default.get(model)
        if measure is None:
            measure = _default[model] = Measure(TokenMeter(counter_for(model), max_text=_LONGEST_TEXT), framed=True)
            while len(_default) > _MODELS:
                del _default[next(iter(_default))]
        return measure
    try:
        known = _own.get(count)
    except TypeError:  # a callable that cannot be referred to weakly is not remembered
        return Measure(TokenMeter(_Counted(count), max_text=_LONGEST_TEXT), framed=False)
    if known is None:
        known = _own[count] = Measure(TokenMeter(_Weak(count), max_text=_LONGEST_TEXT), framed=False)
    return known


_MODELS = 8


class _Weak(_Counted):
    """The same, without keeping the caller's function alive: what is remembered of it goes with it."""

    def __init__(self, count: Callable[[str], Any]) -> None:
        from weakref import ref

        super().__init__(count)
        weak = ref(count)
        self._count = lambda text: weak()(text)  # type: ignore[misc]  # whoever counts holds the function


__all__ = ["NOTHING", "Measure", "Rendered", "measure_for"]
