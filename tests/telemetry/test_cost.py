"""What prompts cost, where the price of the model is known."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ContextOverflowError,
    HaltedError,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.testing import conversation
from otel_assembly.tokens import input_price

pytestmark = pytest.mark.usefixtures("quiet_sdk")

#: OpenAI's list for gpt-4o: 2.50 dollars a million tokens of input, half of that from the cache.
FRESH, CACHED = 2.5e-6, 1.25e-6
DESK = {"agent_name": "desk", "model": "gpt-4o"}


def cost(recorder, **labels):
    return recorder.metric("assembly.cost", **DESK | labels)


async def test_a_prompt_is_paid_for_in_two_parts_that_add_up(recorder, words):
    assembler = Assembler([SlidingWindowPolicy(3)], model="gpt-4o", counter=words)
    context, history = Context(agent_name="desk"), History(conversation("ask: one two", "answer: three"))
    first = await assembler.assemble(["be kind"], history, context)
    assert cost(recorder, cost_part="uncached") == pytest.approx(first.totals.tokens_out * FRESH)
    assert {point.attributes["assembly.cost.part"] for point in recorder.metrics["assembly.cost"]} == {"uncached"}
    history.extend(conversation("ask: four", "answer: five"))
    second = await assembler.assemble(["be kind"], history, context)
    assert 0 < second.prefix.tokens < second.totals.tokens_out
    assert cost(recorder, cost_part="reusable") == pytest.approx(second.prefix.tokens * CACHED)
    rest = second.totals.tokens_out - second.prefix.tokens
    assert cost(recorder, cost_part="uncached") == pytest.approx((first.totals.tokens_out + rest) * FRESH)
    assert second.totals.dropped_tokens > 0
    avoided = recorder.metric("assembly.cost.avoided", **DESK)
    assert avoided == pytest.approx(second.totals.dropped_tokens * FRESH)
    await assembler.assemble(["be kind"], history, context)
    assert recorder.metric("assembly.cost.avoided", **DESK) == avoided  # once, when it leaves
    assert recorder.violations() == []


async def test_what_is_not_sent_costs_nothing(recorder, words):
    assembler = Assembler([TokenBudgetPolicy(20)], model="gpt-4o", counter=words)
    with pytest.raises(ContextOverflowError):
        await assembler.assemble(["word " * 60], conversation("ask"), Context(agent_name="desk"))
    with pytest.raises(HaltedError):
        await Assembler([AlertPolicy()], model="gpt-4o", counter=words).assemble(
            [], conversation("ask", "fatal"), Context(agent_name="desk")
        )
    assert not {"assembly.cost", "assembly.cost.avoided"} & set(recorder.metrics)


@pytest.mark.parametrize("model", [None, "", "our-own-model", "ollama/deepseek-r1", "x/y/z", "gpt-4o\ud800"])
async def test_a_model_whose_price_nobody_knows_costs_no_number_and_no_error(model, recorder, words):
    await Assembler([], model=model, counter=words).assemble([], conversation("ask"), Context(agent_name="desk"))
    assert not {"assembly.cost", "assembly.cost.avoided", "assembly.telemetry.errors"} & set(recorder.metrics)
    assert recorder.violations() == []


WITHOUT = """
import asyncio, sys
sys.modules["genai_prices"] = None
from otel_assembly import Assembler, Context
from otel_assembly.testing import RecordedTelemetry, conversation
telemetry = RecordedTelemetry()
assembler = Assembler([], model="gpt-4o", recorder=telemetry.recorder)
asyncio.run(assembler.assemble([], conversation("ask"), Context()))
assert "assembly.output.tokens" in telemetry.metrics
print(sorted(name for name in telemetry.metrics if "cost" in name or "error" in name))
"""


def test_without_the_extra_nothing_is_recorded_and_nothing_fails():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("name", ["openai/gpt-4o", "azure/gpt-4o", "openai:gpt-4o", "litellm_proxy/gpt-4o"])
def test_a_price_is_found_behind_its_provider(name):
    assert input_price(name) == input_price("gpt-4o")


def test_a_price_is_looked_up_once_a_model(monkeypatch):
    import genai_prices

    asked = []
    find = genai_prices.calc_price
    monkeypatch.setattr(genai_prices, "calc_price", lambda *args, **named: asked.append(args) or find(*args, **named))
    for _ in range(3):
        assert input_price("o3-mini-2025-01-31") is not None
    assert len(asked) <= 1


def test_a_long_prompt_costs_the_rate_of_long_prompts():
    price = input_price("claude-sonnet-4-5")
    assert price.of_prompt(200_000, 0).total == pytest.approx(200_000 * 3e-6)
    assert price.of_prompt(200_001, 0).total == pytest.approx(200_001 * 6e-6)
    assert price.of_prompt(100, 400).uncached == 0  # never less than nothing


def test_a_model_without_a_price_of_cached_input_pays_all_of_it_in_full():
    price = input_price("mistral-large-latest")
    assert price.of_prompt(1_000, 900).total == pytest.approx(price.of_prompt(1_000, 0).total)


def test_no_price_is_fetched(monkeypatch):
    """What the package brings along is all that is read: nothing of it that updates its list is ever started."""
    from genai_prices import UpdatePrices

    monkeypatch.setattr(UpdatePrices, "start", lambda *_: pytest.fail("prices were fetched"))
    assert input_price("gpt-4.1") is not None
