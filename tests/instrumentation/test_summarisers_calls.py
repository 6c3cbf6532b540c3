"""A summariser's own call of a model is an attempt of the step that asked for it, not a call beside it."""

from __future__ import annotations

import traceback

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from pretend_instrumentor import assemblies, every_call, reading, steps

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    Reduction,
    StepReport,
    client,
    outer_span_hook,
    reducer,
)
from otel_assembly.instrumentation.reductions import reducing


def test_a_summarisers_own_call_is_an_attempt_inside_the_assembly_that_asked_for_it(agents, assembly_telemetry):
    asked, summariser = agents.Client(), agents.Client(["All that was said."])
    agent = agents.Agent(asked, [agents.Summary(summariser)])
    agent.ask("one")
    agent.ask("two")
    told = every_call(assembly_telemetry, asked)
    assert steps(told[1]) == ["summary"]
    (block,) = [child for step in told[1].children for child in step.children]
    assert block.name.startswith("compact_block")
    assert told[1].attributes["assembly.compacted.count"] == 1


def test_a_step_lasts_as_long_as_the_summariser_that_it_calls(agents, assembly_telemetry):
    agent = agents.Agent(agents.Client(), [agents.Summary(agents.Client(["All that was said."]))])
    agent.history = [{"role": "user", "content": str(number)} for number in range(4)]
    agent.ask("and?")
    block = assembly_telemetry.span("compact_block summary")
    assert block.attributes["assembly.tokens.in"] > 0
    assert block.parent.start_ns <= block.start_ns <= block.end_ns <= block.parent.end_ns


def test_a_summarisers_spans_are_not_around_the_assembly_that_asked_for_it(agents, assembly_telemetry):
    tracer = assembly_telemetry.tracer()

    class Traced(agents.Client):
        def call(self, messages):
            with tracer.start_as_current_span("summarise"):
                return super().call(messages)

    asked, summariser = agents.Client(), Traced(["All that was said."])
    agent = agents.Agent(asked, [agents.Summary(summariser)])
    with tracer.start_as_current_span("turn"):
        agent.ask("one")
    assert {assembly.parent.name for assembly in assemblies(assembly_telemetry)} == {"turn"}


def test_a_reducer_knows_what_its_summariser_has_read_and_what_came_of_it(assembly_telemetry):
    asked, telling = [{"role": "user", "content": "Order 4711."}], Instrumentation("pretend")
    summarise = client(lambda messages: ClientRequest(messages), str)(lambda messages: "All that was said.", telling)
    reduction = Reduction(telling, StepReport("summary", asked), call=ModelCall(telling))
    assert (reduction.read, reduction.attempt) == ((), None)
    with reduction.running():
        summarise(asked)
    assert reduction.read is asked
    assert reduction.attempt.outcome == "compacted"
    reduction.done([])


@pytest.mark.parametrize("answer", ["All that was said.", ValueError("no")])
def test_what_a_summariser_did_outside_of_any_call_is_an_attempt_inside_the_next_one(answer, assembly_telemetry):
    asked, invoking_agent, telling = (
        [{"role": "user", "content": "Order 4711."}],
        InvokingAgent("history"),
        Instrumentation("pretend"),
    )

    def summary(messages):
        if isinstance(answer, Exception):
            raise answer
        return answer

    summarise = client(lambda messages: ClientRequest(messages), str)(summary, telling)

    def shorter(messages):
        try:
            return [{"role": "user", "content": summarise(messages)}]
        except ValueError:
            return messages

    after = reducer(
        reading(lambda given: given, lambda out, _: out, "shorter"), invoking_agent=lambda _: invoking_agent
    )
    kept = after(shorter, telling)(asked)
    assert assembly_telemetry.spans == []
    ModelCall(telling, invoking_agent).client_called(ClientRequest(kept))
    (assembly,) = assemblies(assembly_telemetry)
    ((attempt,),) = (step.children for step in assembly.children)
    failed = isinstance(answer, Exception)
    assert attempt.attributes["assembly.compaction.outcome"] == ("raised" if failed else "compacted")
    assert attempt.attributes["assembly.tokens.in"] > 0
    assert (attempt.attributes.get("assembly.tokens.out", 0) > 0) is not failed
    assert attempt.attributes.get("error.type") == ("ValueError" if failed else None)


@pytest.mark.parametrize("has_reducer", [True, False])
def test_no_step_of_a_deferred_reduction_starts_before_its_assembly(has_reducer, assembly_telemetry):
    messages, invoking_agent = [{"role": "user", "content": "Order 4711."}], InvokingAgent("history")
    instrumentation = Instrumentation("pretend")
    summarize = client(lambda messages: ClientRequest(messages), str)(lambda _: "Summary.", instrumentation)
    observe = reading(lambda given: given, lambda out, _: out, "summary")
    hook = reducer(observe, invoking_agent=lambda _: invoking_agent)
    shorten = hook(lambda messages: [{"role": "user", "content": summarize(messages)}], instrumentation)
    with assembly_telemetry.as_default(), assembly_telemetry.tracer().start_as_current_span("turn"):
        kept, call = shorten(messages), ModelCall(instrumentation, invoking_agent)
        if has_reducer:
            reduction = Reduction(instrumentation, StepReport("window", kept), call=call)
            reduction.open()
            reduction.done(kept)
        call.client_called(ClientRequest(kept))
    (assembly,) = assemblies(assembly_telemetry)
    assert steps(assembly) == ["summary", "window"][: 1 + has_reducer]
    assert all(step.start_ns >= assembly.start_ns for step in assembly.children)


def test_what_a_reducer_says_of_itself_behind_its_summariser_stands_where_it_was_called(assembly_telemetry):
    asked, telling = [{"role": "user", "content": "Order 4711."}], Instrumentation("pretend")
    summarise = client(lambda messages: ClientRequest(messages), str)(lambda messages: "All that was said.", telling)
    with assembly_telemetry.as_default(), assembly_telemetry.tracer().start_as_current_span("turn"):
        call = ModelCall(telling)
        reduction = Reduction(telling, StepReport("summary", asked), call=call)
        with reduction.running():
            summarise(asked)
            trace.get_current_span().set_attribute("step", True)
            outer_span_hook(trace.get_current_span, telling)().set_attribute("turn", True)
            assert "turn" not in trace.get_current_span().attributes
        reduction.done([])
        call.end()
    assert assembly_telemetry.span("turn").attributes == {"turn": True}
    assert assembly_telemetry.span("apply_policy summary").attributes["step"] is True


def test_what_a_summariser_did_may_wait_for_the_reducer_that_takes_up_its_summary(assembly_telemetry):
    asked, invoking_agent, telling = (
        [{"role": "user", "content": "Order 4711."}],
        InvokingAgent("history"),
        Instrumentation("pretend"),
    )
    summarise = client(lambda messages: ClientRequest(messages), str)(lambda messages: "All that was said.", telling)
    hook = reducer(reading(lambda given: given, lambda out, _: [out]), invoking_agent=lambda _: invoking_agent)
    made = hook(summarise, telling)(asked)
    call = ModelCall(
        telling, InvokingAgent("history", "clerk"), messages=[*asked, {"role": "assistant", "content": made}]
    )
    for _ in range(2):
        reduction = Reduction(telling, StepReport("takes_it_up", call.out), call=call)
        reduction.adopt_deferred(invoking_agent)
        reduction.done(call.out[-1:])
    call.client_called(ClientRequest(call.out))
    (assembly,) = assemblies(assembly_telemetry)
    assert steps(assembly) == ["takes_it_up"]
    assert [child.name for child in assembly.children[0].children] == ["compact_block summary"]


def test_what_arrives_may_be_known_to_have_been_changed_by_something(assembly_telemetry):
    one, other = ({"role": "user", "content": text} for text in ("Order 4711.", "Please."))
    call = ModelCall(Instrumentation("pretend"), messages=[one, other])
    call.observe_messages([other], policy="newest", kind="reduction")
    call.client_called(ClientRequest([other]))
    (assembly,) = assemblies(assembly_telemetry)
    assert steps(assembly) == ["newest"]
    assert assembly.attributes["assembly.dropped.count"] == 1


@pytest.mark.parametrize("is_failed", [True, False])
def test_an_observation_without_a_report_exits_the_open_step(is_failed, assembly_telemetry):
    messages, instrumentation = [{"role": "user", "content": "Order 4711."}], Instrumentation("pretend")
    summarize = client(lambda messages: ClientRequest(messages), str)(lambda _: "Summary.", instrumentation)
    call, reductions = ModelCall(instrumentation), []

    def observe(_, messages):
        yield StepReport("summary", messages)
        if is_failed:
            raise ValueError("unknown message type")

    def reduce(messages):
        reductions.append(reducing())
        return [{"role": "user", "content": summarize(messages)}]

    outside = otel_context.get_current()
    with call.current():
        reduced = reducer(observe)(reduce, instrumentation)(messages)
    assert reductions[0].step is not None
    assert reductions[0].over
    assert otel_context.get_current() is outside
    call.client_called(ClientRequest(reduced))
    (assembly,) = assemblies(assembly_telemetry)
    assert steps(assembly) == ["summary", "framework"]


def test_a_summarizer_that_raises_keeps_its_traceback(assembly_telemetry):
    messages, instrumentation = [{"role": "user", "content": "Order 4711."}], Instrumentation("pretend")

    def send_request(messages):
        raise ValueError("unavailable")

    summarize = client(lambda messages: ClientRequest(messages), str)(send_request, instrumentation)
    reduction = Reduction(instrumentation, StepReport("summary", messages), call=ModelCall(instrumentation))
    with pytest.raises(ValueError, match="unavailable") as raised, reduction.tracked():
        summarize(messages)
    assert "send_request" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
