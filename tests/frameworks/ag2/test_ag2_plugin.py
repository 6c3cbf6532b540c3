"""Our policies inside an AG2 agent: AG2's own events go in and come out, and what is halted stays halted."""

from __future__ import annotations

import asyncio

import pytest
from ag2_package import (
    PACKAGE,
    MemoryStream,
    Model,
    ag2,
    alert,
    answer,
    ask,
    call,
    events,
    history_of,
    part,
    policies,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.ag2 import AssembledPolicy
from otel_assembly.messages import broken_pairs
from otel_assembly.tokens import TokenMeter, counter_for


def plugin_of(*chain, **rest):
    # Before 1.0, AG2 tells a policy neither of its agent nor of its model.
    return AssembledPolicy(chain, model="gpt-4o", agent_name="support", **rest)


def support(model, *chain, **rest):
    return ag2.Agent("support", prompt="You help.", config=model, assembly=list(chain), **rest)


@pytest.mark.parametrize("policy", [AlertPolicy(), SlidingWindowPolicy(5)], ids=["alert", "other"])
async def test_a_fatal_alert_of_an_ag2_observer_halts_for_good(assembly_telemetry, policy):
    model = Model("never", "never")
    agent = support(model, plugin_of(policy))
    stream = MemoryStream()
    await history_of(stream, ask("first"), answer("one"), alert("Leaking data.", "fatal"))
    for _ in range(2):
        reply = await agent.ask("hi", stream=stream)
        assert reply.body == "HALTED: FATAL: Leaking data."
    assert model.sent == []
    assert assembly_telemetry.metric("assembly.halts") == 1
    # The second run applies no policy. An alert that no model received was not delivered.
    assert len(assembly_telemetry.spans_named(f"apply_policy {policy.name}")) <= 1
    assert "assembly.alerts.delivered" not in assembly_telemetry.metrics


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_fifty_asks_at_once_call_no_model_after_a_fatal_alert(on_halt):
    model = Model(*("said" for _ in range(200)))
    plugin = AssembledPolicy(Assembler([AlertPolicy(), WaitingPolicy()], on_halt=on_halt))
    stream = MemoryStream()

    async def turn(index):
        for _ in range(index % 7):
            await asyncio.sleep(0)
        if index == 25:
            await plugin.context_of(stream).send(ObserverAlert(source="ops", severity="fatal", message="Stop."))
            calls.append(len(model.sent))
        return await support(model, plugin).ask(f"hi {index}", stream=stream)

    calls = []
    replies = await asyncio.gather(*map(turn, range(50)))
    assert len(model.sent) == calls[0]
    assert sum("HALTED" in reply.body for reply in replies) == 50 - calls[0]
    assert "HALTED" in (await support(model, plugin).ask("hi", stream=stream)).body


async def test_no_summariser_is_called_once_an_observer_of_ag2s_has_halted():
    called = []

    def compact(text, target):
        called.append(text)
        return "short"

    stream = MemoryStream()
    talk = [part for index in range(30) for part in (ask(f"question {index} " * 9), answer(f"answer {index} " * 9))]
    await history_of(stream, *talk, alert("Leaking data.", "fatal"))
    model = Model("never")
    plugin = plugin_of(BudgetPolicy(window=700, output_reserve=100, compact=compact))
    assert "HALTED" in (await support(model, plugin).ask("hi", stream=stream)).body
    assert (called, model.sent) == ([], [])


async def test_alerts_from_outside_are_events_of_ag2_in_the_stream():
    plugin, stream = plugin_of(AlertPolicy()), MemoryStream()
    for severity in (Severity.WARNING, Severity.FATAL):
        await plugin.context_of(stream).send(ObserverAlert(source="ops", severity=severity, message="Costs rise."))
        await support(Model("one"), plugin).ask("hi", stream=stream)
    kept = await stream.history.get_events()
    assert {"ObserverAlert", "HaltEvent"} <= {type(event).__name__ for event in kept}
    assert all(type(event).__module__.startswith(PACKAGE) for event in kept)


class WaitingPolicy:
    name = "waiting"

    async def apply(self, prompts, events, context):
        await asyncio.sleep(0)
        return prompts, events


@pytest.mark.parametrize("built_first", [True, False], ids=["built_before", "built_after"])
async def test_in_an_instrumented_agent_there_is_one_assembly(assembly_telemetry, built_first):
    def agent():
        return support(Model("one"), plugin_of(SlidingWindowPolicy(5)))

    built = agent() if built_first else None
    instrument("ag2")
    try:
        await (built or agent()).ask("hi")
    finally:
        uninstrument("ag2")
    assert assembly_telemetry.tree() == "\n".join(
        ("invoke_agent support", "  assemble_context", "    apply_policy sliding_window")
    )
    assert assembly_telemetry.span("assemble_context").attributes["gen_ai.agent.name"] == "support"
    assert assembly_telemetry.violations() == []


async def test_in_an_instrumented_agent_a_halt_is_told_once(telemetry):
    agent = support(Model("never"), plugin_of(AlertPolicy()))
    stream = MemoryStream()
    await history_of(stream, alert("Leaking data.", "fatal"))
    for _ in range(2):
        assert "HALTED" in (await agent.ask("hi", stream=stream)).body
    assert [span.name for span in telemetry.spans if span.events_named("assembly.halt")] == [
        "assemble_context",
        "invoke_agent support",
    ]
    assert telemetry.metric("assembly.halts", agent_name="support") == 1


async def test_between_ag2s_own_policies_it_is_an_assembly_of_its_own(assembly_telemetry):
    class Last:
        name = "last"

        async def apply(self, prompts, given, context):
            return prompts, given

    chain = [policies.ConversationPolicy(), plugin_of(SlidingWindowPolicy(2), name="ours"), Last()]
    stream = MemoryStream()
    await history_of(stream, ask("first"), answer("one"))
    instrument("ag2")
    try:
        await support(Model("two"), *chain).ask("second", stream=stream)
    finally:
        uninstrument("ag2")
    assert assembly_telemetry.tree() == "\n".join(
        (
            "invoke_agent support",
            "  assemble_context",
            "    apply_policy conversation",
            "  assemble_context",
            "    apply_policy sliding_window",
            "  assemble_context",
            "    apply_policy last",
        )
    )
    events_in = [span.attributes["assembly.events.in"] for span in assembly_telemetry.spans_named("assemble_context")]
    assert events_in == [3, 3, 2]


async def test_a_result_that_is_shortened_is_shortened_where_it_is_sent_from(assembly_telemetry):
    def read() -> str:
        """Read the handbook."""
        return "A parcel that was damaged is replaced. " * 40

    model = Model(call("read"), "one")
    budget = BudgetPolicy(window=420, output_reserve=100, compact=lambda text, target_tokens: "It is replaced.")
    agent = support(model, plugin_of(budget), tools=[read])
    await agent.ask("first")
    results = [
        event for event in model.sent[-1] if isinstance(event, (events.ToolResultEvent, events.ToolResultsEvent))
    ]
    assert len(results) == 2
    assert all("It is replaced." in repr(event) and "damaged" not in repr(event) for event in results)


def test_the_assembler_has_the_name_of_the_policy():
    assembler = Assembler([SlidingWindowPolicy(5)], name="ours", model="gpt-4o")
    assert AssembledPolicy(assembler).name == "ours"


_WORDS = st.integers(1, 60).map(lambda n: "word " * n)


@st.composite
def conversations(draw):
    """A stream as AG2 leaves it: each call three times, each result twice, ids that repeat."""
    found: list = []
    for turn in range(draw(st.integers(1, 8))):
        found.append(ask(f"{turn} " + draw(_WORDS)))
        for _ in range(draw(st.integers(0, 2))):
            calls = [call("look", id=name) for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))]
            asked = events.ToolCallsEvent(calls)
            found += [events.ModelResponse(tool_calls=asked), asked, *calls]
            results = [events.ToolResultEvent.from_call(call, draw(_WORDS)) for call in calls]
            found += [*results, events.ToolResultsEvent(results)]
        found.append(answer(draw(_WORDS)))
    return [*found, ask("the newest request")]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversation=conversations(), window=st.integers(200, 900))
async def test_any_conversation_comes_out_whole_and_within_its_budget(assembly_telemetry, conversation, window):
    stream = MemoryStream()
    context = part("context").ConversationContext(stream)
    plugin = plugin_of(BudgetPolicy(window=window, output_reserve=100))
    _, out = await plugin.apply(["You help."], list(conversation), context)
    held = set(map(id, conversation))
    assert all(id(event) in held for event in out)
    assert out[-1] is conversation[-1]
    facts = [describe(event) for event in out]
    assert broken_pairs(facts) == []
    meter = TokenMeter(counter_for("gpt-4o"))
    sent = [fact for fact in facts if fact.kind in ("request", "response") or (fact.closes and not fact.fields)]
    loose = sum(meter.event(message) for message in sent)
    assert meter.prompt("You help.") + meter.priming + loose <= window - 100
    assert context.prompt == []
