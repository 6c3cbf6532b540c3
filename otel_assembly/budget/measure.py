"""Counts the tokens of blocks, with a model's tokenizer or with a function of the caller."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args
from weakref import ref

from otel_assembly.budget.sections import is_text, item_text, max_messages, sections_with_texts
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

#: The token count of a text is cached if the text has at most so many characters. Blocks contain whole documents, so
#: this is more than for messages. The second number limits the characters of all cached texts.
_LONGEST_TEXT: Final = 4_000_000
_ALL_TEXTS: Final = 32_000_000
#: The most models whose counts are cached.
_MODELS: Final = 8
_METHODS: Final = get_args(CountMethod)


class Rendered(NamedTuple):
    """The tokens of a block in the prompt; `tokens` is the sum of the other fields.

    Attributes:
        tokens: All tokens of the block.
        items: The sum of the items' tokens, each item counted alone.
        framing: The tokens that the provider adds to each message, and those of `Block.restated`.
        separators: The tokens that joining the items adds. Negative if the tokenizer merges tokens of neighboring
            items.
    """

    tokens: int
    items: int
    framing: int
    separators: int


NOTHING = Rendered(0, 0, 0, 0)


class Measure:
    """Counts the tokens of blocks.

    Args:
        meter: Counts the tokens of texts and messages.
        framed: Whether to count the tokens that providers add: for each message (framing), and once for the beginning
            of the reply (priming). False if the caller counts with a function.
        owner: The caller's function, to which this object holds a reference so that the cached counts stay valid.
    """

    __slots__ = ("_framed", "_meter", "_owner", "overhead", "priming", "text")

    def __init__(self, meter: TokenMeter, *, framed: bool, owner: Any = None) -> None:
        self._meter = meter
        self._framed = framed
        self._owner = owner
        self.overhead = meter.framing.prompt() if framed else 0
        self.priming = meter.priming if framed else 0
        self.text: Callable[[str], int] = meter.text

    @property
    def counter(self) -> TokenCounter:
        """The counter that returns the number of tokens in a text."""
        return self._meter.counter

    @property
    def method(self) -> CountMethod:
        """How tokens are counted: ``exact``, ``calibrated`` or ``estimated``."""
        return self._meter.method

    @property
    def encoding(self) -> str:
        """The name of the counter's encoding."""
        return self._meter.encoding

    @property
    def is_stable(self) -> bool:
        """Whether the same text always has the same count.

        False for a calibrated counter, whose counts change with the usage that providers report.
        """
        counter = self._meter.counter
        return isinstance(counter, TiktokenCounter) or (isinstance(counter, _FunctionCounter) and not counter.changes)

    def item_tokens(self, item: BlockItem, facts: EventFacts | None) -> int:
        """Return the tokens of one item, counted without its neighbors.

        Args:
            item: The item.
            facts: The facts of a message object, which is counted with its framing; None for a text.
        """
        if facts is None:
            return self.text(item_text(item))
        if item.echo:
            return 0
        return self._meter.event(facts) if self._framed else sum(map(self.text, facts.texts))

    def exact_table(self, view: View) -> TokenTable:
        """Return the token table of a view's history, in which every event of the view is counted exactly."""
        table = view.history.table(self._meter)
        table.exact(view)
        return table

    def tokens(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> int:
        """Return the tokens of a block if only some of its items are sent.

        Args:
            block: The block.
            items: All items of the block.
            kept: Indexes of the items that are sent, ascending.
            item_tokens: Returns the tokens of the item at an index, counted alone.
        """
        return self._section_tokens(block, items, sections_with_texts(block, items, kept), item_tokens) if kept else 0

    def rendered(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> Rendered:
        """Return the same total as `tokens`, split into items, framing and separators."""
        if not kept:
            return NOTHING
        parts = sections_with_texts(block, items, kept)
        tokens = self._section_tokens(block, items, parts, item_tokens)
        tokens_of_items = sum([sum(map(item_tokens, section.items)) for section, _ in parts])
        framing = self.overhead * sum([len(messages) for _, messages in parts])
        framing += self.text(block.restated) if block.restated else 0
        return Rendered(tokens, tokens_of_items, framing, tokens - tokens_of_items - framing)

    def _section_tokens(
        self,
        block: Block,
        items: Sequence[BlockItem],
        parts: Sequence[tuple[Section, list[list[str]]]],
        item_tokens: Callable[[int], int],
    ) -> int:
        tokens = 0
        for section, messages in parts:
            if block.has_events:
                tokens += sum([item_tokens(index) for index in section.items if not is_text(items[index])])
            tokens += sum([self.overhead + self.text(block.separator.join(texts)) for texts in messages])
        return tokens

    def charging(self, block: Block, *, has_only_texts: bool) -> Callable[[int, bool], int]:
        """Return a function that returns the charge of each kept item: an upper bound of the tokens that it adds.

        The charge of a text includes what precedes it: message framing if it begins a message, otherwise a separator.
        The rendered block may have a few tokens less than the sum of the charges; these stay unused. In return, each
        decision can be reproduced from charges, which the spans record.

        Args:
            block: The block.
            has_only_texts: Whether all items are texts. If there are message objects, each text is a separate message.

        Returns:
            A function to call for each kept item in order, with the item's tokens (counted alone) and whether it is a
            text.
        """
        messages = max_messages(block) if has_only_texts else float("inf")
        separator = self.text(block.separator) if block.separator else 0
        # If the block has no text, the restated instruction is a separate message.
        start = self.text(block.restated) + max(self.overhead, separator) if block.restated else 0
        texts = 0

        def charge(tokens: int, text: bool) -> int:
            nonlocal start, texts
            if text:
                texts += 1
                starts_message = texts <= messages
                tokens += (
                    self.overhead if texts == 1 else max(self.overhead, separator) if starts_message else separator
                )
            tokens += start
            start = 0
            return tokens

        return charge


class _FunctionCounter:
    """A `TokenCounter` that calls a function of the caller.

    Its counts have the method ``estimated``, because the model may count differently. If the function is the ``count``
    of a `TokenCounter`, or has an attribute ``method``, that method applies instead.
    """

    def __init__(self, count: Callable[[str], Any], function: Callable[[], Any]) -> None:
        #: Returns the object with the attribute ``method``: the function, or the `TokenCounter` whose method it is.
        self._counter: Callable[[], Any] = function
        named: Any = count
        if isinstance(count, MethodType) and hasattr(count.__self__, "generation"):
            named, self._counter = count.__self__, lambda: function().__self__
        self.changes = named is not count
        self.name = str(getattr(named, "name", None) or getattr(count, "__name__", type(count).__name__)).strip("<>")
        #: Returns the caller's function, which may be referenced weakly.
        self._function = function

    @property
    def method(self) -> CountMethod:
        """The current ``method`` of the function or its counter; ``estimated`` if it has no valid one."""
        current_method: Any = getattr(self._counter(), "method", None)
        method: CountMethod = current_method if current_method in _METHODS else "estimated"
        return method

    @property
    def generation(self) -> int:
        """A number that changes whenever counts returned earlier become invalid."""
        return int(self._counter().generation) if self.changes else 0

    def count(self, text: str) -> int:
        """Return the tokens of a text."""
        try:
            tokens = self._function()(text)
        except AssemblyError:
            raise
        except Exception as error:
            raise TokenizerError(
                f"the function count raised {type(error).__name__} for a text of {len(text)} characters; "
                "it must accept any text"
            ) from error
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            whole = isinstance(tokens, int) and not isinstance(tokens, bool)
            result = tokens if whole else f"a value of type {type(tokens).__name__}"
            raise TokenizerError(f"the function count returned {result}; it must return a whole number, 0 or more")
        return int(tokens)


class _CallersMeters:
    """Caches one meter for each counting function of a caller, until the function is garbage-collected.

    Functions are identified by identity. A callable that does not support weak references is kept alive by the cache,
    which therefore contains only the latest few of them.
    """

    def __init__(self) -> None:
        self._meters: dict[tuple[int, int], tuple[Callable[[], Any], TokenMeter]] = {}
        self._kept_alive: list[tuple[int, int]] = []

    def meter(self, count: Callable[[str], Any]) -> TokenMeter:
        owner: Any = count
        function: Any = None
        if isinstance(count, MethodType):  # each access makes a new bound method
            owner, function = count.__self__, count.__func__
        key = id(owner), id(function)
        entry = self._meters.get(key)
        if entry is not None and entry[0]() is owner:
            return entry[1]
        reference: Callable[[], Any]
        try:
            reference = ref(owner, partial(self._forget, key))
        except TypeError:
            reference = lambda: owner  # noqa: E731
            self._kept_alive.append(key)
            if len(self._kept_alive) > _MODELS:
                self._meters.pop(self._kept_alive.pop(0), None)
        current_function = reference if function is None else (lambda: MethodType(function, reference()))
        meter = meter_of_blocks(_FunctionCounter(count, current_function))
        self._meters[key] = reference, meter
        return meter

    def _forget(self, key: tuple[int, int], reference: Any) -> None:
        entry = self._meters.get(key)
        if entry is not None and entry[0] is reference:
            del self._meters[key]


def meter_of_blocks(counter: TokenCounter, framing: MessageFraming | None = None) -> TokenMeter:
    """Return a meter that also caches the counts of long texts.

    A block's items are joined into one message, which is counted as one long text.
    """
    return TokenMeter(counter, framing, max_text=_LONGEST_TEXT, max_characters=_ALL_TEXTS)


_default: dict[str | None, Measure] = {}
_callers_meters: Final = _CallersMeters()


def measure_for(count: Callable[[str], int] | None, model: str | None = None) -> Measure:
    """Return the object with which `allocate` counts tokens.

    The object caches its counts for as long as `count` exists.

    Args:
        count: Returns the tokens of a text. None: use the model's tokenizer, and count the tokens that providers add to
            each message.
        model: The model's name, used if `count` is None; None for the default tokenizer.

    Raises:
        ConfigurationError: `count` cannot be called.
    """
    if count is not None:
        if not callable(count):
            raise ConfigurationError(f"count must be a function that counts the tokens of a text, got {count!r}")
        return Measure(_callers_meters.meter(count), framed=False, owner=count)
    measure = _default.get(model)
    if measure is None:
        measure = _default[model] = Measure(meter_of_blocks(counter_for(model)), framed=True)
        while len(_default) > _MODELS:
            _default.pop(next(iter(_default)), None)
    return measure


__all__ = ["NOTHING", "Measure", "Rendered", "measure_for"]
