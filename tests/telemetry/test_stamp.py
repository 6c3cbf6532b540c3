"""The model call that a prompt is sent with knows its assembly."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from otel_assembly import AlertPolicy, Assembler, Context, SlidingWindowPolicy
from otel_assembly.observe import ObservedAssembler
from otel_assembly.telemetry import conventions_registry as registry
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
    assert {use.name for use in registry.model_call_stamp()} == {
        "assembly.id",
        "gen_ai.conversation.compacted",
        "assembly.overflowed",
        "assembly.overflow.cause",
        "assembly.overflow.tokens",
    }
    assert all(use.name in registry.attributes() for use in registry.model_call_stamp())


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


async def test_a_call_without_a_parent_is_linked_to_an_assembly_with_a_long_input(recorder, tracer):
    await assemble(("ask", "answer") * 300)
    with chat(tracer):
        pass
    assert stamps(recorder) == ids(recorder)


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
    with tracer.start_as_current_span("request"), chat(tracer):
        pass
    assert stamps(recorder) == [None, None, None]


@pytest.mark.parametrize("late", [False, True])
async def test_a_call_without_a_parent_is_linked_to_the_assembly_of_its_context(recorder, tracer, late):
    """Nothing opens a span around a bare call: its assembly and its span are a trace each."""

    async def turn():
        await assemble()
        for _ in range(2):
            with chat(tracer, "embeddings"):
                pass
            with tracer.start_as_current_span("chat gpt-4o") if late else chat(tracer) as span:
                name_late(span, NAMES["OpenLLMetry"])

    await asyncio.gather(turn(), turn(), turn())
    first, second = recorder.spans_named("chat gpt-4o")[::2], recorder.spans_named("chat gpt-4o")[1::2]
    assemblies = {span.attributes["assembly.id"]: span.span_id for span in recorder.spans_named("assemble_context")}
    stamped = [span for span in (*first, *second) if "assembly.id" in span.attributes]
    assert sorted(span.attributes["assembly.id"] for span in stamped) == sorted(assemblies)
    assert all(
        [link.span_id for link in span.links] == [assemblies[span.attributes["assembly.id"]]] for span in stamped
    )
    assert not any("assembly.id" in span.attributes for span in recorder.spans_named("embeddings gpt-4o"))


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
    assert len(recorder.recorder.emitter.linking_processor()._waiting) == 1_024


async def test_a_span_that_was_not_sampled_is_not_linked_to():
    from assembling import Coin

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


NAMES = {
    "OpenLLMetry": {"gen_ai.operation.name": "chat"},
    "OpenInference": {"openinference.span.kind": "LLM"},
    "both": {"openinference.span.kind": "LLM", "gen_ai.operation.name": "chat"},
}


def name_late(span, name, way="one by one"):
    """A span says after its start that it is a model call, as OpenLLMetry's does."""
    span.set_attribute("gen_ai.system", "openai")
    if way == "at once":
        span.set_attributes({**name, "gen_ai.request.model": "gpt-4o"})
    else:
        for key, value in name.items():
            span.set_attribute(key, value)
    span.set_attribute("gen_ai.usage.input_tokens", 7)


@pytest.mark.parametrize("way", ["one by one", "at once"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_model_call_that_names_itself_late_is_stamped_once(recorder, tracer, name, way):
    with tracer.start_as_current_span("turn"):
        await assemble()
        for _ in range(2):
            with tracer.start_as_current_span("openai.chat") as span:
                name_late(span, NAMES[name], way)
    first, second = recorder.spans_named("openai.chat")
    [assembly] = recorder.spans_named("assemble_context")
    assert first.attributes == {
        "gen_ai.system": "openai",
        **NAMES[name],
        **({"gen_ai.request.model": "gpt-4o"} if way == "at once" else {}),
        "assembly.id": assembly.attributes["assembly.id"],
        "gen_ai.conversation.compacted": True,
        "gen_ai.usage.input_tokens": 7,
    }
    assert [link.span_id for link in first.links] == [assembly.span_id]
    assert "assembly.id" not in second.attributes
    assert second.links == []


@pytest.mark.parametrize("at_start", [True, False])
async def test_openinferences_model_calls_are_known_by_their_kind(recorder, tracer, at_start):
    name = NAMES["OpenInference"]
    with tracer.start_as_current_span("turn"):
        await assemble()
        for kind in ("TOOL", "CHAIN", "LLM"):
            given = {"openinference.span.kind": kind}
            with tracer.start_as_current_span(kind, attributes=given if at_start else None) as span:
                span.set_attributes(given)
    assert stamps(recorder, "LLM") == ids(recorder)
    assert stamps(recorder, "TOOL") == stamps(recorder, "CHAIN") == [None]
    with tracer.start_as_current_span("ChatOpenAI", attributes=name if at_start else None) as span:
        span.set_attributes(name)
        await assemble()
    assert stamps(recorder, "ChatOpenAI") == ids(recorder)[-1:]


async def test_what_comes_in_between_and_is_no_model_call_is_left_alone(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        await assemble()
        with tracer.start_as_current_span("POST") as span:
            span.set_attribute("http.request.method", "POST")
        with tracer.start_as_current_span("look_up") as span:
            name_late(span, {"gen_ai.operation.name": "execute_tool"})
            with tracer.start_as_current_span("a tool's own model") as inner:
                name_late(inner, NAMES["OpenLLMetry"])
        with tracer.start_as_current_span("agent") as span:
            name_late(span, {"openinference.span.kind": "LLM", "gen_ai.operation.name": "invoke_agent"}, "at once")
        with tracer.start_as_current_span("openai.chat") as span:
            name_late(span, NAMES["OpenLLMetry"])
    assert stamps(recorder, "openai.chat") == ids(recorder)
    for name in ("POST", "look_up", "a tool's own model", "agent"):
        assert stamps(recorder, name) == [None]


async def test_a_call_that_is_under_way_when_another_says_what_it_is_goes_without(recorder, tracer):
    with tracer.start_as_current_span("turn"):
        await assemble()
        late = tracer.start_span("late")
        with chat(tracer):
            pass
        name_late(late, NAMES["OpenLLMetry"])
        late.end()
    assert stamps(recorder) == ids(recorder)
    assert stamps(recorder, "late") == [None]


async def test_a_call_that_is_running_and_names_itself_after_its_prompt_was_made(recorder, tracer):
    for _ in range(2):
        with tracer.start_as_current_span("model") as span:
            await assemble()
            await assemble()
            name_late(span, NAMES["OpenInference"])
    calls = recorder.spans_named("model")
    assert [call.attributes["assembly.id"] for call in calls] == ids(recorder)[1::2]
    assert [len(call.links) for call in calls] == [1, 1]


async def test_a_span_that_nothing_waits_for_is_not_looked_at(recorder, tracer):
    """It costs nothing there: before an assembly, after its model call and elsewhere a span is the SDK's own."""

    def looked_at(span):
        return {"set_attribute", "set_attributes"} & vars(span).keys()

    with tracer.start_as_current_span("turn"):
        with tracer.start_as_current_span("before") as span:
            assert not looked_at(span)
        await assemble()
        with tracer.start_as_current_span("a tool", attributes={"gen_ai.operation.name": "execute_tool"}) as span:
            assert not looked_at(span)
            with tracer.start_as_current_span("inside") as inner:
                assert not looked_at(inner)
        with tracer.start_as_current_span("openai.chat") as span:
            assert looked_at(span)
            name_late(span, NAMES["OpenLLMetry"])
            assert not looked_at(span), "it has said what it is"
        with tracer.start_as_current_span("after") as span:
            assert not looked_at(span)


async def test_a_span_that_never_said_what_it_is_is_the_sdks_own_again_once_it_has_ended(recorder, tracer):
    with tracer.start_as_current_span("turn") as turn:
        await assemble()
        with tracer.start_as_current_span("POST") as span:
            span.set_attribute("http.request.method", "POST")
    for ended in (span, turn):
        assert not {"set_attribute", "set_attributes"} & vars(ended).keys()
    assert recorder.span("POST").attributes == {"http.request.method": "POST"}


async def test_what_another_one_put_on_a_span_stays_and_is_called(recorder, tracer):
    given = []
    with tracer.start_as_current_span("turn"):
        await assemble()
        with tracer.start_as_current_span("openai.chat") as span:
            ours = span.set_attribute
            span.set_attribute = lambda key, value: (given.append(key), ours(key, value))
            name_late(span, NAMES["OpenLLMetry"])
            assert vars(span)["set_attribute"] is not ours
    assert stamps(recorder, "openai.chat") == ids(recorder)
    assert given[:2] == ["gen_ai.system", "gen_ai.operation.name"]


async def test_a_span_in_anothers_wrapper_is_stamped_in_it(recorder, tracer):
    """OpenInference makes another one's span current, around the SDK's."""
    import wrapt
    from opentelemetry import trace

    class Theirs(wrapt.ObjectProxy):
        def set_attribute(self, key, value):
            self.__wrapped__.set_attribute(key, value)

    span = Theirs(tracer.start_span("openai.chat"))
    with trace.use_span(span, end_on_exit=True):
        await assemble()
        name_late(span, NAMES["OpenInference"])
    assert stamps(recorder, "openai.chat") == ids(recorder)


async def test_two_who_look_at_the_same_span_both_see_it(recorder, tracer):
    """A recorder of one's own beside the default one, on one provider."""
    from otel_assembly.telemetry import OpenTelemetryRecorder

    own = OpenTelemetryRecorder(tracer_provider=recorder.tracer_provider, meter_provider=recorder.meter_provider)
    with tracer.start_as_current_span("turn"):
        await assemble()
        await Assembler([], recorder=own).assemble([], conversation("ask"), Context())
        with tracer.start_as_current_span("openai.chat") as span:
            name_late(span, NAMES["OpenLLMetry"])
    call = recorder.span("openai.chat")
    assert call.attributes["assembly.id"] in ids(recorder)
    assert {link.span_id for link in call.links} == {span.span_id for span in recorder.spans_named("assemble_context")}


async def test_a_provider_whose_spans_cannot_be_looked_at_is_let_pass(recorder, tracer, monkeypatch):
    from opentelemetry.sdk import trace as sdk

    def sealed(self, name, value):
        if name in {"set_attribute", "set_attributes"}:
            raise AttributeError(name)
        object.__setattr__(self, name, value)

    monkeypatch.setattr(sdk.Span, "__setattr__", sealed, raising=False)
    with tracer.start_as_current_span("turn"):
        await assemble()
        with tracer.start_as_current_span("openai.chat") as span:
            name_late(span, NAMES["OpenLLMetry"])
        with chat(tracer):
            pass
    assert stamps(recorder) == ids(recorder)
    assert not recorder.metrics.get("assembly.telemetry.errors")


@pytest.mark.parametrize("named", ["at once", "late"])
async def test_a_call_that_opens_deeper_while_its_prompt_is_prepared_is_stamped(recorder, tracer, named):
    """As where an agent compresses its history before a step whose span is around the model's."""
    observed = ObservedAssembler("pretend", recorder=recorder.recorder)
    with tracer.start_as_current_span("turn"):
        for _ in range(2):
            assembly = observed.begin(None, conversation("ask", "answer", "ask"))
            with assembly.step("trim", kind="reduction") as step:
                step.out(assembly.events[1:])
            said = {"gen_ai.operation.name": "chat"} if named == "at once" else {}
            with tracer.start_as_current_span("step"), tracer.start_as_current_span("deep", attributes=said) as span:
                assembly.end()
                if named == "late":
                    name_late(span, NAMES["OpenLLMetry"])
    assert stamps(recorder, "deep") == ids(recorder)


async def test_a_model_call_that_stands_around_the_whole_agent_is_not_its_prompts(recorder, tracer):
    observed = ObservedAssembler("pretend", recorder=recorder.recorder)
    with chat(tracer), tracer.start_as_current_span("turn"):
        assembly = observed.begin(None, conversation("ask"))
        assembly.end()
    assert stamps(recorder) == [None]


async def test_a_call_that_opens_while_its_prompt_is_prepared_may_name_itself_later_still(recorder, tracer):
    """As where a framework's middleware opens the span before the last step of the assembly is done."""
    observed = ObservedAssembler("pretend", recorder=recorder.recorder)
    with tracer.start_as_current_span("turn"):
        assembly = observed.begin(None, conversation("ask", "answer", "ask"))
        with assembly.step("trim", kind="reduction") as step:
            step.out(assembly.events[1:])
        with tracer.start_as_current_span("openai.chat") as span:
            assembly.end()
            name_late(span, NAMES["OpenLLMetry"])
    assert stamps(recorder, "openai.chat") == ids(recorder)


async def test_all_spans_of_the_model_call_that_is_running_are_stamped(recorder, tracer):
    """As where an instrumentation records a client that opens a span of its own."""
    recorder.recorder.emitter.linking_processor()  # as when a framework is instrumented
    with tracer.start_as_current_span("turn"):
        for _ in range(2):
            aside = tracer.start_span("chat gpt-4o", attributes={"gen_ai.operation.name": "chat"})
            with chat(tracer), chat(tracer):
                await assemble()
            aside.end()
    first, second = ids(recorder)
    assert stamps(recorder) == [first] * 3 + [second] * 3


async def test_a_call_that_opened_without_becoming_current_is_stamped(recorder, tracer):
    recorder.recorder.emitter.linking_processor()  # as when a framework is instrumented
    for parent in ("turn", None):
        with tracer.start_as_current_span(parent) if parent else nullcontext():
            for _ in range(2):
                span = tracer.start_span("chat gpt-4o", attributes={"gen_ai.operation.name": "chat"})
                await assemble()
                span.end()
    assert stamps(recorder) == ids(recorder)
