"""What a user sees of an unmodified AgentScope agent whose context is compressed."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from agentscope.message import AssistantMsg, HintBlock, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentscope.tool import ToolChunk
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from scripted import FALLS_BACK, SUMMARY, ScriptedModel, agent, instrumented, interrupted, talk, tool, words
from traced_calls import check_compact_blocks, span_of_call

from otel_assembly import instrument, uninstrument

falls_back = pytest.mark.skipif(not FALLS_BACK, reason="this version of AgentScope cannot do that yet")


@pytest.fixture
def telemetry(assembly_telemetry):
    with instrumented(assembly_telemetry):
        yield assembly_telemetry
    assert assembly_telemetry.violations() == []


def failures(telemetry):
    return sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ()))


async def test_a_compression_is_one_assembly_with_the_summarisers_call_under_it(telemetry):
    someone = agent(ScriptedModel(), reserve_ratio=0.3)
    await talk(someone, *(f"question {number} {words(400)}" for number in range(8)))

    assert telemetry.tree().splitlines()[-4:] == [
        "invoke_agent Friday",
        "  assemble_context",
        "    apply_policy compress_context",
        "      compact_block summary",
    ]
    span = telemetry.span("assemble_context")
    held = span.attributes
    assert held["assembly.framework"] == "agentscope"
    assert held["gen_ai.agent.name"] == "Friday"
    assert held["gen_ai.conversation.id"] == someone.state.session_id
    assert held["assembly.model"] == "gpt-4o"
    assert held["assembly.budget.limit"] == 3_200
    policy = telemetry.span("apply_policy compress_context")
    assert policy.compacted == list(map(str, range(held["assembly.compacted.count"])))
    assert policy.dropped_reasons == {}
    assert held["assembly.events.in"] + held["assembly.events.injected"] == (
        held["assembly.events.out"] + held["assembly.compacted.count"]
    )
    summary = telemetry.span("compact_block summary").attributes
    assert summary["assembly.compaction.outcome"] == "compacted"
    assert summary["assembly.compaction.compactor"] == "ScriptedModel"
    assert summary["assembly.tokens.in"] > held["assembly.compacted.tokens"]
    assert summary["assembly.tokens.out"] == span.arrived[summary["assembly.compaction.result"]].tokens
    assert failures(telemetry) == 0


async def test_a_check_that_finds_nothing_to_do_is_counted_and_is_no_step(telemetry):
    await talk(agent(ScriptedModel()), "hello", "hello again")

    assert telemetry.tree().splitlines() == ["invoke_agent Friday", "  assemble_context"] * 2
    assert telemetry.metric("assembly.policy.declined", policy_name="compress_context") == 2


async def test_the_next_compression_takes_the_summary_in_and_nothing_is_told_twice(telemetry):
    someone = agent(ScriptedModel(), reserve_ratio=0.2)
    await talk(someone, *(f"question {number} {words(400)}" for number in range(20)))

    steps = telemetry.spans_named("apply_policy compress_context")
    first, second = (step.parent for step in steps[:2])
    made = steps[0].injected
    assert len(made) == 1
    assert made[0] in steps[1].compacted
    assert not set(first.arrived) & set(second.arrived)
    assert made[0] in second.offered


async def test_the_cut_inside_a_message_keeps_each_call_with_its_result(telemetry):
    def look_up() -> str:
        """Look something up."""
        return words(600)

    lines = ["call:look_up"] * 6 + ["Done."]
    someone = agent(ScriptedModel(lines), tools=[tool(look_up)], reserve_ratio=0.4, context_buffer_ratio=0)
    await talk(someone, "How much is it?")

    span = telemetry.spans_named("apply_policy compress_context")[0].parent
    kept = span.kept
    arrived = {
        item: value for each in telemetry.spans_named("assemble_context") for item, value in each.arrived.items()
    }
    kinds = {item: value.kind for item, value in arrived.items()}
    assert "tool_result" in {kinds[item] for item in kept}
    calls = {value.atom for item, value in arrived.items() if item in kept and value.kind == "tool_result"}
    assert calls <= set(kept)
    assert "assembly.pairs.broken" not in span.attributes or span.attributes["assembly.pairs.broken"] == 0


@falls_back
async def test_where_the_summary_fails_what_is_lost_is_dropped_and_the_attempt_says_why(telemetry):
    someone = agent(ScriptedModel(summary=ConnectionError("secret host")), reserve_ratio=0.2)
    await talk(someone, f"Book order 4711 {words(400)}", *(f"question {n} {words(400)}" for n in range(8)))

    policy = telemetry.span("apply_policy compress_context")
    assert policy.dropped_reasons["0"] == "over_budget"
    assert policy.compacted == []
    attempt = telemetry.span("compact_block summary")
    assert attempt.attributes["assembly.compaction.outcome"] == "raised"
    assert attempt.attributes["error.type"] == "ConnectionError"
    assert attempt.status == "ERROR"
    dropped = telemetry.metric("assembly.items.dropped", policy_name="compress_context", decision_reason="over_budget")
    assert dropped == policy.attributes["assembly.dropped.count"] > 0
    assert "4711" not in str(someone.state.summary)
    assert not any("secret" in str(span.attributes) for span in telemetry.spans)


async def test_what_a_second_attempt_could_not_read_is_dropped_and_not_compacted(telemetry):
    answers = iter([ConnectionError("too long"), SUMMARY])
    someone = agent(ScriptedModel(summary=lambda: next(answers)), reserve_ratio=0.1)
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await someone.compress_context()

    attempts = telemetry.spans_named("compact_block summary")
    assert [attempt.attributes["assembly.compaction.outcome"] for attempt in attempts] == ["raised", "compacted"]
    policy = telemetry.span("apply_policy compress_context")
    assert "0" in policy.dropped_reasons
    assert policy.compacted
    assert not set(policy.dropped_reasons) & set(policy.compacted)


async def test_a_failure_that_may_not_fall_back_leaves_the_context_and_says_so(telemetry):
    model = ScriptedModel(summary=ConnectionError("no"))
    someone = agent(model, **({"compression_fallback_to_truncation": False} if FALLS_BACK else {}))
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    with pytest.raises(ConnectionError):
        await someone.compress_context()

    span = telemetry.span("assemble_context")
    assert span.status == "ERROR"
    assert span.attributes["error.type"] == "ConnectionError"
    assert span.attributes["assembly.tokens.out"] == span.attributes["assembly.tokens.in"]
    assert span.attributes["assembly.dropped.count"] == 0
    assert len(someone.state.context) == 7


async def test_a_prompt_that_cannot_be_compressed_is_an_overflow(telemetry):
    someone = agent(ScriptedModel(context_size=1_000))
    someone.state.summary = words(1_000)
    with pytest.raises(RuntimeError, match="cannot be compressed"):
        await someone.compress_context()

    held = telemetry.span("assemble_context").attributes
    assert held["assembly.overflowed"] is True
    assert held["assembly.overflow.cause"] == "framework"
    assert held["assembly.overflow.tokens"] == 1_006 - 800
    assert telemetry.metric("assembly.budget.overflows", agent_name="Friday") == 1


async def test_a_cancelled_summary_ends_its_spans_and_says_so(telemetry):
    waiting = asyncio.Event()

    async def hang():
        waiting.set()
        await asyncio.Event().wait()

    someone = agent(ScriptedModel(summary=hang))
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    reply = asyncio.create_task(someone.reply(UserMsg("user", "and now?")))
    await waiting.wait()
    reply.cancel()
    answer = await reply

    assert interrupted(answer)
    attempt = telemetry.span("compact_block summary")
    assert attempt.status == "ERROR"
    assert attempt.attributes["error.type"] == "cancelled"
    assert telemetry.span("assemble_context").status == "ERROR"
    for name in ("assemble_context", "apply_policy compress_context"):
        assert (telemetry.span(name).status, telemetry.span(name).attributes["error.type"]) == ("ERROR", "cancelled")
    assert "assembly.policy.errors" not in telemetry.metrics
    assert len(someone.state.context) == 8


async def test_a_summary_that_reports_its_interruption_is_no_summary(telemetry):
    class Interrupted(ScriptedModel):
        async def generate_structured_output(self, messages, structured_model, **kwargs):
            response = await super().generate_structured_output(messages, structured_model, **kwargs)
            response.finished_reason = "interrupted"
            return response

    someone = agent(Interrupted())
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await someone.reply(UserMsg("user", "and now?"))

    assert len(telemetry.spans_named("compact_block summary")) == 1
    assert telemetry.span("compact_block summary").attributes["error.type"] == "cancelled"
    assert telemetry.span("assemble_context").status == "ERROR"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_is_the_same_with_and_without_us(assembly_telemetry, stream):
    async def run():
        model = ScriptedModel(stream=stream)
        someone = agent(model, reserve_ratio=0.2)
        kinds = []
        for number in range(8):
            events = someone.reply_stream(UserMsg("user", f"question {number} {words(400)}"))
            kinds += [event.type async for event in events]
        return kinds, [[m.get_text_content() for m in asked] for asked in model.asked], someone.state.summary

    bare = await run()
    with instrumented(assembly_telemetry):
        seen = await run()
    assert seen == bare
    assert assembly_telemetry.spans_named("compact_block summary")


async def test_nothing_is_current_while_the_reader_of_a_stream_has_control(telemetry):
    from opentelemetry import trace

    model = ScriptedModel(stream=True)
    async for _ in agent(model).reply_stream(UserMsg("user", "hello")):
        assert not trace.get_current_span().get_span_context().is_valid
    assert telemetry.tree().splitlines() == ["invoke_agent Friday", "  assemble_context"]


async def test_a_stream_that_is_left_early_ends_its_span(telemetry):
    stream = agent(ScriptedModel(stream=True)).reply_stream(UserMsg("user", "hello"))
    await anext(stream)
    await stream.aclose()
    for _ in range(10):  # the generators inside are closed once they are collected, by tasks of their own
        gc.collect()
        await asyncio.sleep(0)
        if telemetry.spans:
            break
    assert [span.name for span in telemetry.spans] == ["invoke_agent Friday"]


async def test_two_agents_at_once_never_share_a_parent(telemetry):
    async def work(name):
        await talk(agent(ScriptedModel(), name=name), *(f"{name} {n} {words(400)}" for n in range(9)))

    await asyncio.gather(work("Anna"), work("Ben"))
    assert_parents(telemetry, {"Anna", "Ben"})


def test_agents_in_threads_never_share_a_parent(telemetry):
    names = [f"agent{number}" for number in range(4)]
    threads = [
        threading.Thread(
            target=lambda name=name: asyncio.run(
                talk(agent(ScriptedModel(), name=name), *(f"{name} {n} {words(400)}" for n in range(9)))
            )
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_parents(telemetry, set(names))


def assert_parents(telemetry, names):
    assemblies = telemetry.spans_named("assemble_context")
    assert {span.attributes["gen_ai.agent.name"] for span in assemblies} == names
    for span in assemblies:
        assert span.parent.name == f"invoke_agent {span.attributes['gen_ai.agent.name']}"
    for attempt in telemetry.spans_named("compact_block summary"):
        assert attempt.parent.name == "apply_policy compress_context"
    assert len({span.attributes["assembly.ledger.id"] for span in assemblies}) == len(names)


async def test_its_own_tracing_is_nested_under_and_not_repeated_and_its_model_call_is_stamped(
    assembly_telemetry, monkeypatch
):
    from agentscope.middleware import TracingMiddleware
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: assembly_telemetry.tracer_provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_, **__: assembly_telemetry.tracer_provider.get_tracer(name))
    with instrumented(assembly_telemetry):
        someone = agent(ScriptedModel(), middlewares=[TracingMiddleware()])
        someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
        await talk(someone, "and now?")

    assert assembly_telemetry.tree().splitlines() == [
        "invoke_agent Friday",
        "  assemble_context",
        "    apply_policy compress_context",
        "      compact_block summary",
        "  chat gpt-4o",
    ]
    assembly, chat = assembly_telemetry.span("assemble_context"), assembly_telemetry.span("chat gpt-4o")
    assert chat.attributes["assembly.id"] == assembly.attributes["assembly.id"]
    assert chat.attributes["gen_ai.conversation.compacted"] is True
    assert assembly.end_ns <= chat.start_ns


@falls_back
async def test_an_agent_compresses_by_its_own_tool_and_the_unfinished_call_stays(telemetry):
    model = ScriptedModel(["call:CompressContext", "Done."])
    someone = agent(model, compression_tool_enabled=True, context_buffer_ratio=0.5)
    someone.state.context = [UserMsg("user", words(600)) for _ in range(4)]
    await talk(someone, "tidy up")

    span = telemetry.span("apply_policy compress_context").parent
    spans = telemetry.spans_named("assemble_context")
    kinds = {item: value.kind for each in spans for item, value in each.arrived.items()}
    assert "tool_call" in {kinds[item] for item in span.kept}
    assert span.status == "UNSET"


async def test_long_tool_results_are_told_as_they_stand_in_the_context(telemetry):
    def look_up() -> str:
        """Look something up."""
        return words(500)

    someone = agent(ScriptedModel(["call:look_up", "Done."]), tools=[tool(look_up)], tool_result_limit=50)
    await talk(someone, "How much is it?")

    policy = telemetry.span("apply_policy truncate_tool_result")
    assert policy.parent.name == "assemble_context"
    assert policy.parent.parent.name == "invoke_agent Friday"
    held = policy.attributes
    assert held["assembly.compacted.count"] == 1
    assert held["assembly.events.in"] == held["assembly.events.out"] == 3
    assert held["assembly.compacted.tokens"] > 400 > 100 > held["assembly.injected.tokens"]
    assert held["assembly.policy.config"] == '{"tool_result_limit":50}'


async def test_short_tool_results_are_no_step(telemetry):
    def look_up() -> ToolChunk:
        """Look something up."""
        return ToolChunk(content=[TextBlock(text="7")])

    await talk(agent(ScriptedModel(["call:look_up", "Done."]), tools=[tool(look_up)]), "How much is it?")
    assert telemetry.tree().splitlines() == ["invoke_agent Friday", *["  assemble_context"] * 2]


def test_a_message_is_read_with_its_calls_and_its_answers():
    from otel_assembly import describe

    own = AssistantMsg(
        "Friday",
        [
            TextBlock(text="I look."),
            ToolCallBlock(id="a", name="look_up", input="{}"),
            ToolResultBlock(id="a", name="look_up", output="7"),
            ToolCallBlock(id="b", name="look_up", input="{}", state="asking"),
        ],
    )
    facts = describe(own)
    assert (facts.kind, facts.opens, facts.closes, facts.awaiting) == ("response", ["b"], [], ["b"])
    assert facts.texts == ("I look.", "Friday", "look_up", "{}", "7", "look_up", "{}")
    assert describe(UserMsg("user", "hello")).kind == "request"
    assert describe(AssistantMsg("Friday", [HintBlock(hint="It is late.")])).kind == "system"


async def test_where_neither_spans_nor_metrics_are_wanted_nothing_of_ours_fails(caplog):
    quiet = TracerProvider(sampler=ALWAYS_OFF)
    instrument("agentscope", tracer_provider=quiet, meter_provider=NoOpMeterProvider())
    try:
        someone = agent(ScriptedModel(), reserve_ratio=0.3)
        await talk(someone, *(f"question {number} {words(400)}" for number in range(8)))
    finally:
        uninstrument("agentscope")
    assert someone.state.summary
    assert [record.getMessage() for record in caplog.records if record.name == "otel_assembly"] == []


async def test_a_summarizers_model_call_is_in_its_compact_block(telemetry):
    def summary():
        with span_of_call(telemetry):
            return SUMMARY

    someone = agent(ScriptedModel(summary=summary))
    someone.state.context = [UserMsg("user", words(600)) for _ in range(7)]
    await talk(someone, "and now?")
    check_compact_blocks(telemetry)
