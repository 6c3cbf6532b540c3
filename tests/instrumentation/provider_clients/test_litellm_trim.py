"""LiteLLM's `trim_messages` is a step of the next call's assembly."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest
from client_calls import TEXT, assemblies, user
from provider_bodies import chat_body

from otel_assembly import instrument, uninstrument

openai = pytest.importorskip("openai", reason="openai is not installed: python -m pip install --group dev")
litellm = pytest.importorskip("litellm", reason="litellm is not installed: python -m pip install --group dev")
# litellm itself warns of its types and of its own deprecated calls.
pytestmark = pytest.mark.filterwarnings("ignore")
STEP = "apply_policy trim_messages"


@pytest.fixture
def program():
    """A module that has imported the function by another name before LiteLLM was instrumented."""
    module = ModuleType("program_of_test")
    exec("from litellm.utils import trim_messages as shorten", vars(module))
    sys.modules[module.__name__] = module
    instrument("litellm")
    yield module
    uninstrument()
    del sys.modules[module.__name__]


@pytest.fixture
async def complete(server, telemetry):
    """Return a function that sends messages with `acompletion`; `completion` would leave an event loop open."""
    async with openai.AsyncOpenAI(api_key="k", base_url=server.url) as client:

        async def complete(messages):
            server.answers(chat_body({"role": "assistant", "content": TEXT}))
            answer = await litellm.acompletion("openai/gpt-4o", messages, client=client)
            return answer.choices[0].message.content

        yield complete


def turns(question, count=6):
    system = {"role": "system", "content": "You are brief."}
    texts = [f"{question} It is bag number {number}, and it is blue." for number in range(count)]
    return [system, *(user(text) for text in texts)]


@pytest.mark.parametrize("name", ["shorten", "trim_messages"])
async def test_a_trim_is_a_step_with_its_settings_and_what_it_dropped(program, complete, telemetry, question, name):
    from litellm.utils import trim_messages

    trim = {"shorten": program.shorten, "trim_messages": trim_messages}[name]
    messages = turns(question)
    await complete(trim(messages, model="gpt-4o", max_tokens=110))
    (assembly,), step = assemblies(telemetry), telemetry.span(STEP)
    sent = assembly.attributes["assembly.events.out"]
    assert 0 < sent < 6
    assert assembly.attributes["assembly.events.in"] == 6
    assert assembly.attributes["assembly.dropped.count"] + assembly.attributes["assembly.compacted.count"] >= 6 - sent
    assert json.loads(step.attributes["assembly.policy.config"]) == {"max_tokens": 110}
    assert set(step.attributes["assembly.dropped.reasons"]) == {"over_budget"}
    assert [span.name for span in telemetry.spans if span.name.startswith("apply_policy")] == [STEP]
    assert telemetry.violations() == []


async def test_a_message_that_a_trim_shortens_is_compacted(program, complete, telemetry, question):
    messages = [user(f"{question} Old."), user(f"{question} " + "It is blue, and it has two wheels. " * 40)]
    trimmed = program.shorten(messages, model="gpt-4o", max_tokens=90)
    assert ".." in trimmed[-1]["content"]
    await complete(trimmed)
    step = telemetry.span(STEP)
    assert step.attributes["assembly.compacted.items"] == ["1"]
    assert step.attributes["assembly.dropped.items"] == ["0"]


async def test_a_loop_that_trims_each_request_keeps_one_ledger(program, complete, telemetry, question):
    messages = [{"role": "system", "content": "You are brief."}]
    for number in range(4):
        messages.append(user(f"{question} It is bag number {number}, and it is blue."))
        answer = await complete(program.shorten(messages, model="gpt-4o", max_tokens=100))
        messages.append({"role": "assistant", "content": f"{answer} Number {number}."})
    found = [span.attributes for span in assemblies(telemetry)]
    assert [attributes["assembly.events.in"] for attributes in found] == [1, 3, 5, 7]
    assert len({attributes["assembly.ledger.id"] for attributes in found}) == 1
    assert telemetry.spans_named(STEP)


async def test_a_trim_that_changes_nothing_is_no_step(program, complete, telemetry, question):
    await complete(program.shorten(turns(question), model="gpt-4o", max_tokens=10_000))
    assert telemetry.spans_named(STEP) == []
    assert telemetry.metric("assembly.policy.declined", policy_name="trim_messages") == 1


def test_the_result_is_the_functions_own(program, telemetry, question):
    messages = turns(question)
    trimmed, left = program.shorten(messages, model="gpt-4o", max_tokens=110, return_response_tokens=True)
    during = program.shorten
    uninstrument()
    assert during is not program.shorten
    assert (trimmed, left) == program.shorten(messages, model="gpt-4o", max_tokens=110, return_response_tokens=True)
