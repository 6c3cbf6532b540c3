"""``TokenMeter``: what the engine counts with, and ``MessageFraming``: what a prompt costs beyond its texts.

This is the one place that knows a provider's framing of messages and tools.
"""

from __future__ import annotations

import json
import marshal
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.forks import new_lock
from otel_assembly.errors import ConfigurationError, TokenizerError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from otel_assembly.messages.describe import EventFacts
    from otel_assembly.tokens.counters import CountMethod, TokenCounter

#: Sets of tool definitions whose tokens are remembered.
_TOOL_SETS = 16

# The constants of the OpenAI cookbook's num_tokens_for_tools.
_FUNC_INIT = {"cl100k_base": 10}
_FUNC_INIT_DEFAULT = 7
_PROP_INIT, _PROP_KEY = 3, 3
_ENUM_INIT, _ENUM_ITEM = -3, 3
_FUNC_END = 12

# Forms the cookbook's rule covers. Of the first two sets, only the names are rendered or nothing is.
_KNOWN_TOOL = frozenset({"type", "name", "description", "parameters", "input_schema", "strict"})
_KNOWN_PARAMETERS = frozenset({"type", "properties", "required", "additionalProperties", "title", "$schema"})
_KNOWN_PROPERTY = frozenset({"type", "description", "enum", "title"})
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})


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

    Raises:
        ConfigurationError: One of them is negative or no whole number.
    """

    per_message: int = 3
    per_role: int = 1
    per_name: int = 1
    per_tool_call: int = 3
    reply_priming: int = 3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 0:
                raise ConfigurationError(
                    f"{field.name} of the framing is {value!r}; it must be a whole number, 0 or more"
                )

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
        name = self.per_name if facts.name else 0
        return messages * (self.per_message + self.per_role) + name + calls

    def prompt(self) -> int:
        """The framing of one system prompt."""
        return self.per_message + self.per_role

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
        if not tools:
            return 0
        init = _FUNC_INIT.get(encoding, _FUNC_INIT_DEFAULT)
        return _FUNC_END + sum(_tool(tool, count, init) for tool in tools)


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


def canonical_json(value: Any) -> str:
    """The compact JSON of a tool definition, the same text for equal definitions.

    Raises:
        ConfigurationError: The value is not JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"a tool definition is not JSON ({type(error).__name__}); pass it as the object that the provider is sent"
        ) from error


def _tool(tool: Any, count: Callable[[str], int], init: int) -> int:
    flat, is_known = _by_cookbook(tool, count, init)
    return flat if is_known else max(flat, count(canonical_json(tool)))


def _by_cookbook(tool: Any, count: Callable[[str], int], init: int) -> tuple[int, bool]:
    """The cookbook's figure for what it covers of a definition, and whether that is all of it."""
    function = tool
    is_known = isinstance(tool, dict)
    if is_known and "function" in tool:
        function = tool["function"]
        is_known = tool.keys() <= {"type", "function", "strict"}
    if not isinstance(function, dict):
        return init, False
    is_known = is_known and function.keys() <= _KNOWN_TOOL and isinstance(function.get("name"), str)
    is_known = is_known and isinstance(function.get("description", ""), str)
    is_known = is_known and not ("type" in function and function["type"] != "function")
    tokens = init + count(f"{_text(function, 'name')}:{_description(function)}")

    parameters = function.get("parameters", function.get("input_schema")) or {}
    if not isinstance(parameters, dict):
        return tokens, False
    is_known = is_known and parameters.keys() <= _KNOWN_PARAMETERS
    is_known = is_known and parameters.get("type", "object") == "object"
    is_known = is_known and isinstance(parameters.get("additionalProperties", False), bool)
    properties = parameters.get("properties") or {}
    if not isinstance(properties, dict):
        return tokens, False
    if properties:
        tokens += _PROP_INIT
    for key, schema in properties.items():
        cost, known = _property(str(key), schema, count)
        tokens += cost
        is_known = is_known and known
    return tokens, is_known


def _property(key: str, schema: Any, count: Callable[[str], int]) -> tuple[int, bool]:
    if not isinstance(schema, dict):
        return _PROP_KEY + count(key), False
    kind = schema.get("type")
    is_known = schema.keys() <= _KNOWN_PROPERTY and isinstance(kind, str) and kind in _SCALARS
    is_known = is_known and isinstance(schema.get("description", ""), str)
    tokens = _PROP_KEY + count(f"{key}:{_text(schema, 'type')}:{_description(schema)}")
    choices = schema.get("enum")
    if isinstance(choices, (list, tuple)):
        tokens += _ENUM_INIT + sum(
            _ENUM_ITEM + count(item if isinstance(item, str) else canonical_json(item)) for item in choices
        )
    elif choices is not None:
        is_known = False
    return tokens, is_known


def _text(schema: Mapping[str, Any], key: str) -> str:
    value = schema.get(key)
    return value if isinstance(value, str) else ""


def _description(schema: Mapping[str, Any]) -> str:
    return _text(schema, "description").removesuffix(".")
