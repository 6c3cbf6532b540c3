"""What blocks cost: their texts as they are rendered, joined, in messages or by the caller's own count."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args
from weakref import ref

from otel_assembly.budget.sections import is_text, item_text, most_messages, spoken
from otel_assembly.errors import AssemblyError, ConfigurationError, TokenizerError
from otel_assembly.tokens import TokenMeter, counter_for
from otel_assembly.tokens.meter import CountMethod, TiktokenCounter, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.budget.sections import Section
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.messages.event_facts import EventFacts
    from otel_assembly.tokens import MessageFraming

#: Characters of the longest text whose count is remembered (a document, not just a message), and of all of them.
_LONGEST_TEXT: Final = 4_000_000
_ALL_TEXTS: Final = 32_000_000
#: How many models' counts are remembered.
_MODELS: Final = 8
_METHODS: Final = get_args(CountMethod)


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
        holds: What must live for as long as somebody may count: the caller's own count.
    """

    __slots__ = ("_framed", "_holds", "_meter", "overhead", "priming", "text")

    def __init__(self, meter: TokenMeter, *, framed: bool, holds: Any = None) -> None:
        self._meter = meter
        self._framed = framed
        self._holds = holds
        self.overhead = meter.framing.prompt() if framed else 0
        self.priming = meter.priming if framed else 0
        self.text: Callable[[str], int] = meter.text

    @property
    def counter(self) -> TokenCounter:
        """What counts a text."""
        return self._meter.counter

    @property
    def method(self) -> CountMethod:
        """How far the counts can be trusted."""
        return self._meter.method

    @property
    def encoding(self) -> str:
        """What counted."""
        return self._meter.encoding

    @property
    def steady(self) -> bool:
        """Whether a text's count will always be what it is now; a calibrated one changes as bills come in."""
        counter = self._meter.counter
        return isinstance(counter, TiktokenCounter) or (isinstance(counter, _Counted) and not counter.changes)

    def alone(self, item: BlockItem, facts: EventFacts | None) -> int:
        """The tokens of one item, alone; of an event, with what it says, those of its message with its marks."""
        if facts is None:
            return self.text(item_text(item))
        if item.echo:
            return 0
        return self._meter.event(facts) if self._framed else sum(map(self.text, facts.texts))

    def counted(self, view: View) -> TokenTable:
        """What is counted of a history, exactly and all of it."""
        table = view.history.table(self._meter)
        table.exact(view)
        return table

    def tokens(self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], alone: Callable[[int], int]) -> int:
        """The tokens of a block with these of its items; nothing is counted but what is sent.

        Args:
            block: The block.
            items: All its items.
            kept: Indexes of those that stand in the prompt, ascending.
            alone: What the item at an index takes alone.
        """
        return self._sent(block, items, spoken(block, items, kept), alone) if kept else 0

    def rendered(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], alone: Callable[[int], int]
    ) -> Rendered:
        """As `tokens`, and what they are made up of."""
        if not kept:
            return NOTHING
        parts = spoken(block, items, kept)
        tokens = self._sent(block, items, parts, alone)
        each = sum([sum(map(alone, section.items)) for section, _ in parts])
        framing = self.overhead * sum([len(said) for _, said in parts])
        framing += self.text(block.restated) if block.restated else 0
        return Rendered(tokens, each, framing, tokens - each - framing)

    def _sent(
        self,
        block: Block,
        items: Sequence[BlockItem],
        parts: Sequence[tuple[Section, list[list[str]]]],
        alone: Callable[[int], int],
    ) -> int:
        tokens = 0
        for section, said in parts:
            if block.eventful:
                tokens += sum([alone(index) for index in section.items if not is_text(items[index])])
            tokens += sum([self.overhead + self.text(block.separator.join(texts)) for texts in said])
        return tokens

    def charging(self, block: Block, *, texts_alone: bool) -> Callable[[int, bool], int]:
        """What says what each of a block's items is charged as it is taken in, so that all bound the rendered block.

        A text is charged what stands before it too: the marks of a message where it begins one, else a separator. The
        joined text can only be shorter, by a token here and there; that rest stays unused, so that every decision
        follows from the numbers alone and can be worked out again from the traces.

        Args:
            block: The block.
            texts_alone: Whether there are texts alone among the items; among events, each is a message of its own.

        Returns:
            A function that is told of each item, in order, its tokens alone, and whether it is a text.
        """
        apart = most_messages(block) if texts_alone else float("inf")
        between = self.text(block.separator) if block.separator else 0
        # Behind events alone it is a message of its own.
        start = self.text(block.restated) + max(self.overhead, between) if block.restated else 0
        texts = 0

        def charge(tokens: int, text: bool) -> int:
            nonlocal start, texts
            if text:
                texts += 1
                tokens += self.overhead if texts == 1 else max(self.overhead, between) if texts <= apart else between
            tokens += start
            start = 0
            return tokens

        return charge


class _Counted:
    """A caller's own count as a counter.

    What it counts is taken as given, but nobody says that the model counts alike, so it is ``estimated``: unless the
    count says otherwise by an attribute ``method``, as a `TokenCounter` does whose ``count`` it is.
    """

    def __init__(self, count: Callable[[str], Any], alive: Callable[[], Any]) -> None:
        self._says: Callable[[], Any] = alive
        named: Any = count
        if isinstance(count, MethodType) and hasattr(count.__self__, "generation"):
            named, self._says = count.__self__, lambda: alive().__self__
        self.changes = named is not count
        self.name = str(getattr(named, "name", None) or getattr(count, "__name__", type(count).__name__)).strip("<>")
        self._alive = alive

    @property
    def method(self) -> CountMethod:
        """As the count says now."""
        method: Any = getattr(self._says(), "method", None)
        said: CountMethod = method if method in _METHODS else "estimated"
        return said

    @property
    def generation(self) -> int:
        """Changes when a `TokenCounter` says that counts should be made anew."""
        return int(self._says().generation) if self.changes else 0

    def count(self, text: str) -> int:
        """The tokens of a text."""
        try:
            tokens = self._alive()(text)
        except AssemblyError:
            raise
        except Exception as error:
            raise TokenizerError(
                f"the given count raised {type(error).__name__} for a text of {len(text)} characters; "
                "it must take any text"
            ) from error
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            whole = isinstance(tokens, int) and not isinstance(tokens, bool)
            found = tokens if whole else f"a value of type {type(tokens).__name__}"
            raise TokenizerError(f"the given count returned {found}; it must return a whole number, 0 or more")
        return int(tokens)


class _Own:
    """The meters of callers' own counts, each for as long as its count lives; told apart by identity.

    Of counts that cannot be referred to weakly, only the last few are remembered, and held.
    """

    def __init__(self) -> None:
        self._meters: dict[tuple[int, int], tuple[Callable[[], Any], TokenMeter]] = {}
        self._held: list[tuple[int, int]] = []

    def meter(self, count: Callable[[str], Any]) -> TokenMeter:
        owner: Any = count
        function: Any = None
        if isinstance(count, MethodType):  # a new object each time it is asked for; what it is bound to is not
            owner, function = count.__self__, count.__func__
        key = id(owner), id(function)
        held = self._meters.get(key)
        if held is not None and held[0]() is owner:
            return held[1]
        lives: Callable[[], Any]
        try:
            lives = ref(owner, partial(self._forget, key))
        except TypeError:
            lives = partial(_itself, owner)
            self._held.append(key)
            if len(self._held) > _MODELS:
                self._meters.pop(self._held.pop(0), None)
        alive = lives if function is None else (lambda: MethodType(function, lives()))
        meter = meter_of_blocks(_Counted(count, alive))
        self._meters[key] = lives, meter
        return meter

    def _forget(self, key: tuple[int, int], gone: Any) -> None:
        held = self._meters.get(key)
        if held is not None and held[0] is gone:
            del self._meters[key]


def _itself(owner: Any) -> Any:
    return owner


def meter_of_blocks(counter: TokenCounter, framing: MessageFraming | None = None) -> TokenMeter:
    """A meter that remembers long texts: items joined to one message are counted as that one text."""
    return TokenMeter(counter, framing, max_text=_LONGEST_TEXT, max_characters=_ALL_TEXTS)


_default: dict[str | None, Measure] = {}
_own: Final = _Own()


def measure_for(count: Callable[[str], int] | None, model: str | None = None) -> Measure:
    """What counts for these blocks; it remembers what it has counted, for as long as `count` lives.

    Args:
        count: The caller's own count of a text, in tokens; None: the model's tokenizer, with the framing of messages.
        model: The model; without one, the default tokenizer.

    Raises:
        ConfigurationError: `count` cannot be called.
    """
    if count is not None:
        if not callable(count):
            raise ConfigurationError(f"count must be a function that counts the tokens of a text, got {count!r}")
        return Measure(_own.meter(count), framed=False, holds=count)
    measure = _default.get(model)
    if measure is None:
        measure = _default[model] = Measure(meter_of_blocks(counter_for(model)), framed=True)
        while len(_default) > _MODELS:
            _default.pop(next(iter(_default)), None)
    return measure


__all__ = ["NOTHING", "Measure", "Rendered", "measure_for"]
