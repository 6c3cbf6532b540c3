"""Contexts and agents whose state is saved and loaded: each time AutoGen makes new messages, which have no ids."""

from __future__ import annotations

import io
import json

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import Image
from autogen_core.model_context import BufferedChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, UserMessage
from autogen_talk import asked, calls, filled, model, reply, results, said, user
from counting import Reads, Work, counted_texts
from PIL import Image as Picture

from otel_assembly import SlidingWindowPolicy
from otel_assembly.explain import Explainer
from otel_assembly.instrumentation.autogen import AssembledChatCompletionContext
from otel_assembly.telemetry import read_ledgers

ASSEMBLY = "assemble_context"
CONTEXTS = {
    "buffered": lambda: BufferedChatCompletionContext(buffer_size=9),
    "plug-in": lambda: AssembledChatCompletionContext([SlidingWindowPolicy(9)]),
}


def exchanges(count):
    for number in range(count):
        yield from (
            user(f"question {number}?"),
            calls(f"call {number}"),
            results(f"call {number}", text=f"result {number}"),
            reply(f"answer {number}"),
        )


async def persisted(context):
    """The state, through the JSON that it is kept as."""
    await context.load_state(json.loads(json.dumps(await context.save_state())))


async def turn(context, text):
    await persisted(context)
    await context.add_message(user(text))
    messages = await asked(context)
    await context.add_message(reply("sure"))
    return messages


@pytest.mark.parametrize("kind", CONTEXTS)
async def test_a_turn_of_a_long_conversation_takes_the_work_of_a_turn_of_a_short_one(kind, told):
    work = []
    for length in (10, 300):
        context = await filled(CONTEXTS[kind](), *exchanges(length))
        for number in range(3):
            await turn(context, f"warming up {number}")
        with Reads(UserMessage, AssistantMessage, FunctionExecutionResultMessage) as reads, counted_texts() as counted:
            turns = []
            for number in range(3):
                with Work(reads, counted) as done:
                    await turn(context, f"and at {length}, {number}?")
                turns.append(done)
        work.append([max(getattr(turn, name) for turn in turns) for name in ("reads", "counts", "calls")])
    (reads, counts, made), (long_reads, long_counts, long_made) = work
    assert long_reads <= reads <= 3
    assert long_counts <= counts <= 3
    assert long_made <= made * 1.1 + 50


@pytest.mark.parametrize("kind", CONTEXTS)
async def test_what_is_said_again_and_again_is_counted_as_often_as_it_is_said(kind, told):
    context = CONTEXTS[kind]()
    for _ in range(12):
        await turn(context, "ok")
    spans = told.spans_named(ASSEMBLY)
    assert [span.attributes["assembly.turn"] for span in spans] == list(range(12))
    assert spans[-1].kept == list(map(str, range(14, 23)))
    (ledger,) = read_ledgers(told.spans).values()
    outcomes = [Explainer(ledger, 11).explain(str(item)).outcome for item in range(23)]
    assert outcomes == ["dropped"] * 14 + ["kept"] * 9


@pytest.mark.parametrize("kind", CONTEXTS)
async def test_a_message_that_was_changed_in_the_state_is_read_and_counted_anew(kind, told):
    context = await filled(CONTEXTS[kind](), *exchanges(2))
    await asked(context)
    state = json.loads(json.dumps(await context.save_state()))
    state["messages"][7]["content"] = "word " * 50
    await context.load_state(state)
    assert said(await asked(context))[-1] == "word " * 50
    one, two = told.spans_named(ASSEMBLY)
    assert two.attributes["assembly.tokens.out"] - one.attributes["assembly.tokens.out"] > 40


@pytest.mark.parametrize("kind", CONTEXTS)
async def test_a_result_that_was_cut_in_place_and_saved_is_read_and_counted_anew(kind, told):
    context = await filled(CONTEXTS[kind](), *exchanges(2))
    await asked(context)
    context._messages[6].content[0].content = "word " * 50
    await persisted(context)
    await asked(context)
    one, two = told.spans_named(ASSEMBLY)
    assert two.attributes["assembly.tokens.out"] - one.attributes["assembly.tokens.out"] > 40


async def test_an_agent_s_saved_conversation_goes_on(told):
    agent = AssistantAgent("clerk", model(*["sure"] * 9), model_context=BufferedChatCompletionContext(buffer_size=3))
    for number in range(4):
        await agent.load_state(json.loads(json.dumps(await agent.save_state())))
        await agent.run(task=f"question {number}?")
    spans = told.spans_named(ASSEMBLY)
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1
    assert [sorted(span.arrived) for span in spans] == [["0"], ["1", "2"], ["3", "4"], ["5", "6"]]


async def test_a_picture_that_comes_back_is_the_same_and_another_one_is_not(told):
    def picture(colour):
        held = io.BytesIO()
        Picture.new("RGB", (8, 8), colour).save(held, "PNG")
        return UserMessage(content=["see", Image(Picture.open(io.BytesIO(held.getvalue())))], source="user")

    context = await filled(UnboundedChatCompletionContext(), picture("red"))
    for _ in range(3):
        await turn(context, "and?")
    context._messages[0] = picture("blue")
    await turn(context, "and now?")
    arrived = [sorted(span.arrived) for span in told.spans_named(ASSEMBLY)]
    assert arrived[:3] == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert len(arrived[3]) == 3
