"""Readers of YAML and JSON that refuse repeated keys; the usual readers silently keep the last value."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

__all__ = ["RepeatedKeyError", "read_json", "read_yaml"]

#: A brace, or a string with the colon that makes a key of it.
_TOKENS = re.compile(r'[{}]|("(?:[^"\\]|\\.)*")(\s*:)?')


class RepeatedKeyError(ValueError):
    """A key occurs twice in one mapping; `line` is the line of the second occurrence, from 1."""

    def __init__(self, key: str, line: int) -> None:
        self.key = key
        self.line = line
        super().__init__(f"line {line}: the key {key!r} occurs twice")


def read_yaml(text: str) -> Any:
    """Return the content of a YAML text.

    Raises:
        RepeatedKeyError: A key occurs twice.
        yaml.YAMLError: The text is not YAML.
    """
    return yaml.load(text, _Loader)  # noqa: S506  # a safe loader's subclass


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise RepeatedKeyError(key.value, key.start_mark.line + 1)
            seen.add((key.tag, key.value))
        return node


def read_json(text: str) -> Any:
    """Return the content of a JSON text.

    Raises:
        RepeatedKeyError: A key occurs twice.
        json.JSONDecodeError: The text is not JSON.
    """
    value = json.loads(text)
    objects: list[set[str]] = []
    for token in _TOKENS.finditer(text):
        if token[0] == "{":
            objects.append(set())
        elif token[0] == "}":
            objects.pop()
        elif token[2]:
            key = json.loads(token[1])
            if key in objects[-1]:
                raise RepeatedKeyError(key, text.count("\n", 0, token.start()) + 1)
            objects[-1].add(key)
    return value
