"""What the provider billed corrects an estimate."""

from __future__ import annotations

import pytest
from assembling import requests, turns

from otel_assembly import (
    Assembler,
    ConfigurationError,
    Context,
    History,
    ModelRequest,
    ModelResponse,
    TokenBudgetPolicy,
)
from otel_assembly.events import Usage
from otel_assembly.tokens import CalibratedCounter, CharacterCounter


async def test_what_the_provider_billed_calibrates_the_next_turns_tokens(recorder):
    assembler = Assembler([], model="some-lab/unheard-of-1", recorder=recorder.recorder)
    history = History(requests("word " * 100))
    first = await assembler.assemble(["p"], history)
    counted_then = first.totals.tokens_out
    assert first.totals.method == "estimated"
    history.append(ModelResponse(content="ok", usage=Usage(input_tokens=counted_then * 2)))
    history.append(ModelRequest(content="word " * 100))
    second = await assembler.assemble(["p"], history)
    assert second.totals.method == "calibrated"
    calibrated = recorder.metric("assembly.tokens.calibration", model="some-lab/unheard-of-1")
    assert (calibrated.count, calibrated.sum) == (1, 0.5)
    plain = await Assembler([]).assemble(["p"], history)
    assert 1.8 < second.totals.tokens_out / plain.totals.tokens_out < 2.1
    await assembler.assemble(["p"], history)
    assert recorder.metric("assembly.tokens.calibration").count == 1


async def test_items_counted_under_another_calibration_are_told_again(recorder):
    counter = CalibratedCounter("m", CharacterCounter(1))
    assembler = Assembler([TokenBudgetPolicy(1_000)], counter=counter, recorder=recorder.recorder)
    history = History(requests("abcdefghij"))

    async def turn():
        await assembler.assemble([], history)
        return turns(recorder)[-1].arrived

    assert await turn() == {"0": 4 + 10}
    assembler.observe_usage(100, 200)
    history.append(ModelRequest(content="ab"))
    assert await turn() == {"0": 4 + 20, "1": 4 + 4}
    assert await turn() == {}


async def test_a_bill_for_an_earlier_prompt_or_none_is_not_taken_for_this_ones(recorder):
    assembler = Assembler([], model="some-lab/unheard-of-2", recorder=recorder.recorder)
    history = History([ModelRequest(content="a"), ModelResponse(content="b", usage=Usage(input_tokens=10))])
    for text in "cd":
        await assembler.assemble([], history)
        history.append(ModelResponse(content=text))
    assembly = await assembler.assemble([], history)
    assert assembly.totals.method == "estimated"
    assert "assembly.tokens.calibration" not in recorder.metrics


async def test_observed_usage_calibrates_and_an_exact_tokenizer_is_only_compared(recorder):
    assembler = Assembler([], recorder=recorder.recorder)
    assembly = await assembler.assemble([], requests("a"), Context(model="gpt-4o"))
    assembler.observe_usage(assembly.totals.tokens_out, 99, model="gpt-4o")
    again = await assembler.assemble([], requests("a"), Context(model="gpt-4o"))
    assert again.totals.tokens_out == assembly.totals.tokens_out
    calibrated = recorder.metric("assembly.tokens.calibration", model="gpt-4o")
    assert (calibrated.count, calibrated.sum) == (1, assembly.totals.tokens_out / 99)


@pytest.mark.parametrize("wrong", ["1", 1.5, True, None, -1])
def test_usage_that_is_no_number_of_tokens_is_refused_by_name(wrong):
    assembler = Assembler([], model="some-lab/unheard-of-3")
    with pytest.raises(ConfigurationError, match=f"observe_usage: counted must be .*, got {wrong!r}"):
        assembler.observe_usage(wrong, 1)
    with pytest.raises(ConfigurationError, match=f"observe_usage: billed must be .*, got {wrong!r}"):
        assembler.observe_usage(1, wrong)
