"""The helpers for our users' tests, used as they would use them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otel_assembly import (
    Assembler,
    ConfigurationError,
    Context,
    ConversationPolicy,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
)
from otel_assembly.recorder import default_recorder
from otel_assembly.telemetry import TelemetrySettings, conventions, read_ledgers
from otel_assembly.testing import Arrived, Distribution, RecordedTelemetry, assert_paired, conversation, said

pytest_plugins = ["pytester"]


async def test_window_never_parts_a_call_from_its_result(recorder):
    events = conversation("ask", "call a", "result a", "ask")
    assembly = await Assembler([SlidingWindowPolicy(2)]).assemble([], events, Context())
    assert said(assembly.events) == ["ask"]
    assert recorder.span("apply_policy sliding_window").dropped_reasons == {
        "0": "outside_window",
        "1": "outside_window",
        "2": "orphaned_tool_result",
    }


# Conversations in words


WORDS = ["system", "ask", "answer", "call a", "result a", "call b c", "results b c", "call d", "error d", "summary"]


def test_a_conversation_reads_back_as_it_was_written():
    words = [*WORDS, "alert", "fatal", "note"]
    assert said(conversation(*words)) == words


def test_a_conversation_is_the_same_on_every_run():
    assert conversation(*WORDS) == conversation(*WORDS)
    assert [event.id for event in conversation("ask", "ask")] == ["0-ask", "1-ask"]


def test_a_text_of_ones_own_stands_behind_a_colon():
    ask, call, result = conversation("ask: Where: here?", "call a", "result a: At gate 14.")
    assert (ask.content, call.tool_calls[0].id, result.content) == ("Where: here?", "a", "At gate 14.")


def test_chat_messages_and_echoes_read_back_too():
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "1"},
    ]
    assert said(messages) == ["ask", "call x", "result x"]
    assert said([ToolCallEvent(id="x", name="f")]) == ["call x"]


@pytest.mark.parametrize("word", ["say", "", "call", "result", "error:"])
def test_a_word_that_is_none_says_so(word):
    with pytest.raises(ConfigurationError, match=r"needs the id of a call|none of the words"):
        conversation(word)


def test_pairs_are_asserted_by_position():
    assert_paired(conversation("ask", "call a b", "result b", "result a", "call c"))
    with pytest.raises(AssertionError, match=r"'result a' \(index 1\)"):
        assert_paired(conversation("ask", "result a", "call a"))
    with pytest.raises(AssertionError, match=r"not paired: 'call a' \(index 0\)"):
        assert_paired(conversation("call a", "answer"))


# Recorded telemetry


async def test_a_missing_span_names_those_there_are(recorder):
    with pytest.raises(AssertionError, match="there are: none at all"):
        recorder.span("assemble_context")
    assembler = Assembler([ConversationPolicy()])
    for _ in range(2):
        await assembler.assemble([], conversation("ask"), Context())
    with pytest.raises(AssertionError, match="'apply_policy conversation' × 2, 'assemble_context' × 2"):
        recorder.span("assemble_kontext")
    assert len(recorder.spans_named("assemble_context")) == 2


async def test_the_last_span_of_a_name_is_the_one_meant(recorder):
    assembler, context = Assembler([SlidingWindowPolicy(3)]), Context()
    await assembler.assemble([], conversation("ask"), context)
    await assembler.assemble([], conversation("ask", "answer"), context)
    span = recorder.span("assemble_context")
    assert (span.attributes["assembly.turn"], span.kept) == (1, ["0", "1"])


async def test_a_span_says_what_arrived_what_was_kept_and_who_its_family_is(recorder, words):
    assembler = Assembler([ConversationPolicy(), SlidingWindowPolicy(1)], counter=words)
    await assembler.assemble(["be kind"], conversation("ask: one two", "note", "ask: three"), Context())
    span = recorder.span("assemble_context")
    assert span.arrived == {
        "0": Arrived("request", words.count("one two") + 4, 7, "0"),
        "1": Arrived("other", 0, 0, "1"),
        "2": Arrived("request", words.count("three") + 4, 5, "2"),
    }
    assert (span.kept, span.status, span.parent, span.events) == (["2"], "UNSET", None, [])
    assert [child.name for child in span.children] == ["apply_policy conversation", "apply_policy sliding_window"]
    assert all(child.parent.span_id == span.span_id for child in span.children)
    assert recorder.span("apply_policy conversation").dropped_reasons == {"1": "not_conversation"}
    assert recorder.tree() == "assemble_context\n  apply_policy conversation\n  apply_policy sliding_window"


async def test_runs_are_expanded_and_list_items_merged(recorder, words, monkeypatch):
    monkeypatch.setattr("otel_assembly.telemetry.emitter.Arrays.chunks.__defaults__", (100,))
    events = conversation(*["ask", "answer", "note"] * 20)
    assembly = await Assembler([ConversationPolicy(), SlidingWindowPolicy(30)], counter=words).assemble([], events)
    assert len(recorder.spans_named("list_items")) > 20
    span = recorder.span("assemble_context")
    assert span.kept == assembly.items
    assert list(span.arrived) == list(map(str, range(60)))
    assert recorder.span("apply_policy conversation").dropped_reasons == dict.fromkeys(
        map(str, range(2, 60, 3)), "not_conversation"
    )
    assert recorder.violations() == []


async def test_metrics_are_plain_values(recorder, words):
    context = Context(agent_name="desk")
    assembler = Assembler([SlidingWindowPolicy(1), TokenBudgetPolicy(100)], counter=words)
    await assembler.assemble([], conversation("ask: a b", "ask: c d e", "ask: f"), context)
    assert recorder.metric("assembly.items.dropped", policy_name="sliding_window") == 2
    assert recorder.metric("assembly.halts", agent_name="desk") == 0
    out = recorder.metric("assembly.output.tokens")
    assert isinstance(out, Distribution)
    assert (out.count, out.sum, out.min, sum(out.counts)) == (1, out.max, out.max, 1)


async def test_a_missing_metric_names_those_there_are(recorder):
    with pytest.raises(AssertionError, match="there are: none"):
        recorder.metric("assembly.halts")
    await Assembler([SlidingWindowPolicy(1), SlidingWindowPolicy(2)]).assemble([], conversation("ask"), Context())
    await Assembler([ConversationPolicy()]).assemble([], conversation("ask"), Context())
    with pytest.raises(AssertionError, match=r"no metric is named 'assembly\.halt'; there are: assembly\.budget"):
        recorder.metric("assembly.halt")
    with pytest.raises(AssertionError, match=r"no series with .*'x'.*there are: .*sliding_window"):
        recorder.metric("assembly.policy.duration", policy_name="x")
    with pytest.raises(AssertionError, match="several series"):
        recorder.metric("assembly.policy.duration")


async def test_logs_are_there_when_events_are_log_records():
    telemetry = RecordedTelemetry(settings=TelemetrySettings.from_environment({"OTEL_ASSEMBLY_ALERT_SIGNAL": "both"}))
    assembler = Assembler([SlidingWindowPolicy(1)], recorder=telemetry.recorder)
    await assembler.assemble([], conversation("ask", "call a", "result a"), Context())
    (log,) = telemetry.logs
    span = telemetry.span("assemble_context")
    assert (log.name, log.severity, log.span_id) == ("assembly.overflow", "ERROR", span.span_id)
    assert log.attributes == {"assembly.overflow.cause": "newest_atom"}
    assert telemetry.logs_named("assembly.alert") == []
    assert [event.name for event in span.events_named("assembly.overflow")] == ["assembly.overflow"]
    telemetry.clear()
    assert (telemetry.logs, telemetry.spans) == ([], [])
    telemetry.shutdown()


async def test_ids_are_counted_so_that_snapshots_stay():
    async def ids():
        telemetry = RecordedTelemetry()
        await Assembler([ConversationPolicy()], recorder=telemetry.recorder).assemble([], conversation("ask"))
        return [(int(span.trace_id, 16), int(span.span_id, 16)) for span in telemetry.spans]

    assert await ids() == await ids() == [(1, 2), (1, 1)]


async def test_the_environment_has_no_say(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1")
    monkeypatch.setenv("OTEL_ASSEMBLY_ALERT_SIGNAL", "log_event")
    telemetry = RecordedTelemetry()
    await Assembler([SlidingWindowPolicy(1)], recorder=telemetry.recorder).assemble([], conversation("ask"), Context())
    assert telemetry.span("apply_policy sliding_window").attributes["assembly.policy.name"] == "sliding_window"
    assert telemetry.metric("assembly.halts") == 0


async def test_the_default_recorder_is_again_what_it_was():
    before = default_recorder()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        assert default_recorder() is telemetry.recorder
        await Assembler([]).assemble([], conversation("ask"))
    assert default_recorder() is before
    await Assembler([]).assemble([], conversation("ask"))
    assert len(telemetry.spans) == 1


async def test_spans_of_ones_own_stand_around_ours(recorder):
    with recorder.tracer().start_as_current_span("my agent"):
        await Assembler([ConversationPolicy()]).assemble([], conversation("ask"))
    assert recorder.tree() == "my agent\n  assemble_context\n    apply_policy conversation"
    assert recorder.violations() == []


async def test_a_ledger_can_be_read_from_what_was_recorded(recorder):
    assembler, context, events = Assembler([SlidingWindowPolicy(1)]), Context(), []
    for word in ("ask", "answer", "ask"):
        events = [*events, *conversation(word)]
        await assembler.assemble([], events, context)
    (ledger,) = read_ledgers(recorder.spans).values()
    assert (ledger.problems, list(ledger.turn(2).kept)) == ([], ["2"])
    assert {item: exit_.reason for item, exit_ in ledger.exits(2).items()} == {
        "0": "outside_window",
        "1": "outside_window",
    }


async def test_what_is_told_against_the_contract_is_named(recorder):
    recorder.recorder.emitter.prepare()
    recorder.recorder.emitter.tracer.start_span("assemble_context", attributes={"assembly.surprise": 1}).end()
    assert "assemble_context: 'assembly.surprise' is not a registered attribute" in recorder.violations()
    recorder.tracer("somebody").start_span("assemble_kontext").end()
    assert not any("kontext" in violation for violation in recorder.violations())


# As a plugin


@pytest.mark.parametrize("asked", [True, False])
def test_the_fixture_is_there_if_the_plugin_is_asked_for(pytester, monkeypatch, asked):
    pytester.makepyfile(
        """
        import asyncio
        from otel_assembly import Assembler, Context, ModelRequest, SlidingWindowPolicy

        def test_recorded(assembly_telemetry):
            events = [ModelRequest(content="hi"), ModelRequest(content="ho")]
            asyncio.run(Assembler([SlidingWindowPolicy(1)]).assemble([], events, Context()))
            assert assembly_telemetry.span("apply_policy sliding_window").dropped_reasons == {"0": "outside_window"}

        def test_nothing_is_left_over(assembly_telemetry):
            assert assembly_telemetry.spans == []
        """
    )
    plugin = ("-p", "otel_assembly.testing.plugin") if asked else ()
    if asked:  # pytest then loads no plugin but this one, which takes a third of the time
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *plugin)
    result.assert_outcomes(passed=2 if asked else 0, errors=0 if asked else 2)


def test_the_plugin_loads_no_sdk_before_a_test_asks_for_it():
    code = (
        "import sys, otel_assembly.testing.plugin, otel_assembly.testing\n"
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_sdk_the_double_says_what_to_install():
    code = (
        "import sys\nsys.modules['opentelemetry.sdk'] = None\n"
        "from otel_assembly.testing import RecordedTelemetry, conversation\n"
        "from otel_assembly import ConfigurationError\n"
        "conversation('ask')\n"
        "try:\n    RecordedTelemetry()\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'otel-assembly[otlp]'" in done.stdout


def test_one_module_holds_every_public_helper():
    import otel_assembly.testing as testing

    assert sorted(testing.__all__) == testing.__all__
    assert all(hasattr(testing, name) for name in testing.__all__)
    assert ModelRequest(content="x").content == "x"
    assert conventions.SCOPE == "otel_assembly"
