"""System prompts that are messages: those in front of everything else."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation import as_prompts, in_front


@pytest.mark.parametrize(
    ("messages", "front"), [("SSuaS", "SS"), ("uS", ""), ("SS", "SS"), ("", "")], ids=["some", "none", "only", "empty"]
)
def test_prompts_are_those_in_front_of_everything_else(messages, front):
    found, behind = in_front(list(messages), lambda message: message == "S")
    assert ("".join(found), "".join(behind)) == (front, messages[len(front) :])


@pytest.mark.parametrize(("text", "prompts"), [("You help.", ["You help."]), ("", []), (None, []), (["You"], [])])
def test_one_text_is_one_prompt_or_none(text, prompts):
    assert as_prompts(text) == prompts
