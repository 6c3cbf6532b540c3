"""What the engine counts with: what counts a text, what a message costs beyond its texts, and the meter of both.

This is the one place that knows a provider's framing of messages. What tools take is in `tool_schemas`, how a long text
is counted in `long_runs`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from otel_assembly._internal.arguments import of_type, whole_number
from otel_assembly._internal.faces import Later
from otel_assembly._internal.forks import new_lock
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

    from otel_assembly.messages.event_facts import EventFacts
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.tokens import long_runs
else:
    long_runs = Later("otel_assembly.tokens.long_runs")

#: From so many characters on, counting takes more than asking how.
_LONG: Final = 16_384
#: Sets of tool definitions whose tokens are remembered.
_TOOL_SETS: Final = 16

_GEMINI: Final = "gemini"

CountMethod: TypeAlias = Literal["exact", "calibrated", "estimated"]


class TokenCounter(Protocol):
    """How many tokens a text is; anything with these four members can count for the engine."""

    @property
    def name(self) -> str:
        """The vocabulary or rule that counts, e.g. ``o200k_base``."""

    @property
    def method(self) -> CountMethod:
        """``exact``: the model's own tokenizer; ``calibrated``: corrected by billed usage; ``estimated``: neither."""

    @property
    def generation(self) -> int:
        """Changes when counts that were made earlier should be made anew."""

    def count(self, text: str) -> int:
        """The tokens of one text, at least 0; the same for the same text within a generation."""


class TiktokenCounter:
    """Counts as OpenAI's models do, offline; what looks like a special token (``<|endoftext|>``) is plain text.

    ``o200k_base`` and ``cl100k_base`` come with the package. ``r50k_base``, ``p50k_base``, ``p50k_edit`` and ``gpt2``
    are read from the directory that ``TIKTOKEN_CACHE_DIR`` names. Nothing is ever fetched. A vocabulary is read at the
    first count, or in a thread from `prepare` on, once for the process; instances share it, across threads.
    Counts are exact for texts of any length. A lone surrogate counts as the replacement character U+FFFD, for it has no
    UTF-8 form to be sent in.

    Args:
        encoding_name: The encoding.
        vocabulary: A ``.tiktoken.xz`` file to read instead of the bundled one. Its content must have the same hash.

    Raises:
        UnknownNameError: No such encoding.
        TokenizerError: At once for an encoding whose vocabulary is not in the cache; at the first count for a bundled
            one that is damaged.
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
        """The exact number of tokens.

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
            # A panic of the Rust core is no Exception, so no caller's handler would ever see it.
            if type(error).__name__ != "PanicException":
                raise
            raise TokenizerError(
                f"tiktoken cannot split a text of {len(text)} characters with {encoding.name}; shorten the text"
            ) from None

    @property
    def is_ready(self) -> bool:
        """Whether it can count at once; False where the vocabulary is yet to be read."""
        return self._encoding is not None

    def prepare(self) -> None:
        """Begin to read the vocabulary in a thread, where nobody has; what is wrong with it is raised by `count`."""
        if self._encoding is None and self._file is None:
            prepare_encoding(self.name)

    async def ready(self) -> None:
        """Wait until the vocabulary was read, without blocking the event loop; what is wrong with it, the same."""
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
    """Tokens of a prompt that are no text of anybody: message marks, roles, tool calls, tool schemas, priming.

    The figures are those of the OpenAI cookbook, "How to count tokens with tiktoken": a message costs 3, its role 1,
    a name 1 (beside its text), the priming of the reply 3. Ids of tool calls are not billed as text and are not
    counted; the mark-up around a call is `per_tool_call`, our figure, for the cookbook gives none. For other
    providers' models the same figures are an estimate, which calibration corrects together with the texts.

    Attributes:
        per_message: Tokens of each message.
        per_role: Tokens of its role.
        per_name: Tokens of a speaker's or tool's name, beside the name's own text.
        per_tool_call: Tokens around each tool call, beside the texts of its name and arguments.
        reply_priming: Tokens with which every prompt ends.
        per_prompt: Tokens of each system prompt beside those of any message, such as a name that the client gives it.
        per_result: Tokens around each tool's result beside those of its message, such as an object that it stands in.
        items: Whether each call is a message of its own, as in OpenAI's Responses.
        names: Whether the client sends names of speakers. If a framework calls the client, this is known from the
            client; False here means that no name is counted whatever the client is.
        result_names: Whether a client that sends no names of speakers sends the tool's name with each result.

    Raises:
        ConfigurationError: A number is negative or no whole number, or `names` is no bool.
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
        """The framing of one event; 0 for what the model does not see, and for a text that is part of a message.

        An event that holds the results of several calls is sent as a message for each.
        """
        if not facts.rendered:
            return 0
        calls = self.per_tool_call * len(facts.opens)
        if not facts.framed:
            return calls
        messages = max(1, len(facts.closes))
        if self.items and facts.opens:
            messages = len(facts.opens) + bool(facts.text or facts.media_tokens)
        if self.per_result and facts.closes and facts.provider != _GEMINI:  # whose own form has the object already
            calls += self.per_result * len(facts.closes)
        name = self.per_name if facts.name and self.sends_name(facts) else 0
        return messages * (self.per_message + self.per_role) + name + calls

    def sends_name(self, facts: EventFacts) -> bool:
        """Return whether the client sends the name of an event: a speaker's, or that of a result's tool."""
        return self.names or (self.result_names and bool(facts.closes))

    def prompt(self) -> int:
        """The framing of one system prompt."""
        return self.per_message + self.per_role + self.per_prompt

    def for_client(self, rules: ClientRules, count: Callable[[str], int]) -> MessageFraming:
        """Return the framing of a client that adds to messages what these rules say.

        Args:
            rules: The client's rules.
            count: The tokens of a text.
        """
        if rules == type(rules)():
            return self
        named = self.per_name + count(rules.prompt_name) if rules.prompt_name else 0
        around = count(rules.result_wrapper) if rules.result_wrapper else 0
        return replace(
            self,
            names=self.names and rules.names,
            items=self.items or rules.items,
            result_names=self.result_names or (self.names and rules.result_names),
            per_prompt=self.per_prompt + named,
            per_result=self.per_result + around,
        )

    def tool_schemas(
        self, tools: Sequence[Mapping[str, Any]], count: Callable[[str], int], *, encoding: str = "o200k_base"
    ) -> int:
        """The tokens of tool definitions, texts and framing together; 0 for no tools.

        By the constants of the OpenAI cookbook, "How to count tokens with tiktoken", section on tool calls: they fit
        flat parameters. A definition that nests, or uses what the cookbook does not cover (defaults, formats, arrays,
        references), costs the tokens of its compact JSON, and never less than the cookbook's figure for its flat part.

        Args:
            tools: Definitions as JSON objects: OpenAI's (nested under ``function``, or flat), or Anthropic's.
            count: The tokens of a text.
            encoding: The counter's name; ``cl100k_base`` models frame a function with 10 tokens, others with 7.

        Raises:
            ConfigurationError: A definition is not JSON.
        """
        return schema_tokens(tools, count, encoding) if tools else 0


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
        #: Whether the counter is known to have all it needs to count.
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

    def event(self, facts: EventFacts) -> int:
        """The tokens of one event: framing, texts and media; 0 for what the model does not see."""
        if not facts.rendered:
            return 0
        tokens = self.framing.message(facts) + facts.media_tokens
        for text in facts.texts:
            tokens += self.text(text)
        if facts.name and not self.framing.sends_name(facts):
            tokens -= self.text(facts.name)
        return tokens

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
        key = form_of(schemas)
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

    def _count_and_keep(self, text: str) -> int:
        generation = self._generation
        tokens = self.counter.count(text)
        # bool is an int; a counter that answers True does not count.
        if type(tokens) is not int or tokens < 0:
            found = tokens if type(tokens) is int else f"a {type(tokens).__name__}"
            raise TokenizerError(
                f"the counter {self.counter.name!r} ({type(self.counter).__qualname__}) returned {found}"
                "; count() must return an int, 0 or more"
            )
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


class _Same:
    """Equal for the very same counter, however that counter itself defines equality; keeps it, and so its identity."""

    __slots__ = ("_counter",)

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._counter is other._counter

    def __hash__(self) -> int:
        return id(self._counter)
