"""``TokenMeter``: a counter, a framing, and the memory that spares counting a text twice."""

from __future__ import annotations

import marshal
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.forks import new_lock
from otel_assembly.errors import TokenizerError
from otel_assembly.tokens.framing import MessageFraming, canonical_json

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from otel_assembly.messages.describe import EventFacts
    from otel_assembly.tokens.counters import CountMethod, TokenCounter

_TOOL_SETS = 16


class TokenMeter:
    """What the engine measures with: texts, events, prompts and tool schemas, in the tokens of one counter.

    Counts are remembered by text, the least recently used forgotten first, and all of them when the counter's
    generation changes. Safe to share between threads.

    Args:
        counter: What counts a text.
        framing: What a message costs beyond its texts; None: the OpenAI cookbook's figures.
        max_characters: Characters of all remembered texts together.
        max_entries: Remembered texts.
        max_text: Characters of the longest text that is remembered.

    Every method that counts raises `TokenizerError` where the counter returns anything but a whole number, 0 or more.
    """

    __slots__ = (
        "__weakref__",
        "_cache",
        "_characters",
        "_generation",
        "_lock",
        "_max_characters",
        "_max_entries",
        "_max_text",
        "_tools",
        "counter",
        "framing",
    )

    def __init__(
        self,
        counter: TokenCounter,
        framing: MessageFraming | None = None,
        *,
        max_characters: int = 8_000_000,
        max_entries: int = 65_536,
        max_text: int = 262_144,
    ) -> None:
        self.counter = counter
        self.framing = framing or MessageFraming()
        self._max_characters = max_characters
        self._max_entries = max_entries
        self._max_text = min(max_text, max_characters)
        self._cache: OrderedDict[str, int] = OrderedDict()
        self._tools: OrderedDict[bytes | str, int] = OrderedDict()
        self._characters = 0
        self._generation = counter.generation
        self._lock = new_lock(self, TokenMeter._clear)

    @property
    def method(self) -> CountMethod:
        """How far the counts can be trusted: ``exact``, ``calibrated`` or ``estimated``."""
        return self.counter.method

    @property
    def encoding(self) -> str:
        """The counter's name, e.g. ``o200k_base``."""
        return self.counter.name

    @property
    def priming(self) -> int:
        """Tokens with which every prompt ends, for the reply."""
        return self.framing.reply_priming

    @property
    def key(self) -> Hashable:
        """Equal for two meters exactly while a count of the one holds for the other: counter, generation, framing."""
        return _Same(self.counter), self.counter.generation, self.framing

    def text(self, text: str) -> int:
        """The tokens of one text, without framing."""
        if self.counter.generation != self._generation:
            self._forget()
        tokens = self._cache.get(text)
        if tokens is None:
            return self._count_and_keep(text)
        try:  # noqa: SIM105  # suppress() would cost more than the rest of this method
            self._cache.move_to_end(text)
        except KeyError:  # another thread has just forgotten it
            pass
        return tokens

    def event(self, facts: EventFacts, *, remember: bool = True) -> int:
        """The tokens of one event: framing, texts and media; 0 for what the model does not see.

        Args:
            facts: The event, described.
            remember: Whether its texts are worth remembering here; False for who keeps the sum itself.
        """
        if not facts.rendered:
            return 0
        count = self.text if remember else self._count
        return self.framing.message(facts) + sum(map(count, facts.texts)) + facts.media_tokens

    def prompt(self, text: str) -> int:
        """The tokens of one system prompt."""
        return self.framing.prompt() + self.text(text)

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """The tokens of tool definitions (`MessageFraming.tool_schemas`), counted once for equal definitions.

        Raises:
            ConfigurationError: A definition is not JSON.
        """
        if not schemas:
            return 0
        if self.counter.generation != self._generation:
            self._forget()
        generation = self._generation
        key = _form(schemas)
        tokens = self._tools.get(key)
        if tokens is not None:
            return tokens
        canonical_json(schemas)  # refuses what no provider could be sent
        tokens = self.framing.tool_schemas(schemas, self.text, encoding=self.counter.name)
        with self._lock:
            if generation == self._generation == self.counter.generation:
                self._tools[key] = tokens
                while len(self._tools) > _TOOL_SETS:
                    self._tools.popitem(last=False)
        return tokens

    def _count(self, text: str) -> int:
        tokens = self.counter.count(text)
        # bool is an int; a counter that answers True does not count.
        if type(tokens) is not int or tokens < 0:
            found = tokens if type(tokens) is int else f"a {type(tokens).__name__}"
            raise TokenizerError(
                f"the counter {self.counter.name!r} ({type(self.counter).__qualname__}) returned {found}"
                "; count() must return an int, 0 or more"
            )
        return tokens

    def _count_and_keep(self, text: str) -> int:
        generation = self._generation
        tokens = self._count(text)
        if len(text) > self._max_text:
            return tokens
        with self._lock:
            # A count that a change of generation overtook is good for its caller, not for later ones.
            if generation == self._generation == self.counter.generation and text not in self._cache:
                self._cache[text] = tokens
                self._characters += len(text)
                while self._characters > self._max_characters or len(self._cache) > self._max_entries:
                    forgotten, _ = self._cache.popitem(last=False)
                    self._characters -= len(forgotten)
        return tokens

    def _forget(self) -> None:
        with self._lock:
            if self._generation != self.counter.generation:
                self._generation = self.counter.generation
                self._clear()

    def _clear(self) -> None:
        self._cache.clear()
        self._tools.clear()
        self._characters = 0


def _form(schemas: Any) -> bytes | str:
    """What tells definitions from all others, and from what they were before they were changed in place.

    A tenth of the time of writing JSON; what only JSON can write, such as a subclass of str, takes that.
    """
    try:
        return marshal.dumps(schemas, 2)  # later versions write what else refers to the same objects
    except ValueError:
        return canonical_json(schemas)


class _Same:
    """Equal for the very same counter, however that counter itself defines equality; keeps it, and so its identity."""

    __slots__ = ("_counter",)

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._counter is other._counter

    def __hash__(self) -> int:
        return id(self._counter)
