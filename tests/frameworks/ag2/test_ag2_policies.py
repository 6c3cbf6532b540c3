"""What the policies of an unmodified AG2 agent do, told by the instrumentor."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from ag2_package import (
    AssemblerMiddleware,
    MemoryStream,
    Model,
    ag2,
    answer,
    ask,
    call,
    events,
    history_of,
    part,
    policies,
    said,
)

from otel_assembly.instrumentation import instrument, uninstrument


async def test_each_policy_is_a_span_under_one_assembly(telemetry):
    model = Model("hello")
    chain = [policies.AlertPolicy(), policies.ConversationPolicy(), policies.SlidingWindowPolicy(50)]
    await ag2.Agent("support", prompt="You help.", config=model, assembly=chain).ask("hi")
    assert telemetry.tree() == "\n".join(
        (
            "invoke_agent support",
            "  assemble_context",
            "    apply_policy alert",
            "    apply_policy conversation",
            "    apply_policy sliding_window",
        )
    )
    span = telemetry.span("assemble_context").attributes
    assert span["assembly.framework"] == "ag2"
    assert span["gen_ai.agent.name"] == "support"
    assert span["assembly.model"] == "gpt-4o"
    assert span["assembly.tokens.method"] == "exact"
    assert telemetry.span("apply_policy alert").attributes["assembly.policy.kind"] == "injection"
    assert telemetry.span("apply_policy sliding_window").attributes["assembly.policy.config"] == (
        '{"max_events":50,"transparent":false}'
    )


async def test_the_trace_says_that_the_opening_request_was_lost_and_by_which_policy(telemetry):
    model = Model("one", "two", "three")
    agent = ag2.Agent(
        "support", config=model, assembly=[policies.ConversationPolicy(), policies.SlidingWindowPolicy(3)]
    )
    stream = MemoryStream()
    for text in ("My order 7 never came.", "Hello?", "Anybody?"):
        await agent.ask(text, stream=stream)
    assert said(model.sent[-1]) == ["Hello?", "two", "Anybody?"]
    window = telemetry.span("apply_policy sliding_window")
    assert window.dropped_reasons == {"0": "outside_window", "1": "outside_window"}
    assert telemetry.span("assemble_context").kept == ["2", "3", "4"]
    assert [span.attributes["assembly.turn"] for span in telemetry.spans_named("assemble_context")] == [0, 1, 2]
    dropped = {"policy_name": "sliding_window", "decision_reason": "outside_window"}
    assert telemetry.metric("assembly.items.dropped", **dropped) == 2


async def test_a_result_that_the_window_cut_from_its_call_is_an_orphan(telemetry):
    model = Model("fine")
    stream = MemoryStream()
    asked = call("look")
    result = events.ToolResultEvent.from_call(asked, "found")
    response = events.ModelResponse(tool_calls=events.ToolCallsEvent([asked]))
    await history_of(stream, ask("first"), response, events.ToolResultsEvent([result]), answer("there"))
    await ag2.Agent("a", config=model, assembly=[policies.SlidingWindowPolicy(3)]).ask("next", stream=stream)
    assert said(model.sent[-1]) == ["there", "next"]
    assert telemetry.span("apply_policy sliding_window").dropped_reasons == {
        "0": "outside_window",
        "1": "outside_window",
        "2": "orphaned_tool_result",
    }


async def test_a_tool_call_and_its_result_count_once_however_often_the_stream_carries_them(telemetry):
    def look(order: str) -> str:
        """Look an order up."""
        return "It left on Monday."

    model = Model(call("look", '{"order": "7"}'), "It left on Monday.")
    agent = ag2.Agent("support", config=model, tools=[look], assembly=[policies.SlidingWindowPolicy(50)])
    stream = MemoryStream()
    await agent.ask("Where is it?", stream=stream)
    span = telemetry.span("assemble_context")
    kinds = [arrived.kind for arrived in span.arrived.values()]
    assert [(kind, kinds.count(kind)) for kind in ("response", "tool_call", "tool_result")] == [
        ("response", 1),
        ("tool_call", 2),
        ("tool_result", 2),
    ]
    counted = dict.fromkeys(kinds, 0)
    for arrived in span.arrived.values():
        counted[arrived.kind] += arrived.tokens
    assert counted["tool_call"] == 0
    assert counted["tool_result"] == 4 + 5  # of a message, and of "It left on Monday."
    assert {arrived.atom for arrived in span.arrived.values()} == {
        "1"
    }  # that of the response, which is the second event
    assert "tool_schemas" in span.attributes["assembly.kind.names"]


async def test_a_token_budget_that_lets_more_through_than_its_limit_overflows(telemetry):
    model = Model("yes")
    chain = [policies.TokenBudgetPolicy(100)]
    await ag2.Agent("support", config=model, assembly=chain).ask("word " * 1_000)
    assert len(model.sent[0]) == 1
    span = telemetry.span("apply_policy token_budget")
    assert span.status == "ERROR"
    assert span.attributes["assembly.overflow.cause"] == "framework"
    assert span.attributes["assembly.overflow.tokens"] > 850
    assert telemetry.span("assemble_context").attributes["assembly.budget.limit"] == 100
    assert telemetry.metric("assembly.budget.overflows", agent_name="support") == 1


async def test_a_budget_knows_its_tokens_whatever_it_takes_for_a_tokens_characters(telemetry):
    chain = [policies.TokenBudgetPolicy(max_tokens=900, chars_per_token=2)]
    await ag2.Agent("support", config=Model("yes"), assembly=chain).ask("hi")
    assert telemetry.span("assemble_context").attributes["assembly.budget.limit"] == 900


async def test_what_a_budget_takes_out_has_its_reason(telemetry):
    model = Model("yes")
    stream = MemoryStream()
    await history_of(stream, ask("first " * 10), answer("one"), ask("second " * 10), answer("two"))
    await ag2.Agent("support", config=model, assembly=[policies.TokenBudgetPolicy(55)]).ask("third", stream=stream)
    span = telemetry.span("apply_policy token_budget")
    assert span.dropped_reasons == dict.fromkeys(map(str, range(5 - len(model.sent[0]))), "over_budget")
    assert span.dropped_reasons


async def test_a_window_that_cannot_hold_a_turn_overflows_by_items(telemetry):
    stream = MemoryStream()
    calls = [call("look", id=f"c{i}") for i in range(4)]
    results = [events.ToolResultEvent.from_call(call, "found") for call in calls]
    response = events.ModelResponse(tool_calls=events.ToolCallsEvent(calls))
    await history_of(stream, ask("first"), response, *results)
    context = part("context").ConversationContext(stream)
    middleware = AssemblerMiddleware(ask("x"), context, policies=[policies.SlidingWindowPolicy(2)])

    async def model_call(sent, _):
        return sent

    sent = await middleware.on_llm_call(model_call, await stream.history.get_events(), context)
    span = telemetry.span("apply_policy sliding_window")
    assert span.attributes["assembly.overflowed"] is (len(sent) > 2)


async def test_notes_and_memory_are_prompts_of_their_policies(telemetry):
    store = part("knowledge").MemoryKnowledgeStore()
    await store.write("/memory/working.md", "The customer is called Ada.")
    await store.write("/memory/conversations/1.md", "Ada bought a lamp.")
    model = Model("yes")
    stream = MemoryStream()
    await history_of(stream, ask("first"), answer("one"))
    chain = [
        policies.WorkingMemoryPolicy(),
        policies.EpisodicMemoryPolicy(max_episodes=2),
        policies.SlidingWindowPolicy(1, transparent=True),
    ]
    agent = ag2.Agent("support", prompt="You help.", config=model, assembly=chain)
    dependencies = {part("knowledge").KnowledgeStore: store}
    await agent.ask("second", stream=stream, dependencies=dependencies)
    span = telemetry.span("assemble_context")
    sources = ["caller", "working_memory", "episodic_memory", "episodic_memory", "sliding_window"]
    assert span.attributes["assembly.prompt.sources"] == sources
    assert len(model.prompts[0]) == len(sources)
    assert "Ada" not in str(telemetry.spans)


class DropNotes:
    name = "drop_notes"

    async def apply(self, prompts, events, context):
        return prompts, [event for event in events if "note" not in str(event)]


class Nameless:
    name = ""

    async def apply(self, prompts, events, context):
        events.pop(0)  # in place, and the same list is returned
        return prompts, events


async def test_a_policy_of_the_users_is_told_by_what_goes_in_and_comes_out(telemetry):
    model = Model("yes")
    stream = MemoryStream()
    await history_of(stream, ask("first"), ask("a note"), answer("one"))
    await ag2.Agent("support", config=model, assembly=[DropNotes(), Nameless()]).ask("second", stream=stream)
    assert said(model.sent[0]) == ["one", "second"]
    assert telemetry.span("apply_policy drop_notes").dropped_reasons == {"1": "policy"}
    assert telemetry.span("apply_policy Nameless").dropped_reasons == {"0": "policy"}


async def test_a_policy_that_raises_raises_the_same_and_says_so(telemetry):
    problem = ValueError("the customer's secret")

    class Broken:
        name = "broken"

        async def apply(self, prompts, events, context):
            raise problem

    with pytest.raises(ValueError, match="secret") as raised:
        await ag2.Agent("support", config=Model("yes"), assembly=[Broken()]).ask("hi")
    assert raised.value is problem
    span = telemetry.span("apply_policy broken")
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "ValueError")
    assert telemetry.span("assemble_context").status == "ERROR"
    assert telemetry.span("invoke_agent support").attributes["error.type"] == "ValueError"
    assert telemetry.metric("assembly.policy.errors", policy_name="broken", error_type="ValueError") == 1
    assert "secret" not in str(telemetry.spans)


@pytest.mark.parametrize("returned", [None, (1, 2, 3), ([], (event for event in ()))], ids=["none", "three", "lazy"])
async def test_what_no_policy_should_return_fares_as_without_us(assembly_telemetry, returned):
    class Odd:
        name = "odd"

        async def apply(self, prompts, events, context):
            return returned

    async def outcome():
        try:
            return (await ag2.Agent("a", config=Model("yes"), assembly=[Odd()]).ask("hi")).body
        except (TypeError, ValueError) as error:
            return type(error), str(error)

    without = await outcome()
    instrument("ag2")
    try:
        assert await outcome() == without
    finally:
        uninstrument("ag2")


async def test_a_policy_added_to_the_live_list_later_is_seen(telemetry):
    agent = ag2.Agent("support", config=Model("yes"), assembly=[policies.ConversationPolicy()])
    agent._policies.append(DropNotes())
    await agent.ask("hi")
    assert "    apply_policy drop_notes" in telemetry.tree()


async def test_policies_of_a_plugin_are_seen(telemetry):
    plugin = part("agent").Plugin()
    if not hasattr(plugin, "add_policy"):
        pytest.skip("this release's plugins have no policies")
    plugin.add_policy(DropNotes())
    agent = ag2.Agent("support", config=Model("yes"), plugins=[plugin], assembly=[policies.ConversationPolicy()])
    await agent.ask("hi")
    assert "apply_policy drop_notes" in telemetry.tree()


async def test_two_assemblers_that_run_one_after_the_other_make_one_assembly(telemetry):
    model = Model("one", "two")
    inner = ag2.Middleware(AssemblerMiddleware, policies=[policies.SlidingWindowPolicy(1)])
    agent = ag2.Agent("support", config=model, middleware=[inner], assembly=[policies.ConversationPolicy()])
    stream = MemoryStream()
    await agent.ask("first", stream=stream)
    await agent.ask("second", stream=stream)
    spans = telemetry.spans_named("assemble_context")
    assert [len(span.children) for span in spans] == [2, 2]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1


async def test_an_agent_built_before_is_seen_and_goes_quiet_again(assembly_telemetry):
    original = vars(AssemblerMiddleware)["on_llm_call"]
    model = Model(*"abcd")
    agent = ag2.Agent("support", config=model, assembly=[policies.SlidingWindowPolicy(3)])
    await agent.ask("before")
    instrument("ag2")
    built = ag2.Agent("built", config=model, assembly=[policies.TokenBudgetPolicy(1_000)])
    wrapped = vars(AssemblerMiddleware)["on_llm_call"]
    await agent.ask("during")
    assert [span.name for span in assembly_telemetry.spans_named("assemble_context")] == ["assemble_context"]
    uninstrument("ag2")
    assert vars(AssemblerMiddleware)["on_llm_call"] is original
    assert wrapped is not original
    await built.ask("after")
    await agent.ask("after")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_what_still_holds_a_wrapper_is_quiet(assembly_telemetry):
    instrument("ag2")
    wrapped = AssemblerMiddleware.on_llm_call
    uninstrument("ag2")
    context = part("context").ConversationContext(MemoryStream())
    middleware = AssemblerMiddleware(ask("x"), context, policies=[policies.SlidingWindowPolicy(1)])

    async def model_call(sent, _):
        return sent

    assert len(await wrapped(middleware, model_call, [ask("one"), ask("two")], context)) == 1
    assert not assembly_telemetry.spans


async def _conversation() -> list:
    model = Model(call("look"), "one", "two", "three")

    def look() -> str:
        """Look."""
        return "found " * 50

    chain = [
        policies.AlertPolicy(),
        policies.ConversationPolicy(),
        policies.SlidingWindowPolicy(6, transparent=True),
        policies.TokenBudgetPolicy(60, transparent=True),
    ]
    agent = ag2.Agent("support", prompt="You help.", config=model, tools=[look], assembly=chain)
    stream = MemoryStream()
    for text in ("first " * 30, "second", "third"):
        await agent.ask(text, stream=stream)
    return [model.prompts, [list(map(repr, sent)) for sent in model.sent]]


async def test_what_the_model_is_sent_is_the_same_with_and_without_us(assembly_telemetry):
    without = await _conversation()
    instrument("ag2")
    try:
        assert await _conversation() == without
    finally:
        uninstrument("ag2")
    assert assembly_telemetry.spans


async def test_the_assembly_is_over_when_the_model_is_called(telemetry):
    seen = []

    class Looking(Model):
        async def _recording(self, messages, context, **rest):
            seen.append([span.name for span in telemetry.spans])
            return await super()._recording(messages, context, **rest)

    await ag2.Agent("a", config=Looking("yes"), assembly=[policies.ConversationPolicy()]).ask("hi")
    assert seen == [["apply_policy conversation", "assemble_context"]]


async def test_agents_at_once_never_share_a_parent(telemetry):
    class Slow:
        name = "slow"

        async def apply(self, prompts, events, context):
            await asyncio.sleep(0)
            return prompts, events

    async def one(name):
        await ag2.Agent(name, config=Model("yes"), assembly=[Slow(), policies.ConversationPolicy()]).ask("hi")

    await asyncio.gather(*(one(f"agent{i}") for i in range(8)))
    for span in telemetry.spans_named("assemble_context"):
        name = span.attributes["gen_ai.agent.name"]
        assert span.parent.name == f"invoke_agent {name}"
        assert [child.name for child in span.children] == ["apply_policy slow", "apply_policy conversation"]
    assert len({span.trace_id for span in telemetry.spans}) == 8


def test_threads_never_share_a_parent(telemetry):
    def one(name):
        agent = ag2.Agent(name, config=Model("yes", "no"), assembly=[policies.ConversationPolicy()])
        return asyncio.run(agent.ask("hi"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, [f"agent{i}" for i in range(8)]))
    spans = telemetry.spans_named("assemble_context")
    assert len(spans) == len({span.trace_id for span in spans}) == 8
    assert all(span.parent.name == f"invoke_agent {span.attributes['gen_ai.agent.name']}" for span in spans)


async def test_two_agents_on_one_stream_have_a_ledger_each(telemetry):
    stream = MemoryStream()
    for name in ("first", "second", "first"):
        agent = ag2.Agent(name, config=Model("yes"), assembly=[policies.ConversationPolicy()])
        await agent.ask("hi", stream=stream)
    ledgers = [span.attributes["assembly.ledger.id"] for span in telemetry.spans_named("assemble_context")]
    assert ledgers[0] == ledgers[2] != ledgers[1]


async def test_a_conversation_is_let_go_of_with_its_stream(telemetry):
    async def model_call(sent, _):
        return sent

    async def assembled():
        # By hand: AG2 itself keeps the context of a turn that an agent has taken.
        context = part("context").ConversationContext(MemoryStream())
        middleware = AssemblerMiddleware(ask("x"), context, policies=[policies.ConversationPolicy()])
        await middleware.on_llm_call(model_call, [ask("hi")], context)
        return weakref.ref(context.stream.history)

    history = await assembled()
    gc.collect()
    assert len(telemetry.spans_named("assemble_context")) == 1
    assert history() is None


async def test_a_cancelled_policy_ends_its_spans(telemetry):
    started = asyncio.Event()

    class WaitingPolicy:
        name = "waiting"

        async def apply(self, prompts, events, context):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(ag2.Agent("a", config=Model("yes"), assembly=[WaitingPolicy()]).ask("hi"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert telemetry.tree().splitlines() == ["invoke_agent a", "  assemble_context", "    apply_policy waiting"]
    assert telemetry.span("apply_policy waiting").status == "ERROR"


async def test_a_policy_of_ag2s_that_another_derives_from_may_replace_what_it_keeps(telemetry):
    class Shouts(policies.SlidingWindowPolicy):
        async def apply(self, prompts, events, context):
            prompts, events = await super().apply(prompts, events, context)
            return prompts, [ask(said([event])[0].upper()) for event in events]

    model = Model("yes")
    await ag2.Agent("support", config=model, assembly=[Shouts(3)]).ask("first")
    assert said(model.sent[0]) == ["FIRST"]
    assert set(telemetry.span("apply_policy sliding_window").dropped_reasons.values()) <= {"outside_window"}
