"""Events that are not what they should be: read, or a `DescribeError` that says what is wrong without quoting them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import count

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    EventFacts,
    History,
    ModelRequest,
    SlidingWindowPolicy,
    ToolResultEvent,
    describe,
)
from otel_assembly.errors import DescribeError


class Note:
    """An event of somebody else's, whose row trusts it."""

    def __init__(self, **fields):
        vars(self).update(fields)


@describe.register
def _(note: Note) -> EventFacts:
    if hasattr(note, "answer"):
        return note.answer
    return EventFacts("request", note.text.strip(), fields=[note.parts["body"]])


@pytest.mark.parametrize(
    ("note", "problem"),
    [
        (Note(), "its Note has no 'text'"),
        (Note(text=None), "its NoneType has no 'strip'"),
        (Note(text="a", parts={"my secret": 1}), "raised KeyError"),
        (Note(text="a", parts=7), "raised TypeError"),
        (Note(answer="my secret"), "returned a str, expected EventFacts"),
    ],
)
async def test_what_goes_wrong_in_a_row_is_an_event_that_cannot_be_read(note, problem):
    with pytest.raises(DescribeError, match=problem) as caught:
        describe(note)
    assert "test_malformed.Note" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert (caught.value.__cause__ is None) == hasattr(note, "answer")
    history = History([ModelRequest(content="hi")])
    with pytest.raises(DescribeError):
        history.append(note)
    assert len(history) == 1
    with pytest.raises(DescribeError):
        await Assembler([]).assemble([], [note])


def test_a_row_that_is_registered_later_holds_from_then_on():
    class Base:
        pass

    class Derived(Base):
        pass

    with pytest.raises(DescribeError, match="register a reader"):
        describe(Derived())
    describe.register(Base, lambda event: EventFacts("request", "base"))
    assert describe(Derived()).text == "base"
    describe.register(Derived)(lambda event: EventFacts("request", "derived"))
    assert describe(Derived()).text == "derived"
    assert describe(Base()).text == "base"
    assert describe.dispatch(Derived) is describe.registry[Derived]


def cyclic():
    loop = {"type": "tool_use", "id": "a", "name": "f"}
    loop["input"] = {"again": [loop, loop]}
    return loop


def nested(levels):
    value: dict = {}
    for _ in range(levels):
        value = {"in": [value]}
    return value


def carrying(value):
    """Messages of every form that hold this where a tool's arguments or its result stand."""
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": value}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": value}}]},
        {"role": "assistant", "content": [{"type": "who knows", "held": value}]},
        {"role": "assistant", "content": [{"type": "web_search_tool_result", "content": [value]}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "f", "input": value}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"json": value}]}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": value}}]},
        {"type": "custom_tool_call", "call_id": "a", "name": "f", "input": value},
        {"type": "file_search_call", "id": "a", "results": [value]},
        {"type": "who knows", "held": value},
    ]


@pytest.mark.parametrize("value", [cyclic(), nested(20_000)], ids=["contains itself", "nested without end"])
@pytest.mark.parametrize("place", range(len(carrying(None))))
async def test_what_contains_itself_cannot_be_read(value, place):
    message = carrying(value)[place]
    with pytest.raises(DescribeError, match="contains itself, or is nested too deeply"):
        describe(message)
    with pytest.raises(DescribeError):
        await Assembler([]).assemble([], [message])


@pytest.mark.parametrize("value", [cyclic(), nested(20_000)], ids=["contains itself", "nested without end"])
async def test_what_contains_itself_where_nobody_reads_it_is_no_matter(value):
    events = [{"role": "user", "content": "hi", "metadata": value}]
    assembler, context = Assembler([ConversationPolicy()]), Context()
    for turn in range(3):
        assembly = await assembler.assemble([], events, context)
        assert assembly.events == events[:]
        assert assembly.prefix.cause == (None if turn else "first")
        assert not assembly.exits
        events.append({"role": "assistant", "content": "well"})


# Half of a pair: logs and streams cut an emoji in two

CUT = "half an emoji \ud83d"
CUT_FORMS = {
    "chat": [{"role": "user", "content": CUT}],
    "a name": [{"role": "user", "name": CUT, "content": "hi"}],
    "anthropic": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": CUT, "name": "f", "input": {"q": CUT}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CUT, "content": CUT}]},
    ],
    "responses": [
        {"type": "function_call", "call_id": "a", "name": CUT, "arguments": CUT},
        {"type": "function_call_output", "call_id": "a", "output": CUT},
    ],
    "bedrock": [{"role": "user", "content": [{"text": CUT}]}],
    "gemini": [{"role": "user", "parts": [{"text": CUT}]}],
    "who knows": [{"role": "user", "content": [{"type": "who knows \ud83d", "x": CUT}]}],
    "ours": [ModelRequest.model_construct(id="a", type="model_request", content=CUT)],
}


@pytest.mark.parametrize("form", list(CUT_FORMS))
async def test_half_an_emoji_is_read_counted_and_told(form, recorder):
    events = [{"role": "user", "content": "go"}, *CUT_FORMS[form]]
    context = Context(conversation_id=f"cut in {CUT}", agent_name=CUT)
    chain = [ConversationPolicy(), BudgetPolicy(4_000, 0, compact="extractive"), SlidingWindowPolicy(50)]
    assembler = Assembler(chain, name=CUT)
    await assembler.assemble([CUT], events[:-1], context)
    assembly = await assembler.assemble([CUT], events, context)
    assert assembly.events == events
    assert assembly.prefix.events == len(events) - 1
    assert assembly.totals.tokens_out > count(CUT)
    assert recorder.violations() == []


async def test_half_an_emoji_leaves_as_what_utf8_can_say(caplog, tmp_path):
    """Every encoder of OTLP takes the spans, with content captured: protobuf refuses whole batches else."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otel_assembly.telemetry import OpenTelemetryRecorder, SpanFileExporter, TelemetrySettings

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = TelemetrySettings.from_environment({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"})
    told = OpenTelemetryRecorder(tracer_provider=provider, settings=settings)
    assembler = Assembler([ConversationPolicy()], name=CUT, recorder=told)
    context = Context(conversation_id=CUT, agent_name=CUT, model=f"model {CUT}")
    await assembler.assemble([CUT], [{"role": "user", "content": CUT}], context)
    spans = exporter.get_finished_spans()
    assert len(spans) > 1
    assert encode_spans(spans).SerializeToString().count(b"half an emoji \xef\xbf\xbd") >= 6
    assert caplog.records == []
    path = tmp_path / "spans.jsonl"
    assert SpanFileExporter(path).export(spans).name == "SUCCESS"
    assert all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


# Anything at all

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", CUT, "user", "text"])
KEYS = """
role content type id name text parts tool_calls function input arguments call_id output toolUse toolUseId toolResult
functionCall function_response response source data summary encrypted_content thinking refusal image json value tools
action results tool_use_id tool_call_id tool_call_ids function_call cachePoint
"""
TYPES = """
text tool_use tool_result thinking reasoning image document function_call function_call_output message web_search_call
compaction shell_call_output mcp_approval_response refusal non_standard
"""
keys = st.sampled_from(KEYS.split())
types = st.sampled_from(TYPES.split())
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(lambda kind, rest: {**rest, "type": kind}, types, st.dictionaries(keys, inner, max_size=4))
    ),
    max_leaves=14,
)
roles = st.sampled_from(["user", "assistant", "tool", "system", "model", "function"])
garbage = st.builds(
    lambda role, rest: {**rest, **({"role": role} if role else {})},
    st.none() | roles,
    st.dictionaries(keys, anything, max_size=6),
)


@settings(max_examples=200, deadline=None, database=None)
@given(garbage)
def test_any_dict_is_read_or_refused(message):
    try:
        facts = describe(message)
    except DescribeError:
        return
    assert all(isinstance(text, str) for text in facts.texts)
    assert all(isinstance(call, str) for call in (*facts.opens, *facts.closes, *facts.awaiting))
    assert set(facts.awaiting) <= set(facts.opens)
    History([message])


def test_a_result_of_ours_keeps_no_name_in_the_prompt():
    bare = ToolResultEvent(parent_id="a", content="found")
    assert describe(ToolResultEvent(parent_id="a", name="search", content="found")).texts == describe(bare).texts
