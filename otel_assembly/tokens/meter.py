"""Token counting: counters of text, the framing of messages, and the meter that combines them.

Only this module knows how many tokens a provider adds to each message. `tool_schemas` counts tool definitions, and
`long_runs` counts long texts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from otel_assembly._internal.arguments import of_type, whole_number
from otel_assembly._internal.fork_safety import new_lock
from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.errors import TokenizerError, UnknownNameError
from otel_assembly.tokens.tool_schemas import canonical_json, form_of, schema_tokens
from otel_assembly.tokens.vocabulary import (
    BUNDLED,
    CACHED,
    encoding_ready,
    prepare_encoding,
    read_encoding,
    shared_encoding,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from os import PathLike

    import tiktoken

    from otel_assembly._internal.threads import ThreadLimit
    from otel_assembly.messages.event_facts import EventFacts
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.tokens import long_runs
else:
    long_runs = LazyModule("otel_assembly.tokens.long_runs")

#: Texts of at least this many characters are counted by `long_runs`.
_LONG: Final = 16_384
#: The most threads per event loop in which one meter counts concurrently.
_MOST_THREADS: Final = 4
#: How many sets of tool definitions have their tokens cached.
_TOOL_SETS: Final = 16

_GEMINI: Final = "gemini"

CountMethod: TypeAlias = Literal["exact", "calibrated", "estimated"]


class TokenCounter(Protocol):
    """Counts the tokens of a text. Any object with these four members can be used as a counter."""

    @property
    def name(self) -> str:
        """The name of the vocabulary or rule by which tokens are counted, e.g. ``o200k_base``."""

    @property
    def method(self) -> CountMethod:
        """``exact``: the model's own tokenizer; ``calibrated``: corrected by billed usage; ``estimated``: neither."""

    @property
    def generation(self) -> int:
        """A number that changes as soon as earlier counts are no longer valid.

        A calibrated counter changes this number with its ratio. Other counters never change it.
        """

    def count(self, text: str) -> int:
        """Return the tokens of a text, 0 or more; the same number for as long as `generation` does not change."""


class TiktokenCounter:
    """Counts with an OpenAI tokenizer, offline. Special tokens such as ``<|endoftext|>`` count as plain text.

    ``o200k_base`` and ``cl100k_base`` come with the package. ``r50k_base``, ``p50k_base``, ``p50k_edit`` and ``gpt2``
    are read from the directory in ``TIKTOKEN_CACHE_DIR``. Nothing is downloaded. A vocabulary is read once per process,
    at the first count or by the thread that `prepare` starts. All instances share it.
    Counts are exact for texts of any length. A lone surrogate counts as the replacement character U+FFFD, because it
    cannot be encoded as UTF-8.

    Args:
        encoding_name: The encoding.
        vocabulary: A ``.tiktoken.xz`` file to read instead of the bundled one. Its content must have the same hash as
            the bundled file. None: the bundled one.

    Raises:
        UnknownNameError: The encoding does not exist.
        TokenizerError: The encoding is not bundled, and its vocabulary is not in the cache. A damaged bundled
            vocabulary raises this error at the first count instead.
    """

    __slots__ = ("_encoding", "_file", "name")

    method: CountMethod = "exact"
    generation: int = 0

    def __init__(self, encoding_name: str, *, vocabulary: str | PathLike[str] | None = None) -> None:
        if encoding_name not in BUNDLED and (vocabulary is not None or encoding_name not in CACHED):
            raise UnknownNameError("encoding", encoding_name, (*BUNDLED, *(CACHED if vocabulary is None else ())))
        self.name = encoding_name
        self._file = Path(vocabulary) if vocabulary is not None else None
        self._encoding: tiktoken.Encoding | None = None if encoding_name in BUNDLED else shared_encoding(encoding_name)

    def count(self, text: str) -> int:
        """Return the exact number of tokens.

        Raises:
            TokenizerError: The vocabulary is damaged, or tiktoken cannot split the text.
        """
        encoding = self._encoding or self._load()
        try:
            if len(text) < _LONG:
                return len(encoding.encode_ordinary(text))
            bundled = BUNDLED.get(self.name)
            splits = bundled.splits_trailing_space if bundled is not None else None
            return long_runs.count_long(encoding, text, splits_trailing_space=splits)
        except BaseException as error:
            # A panic of the Rust core is a BaseException, which `except Exception` in a caller would miss.
            if type(error).__name__ != "PanicException":
                raise
            raise TokenizerError(
                f"tiktoken cannot split a text of {len(text)} characters with {encoding.name}; shorten the text"
            ) from None

    @property
    def is_ready(self) -> bool:
        """True if the vocabulary is loaded."""
        return self._encoding is not None

    def prepare(self) -> None:
        """Start to load the vocabulary in a thread, if necessary. If loading fails, `count` raises the error."""
        if self._encoding is None and self._file is None:
            prepare_encoding(self.name)

    async def ready(self) -> None:
        """Wait until the vocabulary is loaded. If loading fails, `count` raises the error."""
        if self._encoding is None and self._file is None:
            await encoding_ready(self.name)

    def _load(self) -> tiktoken.Encoding:
        encoding = shared_encoding(self.name) if self._file is None else read_encoding(self.name, self._file)
        self._encoding = encoding
        return encoding

    def __repr__(self) -> str:
        return f"TiktokenCounter({self.name!r})"


@dataclass(frozen=True, slots=True)
class MessageFraming:
    """The tokens that a provider adds to the texts of a prompt: for messages, roles, tool calls, and the reply's start.

    The defaults come from the OpenAI cookbook, "How to count tokens with tiktoken": 3 per message, 1 per role, 1 per
    name (in addition to its text), 3 for the start of the reply. Ids of tool calls are not counted, because they are
    not billed as text. The cookbook has no figure for the markup around a call: `per_tool_call` is an estimate. For
    models of other providers all figures are estimates, which `CalibratedCounter` corrects together with the texts.

    Attributes:
        per_message: Tokens of each message.
        per_role: Tokens of each message's role.
        per_name: Tokens of a speaker's or tool's name, in addition to the text of the name.
        per_tool_call: Tokens of each tool call, in addition to the texts of its name and arguments.
        reply_priming: Tokens at the end of every prompt, which start the reply.
        per_prompt: Tokens of each system prompt in addition to those of a message, such as a name that the client sets.
        per_result: Tokens of each tool result in addition to those of its message, such as a JSON object around it.
        names: True if names of speakers are counted for clients that send them (see `ClientRules`); False if names are
            never counted.
        items: True if each call is a separate message, as in OpenAI's Responses API.
        result_names: True if the client sends the tool's name with each result, even if it sends no other names.

    Raises:
        ConfigurationError: A number is negative or not an integer, or a flag is not a bool.
    """

    per_message: int = 3
    per_role: int = 1
    per_name: int = 1
    per_tool_call: int = 3
    reply_priming: int = 3
    per_prompt: int = 0
    per_result: int = 0
    names: bool = True
    items: bool = False
    result_names: bool = False

    def __post_init__(self) -> None:
        of_type("names of the framing", self.names, bool)
        of_type("items of the framing", self.items, bool)
        of_type("result_names of the framing", self.result_names, bool)
        for field in fields(self)[:-3]:
            value = getattr(self, field.name)
            whole_number(f"{field.name} of the framing", value, least=0, unit="tokens")

    def message(self, facts: EventFacts) -> int:
        """Return the tokens that the provider adds for one event; 0 if the event is not sent to the model.

        An event that is part of another event's message (`EventFacts.framed` is False) adds no message of its own. Each
        tool result counts as a message.
        """
        if not facts.rendered:
            return 0
        calls = self.per_tool_call * len(facts.opens)
        if not facts.framed:
            return calls
        messages = max(1, len(facts.closes))
        if self.items and facts.opens:
            messages = len(facts.opens) + bool(facts.text or facts.media_tokens)
        if self.per_result and facts.closes and facts.provider != _GEMINI:  # Gemini's own format contains the object
            calls += self.per_result * len(facts.closes)
        name = self.per_name if facts.name and self.sends_name(facts) else 0
        return messages * (self.per_message + self.per_role) + name + calls

    def sends_name(self, facts: EventFacts) -> bool:
        """Return True if the client sends the event's name (of the speaker, or of the tool)."""
        return self.names or (self.result_names and bool(facts.closes))

    def prompt(self) -> int:
        """Return the tokens that the provider adds for one system prompt."""
        return self.per_message + self.per_role + self.per_prompt

    def for_client(self, rules: ClientRules, count: Callable[[str], int]) -> MessageFraming:
        """Return a copy of this framing with the tokens that a client adds.

        Args:
            rules: What the client adds to messages.
            count: Returns the tokens of a text.
        """
        if rules == type(rules)():
            return self
        prompt_name = self.per_name + count(rules.prompt_name) if rules.prompt_name else 0
        wrapper = count(rules.result_wrapper) if rules.result_wrapper else 0
        return replace(
            self,
            names=self.names and rules.names,
            items=self.items or rules.items,
            result_names=self.result_names or (self.names and rules.result_names),
            per_prompt=self.per_prompt + prompt_name,
            per_result=self.per_result + wrapper,
        )

    def tool_schemas(
        self, tools: Sequence[Mapping[str, Any]], count: Callable[[str], int], *, encoding: str = "o200k_base"
    ) -> int:
        """Return the tokens of tool definitions, including framing; 0 for no tools.

        The constants come from the OpenAI cookbook, "How to count tokens with tiktoken", section on tool calls. They
        fit flat parameters. The cookbook does not cover nested parameters, defaults, formats, arrays and references: a
        definition with these counts as its compact JSON, and at least as the cookbook's figure for its flat part.

        Args:
            tools: Definitions as JSON objects: OpenAI's (nested under ``function``, or flat), or Anthropic's.
            count: Returns the tokens of a text.
            encoding: The counter's name; ``cl100k_base`` models frame a function with 10 tokens, others with 7.

        Raises:
            ConfigurationError: A definition is not JSON.
        """
        return schema_tokens(tools, count, encoding) if tools else 0


class TokenMeter:
    """Counts the tokens of texts, events, prompts and tool schemas with one counter.

    Counts are cached by text, in a least-recently-used cache. A change of the counter's generation clears the cache.
    Thread-safe.

    Args:
        counter: Counts the tokens of a text.
        framing: The tokens of a message in addition to its texts. None: the figures of the OpenAI cookbook.
        max_characters: The most characters of all cached texts together.
        max_entries: The most cached texts.
        max_text: The most characters of a text that is cached.

    Each method that counts raises `TokenizerError` if the counter returns a negative number or anything but an int.
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
        "_per_prompt",
        "_threads",
        "_tools",
        "counter",
        "framing",
        "ready",
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
        self._per_prompt = self.framing.prompt()
        self._threads: ThreadLimit | None = None
        #: True if the counter is known to have loaded its vocabulary.
        self.ready = False
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
        """How exact the counts are: ``exact``, ``calibrated`` (corrected by billed usage) or ``estimated``."""
        return self.counter.method

    @property
    def encoding(self) -> str:
        """The counter's name, e.g. ``o200k_base``."""
        return self.counter.name

    @property
    def priming(self) -> int:
        """Tokens at the end of every prompt, which start the reply."""
        return self.framing.reply_priming

    @property
    def threads(self) -> ThreadLimit:
        """The threads that count. Each meter has its own, so that a counter that hangs delays no other meter."""
        if self._threads is None:
            from otel_assembly._internal.threads import ThreadLimit  # lazy, because most turns need no thread

            self._threads = ThreadLimit("tokens", _MOST_THREADS)
        return self._threads

    @property
    def key(self) -> Hashable:
        """A hashable key of counter, generation and framing. Meters with equal keys have equal counts."""
        return _ByIdentity(self.counter), self.counter.generation, self.framing

    def text(self, text: str) -> int:
        """Return the tokens of one text, without framing."""
        if self.counter.generation != self._generation:
            self._clear_if_outdated()
        tokens = self._cache.get(text)
        if tokens is None:
            return self._count_and_keep(text)
        try:  # noqa: SIM105  # suppress() would cost more than the rest of this method
            self._cache.move_to_end(text)
        except KeyError:  # another thread removed it
            pass
        return tokens

    def event(self, facts: EventFacts) -> int:
        """Return the tokens of one event (framing, texts and media); 0 for an event that is not sent to the model."""
        tokens = self.framing.message(facts)
        if not tokens and not facts.rendered:
            return 0
        tokens += facts.media_tokens
        for text in facts.texts:
            tokens += self.text(text)
        if facts.name and not self.framing.sends_name(facts):
            tokens -= self.text(facts.name)
        return tokens

    def prompt(self, text: str) -> int:
        """Return the tokens of one system prompt, including framing."""
        return self._per_prompt + self.text(text)

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Return the tokens of tool definitions, which are cached (see `MessageFraming.tool_schemas`).

        Raises:
            ConfigurationError: A definition is not JSON.
        """
        if not schemas:
            return 0
        if self.counter.generation != self._generation:
            self._clear_if_outdated()
        generation = self._generation
        key = form_of(schemas)
        tokens = self._tools.get(key)
        if tokens is not None:
            return tokens
        canonical_json(schemas)  # raises an error if a definition is not JSON
        tokens = self.framing.tool_schemas(schemas, self.text, encoding=self.counter.name)
        with self._lock:
            if generation == self._generation == self.counter.generation:
                self._tools[key] = tokens
                while len(self._tools) > _TOOL_SETS:
                    self._tools.popitem(last=False)
        return tokens

    def _count_and_keep(self, text: str) -> int:
        generation = self._generation
        tokens = self.counter.count(text)
        # A bool is an int, but not a count.
        if type(tokens) is not int or tokens < 0:
            returned = tokens if type(tokens) is int else f"a {type(tokens).__name__}"
            raise TokenizerError(
                f"the counter {self.counter.name!r} ({type(self.counter).__qualname__}) returned {returned}"
                "; count() must return an int, 0 or more"
            )
        if len(text) > self._max_text:
            return tokens
        with self._lock:
            # If the generation changed during the count, the count is not cached.
            if generation == self._generation == self.counter.generation and text not in self._cache:
                self._cache[text] = tokens
                self._characters += len(text)
                while self._characters > self._max_characters or len(self._cache) > self._max_entries:
                    oldest_text, _ = self._cache.popitem(last=False)
                    self._characters -= len(oldest_text)
        return tokens

    def _clear_if_outdated(self) -> None:
        with self._lock:
            if self._generation != self.counter.generation:
                self._generation = self.counter.generation
                self._clear()

    def _clear(self) -> None:
        self._cache.clear()
        self._tools.clear()
        self._characters = 0


class _ByIdentity:
    """A key that is equal only for the same counter object, which it keeps alive, so that its id is not reused."""

    __slots__ = ("_counter",)

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self._counter is other._counter

    def __hash__(self) -> int:
        return id(self._counter)
