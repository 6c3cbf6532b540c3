"""The model's window: how much of it a prompt fills, and what is told of one that is over it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli.command_line import runner

from otel_assembly import (
    AlertPolicy,
    Assembler,
    ConfigurationError,
    Context,
    ContextOverflowError,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    attach,
)
from otel_assembly.cli.tree_facts import overflow_text
from otel_assembly.decision import OverflowCause
from otel_assembly.events import AssemblyCompleted
from otel_assembly.observe import ObservedAssembler
from otel_assembly.page import page_model
from otel_assembly.runtime import BudgetMonitor, Stream
from otel_assembly.telemetry import AlertSignal, TelemetrySettings
from otel_assembly.testing import RecordedTelemetry, conversation
from otel_assembly.tokens import ListedWindow, context_window

pytestmark = pytest.mark.usefixtures("quiet_sdk")

DESK = {"agent_name": "desk"}
LONG = "ask: " + "word " * 90


def desk():
    return Context(agent_name="desk")


async def test_a_prompt_is_measured_by_the_window_where_nobody_holds_a_budget(recorder, words):
    assembly = await Assembler([], model_window=200, counter=words).assemble([], conversation("ask"), desk())
    told = recorder.span("assemble_context").attributes
    assert (told["assembly.model.window"], "assembly.budget.limit" in told) == (200, False)
    assert told["assembly.budget.utilization"] == assembly.totals.tokens_out / 200 == assembly.totals.utilization
    assert (assembly.totals.window, assembly.totals.budget, assembly.totals.overflowed) == (200, None, False)
    assert recorder.metric("assembly.budget.utilization", **DESK).sum == told["assembly.budget.utilization"]
    assert "assembly.budget.fixed_utilization" not in recorder.metrics
    assert recorder.violations() == []


@pytest.mark.parametrize(("budget", "window", "limit"), [(100, 200, 100), (200, 100, 100), (100, 100, 100)])
async def test_of_a_budget_and_a_window_the_tighter_one_counts(budget, window, limit, recorder, words):
    assembler = Assembler([TokenBudgetPolicy(budget)], model_window=window, counter=words)
    assembly = await assembler.assemble([], conversation("ask: one two"), desk())
    told = recorder.span("assemble_context").attributes
    assert (told["assembly.budget.limit"], told["assembly.model.window"]) == (budget, window)
    assert told["assembly.budget.utilization"] == assembly.totals.tokens_out / limit


async def test_a_prompt_over_the_window_is_sent_and_told_as_an_overflow(recorder, words):
    assembly = await Assembler([], model_window=60, counter=words).assemble(["be kind"], conversation(LONG), desk())
    assert len(assembly.events) == 1
    over = assembly.totals.tokens_out - 60
    assert (assembly.totals.overflow.excess, assembly.totals.overflow.cause) == (over, OverflowCause.WINDOW)
    span = recorder.span("assemble_context")
    assert span.attributes["assembly.overflowed"] is True
    assert span.attributes["assembly.overflow.cause"] == "window"
    assert span.attributes["assembly.overflow.tokens"] == over
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "context_overflow")
    assert span.status_message == f"the context does not fit the model's window: {over} tokens over 60"
    assert [(event.name, event.attributes["assembly.overflow.tokens"]) for event in span.events] == [
        ("assembly.overflow", over)
    ]
    assert span.kept == ["0"]
    assert recorder.metric("assembly.budget.overflows", **DESK) == 1
    assert recorder.metric("assembly.budget.utilization", **DESK).max > 1
    assert recorder.violations() == []
    assert f"over by {over} tokens (window)" in repr(assembly)


async def test_it_is_a_log_record_where_those_are_chosen(words):
    telemetry = RecordedTelemetry(settings=TelemetrySettings(alert_signal=AlertSignal.LOG_EVENT))
    await Assembler([], model_window=9, counter=words, recorder=telemetry.recorder).assemble(
        [], conversation(LONG), desk()
    )
    assert [log.name for log in telemetry.logs] == ["assembly.overflow"]
    assert not telemetry.span("assemble_context").events


async def test_a_limit_that_could_not_hold_before_is_what_is_said(recorder, words):
    assembler = Assembler([SlidingWindowPolicy(1)], model_window=5, counter=words)
    await assembler.assemble([], conversation("ask", "call a", "result a"), desk())
    told = recorder.span("assemble_context").attributes
    assert told["assembly.overflow.cause"] == "newest_atom"
    assert told["assembly.budget.utilization"] > 1
    with pytest.raises(ContextOverflowError) as overflow:
        await Assembler([TokenBudgetPolicy(20)], model_window=10, counter=words).assemble(
            ["word " * 60], conversation("ask"), desk()
        )
    raised = recorder.spans_named("assemble_context")[-1].attributes
    assert (raised["assembly.overflow.cause"], raised["assembly.model.window"]) == ("fixed", 10)
    assert raised["assembly.budget.utilization"] == overflow.value.needed / 10
    assert recorder.metric("assembly.budget.overflows", **DESK) == 2
    assert recorder.violations() == []


async def test_the_window_changes_nothing_that_is_sent_nor_what_observers_are_told(recorder, words):
    """A monitor to which any overflow is fatal halts nothing because a list of models is installed."""
    notes, sent = [], []
    for window in (None, 10):
        stream = Stream()
        context = Context(agent_name="desk", stream=stream)
        attach(stream, [BudgetMonitor(overflow_severity="fatal")])
        stream.subscribe(AssemblyCompleted, lambda note: notes.append((note.tokens, note.budget, note.overflow_tokens)))
        assembler = Assembler([AlertPolicy()], model_window=window, counter=words)
        for _ in range(2):
            assembly = await assembler.assemble(["be kind"], conversation(LONG), context)
            sent.append((assembly.prompts, [event.content for event in assembly.events], assembly.halt))
    assert sent[:2] == sent[2:]
    assert notes[:2] == notes[2:]
    assert [span.attributes["assembly.overflowed"] for span in recorder.spans_named("assemble_context")] == [
        *(False, False),
        *(True, True),
    ]


@pytest.mark.parametrize("window", [0, -5, "8192", 8.5, True, object()])
def test_what_can_be_no_window_is_refused_with_the_mend(window):
    with pytest.raises(ConfigurationError, match=r"model_window must be a whole number of tokens, at least 1, .*leave"):
        Assembler([], model_window=window)


async def test_a_window_that_is_listed_need_not_be_said(recorder, words):
    assembly = await Assembler([], model="gpt-4o", counter=words).assemble([], conversation("ask"), desk())
    told = recorder.span("assemble_context").attributes
    assert told["assembly.model.window"] == assembly.totals.window == context_window("gpt-4o") == 128_000
    await Assembler([], counter=words).assemble([], conversation("ask"), Context(model="gpt-4o"))
    assert recorder.spans_named("assemble_context")[-1].attributes["assembly.model.window"] == 128_000


async def test_whoever_says_it_knows_better_than_the_list(recorder, words):
    await Assembler([], model="gpt-4o", model_window=500, counter=words).assemble([], conversation("ask"), desk())
    assert recorder.span("assemble_context").attributes["assembly.model.window"] == 500


@pytest.mark.parametrize("model", [None, "", "our-own-model", "ollama/deepseek-r1", "x/y/z", "gpt-4o\ud800"])
async def test_of_a_model_that_nobody_knows_no_window_is_told_and_nothing_fails(model, recorder, words):
    await Assembler([], model=model, counter=words).assemble([], conversation("ask"), desk())
    told = recorder.span("assemble_context").attributes
    assert not {"assembly.model.window", "assembly.budget.utilization"} & set(told)
    assert "assembly.telemetry.errors" not in recorder.metrics
    assert recorder.violations() == []


@pytest.mark.parametrize("name", ["openai/gpt-4o", "azure/gpt-4o", "openai:gpt-4o", "litellm_proxy/gpt-4o"])
def test_a_window_is_found_behind_its_provider(name):
    assert context_window(name) == context_window("gpt-4o")


def test_a_window_and_a_price_are_looked_up_at_once(monkeypatch):
    import genai_prices

    from otel_assembly.tokens import input_price

    asked = []
    find = genai_prices.calc_price
    monkeypatch.setattr(genai_prices, "calc_price", lambda *args, **named: asked.append(args) or find(*args, **named))
    for _ in range(3):
        assert context_window("o4-mini-2025-04-16") == 200_000
        assert input_price("o4-mini-2025-04-16") is not None
    assert len(asked) <= 1


PROGRAM = """
import asyncio, sys
{first}
from otel_assembly import Assembler, Context
from otel_assembly.testing import RecordedTelemetry, conversation
telemetry = {telemetry}
assembler = Assembler([], model="claude-sonnet-4-5", recorder=telemetry and telemetry.recorder)
assembly = asyncio.run(assembler.assemble([], conversation("ask"), Context()))
print(assembly.totals.window, sys.modules.get("genai_prices") is not None)
"""


@pytest.mark.parametrize(
    ("first", "telemetry", "printed"),
    [
        ("", "RecordedTelemetry()", "200000 True"),
        ("sys.modules['genai_prices'] = None", "RecordedTelemetry()", "None False"),
        ("", "None", "None False"),
    ],
    ids=["installed", "not installed", "nobody records"],
)
def test_the_list_is_read_only_where_it_is_installed_and_somebody_records(first, telemetry, printed):
    program = PROGRAM.format(first=first, telemetry=telemetry)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (printed, "")


SLOW = """
import asyncio, time
import genai_prices
find = genai_prices.calc_price
read = []
def timed(*args, **named):
    read.append(time.time_ns())
    return find(*args, **named)
genai_prices.calc_price = timed
from otel_assembly import Assembler, Context
from otel_assembly.tokens import CharacterCounter
from otel_assembly.testing import RecordedTelemetry, conversation
telemetry = RecordedTelemetry()
assembler = Assembler([], model="gpt-4o", counter=CharacterCounter(4), recorder=telemetry.recorder)
assembly = asyncio.run(assembler.assemble([], conversation("ask"), Context()))
print(assembly.totals.window, read[0] >= telemetry.span("assemble_context").end_ns)
"""


def test_reading_the_list_is_no_part_of_the_assemblys_time():
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("128000 True", "")


# Assemblies that a framework runs


def observed(recorder, words):
    return ObservedAssembler("peer", recorder=recorder.recorder, counter=words)


def user(text):
    return {"role": "user", "content": text}


def test_a_framework_says_the_window_of_its_model(recorder, words):
    assembly = observed(recorder, words).begin("c", [user("one two")], model="our-own", window=50)
    assembly.end()
    told = recorder.span("assemble_context").attributes
    assert (told["assembly.model.window"], told["assembly.budget.utilization"]) == (50, 9 / 50)
    observed(recorder, words).begin("c", [user("word " * 60)], window=50).end()
    span = recorder.spans_named("assemble_context")[-1]
    assert (span.attributes["assembly.overflow.cause"], span.attributes["assembly.overflow.tokens"]) == ("window", 17)
    assert [event.name for event in span.events] == ["assembly.overflow"]
    assert recorder.metric("assembly.budget.overflows", framework="peer") == 1
    assert recorder.violations() == []


@pytest.mark.parametrize("window", [None, 0, -1, "8192", True, 8.5])
def test_what_a_framework_says_that_is_no_window_leaves_the_list(window, recorder, words):
    observed(recorder, words).begin("c", [user("one")], model="gpt-4o", window=window).end()
    assert recorder.span("assemble_context").attributes["assembly.model.window"] == 128_000


@pytest.mark.parametrize(
    ("said", "window"),
    [(ListedWindow(50), 128_000), (ListedWindow(500_000), 500_000), (50, 50)],
    ids=["less than another list", "more", "set by somebody"],
)
def test_of_lists_the_one_that_says_most_is_believed(said, window, recorder, words):
    observed(recorder, words).begin("c", [user("word " * 60)], model="gpt-4o", window=said).end()
    told = recorder.span("assemble_context").attributes
    assert (told["assembly.model.window"], type(told["assembly.model.window"])) == (window, int)
    assert told["assembly.overflowed"] is (window == 50)


def test_a_list_is_believed_of_a_model_that_no_other_knows(recorder, words):
    observed(recorder, words).begin("c", [user("one")], model="our-own", window=ListedWindow(50)).end()
    assert recorder.span("assemble_context").attributes["assembly.model.window"] == 50


def test_what_no_model_is_called_with_is_over_no_window(recorder, words):
    assembly = observed(recorder, words).begin("c", [user("word " * 60)], window=50)
    assembly.end(called=False)
    told = recorder.span("assemble_context").attributes
    assert (told["assembly.overflowed"], told["assembly.model.window"]) == (False, 50)


# Where somebody looks


@pytest.mark.parametrize("budget", [None, 900])
async def test_the_tree_and_the_page_say_over_what(budget, recorder, words):
    chain = [] if budget is None else [TokenBudgetPolicy(budget)]
    await Assembler(chain, model_window=60, counter=words).assemble(["be kind"], conversation(LONG), desk())
    span = recorder.span("assemble_context")
    over = span.attributes["assembly.tokens.out"] - 60
    assert overflow_text(span.attributes) == f"window: {over} tokens over the model window of 60"
    ((ledger,),) = [conversation["ledgers"] for conversation in page_model(recorder.spans, title="t")["conversations"]]
    (turn,) = ledger["turns"]
    assert (turn["window"], turn.get("budget"), turn.get("needs")) == (60, budget, None)
    assert [(signal["cause"], signal["tokens"]) for signal in turn["signals"]] == [("window", over)]


async def test_the_line_of_an_assembly_says_the_window_where_nothing_is_tighter(words):
    assembly = await Assembler([], model_window=900, counter=words).assemble([], conversation("ask: one"), desk())
    assert f"{assembly.totals.tokens_out} of 900 tokens" in repr(assembly)


@pytest.mark.parametrize("export", [[], ["--export", "spans.jsonl"]], ids=["shown", "exported"])
def test_a_replay_knows_the_window_of_its_model_whoever_listens(export, tmp_path):
    messages = [{"role": "user", "content": "word " * 9_000}, {"role": "assistant", "content": "yes"}]
    (tmp_path / "talk.json").write_text(json.dumps(messages), encoding="utf-8")
    ran = runner(tmp_path)("replay", "talk.json", "--model", "gpt-4", "--json", *export)
    assert (ran.json["overflows"], ran.status) == (1, 0), ran.err
