"""The registry, the command line and the page use the terms of the glossary."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import check_language
import pytest

from otel_assembly.cli import parser
from otel_assembly.telemetry import conventions_registry as registry

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").lower()
#: Parts of names that are plain English or OpenTelemetry's and need no definition.
PLAIN = {
    "duration",
    "errors",
    "events",
    "format",
    "id",
    "items",
    "model",
    "name",
    "names",
    "previous",
    "tokens",
    "tool",
}


def nouns():
    """The nouns of our names, such as `budget` in `assembly.budget.limit`."""
    for name in {*registry.attributes(), *(metric.name for metric in registry.metrics())}:
        if name.startswith("assembly."):
            yield name.split(".")[1]


def is_defined(noun):
    words = {noun, noun.removesuffix("s"), noun.removesuffix("ed"), noun.replace("_", " ")}
    return any(re.search(rf"\b{re.escape(word)}", GLOSSARY) for word in words)


@pytest.mark.parametrize("noun", sorted({*nouns()} - PLAIN))
def test_each_noun_of_a_name_is_in_the_glossary(noun):
    assert is_defined(noun)


def commands():
    (actions,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return actions


@pytest.mark.parametrize("command", sorted({*commands().choices} - {"demo", "completion", "tree"}))
def test_each_command_is_in_the_glossary(command):
    assert command in GLOSSARY


def descriptions():
    for attribute in registry.attributes().values():
        yield from (attribute.brief, attribute.note, *attribute.members.values())
    yield from (metric.brief for metric in registry.metrics())


def help_texts():
    for action in commands()._choices_actions:
        yield action.help
    for command in commands().choices.values():
        yield from (command.description or "", *(action.help or "" for action in command._actions))


def page_texts():
    for script in sorted((ROOT / "otel_assembly" / "page" / "assets").glob("*.js")):
        yield from re.findall(r"[\"`]([A-Z][^\"`\n]{12,})[\"`]", script.read_text(encoding="utf-8"))


@pytest.mark.parametrize("texts", [descriptions, help_texts, page_texts])
def test_what_people_read_is_plain_english(texts):
    sentences = [sentence for text in texts() for sentence in check_language.sentences(text)]
    matches = [sentence for sentence in sentences if check_language.PATTERN.search(sentence)]
    assert len(sentences) > 10
    assert len(matches) <= 0.05 * len(sentences), matches
