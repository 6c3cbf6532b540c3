"""Counts the tokens of tool definitions: by the OpenAI cookbook's rule if it covers them, else by their JSON."""

from __future__ import annotations

import json
import marshal
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# The constants of the OpenAI cookbook's num_tokens_for_tools.
_FUNC_INIT = {"cl100k_base": 10}
_FUNC_INIT_DEFAULT = 7
_PROP_INIT, _PROP_KEY = 3, 3
_ENUM_INIT, _ENUM_ITEM = -3, 3
_FUNC_END = 12

# Keys that the cookbook's rule covers.
_KNOWN_TOOL = frozenset({"type", "name", "description", "parameters", "input_schema", "strict"})
_KNOWN_PARAMETERS = frozenset({"type", "properties", "required", "additionalProperties", "title", "$schema"})
_KNOWN_PROPERTY = frozenset({"type", "description", "enum", "title"})
_DECLARATIONS = ("functionDeclarations", "function_declarations")
#: Keys of the parameters' schema in Bedrock's and Gemini's definitions.
_SCHEMA_KEYS = ("inputSchema", "parametersJsonSchema", "parameters_json_schema", "parameters")
_SCHEMAS = frozenset({"input_schema", *_SCHEMA_KEYS})
#: Types of tools that the program defines.
_OWN_TYPES = frozenset({"function", "custom"})
#: Keys of tools that Gemini and Bedrock run themselves, and of cache points, in lower case without underscores.
_BUILT_IN = frozenset(
    {
        *("cachepoint", "codeexecution", "computeruse", "enterprisewebsearch", "filesearch", "googlemaps"),
        *("googlesearch", "googlesearchretrieval", "retrieval", "systemtool", "urlcontext"),
    }
)
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})


def schema_tokens(tools: Sequence[Mapping[str, Any]], count: Callable[[str], int], encoding: str) -> int:
    """Return the tokens of tool definitions; 0 if none of them is sent as a schema.

    Args:
        tools: The definitions.
        count: Returns the tokens of a text.
        encoding: The name of the tokenizer's encoding.
    """
    defined = [function for tool in tools for function in functions_in(tool)]
    if not defined:
        return 0
    init, tokens = _FUNC_INIT.get(encoding, _FUNC_INIT_DEFAULT), _FUNC_END
    for tool in defined:
        flat, is_known = _by_cookbook(tool, count, init)
        tokens += flat if is_known else max(flat, count(canonical_json(tool)))
    return tokens


def functions_in(tool: Any) -> list[Any]:
    """Return the functions that a tool definition declares, each with its name and parameters.

    Gemini declares several functions in one tool, and Bedrock has its own keys. Tools that the provider runs itself
    (``web_search``, ``code_interpreter``, ``googleSearch``, ``computer_20250124`` …) have no schema in the request.
    The cost of these tools is unknown, so they are not counted.
    """
    if not isinstance(tool, dict):
        return [tool]
    for key in _DECLARATIONS:
        if isinstance(tool.get(key), (list, tuple)):
            return [_declared(function) for function in tool[key]]
    if isinstance(tool.get("toolSpec"), dict):
        return [_declared(tool["toolSpec"])]
    kind = tool.get("type")
    kind = kind if isinstance(kind, str) else ""
    if "function" in tool or not _SCHEMAS.isdisjoint(tool) or kind in _OWN_TYPES:
        return [_declared(tool)]
    is_built_in = bool(kind) or any(key.replace("_", "").lower() in _BUILT_IN for key in tool)
    return [] if is_built_in else [tool]


def _declared(function: Any) -> Any:
    """Return a function's definition with its schema under ``parameters`` and with the types in lower case.

    Bedrock and Gemini use other keys, and Gemini's client writes types in upper case.
    """
    if not isinstance(function, dict):
        return function
    key = next((key for key in _SCHEMA_KEYS if key in function), None)
    if key is None:
        return function
    schema = function[key]
    if key == "inputSchema" and isinstance(schema, dict):
        schema = schema.get("json", schema)
    return {**{name: value for name, value in function.items() if name != key}, "parameters": _lowered(schema)}


def _lowered(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_lowered(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _lowered(value)
        for key, value in schema.items()
    }


def form_of(schemas: Any) -> bytes | str:
    """Return a cache key for tool definitions: equal only for equal definitions, and new after a change in place.

    ``marshal`` takes a tenth of the time of JSON. JSON is the fallback for types that ``marshal`` does not support.
    """
    try:
        return marshal.dumps(schemas, 2)  # later versions depend on references to the same objects
    except ValueError:
        return canonical_json(schemas)


def canonical_json(value: Any) -> str:
    """Return the compact JSON of a tool definition. Equal definitions have equal JSON.

    Raises:
        ConfigurationError: The value is not JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"a tool definition is not JSON ({type(error).__name__}); pass it as the object that the provider is sent"
        ) from error


def _by_cookbook(tool: Any, count: Callable[[str], int], init: int) -> tuple[int, bool]:
    """Return a definition's tokens by the OpenAI cookbook, and True if the cookbook's rule covers all of it.

    Args:
        tool: The definition.
        count: Returns the tokens of a text.
        init: The tokens that the cookbook adds for each function.
    """
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
