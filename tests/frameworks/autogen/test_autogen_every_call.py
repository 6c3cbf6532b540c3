"""An assembly is what a model call is sent: for every call that AutoGen makes, whoever makes it."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_calls import Scripted, assert_every_call_is_told, tokens_of, told_calls, wants
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_parts import BONN, said, weather
from autogen_programs import PROGRAMS
from autogen_talk import filled, reply, user
from autogen_team_programs import society

from otel_assembly import BudgetPolicy, SlidingWindowPolicy
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.autogen import AssembledChatCompletionContext

pytestmark = pytest.mark.filterwarnings("ignore:No approval function set:UserWarning")  # AutoGen's, of an executor


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_every_call_is_told_with_all_that_the_model_received(program, told):
    log = []
    watched = await program(log)
    assert log
    assert_every_call_is_told(told, log)
    assert len({span.trace_id for span in told.spans}) == PROGRAMS[program]
    uninstrument("autogen")
    try:
        alone = []
        assert await program(alone) == watched
        assert [call.messages for call in alone] == [call.messages for call in log]
    finally:
        instrument("autogen")


@pytest.mark.parametrize("instrumented", [True, False], ids=["instrumented", "alone"])
async def test_the_plug_ins_budget_holds_for_all_that_the_model_receives(instrumented, told):
    if not instrumented:
        uninstrument("autogen")
    log = []
    context = AssembledChatCompletionContext([BudgetPolicy(window=220, output_reserve=0)])
    clerk = AssistantAgent(
        "clerk",
        Scripted(log, "clerk", wants(BONN), "rain " * 60, wants(BONN), "sun", "bye"),
        tools=[weather],
        handoffs=["desk"],
        reflect_on_tool_use=True,
        model_context=context,
        system_message="Be brief. " * 20,
    )
    for task in ("the weather?", "again?", "thanks"):
        await clerk.run(task=task)
    assert_every_call_is_told(told, log)
    assert all(tokens_of(call) <= 220 for call in log)
    assert len(log[-1].messages) < 7
    if not instrumented:
        instrument("autogen")


async def test_a_plug_in_in_a_program_of_ones_own_is_told_once(told):
    log = []
    client, context = Scripted(log, "by hand", "b"), AssembledChatCompletionContext([SlidingWindowPolicy(1)])
    await filled(context, user("a"), reply("b"), user("c"))
    await client.create(await context.get_messages())
    assert_every_call_is_told(told, log)


async def test_what_a_society_does_not_hand_over_is_told_as_no_call(told):
    log = []
    group = society(log, model_context=BufferedChatCompletionContext(1))
    for task in ("think", "again", "once more", "and again"):
        await group.run(task=task)
    without = [span for span in told.spans_named("apply_policy buffered") if span.dropped_reasons]
    assert [step.dropped_reasons for step in without] == [{"0": "outside_window"}]
    assert without[0].parent.attributes["gen_ai.agent.name"] == "society"
    assert len(told_calls(told)) == len(log) + 1


async def test_a_selectors_template_and_its_retries_are_steps_of_what_it_is_sent(told):
    log = []
    program = next(program for program in PROGRAMS if program.__name__ == "a_selector_that_has_to_be_asked_again")
    await program(log)
    selections = [
        span
        for span in told.spans_named("assemble_context")
        if span.attributes["gen_ai.agent.name"] == "SelectorGroupChatManager"
    ]
    names = [[step.name.removeprefix("apply_policy ") for step in span.children] for span in selections]
    assert names == [["buffered", "framework"]] * 6


async def test_who_is_asked_again_has_the_same_ledger(told):
    log = []
    clerk = AssistantAgent("clerk", Scripted(log, "clerk", *"abc"))
    shown = [message for task in "123" for message in said(await clerk.run(task=task))]
    assert shown
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1
