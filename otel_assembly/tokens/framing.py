"""What a prompt costs beyond its texts: the one place that knows a provider's framing of messages and tools."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.messages.describe import EventFacts

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
