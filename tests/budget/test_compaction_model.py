"""A model as compactor, through any function."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from otel_assembly import ConfigurationError
from otel_assembly.budget import DEFAULT_COMPACTION_INSTRUCTIONS, Compactors, ModelCompactor


def words(text):
    return len(text.split())


TEXT = "Kim asked for a refund of order 4411. {target_tokens} is no placeholder here. " * 5


def test_the_model_gets_the_instructions_with_the_target_and_the_text_as_it_is():
    asked = []
    compactor = ModelCompactor(lambda messages: asked.append(messages) or "short")
    assert compactor(TEXT, 25) == "short"
    [[system, user]] = asked
    assert system == {"role": "system", "content": DEFAULT_COMPACTION_INSTRUCTIONS.replace("{target_tokens}", "25")}
    assert "at most 25 tokens" in system["content"]
    assert user == {"role": "user", "content": TEXT}


async def test_an_async_model_is_called_on_the_loop():
    async def call(messages):
        return "short"

    compactors = Compactors(ModelCompactor(call))
    assert (await compactors.run_async(TEXT, 5, words)).text == "short"
    with pytest.raises(ConfigurationError, match="async"):
        compactors.run(TEXT, 5, words)
    hidden = Compactors(ModelCompactor(lambda messages: call(messages)))
    assert (await hidden.run_async(TEXT, 5, words)).text == "short"


async def test_a_function_of_the_caller_finds_the_text():
    answer = SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="short"))])
    read = ModelCompactor(lambda messages: answer, read=lambda value: value.choices[0].message.content)
    result = Compactors(read).run(TEXT, 5, words)
    assert result.text == "short"
    assert result.attempts[0].compactor == "ModelCompactor"


def test_an_answer_that_is_no_text_names_the_mend_and_costs_nothing():
    compactor = ModelCompactor(lambda messages: {"content": "short"})
    with pytest.raises(ConfigurationError, match="read="):
        compactor(TEXT, 5)
    with pytest.raises(ConfigurationError, match="NoneType"):
        ModelCompactor(lambda messages: "x", read=lambda value: None)(TEXT, 5)
    result = Compactors(compactor).run(TEXT, 5, words)
    named = "otel_assembly.errors.ConfigurationError"
    assert [attempt.error_type for attempt in result.attempts] == [named, named, None]
    assert result.text


def test_instructions_of_ones_own_must_say_how_much():
    own = ModelCompactor(lambda messages: messages[0]["content"], instructions="In {target_tokens} tokens, as {json}.")
    assert own(TEXT, 7) == "In 7 tokens, as {json}."
    with pytest.raises(ConfigurationError, match="target_tokens"):
        ModelCompactor(lambda messages: "", instructions="Be brief.")
