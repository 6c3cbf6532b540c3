"""The model call that a prompt is sent with knows its assembly."""

from __future__ import annotations

import pytest

from otel_assembly import AlertPolicy, Assembler, Context, SlidingWindowPolicy
from otel_assembly.telemetry.conventions_check import ATTRIBUTES
from otel_assembly.telemetry.conventions_spans import MODEL_CALL_STAMP
from otel_assembly.testing import RecordedTelemetry, conversation

pytestmark = pytest.mark.usefixtures("quiet_sdk")


@pytest.fixture
def tracer(recorder):
    return recorder.tracer("opentelemetry.instrumentation.openai")


def chat(tracer, operation="chat"):
    return tracer.start_as_current_span(f"{operation} gpt-4o", attributes={"gen_ai.operation.name": operation})


async def assemble(words=("ask", "answer", "ask"), window=1):
    await Assembler([SlidingWindowPolicy(window)]).assemble([], conversation(*words), Context())


def stamps(recorder, name="chat gpt-4o"):
    return [span.attributes.get("assembly.id") for span in recorder.spans_named(name)]


def ids(recorder):
    return [span.attributes["assembly.id"] for span in recorder.spans_named("assemble_context")]


def test_the_registry_knows_what_is_put_there():
    assert {use.name for use in MODEL_CALL_STAMP} == {"assembly.id", "gen_ai.conversation.compacted"}
    assert all(use.name in ATTRIBUTES for use in MODEL_CALL_STAMP)


@pytest.mark.parametrize("operation", ["chat", "generate_content", "text_completion"])
async def test_the_model_call_that_is_running_is_stamped_itself(recorder, tracer, operation):
    with chat(tracer, operation):
        await assemble()
    call, assembly = recorder.span(f"{operation} gpt-4o"), recorder.span("assemble_context")
    assert call.attributes == {
        "gen_ai.operation.name": operation,
        "assembly.id": assembly.attributes["assembly.id"],
        "gen_ai.conversation.compacted": True,
    }
    assert [(link.trace_id, link.span_id) for link in call.links] == [(assembly.trace_id, assembly.span_id)]
    assert assembly.parent.span_id == call.span_id


async def test_the_next_model_call_under_the_same_parent_is_stamped_once(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        await assemble()
        with tracer.start_as_current_span("execute_tool x", attributes={"gen_ai.operation.name": "execute_tool"}):
            pass
        for _ in range(2):
            with chat(tracer):
                pass
    assert stamps(recorder) == [*ids(recorder), None]
    (link,) = recorder.spans_named("chat gpt-4o")[0].links
    assert link.span_id == recorder.span("assemble_context").span_id
    assert stamps(recorder, "execute_tool x") == [None]


async def test_each_turns_call_has_the_stamp_of_its_own_assembly(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        for _ in range(3):
            await assemble()
            with chat(tracer):
                pass
    assert stamps(recorder) == ids(recorder)


async def test_a_prompt_from_which_nothing_left_is_not_called_compacted(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        await assemble(window=9)
        with chat(tracer):
            pass
    assert "gen_ai.conversation.compacted" not in recorder.span("chat gpt-4o").attributes
    assert stamps(recorder) == ids(recorder)


async def test_a_summarisers_call_inside_a_policy_is_not_the_prompts(recorder, tracer):
    class Summarise:
        name = "summarise"

        async def apply(self, prompts, events, context):
            with chat(tracer):
                pass
            return prompts, events[1:]

    with tracer.start_as_current_span("turn"):
        await assemble()
        await Assembler([Summarise()]).assemble([], conversation("ask", "ask"), Context())
        with chat(tracer):
            pass
    assert stamps(recorder) == [None, ids(recorder)[1]]


async def test_a_call_under_another_parent_or_in_another_trace_is_left_alone(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        await assemble()
        with tracer.start_as_current_span("sub agent"), chat(tracer):
            pass
    with chat(tracer):
        pass
    await assemble()
    with chat(tracer):
        pass
    assert stamps(recorder) == [None, None, None]


async def test_an_assembly_that_failed_stamps_nothing(recorder, tracer):
    class Failing:
        name = "failing"

        async def apply(self, prompts, events, context):
            raise ValueError

    with tracer.start_as_current_span("turn"):
        with pytest.raises(Exception, match="failing"):
            await Assembler([Failing()]).assemble([], conversation("ask"), Context())
        with chat(tracer):
            pass
    assert stamps(recorder) == [None]


async def test_no_more_calls_are_awaited_than_fit_the_memory(recorder, tracer):
    for _ in range(1_100):
        with tracer.start_as_current_span("turn"):
            await Assembler([]).assemble([], [], Context())
    assert len(recorder.recorder.stamping()._waiting) == 1_024


async def test_a_span_that_was_not_sampled_is_not_linked_to():
    from random_runs import Coin

    class OnlyAssembliesAreNot(Coin):
        def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, *rest, **more):
            return super().should_sample(parent_context, trace_id, "assemble_context", kind, attributes)

    telemetry = RecordedTelemetry(sampler=OnlyAssembliesAreNot([True, False, False, True]))
    with telemetry.tracer().start_as_current_span("turn"):
        await Assembler([AlertPolicy()], recorder=telemetry.recorder).assemble([], conversation("ask"), Context())
        with chat(telemetry.tracer()):
            pass
    call = telemetry.span("chat gpt-4o")
    assert len(call.attributes["assembly.id"]) == 32
    assert call.links == []


async def test_a_foreign_span_of_any_shape_is_let_pass(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        await assemble()
        with tracer.start_as_current_span("odd", attributes={"gen_ai.operation.name": ["chat", "x"]}):
            pass
        with chat(tracer):
            pass
    assert stamps(recorder) == ids(recorder)


async def test_what_an_earlier_step_reduced_stays_reduced_where_several_make_one_prompt(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        await assemble()
        await assemble(words=("ask",), window=5)
        with chat(tracer):
            pass
    call = recorder.span("chat gpt-4o")
    assert call.attributes["assembly.id"] == ids(recorder)[-1]
    assert call.attributes["gen_ai.conversation.compacted"] is True
