"""LangChain with and without us: the same output, the same objects afterwards, and nothing imported for it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware
from langchain_agents import agent, arun, chat, run, scripted, summarizer, tool_loop
from langchain_core.messages import trim_messages

from otel_assembly.instrumentation import HookState, LangChainInstrumentor, find, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


def wrapped():
    found = {}
    for hook in LangChainInstrumentor.hooks:
        if find_spec(hook.module.partition(".")[0]) is None:
            continue  # `langchain_classic` is a package of its own
        place = find(import_module(hook.module), hook.target)
        if place is not None:
            there = vars(place[0])[place[1]]
            found[hook.name] = [there, *(cell.cell_contents for cell in getattr(there, "__closure__", None) or ())]
    return found


def same_objects(message, other):
    return list(map(id, message)) == list(map(id, other))


def test_every_hook_takes_on_this_version_and_is_undone(caplog):
    before = wrapped()
    instrument("langchain")
    try:
        here = {
            state
            for name, state in LangChainInstrumentor().states.items()
            if find_spec(name.partition(".")[0]) is not None
        }
        assert here <= {HookState.TAKEN, HookState.NOT_EXPECTED}
        assert not [record for record in caplog.records if "expected there" in record.message]
        during = wrapped()
        assert not any(same_objects(during[name], original) for name, original in before.items())
    finally:
        uninstrument("langchain")
    after = wrapped()
    assert all(same_objects(after[name], original) for name, original in before.items())


def reducers():
    return [
        summarizer("First.", "Second.", at=6, keep=3),
        ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=30, keep=1)]),
    ]


def _sent(model, result):
    def plain(message):
        held = message.model_dump()
        if held["type"] == "ai":  # its id is the id of a run of the model
            held["id"] = None
        return held

    return [[plain(message) for message in sent] for sent in (*model.sent, result["messages"])]


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_the_model_is_sent_the_same_with_us_and_without(assembly_telemetry, how):
    async def sent():
        graph, model = agent(5, *reducers())
        messages = tool_loop(2)
        result = run(graph, messages) if how == "sync" else await arun(graph, messages)
        return [
            [
                {**message, "id": message["id"] if message["id"] in {message.id for message in messages} else None}
                for message in each
            ]
            for each in _sent(model, result)
        ]

    without = await sent()
    instrument("langchain")
    try:
        assert await sent() == without
    finally:
        uninstrument("langchain")
    assert len(assembly_telemetry.spans_named("assemble_context")) > 2
    assert await sent() == without


def test_trimming_gives_the_very_objects(telemetry):
    messages = chat(6)
    kept = trim_messages(messages, max_tokens=4, token_counter=len)
    assert all(message is other for message, other in zip(kept, messages[-4:], strict=True))


async def test_what_was_made_meanwhile_goes_quiet(assembly_telemetry):
    instrument("langchain")
    graph, _ = agent(4, *reducers())
    uninstrument("langchain")
    await arun(graph)
    assert assembly_telemetry.spans == []

    instrument("langchain")  # and is heard again
    try:
        graph, _ = agent(4, *reducers())
        await arun(graph)
    finally:
        uninstrument("langchain")
    names = {span.name for span in assembly_telemetry.spans if span.name.startswith("apply_policy")}
    assert names == {"apply_policy summarization", "apply_policy context_editing"}


async def test_what_was_made_while_an_earlier_one_watched_is_seen_together(assembly_telemetry):
    instrument("langchain")
    graph, _ = agent(0, *reducers()[1:])
    uninstrument("langchain")
    instrument("langchain")
    try:
        await arun(graph, tool_loop(3))
    finally:
        uninstrument("langchain")
    assert assembly_telemetry.span("apply_policy framework").compacted == ["2", "4"]


async def test_where_nobody_listens_nothing_is_done():
    instrument("langchain")
    try:
        graph, model = agent(3, *reducers())
        await arun(graph)
        trim_messages(chat(3), max_tokens=2, token_counter=len)
    finally:
        uninstrument("langchain")
    assert len(model.sent) == 4


async def test_a_failure_of_ours_is_counted_and_the_agent_goes_on(assembly_telemetry, monkeypatch, caplog):
    from otel_assembly.observe import ObservedAssembler

    def broken(*args, **kwargs):
        raise ZeroDivisionError

    instrument("langchain")
    monkeypatch.setattr(ObservedAssembler, "prepare", broken)
    try:
        graph, model = agent(4, *reducers())
        await arun(graph)
        assert len(trim_messages(chat(3), max_tokens=2, token_counter=len)) == 2
    finally:
        uninstrument("langchain")
    assert len(model.sent) == 5
    assert assembly_telemetry.metric("assembly.telemetry.errors") > 0
    assert assembly_telemetry.spans_named("assemble_context") == []


def test_providers_of_ones_own_are_used():
    telemetry = RecordedTelemetry()
    instrument("langchain", tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider)
    try:
        scripted("Yes.").invoke(trim_messages(chat(3), max_tokens=2, token_counter=len))
    finally:
        uninstrument("langchain")
    assert telemetry.span("assemble_context").attributes["assembly.framework"] == "langchain"
    telemetry.shutdown()


PROGRAM = """
import sys
from otel_assembly.instrumentation import instrument
assert instrument("langchain") == ("langchain",)
assert not any(name.split(".")[0] in {"langchain", "langchain_core", "langgraph"} for name in sys.modules)
from langchain_core.messages import HumanMessage, trim_messages
from langchain_core.language_models import FakeListChatModel
from otel_assembly.testing import RecordedTelemetry
telemetry = RecordedTelemetry()
with telemetry.as_default():
    kept = trim_messages([HumanMessage("a"), HumanMessage("b")], max_tokens=1, token_counter=len)
    FakeListChatModel(responses=["c"]).invoke(kept)
print(telemetry.span("assemble_context").kept)
assert "langgraph" not in sys.modules
"""


def test_nothing_is_imported_for_it_and_what_is_imported_later_is_seen():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("['1']", 0), done.stderr


def test_a_long_history_is_not_walked_for_it(telemetry, monkeypatch):
    """Of 5,000 messages that were seen before, none is described again."""
    from otel_assembly import describe
    from otel_assembly.history import history

    described = []

    def counting(message):
        described.append(message)
        return describe(message)

    messages = chat(2_500)
    trim_messages(messages, max_tokens=5, token_counter=len)
    monkeypatch.setattr(history, "describe", counting)
    more = [*messages, *chat(1)]
    trim_messages(more, max_tokens=5, token_counter=len)
    assert len(described) <= 2 * 3
