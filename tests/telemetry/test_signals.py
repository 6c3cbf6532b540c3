"""Overflows, alerts, halts and errors on the spans where people look; runs that are one trace each."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc

import pytest
from opentelemetry.trace import get_current_span

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    HaltedError,
    HaltEvent,
    History,
    ObserverAlert,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    attach,
    invoke_agent,
)
from otel_assembly.errors import PolicyContractError, PolicyFailedError
from otel_assembly.runtime import BudgetMonitor, Stream
from otel_assembly.testing import conversation

pytestmark = pytest.mark.usefixtures("quiet_sdk")


def overflow(excess, budget):
    numbers = f"{excess:,} tokens over {budget:,}"
    return "ERROR", f"the context does not fit its budget: {numbers}", "context_overflow"


HALT = ("ERROR", "the conversation was halted", "assembly_halt")
FAILED = ("ERROR", "a policy failed")


def status(span):
    return span.status, span.status_message, span.attributes.get("error.type")


def names(span):
    return [event.name for event in span.events]


# Overflow


async def test_the_status_of_an_overflow_has_its_numbers(recorder, words):
    with pytest.raises(ContextOverflowError):
        await Assembler([TokenBudgetPolicy(1_600)], counter=words).assemble(["word " * 3_400], [], Context())
    span = recorder.span("assemble_context")
    assert span.status_message == (
        f"the context does not fit its budget: {span.attributes['assembly.overflow.tokens']:,} tokens over 1,600"
    )
    assert ": 1,8" in span.status_message


async def test_the_status_of_a_limit_of_items_has_its_numbers(recorder):
    events = conversation("ask", "call a b c", "result a", "result b", "result c")
    await Assembler([SlidingWindowPolicy(3)]).assemble([], events, Context())
    assert recorder.span("assemble_context").status_message == "the context does not fit its budget: 2 items over 3"


async def test_an_overflow_that_is_raised_is_on_both_spans_and_nothing_is_sent(recorder, words):
    policies = [ConversationPolicy(), TokenBudgetPolicy(10)]
    with pytest.raises(ContextOverflowError) as raised:
        await Assembler(policies, counter=words).assemble(["word " * 20], conversation("ask", "note", "ask"), Context())
    for name in ("apply_policy token_budget", "assemble_context"):
        span = recorder.span(name)
        assert status(span) == overflow(raised.value.needed - 10, 10)
        (event,) = span.events_named("assembly.overflow")
        assert event.attributes == {
            "assembly.overflow.cause": "fixed",
            "assembly.overflow.tokens": raised.value.needed - 10,
        }
        assert {name: span.attributes[name] for name in event.attributes} == event.attributes
        assert span.attributes["assembly.overflowed"] is True
        numbers = [span.attributes[f"assembly.{key}"] for key in ("tokens.out", "events.out", "prompts.out")]
        assert numbers == [0, 0, 0]
        assert span.attributes["assembly.dropped.count"] == span.attributes["assembly.events.in"]
        assert (span.kept, span.dropped_reasons) == ([], {})
    assert list(recorder.span("assemble_context").arrived) == list(recorder.span("assemble_context").offered)
    filtered = recorder.span("apply_policy conversation")
    assert (filtered.status, filtered.attributes["assembly.overflowed"]) == ("UNSET", False)
    assert (filtered.attributes["assembly.events.out"], filtered.dropped_reasons) == (2, {"1": "not_conversation"})
    assert recorder.violations() == []


async def test_an_overflow_that_dropped_the_newest_atom_says_so_without_an_error(recorder, words):
    events = conversation("ask", "call a", "result a: " + "word " * 50)
    await Assembler([TokenBudgetPolicy(40, on_overflow="drop")], counter=words).assemble([], events, Context())
    span = recorder.span("apply_policy token_budget")
    excess = span.attributes["assembly.overflow.tokens"]
    assert status(span) == status(recorder.span("assemble_context")) == overflow(excess, 40)
    assert span.dropped_reasons == {"1": "over_budget", "2": "over_budget"}
    assert "exception.type" not in span.attributes
    assert recorder.metric("assembly.budget.overflows") == 1
    assert recorder.violations() == []


async def test_a_window_that_could_not_hold_has_no_tokens_to_tell(recorder):
    await Assembler([SlidingWindowPolicy(1)]).assemble([], conversation("ask", "call a", "result a"), Context())
    span = recorder.span("assemble_context")
    assert names(span) == ["assembly.overflow"]
    assert span.events[0].attributes == {"assembly.overflow.cause": "newest_atom"}
    assert recorder.violations() == []


# Alerts


async def test_every_alert_delivered_is_one_event_on_the_policys_span(recorder):
    context, assembler = Context(), Assembler([AlertPolicy(), ConversationPolicy()])
    history = History(conversation("ask", "alert: slow", "alert: slower"))
    await assembler.assemble([], history, context)
    span = recorder.span("apply_policy alert")
    assert [event.attributes["assembly.alert.message"] for event in span.events] == ["slow", "slower"]
    first = span.events[0].attributes
    assert (first["assembly.alert.source"], first["assembly.alert.severity"]) == ("observer", "warning")
    assert len(first["assembly.alert.fingerprint"]) == 16
    assert span.status == "UNSET"
    assert recorder.span("assemble_context").attributes["assembly.alerts.delivered"] == 2
    history.append(conversation("ask")[0])
    await assembler.assemble([], history, context)
    assert recorder.span("apply_policy alert").events == []
    assert recorder.span("assemble_context").attributes["assembly.alerts.delivered"] == 0
    assert recorder.violations() == []


async def test_an_alert_of_an_assembly_that_failed_is_told_by_the_one_that_delivers_it(recorder, words):
    context, history = Context(), History(conversation("ask", "alert: slow"))
    assembler = Assembler([AlertPolicy(), TokenBudgetPolicy(60)], counter=words)
    with pytest.raises(ContextOverflowError):
        await assembler.assemble(["word " * 90], history, context)
    assert recorder.span("apply_policy alert").events == []
    assert recorder.span("apply_policy alert").attributes["assembly.alerts.delivered"] == 0
    await assembler.assemble([], history, context)
    assert names(recorder.span("apply_policy alert")) == ["assembly.alert"]
    assert recorder.metric("assembly.alerts.delivered") == 1
    assert recorder.violations() == []


async def test_more_alerts_than_a_span_can_hold_are_still_counted(recorder):
    alerts = [ObserverAlert(source="watch", severity="info", message=str(index)) for index in range(300)]
    await Assembler([AlertPolicy()]).assemble([], alerts, Context())
    span = recorder.span("apply_policy alert")
    assert (len(span.events), span.dropped_events) == (128, 172)
    assert span.attributes["assembly.alerts.delivered"] == 300
    assert recorder.metric("assembly.alerts.delivered", alert_severity="info") == 300


# Halts


def sent_or_halted():
    return contextlib.suppress(HaltedError)


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_halts_on_the_assembly_the_policy_and_the_run(recorder, on_halt):
    with invoke_agent("desk", framework="ours", conversation_id="c-7"), sent_or_halted():
        await Assembler([AlertPolicy()], on_halt=on_halt).assemble([], conversation("ask", "fatal: fire"), Context())
    run, assembly, policy = (
        recorder.span(name) for name in ("invoke_agent desk", "assemble_context", "apply_policy alert")
    )
    for span in (run, assembly, policy):
        assert status(span) == HALT
    for span in (run, assembly):
        assert [e.attributes for e in span.events_named("assembly.halt")] == [
            {"assembly.halt.source": "observer", "assembly.halt.reason": "FATAL: fire"}
        ]
    sent = on_halt == "return"
    assert names(policy) == (["assembly.alert"] if sent else [])
    assert [span.attributes["assembly.alerts.delivered"] for span in (assembly, policy)] == [sent, sent]
    assert [span.attributes["assembly.events.out"] for span in (assembly, policy)] == [2 * sent, 2]
    assert [span.attributes["assembly.halts.emitted"] for span in (assembly, policy)] == [1, 1]
    assert recorder.metric("assembly.halts", agent_name="desk", framework="ours") == 1
    assert recorder.violations() == []


async def test_a_halt_that_a_policy_puts_on_the_stream_is_emitted_by_its_assembly(recorder):
    class Stop:
        name = "stop"

        async def apply(self, prompts, events, context):
            await context.send(HaltEvent(reason="enough", source="stop"))
            return prompts, events

    with pytest.raises(HaltedError):
        await Assembler([ConversationPolicy(), Stop()]).assemble([], conversation("ask"), Context(stream=Stream()))
    for name in ("assemble_context", "apply_policy stop"):
        span = recorder.span(name)
        assert (status(span), span.attributes["assembly.halts.emitted"]) == (HALT, 1)
    assert recorder.span("apply_policy conversation").attributes["assembly.halts.emitted"] == 0
    assert recorder.metric("assembly.halts") == 1
    assert recorder.violations() == []


async def test_the_assembly_of_a_conversation_that_was_halted_before_says_so_and_sends_nothing(recorder):
    context, history = Context(), History(conversation("ask", "answer"))
    assembler = Assembler([ConversationPolicy()])
    await assembler.assemble(["be kind"], history, context)
    with invoke_agent("desk"):
        await context.send(HaltEvent(reason="enough", source="stop"))
    with pytest.raises(HaltedError):
        await assembler.assemble(["be kind"], history, context)
    span = recorder.span("assemble_context")
    assert (status(span), names(span), span.children) == (HALT, [], [])
    told = {key.removeprefix("assembly."): value for key, value in span.attributes.items()}
    assert (told["turn"], told["events.in"], told["prompts.in"], told["dropped.count"]) == (1, 2, 1, 2)
    assert (told["events.out"], told["prompts.out"], told["tokens.out"], told["halts.emitted"]) == (0, 0, 0, 0)
    assert recorder.metric("assembly.halts", agent_name="desk") == 1
    assert recorder.metric("assembly.output.tokens").count == 1
    assert recorder.violations() == []


async def test_a_halt_is_no_error_of_the_policy_that_found_it(recorder):
    context = Context()

    class Asks:
        name = "asks"

        async def apply(self, prompts, events, context):
            await context.send(HaltEvent(reason="enough", source="stop"))
            context.guard.check()

    with pytest.raises(HaltedError):
        await Assembler([Asks()]).assemble([], conversation("ask"), context)
    assert status(recorder.span("apply_policy asks")) == HALT
    assert "assembly.policy.errors" not in recorder.metrics


async def test_a_halt_by_an_observer_of_the_assembly_is_on_its_span(recorder):
    stream = Stream(History(conversation("ask")))
    context = Context(stream=stream, agent_name="desk")
    with attach(stream, [BudgetMonitor(0.01, utilization_severity="fatal")], context), pytest.raises(HaltedError):
        await Assembler([TokenBudgetPolicy(100)]).assemble([], stream.history, context)
    span = recorder.span("assemble_context")
    assert (status(span), names(span)) == (HALT, ["assembly.halt"])
    assert span.attributes["assembly.halts.emitted"] == 1
    assert recorder.metric("assembly.halts", agent_name="desk") == 1
    assert recorder.violations() == []


async def test_a_halt_outside_of_any_assembly_is_on_the_running_span_and_on_the_runs(recorder):
    context = Context()
    with invoke_agent("desk"), recorder.tracer().start_as_current_span("execute_tool search"):
        await context.send(conversation("fatal: fire")[0])
    for name in ("execute_tool search", "invoke_agent desk"):
        assert status(recorder.span(name)) == HALT
        assert names(recorder.span(name)) == ["assembly.halt"]
    assert recorder.metric("assembly.halts", agent_name="desk") == 1
    assert recorder.violations() == []


async def test_a_halted_run_that_ends_with_the_halts_error_is_halted_and_not_failed(recorder):
    context = Context()

    async def ask():
        with invoke_agent("desk"):
            await context.send(conversation("fatal: fire")[0])
            context.guard.check()

    with pytest.raises(HaltedError):
        await ask()
    assert status(recorder.span("invoke_agent desk")) == HALT
    with pytest.raises(HaltedError), invoke_agent("late"):
        context.guard.check()
    assert status(recorder.span("invoke_agent late")) == HALT
    assert recorder.violations() == []


async def test_a_halt_from_work_that_a_policy_left_behind_is_no_longer_its_assemblys(recorder):
    class Watch:
        name = "watch"

        async def apply(self, prompts, events, context):
            async def later():
                await finished.wait()
                await context.send(HaltEvent(reason="late", source="watch"))

            tasks.append(asyncio.create_task(later()))
            return prompts, events

    finished, tasks = asyncio.Event(), []
    with invoke_agent("desk"):
        await Assembler([Watch()]).assemble([], conversation("ask"), Context(stream=Stream()))
        finished.set()
        await tasks[0]
    assert names(recorder.span("assemble_context")) == []
    assert status(recorder.span("invoke_agent desk")) == HALT
    assert recorder.metric("assembly.halts", agent_name="desk") == 1


async def test_a_halt_after_the_runs_end_touches_no_span_that_has_ended(recorder):
    context = Context()

    async def later():
        await ended.wait()
        await context.send(conversation("fatal: late")[0])

    ended = asyncio.Event()
    with invoke_agent("desk"):
        task = asyncio.create_task(later())
        await asyncio.sleep(0)
    ended.set()
    await task
    assert names(recorder.span("invoke_agent desk")) == []
    assert recorder.metric("assembly.halts", agent_name="desk") == 1


async def test_one_halt_in_fifty_turns_at_once(recorder):
    context, history = Context(agent_name="desk"), History(conversation("ask", "fatal: fire"))
    assembler = Assembler([AlertPolicy()], on_halt="return")
    await asyncio.gather(*(assembler.assemble([], history, context) for _ in range(50)))
    assert recorder.metric("assembly.halts", agent_name="desk") == 1
    events = [event for span in recorder.spans for event in span.events]
    assert sorted(event.name for event in events) == ["assembly.alert", "assembly.halt"]


# Errors


class Raising:
    name = "raising"

    def __init__(self, error):
        self.error = error

    async def apply(self, prompts, events, context):
        raise self.error


async def test_a_policy_that_raised_names_its_error_and_its_siblings_are_as_they_were(recorder):
    with pytest.raises(PolicyFailedError):
        await Assembler([SlidingWindowPolicy(1), Raising(KeyError("x"))]).assemble([], conversation("ask"), Context())
    assert status(recorder.span("apply_policy raising")) == (*FAILED, "KeyError")
    assert status(recorder.span("assemble_context")) == (*FAILED, "KeyError")
    assert recorder.span("apply_policy sliding_window").status == "UNSET"
    assert recorder.violations() == []


async def test_a_skipped_policy_is_an_error_and_its_assembly_is_none(recorder):
    chain = [Raising(KeyError("x")), SlidingWindowPolicy(1)]
    await Assembler(chain, on_policy_error="skip").assemble([], conversation("ask", "ask"), Context())
    span = recorder.span("apply_policy raising")
    assert status(span) == (*FAILED, "KeyError")
    assert [span.attributes[f"assembly.events.{way}"] for way in ("in", "out")] == [2, 2]
    assert recorder.span("assemble_context").status == "UNSET"
    assert recorder.metric("assembly.policy.errors", policy_name="raising") == 1
    assert recorder.violations() == []


async def test_a_policy_that_broke_its_contract_says_which_error_that_is(recorder):
    class Wrong:
        name = "wrong"

        async def apply(self, prompts, events, context):
            return None

    with pytest.raises(PolicyContractError):
        await Assembler([Wrong()]).assemble([], conversation("ask"), Context())
    assert recorder.span("apply_policy wrong").attributes["error.type"] == "otel_assembly.errors.PolicyContractError"
    assert recorder.violations() == []


async def test_a_cancelled_assembly_ends_its_spans_and_leaves_the_ledger_as_it_was(recorder):
    class Slow:
        name = "slow"
        waits = True

        async def apply(self, prompts, events, context):
            if self.waits:
                await asyncio.sleep(60)
            return prompts, events

    slow, context, history = Slow(), Context(), History(conversation("ask"))
    assembler = Assembler([slow])
    with invoke_agent("desk"):
        task = asyncio.create_task(assembler.assemble([], history, context))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    for name in ("apply_policy slow", "assemble_context"):
        span = recorder.span(name)
        assert status(span) == ("ERROR", "", "cancelled")
        assert span.kept == []
    assert list(recorder.span("assemble_context").arrived) == ["0"]
    assert recorder.span("invoke_agent desk").status == "UNSET"
    assert recorder.violations() == []
    slow.waits = False
    await assembler.assemble([], history, context)
    assert recorder.span("assemble_context").arrived == {}
    assert "assembly.previous.id" in recorder.span("assemble_context").attributes


async def test_an_assembly_that_nobody_awaited_to_its_end_hurts_nobody(recorder):
    class Stuck:
        name = "stuck"

        async def apply(self, prompts, events, context):
            await asyncio.Event().wait()

    coroutine = Assembler([Stuck()]).assemble([], conversation("ask"), Context())
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()
    gc.collect()
    assert not get_current_span().get_span_context().is_valid
    assert status(recorder.span("assemble_context"))[2] == "GeneratorExit"


# Runs


async def test_five_turns_of_an_ask_are_one_trace(recorder):
    assembler, history, context = Assembler([ConversationPolicy()]), History(), Context()
    with invoke_agent("desk", framework="ours", conversation_id="c-1"):
        for word in ("ask", "answer", "ask", "answer", "ask"):
            history.extend(conversation(word))
            await assembler.assemble([], history, context)
    run = recorder.span("invoke_agent desk")
    assert {span.trace_id for span in recorder.spans} == {run.trace_id}
    assert [span.parent_id for span in recorder.spans_named("assemble_context")] == [run.span_id] * 5
    assert run.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "desk",
        "assembly.framework": "ours",
        "gen_ai.conversation.id": "c-1",
    }
    assert recorder.violations() == []


async def test_an_assembly_knows_the_agent_of_its_run_unless_it_has_one_of_its_own(recorder):
    with invoke_agent("desk", framework="ours", conversation_id="c-1"):
        await Assembler([]).assemble([], conversation("ask"), Context())
        await Assembler([]).assemble([], conversation("ask"), Context(agent_name="clerk", conversation_id="c-2"))
    first, second = (span.attributes for span in recorder.spans_named("assemble_context"))
    keys = ("gen_ai.agent.name", "assembly.framework", "gen_ai.conversation.id")
    assert [first[key] for key in keys] == ["desk", "ours", "c-1"]
    assert [second[key] for key in keys] == ["clerk", "ours", "c-2"]
    assert recorder.metric("assembly.duration", agent_name="desk").count == 1


async def test_where_a_span_is_current_none_is_added(recorder):
    assembler = Assembler([AlertPolicy()], on_halt="return")
    with recorder.tracer().start_as_current_span("POST /ask"), invoke_agent("desk"), invoke_agent("inner"):
        await assembler.assemble([], conversation("fatal"), Context())
    assert recorder.tree() == "POST /ask\n  assemble_context\n    apply_policy alert"
    assert status(recorder.span("POST /ask")) == HALT


async def test_what_a_run_raised_goes_on_and_is_named(recorder):
    with pytest.raises(ZeroDivisionError), invoke_agent("desk"):
        raise ZeroDivisionError("secret")
    assert status(recorder.span("invoke_agent desk")) == ("ERROR", "", "ZeroDivisionError")
    assert recorder.span("invoke_agent desk").events == []
    with pytest.raises(ContextOverflowError), invoke_agent("desk"):
        raise ContextOverflowError(1, 2, {})
    assert recorder.span("invoke_agent desk").attributes["error.type"] == "context_overflow"


async def test_a_run_that_streams_may_be_left_half_read(recorder):
    async def answer():
        with invoke_agent("desk"):
            await Assembler([]).assemble([], conversation("ask"), Context())
            yield "half"
            yield "whole"

    stream = answer()
    assert await asyncio.create_task(anext(stream)) == "half"
    await asyncio.create_task(stream.aclose())
    assert recorder.span("invoke_agent desk").attributes["error.type"] == "GeneratorExit"
    with invoke_agent("next"):
        pass
    assert recorder.span("invoke_agent next").parent is None


async def test_fifty_runs_at_once_never_share_a_parent(recorder):
    class Yielding:
        name = "yielding"

        async def apply(self, prompts, events, context):
            for _ in range(3):
                await asyncio.sleep(0)
            with recorder.tracer().start_as_current_span(f"summarise {context.agent_name}"):
                await asyncio.sleep(0)
            return prompts, events[1:]

    assembler = Assembler([Yielding(), SlidingWindowPolicy(1)])

    async def run(index):
        with invoke_agent(f"agent-{index}"):
            for _ in range(2):
                await assembler.assemble([], conversation("ask", "ask"), Context(agent_name=f"agent-{index}"))

    await asyncio.gather(*map(run, range(50)))
    runs = {span.trace_id: span for span in recorder.spans if span.name.startswith("invoke_agent")}
    assert len(runs) == 50
    for span in recorder.spans_named("assemble_context"):
        run = runs[span.trace_id]
        assert (span.parent_id, span.attributes["gen_ai.agent.name"]) == (
            run.span_id,
            run.attributes["gen_ai.agent.name"],
        )
    for span in recorder.spans:
        if span.name.startswith("summarise "):
            assert span.parent.name == "apply_policy yielding"
            assert span.name.endswith(span.parent.parent.attributes["gen_ai.agent.name"])
    assert not get_current_span().get_span_context().is_valid
