"""Counts the tokens of blocks, as messages or with the caller's function."""

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

#: The most characters of a text whose count is cached (a document, not just a message), and of all cached texts.
_LONGEST_TEXT: Final = 4_000_000
_ALL_TEXTS: Final = 32_000_000
#: The most models whose counts are cached.
_MODELS: Final = 8
_METHODS: Final = get_args(CountMethod)


class Rendered(NamedTuple):
    """The tokens of a block in the prompt; `tokens` is the sum of the other fields.

    Attributes:
        tokens: All tokens of the block.
        items: The tokens of the items, each exact_table item_tokens.
        framing: The tokens of message framing and of a restated instruction.
        separators: The tokens that joining the items adds; below 0 if the tokenizer merges tokens at the joints.
    """

    tokens: int
    items: int
    framing: int
    separators: int


NOTHING = Rendered(0, 0, 0, 0)


class Measure:
    """Counts blocks.

    It counts messages with their framing, or texts with the caller's function and no framing.

    Args:
        meter: Counts texts and events.
        framed: Whether each message costs its framing, and the prompt the reply's priming.
        owner: An object to keep alive as long as this one: the caller's function.
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
        """The counter of a text's tokens."""
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
        """Whether a text's count never changes.

        A calibrated count changes with the usage that providers report.
        """
        counter = self._meter.counter
        return isinstance(counter, TiktokenCounter) or (isinstance(counter, _Counted) and not counter.changes)

    def item_tokens(self, item: BlockItem, facts: EventFacts | None) -> int:
        """Return the tokens of one item, counted alone.

        Args:
            item: The item.
            facts: The event's facts, whose message is counted with its framing; None for a text.
        """
        if facts is None:
            return self.text(item_text(item))
        if item.echo:
            return 0
        return self._meter.event(facts) if self._framed else sum(map(self.text, facts.texts))

    def exact_table(self, view: View) -> TokenTable:
        """Return the table of a history's tokens, with every item counted exactly."""
        table = view.history.table(self._meter)
        table.exact(view)
        return table

    def tokens(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> int:
        """Return the tokens of a block with some of its items.

        Only content that is sent is counted.

        Args:
            block: The block.
            items: All its items.
            kept: Indexes of the items in the prompt, ascending.
            item_tokens: Returns the tokens of the item at an index, counted alone.
        """
        return self._sent(block, items, sections_with_texts(block, items, kept), item_tokens) if kept else 0

    def rendered(
        self, block: Block, items: Sequence[BlockItem], kept: Sequence[int], item_tokens: Callable[[int], int]
    ) -> Rendered:
        """Return the same tokens as `tokens`, by what they are used for."""
        if not kept:
            return NOTHING
        parts = sections_with_texts(block, items, kept)
        tokens = self._sent(block, items, parts, item_tokens)
        each = sum([sum(map(item_tokens, section.items)) for section, _ in parts])
        framing = self.overhead * sum([len(messages) for _, messages in parts])
        framing += self.text(block.restated) if block.restated else 0
        return Rendered(tokens, each, framing, tokens - each - framing)

    def _sent(
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
        """Return a function that charges a block's items one by one, as they are kept.

        The sum of the charges is an upper bound of the rendered block. A text is charged for what precedes it too:
        message framing if it begins a message, otherwise a separator. The joined text may be shorter by a few tokens,
        which stay unused. In return, every decision follows from numbers that traces record.

        Args:
            block: The block.
            has_only_texts: Whether all items are texts; next to events, each text is a separate message.

        Returns:
            A function of an item's tokens, counted alone, and whether it is a text. Call it for each item in order.
        """
        messages = max_messages(block) if has_only_texts else float("inf")
        between = self.text(block.separator) if block.separator else 0
        # After events alone, the restated instruction is a separate message.
        start = self.text(block.restated) + max(self.overhead, between) if block.restated else 0
        texts = 0

        def charge(tokens: int, text: bool) -> int:
            nonlocal start, texts
            if text:
                texts += 1
                starts_message = texts <= messages
                tokens += self.overhead if texts == 1 else max(self.overhead, between) if starts_message else between
            tokens += start
            start = 0
            return tokens

        return charge


class _Counted:
    """A caller's function as a `TokenCounter`.

    Its counts are ``estimated``, because the model may count otherwise. If the function has an attribute ``method``, or
    is the ``count`` of a `TokenCounter` that has one, that value applies.
    """

    def __init__(self, count: Callable[[str], Any], alive: Callable[[], Any]) -> None:
        self._counter: Callable[[], Any] = alive
        named: Any = count
        if isinstance(count, MethodType) and hasattr(count.__self__, "generation"):
            named, self._counter = count.__self__, lambda: alive().__self__
        self.changes = named is not count
        self.name = str(getattr(named, "name", None) or getattr(count, "__name__", type(count).__name__)).strip("<>")
        self._alive = alive

    @property
    def method(self) -> CountMethod:
        """The method that the function states at this time, otherwise ``estimated``."""
        stated: Any = getattr(self._counter(), "method", None)
        method: CountMethod = stated if stated in _METHODS else "estimated"
        return method

    @property
    def generation(self) -> int:
        """A number that changes if the function's `TokenCounter` invalidates earlier counts."""
        return int(self._counter().generation) if self.changes else 0

    def count(self, text: str) -> int:
        """Return the tokens of a text."""
        try:
            tokens = self._alive()(text)
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
    """The meters of callers' functions, each as long as its function exists.

    A function is known by its identity. Functions without weak references are kept alive; only the last few of them are
    remembered.
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
            reference = partial(_itself, owner)
            self._kept_alive.append(key)
            if len(self._kept_alive) > _MODELS:
                self._meters.pop(self._kept_alive.pop(0), None)
        alive = reference if function is None else (lambda: MethodType(function, reference()))
        meter = meter_of_blocks(_Counted(count, alive))
        self._meters[key] = reference, meter
        return meter

    def _forget(self, key: tuple[int, int], reference: Any) -> None:
        entry = self._meters.get(key)
        if entry is not None and entry[0] is reference:
            del self._meters[key]


def _itself(owner: Any) -> Any:
    return owner


def meter_of_blocks(counter: TokenCounter, framing: MessageFraming | None = None) -> TokenMeter:
    """Return a meter that caches the counts of long texts.

    Items that are joined into one message are counted as one text.
    """
    return TokenMeter(counter, framing, max_text=_LONGEST_TEXT, max_characters=_ALL_TEXTS)


_default: dict[str | None, Measure] = {}
_callers_meters: Final = _CallersMeters()


def measure_for(count: Callable[[str], int] | None, model: str | None = None) -> Measure:
    """Return the `Measure` of blocks; its counts are cached as long as `count` exists.

    Args:
        count: Returns the tokens of a text. None: the model's tokenizer, with the framing of messages.
        model: The model's name; None: the default tokenizer.

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
