"""Model calls that another instrumentation tells of, by callbacks: their spans are never current, and named late."""

from __future__ import annotations

import pytest
from langchain_agents import agent, arun, run, scripted, summarizer
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, trim_messages
from opentelemetry import trace

CALL, SUMMARY = "their model call", "their summariser's call"


class Theirs(BaseCallbackHandler):
    """Makes spans of LangChain's runs as OpenInference does."""

    run_inline = True

    def __init__(self, tracer, *, named="at the end"):
        self.tracer = tracer
        self.named = named
        self.spans = {}

    def _start(self, name, run_id, parent_run_id, kind):
        parent = self.spans.get(parent_run_id, (None,))[0]
        around = None if parent is None else trace.set_span_in_context(parent)
        given = {"openinference.span.kind": kind}
        span = self.tracer.start_span(name, context=around, attributes=given if self.named == "at the start" else None)
        self.spans[run_id] = span, given

    def _end(self, run_id):
        span, given = self.spans.pop(run_id)
        span.set_attributes(given)
        span.end()

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, **kwargs):
        self._start(kwargs.get("name") or "chain", run_id, parent_run_id, "CHAIN")

    def on_chain_end(self, outputs, *, run_id, **kwargs):
        self._end(run_id)

    def on_tool_start(self, serialized, text, *, run_id, parent_run_id=None, **kwargs):
        self._start("tool", run_id, parent_run_id, "TOOL")

    def on_tool_end(self, output, *, run_id, **kwargs):
        self._end(run_id)

    def on_chat_model_start(self, serialized, messages, *, run_id, parent_run_id=None, **kwargs):
        summarises = "summar" in messages[0][0].text.lower()
        self._start(SUMMARY if summarises else CALL, run_id, parent_run_id, "LLM")

    def on_llm_end(self, response, *, run_id, **kwargs):
        self._end(run_id)


def stamped(telemetry):
    """Each assembly that was sent to a model, by its id, and the same of the calls that know theirs."""
    calls = telemetry.spans_named(CALL)
    assert all("assembly.id" not in span.attributes for span in telemetry.spans_named("tool"))
    linked = {link.span_id for call in calls for link in call.links}
    assemblies = [span for span in telemetry.spans_named("assemble_context") if span.span_id in linked]
    return [assembly.attributes["assembly.id"] for assembly in assemblies], [
        call.attributes["assembly.id"] for call in calls if "assembly.id" in call.attributes
    ]


@pytest.mark.parametrize("named", ["at the start", "at the end"])
async def test_a_call_whose_parent_is_never_current_knows_its_assembly(telemetry, named):
    tracer = telemetry.tracer("theirs")
    for use in (run, arun):
        telemetry.clear()
        looks, model = agent(5, summarizer(at=4, keep=2))
        result = use(looks, callbacks=[Theirs(tracer, named=named)])
        if use is arun:
            await result
        assemblies, calls = stamped(telemetry)
        assert calls
        assert calls == assemblies
        reduced = [span for span in telemetry.spans_named(CALL) if "gen_ai.conversation.compacted" in span.attributes]
        assert [len(span.links) for span in reduced] == [1] * len(reduced)
        assert reduced
        assert len(telemetry.spans_named(CALL)) == len(model.sent)
        summaries = telemetry.spans_named(SUMMARY)
        assert summaries
        assert not [span for span in summaries if "assembly.id" in span.attributes]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_model_that_is_called_with_what_was_trimmed_outside_of_any_graph(telemetry, streamed):
    tracer = telemetry.tracer("theirs")
    model = scripted("a b c", "d e f")
    with tracer.start_as_current_span("turn"):
        with tracer.start_as_current_span("trim"):
            sent = trim_messages([HumanMessage("one"), HumanMessage("two")], max_tokens=1, token_counter=len)
        with tracer.start_as_current_span("not a model"):
            settings = {"callbacks": [Theirs(tracer)]}
            answers = list(model.stream(sent, settings)) if streamed else [model.invoke(sent, settings)]
            model.invoke(sent, settings)
    assert "".join(answer.text for answer in answers) == "a b c"
    first, second = telemetry.spans_named(CALL)
    told = telemetry.spans_named("assemble_context")
    assert [first.attributes["assembly.id"], second.attributes["assembly.id"]] == [
        span.attributes["assembly.id"] for span in told
    ]
    assert [[step.name for step in span.children] for span in told] == [["apply_policy trim_messages"]] * 2


async def test_an_async_stream_too(telemetry):
    tracer = telemetry.tracer("theirs")
    model = scripted("a b c")
    with tracer.start_as_current_span("turn"):
        with tracer.start_as_current_span("trim"):
            sent = trim_messages([HumanMessage("one"), HumanMessage("two")], max_tokens=1, token_counter=len)
        with tracer.start_as_current_span("not a model"):
            said = [chunk.text async for chunk in model.astream(sent, {"callbacks": [Theirs(tracer)]})]
    assert "".join(said) == "a b c"
    assert "assembly.id" in telemetry.span(CALL).attributes
