"""YAML and JSON in which no key stands twice: of two values, both languages' readers keep the last without a word."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

__all__ = ["RepeatedKeyError", "read_json", "read_yaml"]

#: A brace, or a string with the colon that makes a key of it.
_TOKENS = re.compile(r'[{}]|("(?:[^"\\]|\\.)*")(\s*:)?')


class RepeatedKeyError(ValueError):
    """A key stands twice in one mapping; `line` is where it does for the second time, from 1."""

    def __init__(self, key: str, line: int) -> None:
        self.key = key
        self.line = line
        super().__init__(f"line {line}: the key {key!r} occurs twice")


def read_yaml(text: str) -> Any:
    """What a text of YAML says.

    Raises:
        RepeatedKeyError: A key stands twice.
        yaml.YAMLError: It is no YAML.
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
    """What a text of JSON says.

    Raises:
        RepeatedKeyError: A key stands twice.
        json.JSONDecodeError: It is no JSON.
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
