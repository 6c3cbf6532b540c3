"""System prompts that are messages: those in front of everything else."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation import in_front


@pytest.mark.parametrize(
    ("messages", "front"), [("SSuaS", "SS"), ("uS", ""), ("SS", "SS"), ("", "")], ids=["some", "none", "only", "empty"]
)
def test_prompts_are_those_in_front_of_everything_else(messages, front):
    found, behind = in_front(list(messages), lambda message: message == "S")
    assert ("".join(found), "".join(behind)) == (front, messages[len(front) :])
