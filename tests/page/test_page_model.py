"""What a page says is what happened."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_runs import expanded, messages, play, state

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Block,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    HaltedError,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    allocate,
)
from otel_assembly.budget import Compactors
from otel_assembly.page import MAX_TEXT, LocalConversation, add_texts, page_model
from otel_assembly.runtime import Stream
from otel_assembly.telemetry import AlertSignal, StoredSpan, TelemetrySettings, read_ledgers
from otel_assembly.testing import RecordedTelemetry


def shown(spans):
    """The only ledger of a page of these spans."""
    ((ledger,),) = [conversation["ledgers"] for conversation in page_model(spans, title="t")["conversations"]]
    return ledger


async def test_every_turn_says_what_was_sent(recorder):
    assemblies = await play(recorder.recorder, messages(12))
    ledger = shown(recorder.spans)
    assert [turn["n"] for turn in ledger["turns"]] == list(range(12))
    for turn, assembly in zip(ledger["turns"], assemblies, strict=True):
        assert turn["out"] == assembly.totals.tokens_out == sum(tokens for _, tokens in turn["kinds"])
        assert turn["budget"] == 400
        assert len(expanded(turn["kept"])) == turn["eventsOut"] == len(assembly.events)
        assert turn.get("dropped", 0) == assembly.totals.dropped
        assert [tokens for _, tokens in turn["prompts"]] == [
            next(tokens for name, tokens in turn["kinds"] if name == "prompt")
        ]
        assert [step["policy"] for step in turn["steps"]] == ["conversation", "token_budget"]
        assert turn["steps"][-1]["out"] == turn["out"]
    assert any(turn.get("left") for turn in ledger["turns"])


async def test_a_turn_says_what_its_prompt_costs_where_its_model_has_a_price(recorder):
    context, events = Context(), [ModelRequest(content="one two three")]
    priced = Assembler([], model="gpt-4o", recorder=recorder.recorder)
    for _ in range(2):
        assembly = await priced.assemble(["be kind"], events, context)
    await Assembler([], model="our-own-model", recorder=recorder.recorder).assemble(["be brief"], events, Context())
    (first, second), (unpriced,) = (
        conversation["ledgers"][0]["turns"] for conversation in page_model(recorder.spans, title="t")["conversations"]
    )
    sent, reused = assembly.totals.tokens_out, assembly.prefix.tokens
    assert first["cost"] == pytest.approx(sent * 2.5e-6)
    assert second["cost"] == pytest.approx((sent - reused) * 2.5e-6 + reused * 1.25e-6)
    assert "cost" not in unpriced


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
async def test_items_are_where_the_ledger_says_whatever_spans_are_missing(data):
    telemetry = RecordedTelemetry()
    budget, window = data.draw(st.integers(120, 500)), data.draw(st.integers(2, 12))
    policies = [ConversationPolicy(), SlidingWindowPolicy(window), TokenBudgetPolicy(budget, on_overflow="raise")]
    await play(telemetry.recorder, messages(10, data.draw(st.integers(5, 60))), policies)
    spans = telemetry.spans
    telemetry.shutdown()
    lost = data.draw(st.sets(st.integers(0, len(spans) - 1), max_size=4))
    left = [span for index, span in enumerate(spans) if index not in lost]
    for ledger in read_ledgers(left).values():
        page = shown(left)
        assert page.get("problems", []) == ledger.problems
        items = {item["o"]: item for item in page["items"]}
        for place, (turn, told) in enumerate(zip(page["turns"], ledger.turns, strict=True)):
            exits = {
                item: (why.reason, why.policy, why.index, why.outcome)
                for item, why in ledger.exits(told.number).items()
            }
            assert expanded(turn.get("kept", [])) == list(told.kept)
            if told.sent:
                found = {item: state(page, item, place) for item in {*told.offered, *items}}
                assert {item: why for item, why in found.items() if why not in (None, True)} == exits
                assert {item for item, why in found.items() if why is True} == set(told.kept)
            for item in exits:
                known = [tokens for at, tokens in items.get(item, {}).get("n", []) if at <= place]
                assert (known[-1] if known else None) == ledger.tokens(told.number, item)


async def test_changes_are_against_the_turn_before(recorder):
    await play(recorder.recorder, messages(12))
    ledger = shown(recorder.spans)
    before = set()
    for turn in ledger["turns"]:
        kept = set(expanded(turn["kept"]))
        assert set(expanded(turn.get("left", []))) == before - kept
        assert set(expanded(turn.get("arrived", []))) | set(expanded(turn.get("returned", []))) == kept - before
        before = kept


async def test_a_turn_that_came_to_nothing_is_one_of_them(recorder):
    turns = messages(4)
    turns[2] = (ModelRequest(content="far too long " * 400), turns[2][1])
    await play(recorder.recorder, turns)
    ledger = shown(recorder.spans)
    failed = ledger["turns"][2]
    assert failed["unsent"]
    assert failed["out"] == 0
    assert [signal["what"] for signal in failed["signals"]] == ["overflow"]
    assert failed["signals"][0]["cause"] == "fixed"
    assert failed["signals"][0]["tokens"] > 0
    assert "left" not in failed


async def test_without_the_policy_s_span_the_reason_is_not_known(recorder):
    await play(recorder.recorder, messages(8), budget=200)
    spans = recorder.spans
    gone = next(
        span for span in spans if span.name == "apply_policy token_budget" and span.attributes["assembly.dropped.count"]
    )
    ledger = shown([span for span in spans if span is not gone])
    place = next(index for index, turn in enumerate(ledger["turns"]) if turn.get("partial"))
    reasons = {state(ledger, item["o"], place) for item in ledger["items"]} - {None, True}
    assert {reason[0] for reason in reasons} == {None}
    assert any("have no span" in problem for problem in ledger["problems"])


async def test_variants_of_a_conversation_stand_side_by_side(recorder):
    for budget in (300, 600):
        await play(recorder.recorder, messages(6), budget=budget, name=f"budget-{budget}")
    await play(recorder.recorder, messages(3), conversation="another")
    first, second = page_model(recorder.spans, title="t")["conversations"]
    assert (first["id"], second["id"]) == ("talk", "another")
    assert [ledger["name"] for ledger in first["ledgers"]] == ["budget-300", "budget-600"]
    assert len(second["ledgers"]) == 1


async def test_without_a_conversation_id_only_what_was_given_the_same_stands_side_by_side(recorder):
    for name, turns in (("one", messages(4)), ("other", messages(4)), ("third", messages(4, size=9))):
        await play(recorder.recorder, turns, name=name, conversation=None, budget=300)
    await play(recorder.recorder, messages(4), name="one", conversation=None, budget=300)
    found = [
        [ledger["name"] for ledger in conversation["ledgers"]]
        for conversation in page_model(recorder.spans, title="t")["conversations"]
    ]
    assert found == [["one", "other"], ["third"], ["one"]]


async def _alerted(recorder, *severities):
    stream = Stream()
    context = Context(conversation_id="talk", agent_name="support", stream=stream)
    assembler = Assembler([AlertPolicy(), ConversationPolicy()], name="alerts", on_halt="return", recorder=recorder)
    for severity in severities:
        await stream.send(ModelRequest(content="hello"))
        if severity is not None:
            await stream.send(ObserverAlert(source="watch", severity=severity, message=f"it is {severity}"))
        await assembler.assemble([], stream.history, context)
        await stream.send(ModelResponse(content="hello"))


async def test_alerts_say_what_they_say_and_once(recorder):
    await _alerted(recorder.recorder, None, "warning", None)
    turns = shown(recorder.spans)["turns"]
    assert [len(turn.get("signals", [])) for turn in turns] == [0, 1, 0]
    (signal,) = turns[1]["signals"]
    assert signal == {
        "what": "alert",
        "severity": "warning",
        "source": "watch",
        "says": "it is warning",
        "policy": "alert",
    }


async def test_an_alert_that_went_to_the_logs_is_counted_and_nothing_is_made_up():
    telemetry = RecordedTelemetry(settings=TelemetrySettings(alert_signal=AlertSignal.LOG_EVENT))
    await _alerted(telemetry.recorder, "critical")
    (turn,) = shown(telemetry.spans)["turns"]
    telemetry.shutdown()
    assert turn["signals"] == [{"what": "alert", "count": 1, "untold": True}]


async def test_a_halt_is_marked(recorder):
    with recorder.tracer().start_as_current_span("POST /ask"):
        await _alerted(recorder.recorder, None, "fatal")
    said = [signal["what"] for turn in shown(recorder.spans)["turns"] for signal in turn.get("signals", [])]
    assert sorted(said) == ["alert", "halt"]


async def test_a_halt_on_a_span_of_its_own_stands_after_the_turn_that_it_is_linked_to(recorder):
    await _alerted(recorder.recorder, None, "fatal")
    assert recorder.span("halt").links
    first, second = shown(recorder.spans)["turns"]
    assert first["signals"] == [{"what": "halt", "source": "watch", "says": "FATAL: it is fatal", "after": True}]
    assert [signal["what"] for signal in second["signals"]] == ["alert"]


async def test_a_turn_of_a_conversation_that_was_halted_before_says_why_nothing_was_sent(recorder):
    stream = Stream()
    context = Context(conversation_id="talk", stream=stream)
    assembler = Assembler([ConversationPolicy()], recorder=recorder.recorder)
    await stream.send(ModelRequest(content="hello"))
    await assembler.assemble([], stream.history, context)
    with recorder.tracer().start_as_current_span("work"):
        await stream.send(ObserverAlert(source="watch", severity="fatal", message="it is fatal"))
    with pytest.raises(HaltedError):
        await assembler.assemble([], stream.history, context)
    _, halted = shown(recorder.spans)["turns"]
    assert {"what": "error", "says": "assembly_halt"} in halted["signals"]


def test_a_halt_on_the_run_s_span_stands_after_the_last_turn():
    spans = [
        StoredSpan("a" * 32, "1" * 16, "2" * 16, "assemble_context", 10, 20, {**ASSEMBLY, "assembly.turn": 0}),
        StoredSpan("a" * 32, "2" * 16, None, "invoke_agent support", 1, 99, {}, events=[halt_event()]),
    ]
    (turn,) = shown(spans)["turns"]
    assert turn["signals"] == [{"what": "halt", "source": "guard", "says": "enough", "after": True}]


ASSEMBLY = {
    "assembly.id": "i",
    "assembly.format.version": 1,
    "assembly.ledger.id": "l",
    "assembly.prefix.hash": "h",
    "assembly.events.out": 0,
    "assembly.tokens.out": 3,
}


def halt_event():
    from otel_assembly.telemetry import StoredEvent

    return StoredEvent("assembly.halt", 50, {"assembly.halt.source": "guard", "assembly.halt.reason": "enough"})


def test_blocks_and_attempts_are_read_where_they_are():
    trace = "a" * 32
    budget = {"assembly.budget.window": 1000, "assembly.budget.output_reserve": 100, "assembly.budget.limit": 900}
    block = {
        "assembly.block.name": "memories",
        "assembly.block.kind": "memory",
        "assembly.block.priority": 6,
        "assembly.tokens.in": 500,
        "assembly.tokens.out": 120,
        "assembly.decision.outcome": "compacted",
        "assembly.decision.reason": "compacted",
        "assembly.budget.remaining": 130,
    }
    attempt = {
        "assembly.compaction.outcome": "compacted",
        "assembly.compaction.target_tokens": 130,
        "assembly.compaction.provenance": ["3-5"],
        "assembly.compaction.result": "9",
        "assembly.tokens.in": 500,
        "assembly.tokens.out": 120,
    }
    spans = [
        StoredSpan(trace, "1" * 16, None, "assemble_context", 10, 90, {**ASSEMBLY, "assembly.turn": 0}),
        StoredSpan(trace, "2" * 16, "1" * 16, "apply_policy budget", 11, 80, {"assembly.policy.name": "budget"}),
        StoredSpan(trace, "3" * 16, "2" * 16, "allocate_budget", 12, 70, budget),
        StoredSpan(trace, "4" * 16, "3" * 16, "allocate_block memory", 13, 60, block),
        StoredSpan(trace, "5" * 16, "4" * 16, "compact_block memory", 14, 50, attempt),
        StoredSpan(trace, "6" * 16, "2" * 16, "compact_block older", 15, 16, {"error.type": "TimeoutError"}),
    ]
    (turn,) = shown(spans)["turns"]
    (allocation,) = turn["allocations"]
    assert (allocation["policy"], allocation["window"], allocation["reserve"], allocation["budget"]) == (
        "budget",
        1000,
        100,
        900,
    )
    (found,) = allocation["blocks"]
    assert (found["name"], found["priority"], found["in"], found["out"]) == ("memories", 6, 500, 120)
    assert (found["outcome"], found["remaining"]) == ("compacted", 130)
    (tried,) = found["attempts"]
    assert tried["said"]["provenance"] == "3-5"
    assert turn["attempts"] == [{"kind": "older", "error": "TimeoutError", "policy": "budget"}]


async def test_what_a_summary_covers_can_be_followed(recorder):
    chain = [ConversationPolicy(), BudgetPolicy(420, 20, step_tokens=0, compact=Compactors(), summary_tokens=80)]
    await play(recorder.recorder, messages(14), chain, conversation="talk")
    ledger = shown(recorder.spans)
    assert "problems" not in ledger
    turns = [turn for turn in ledger["turns"] if turn.get("replaced")]
    assert turns
    for turn in turns:
        (allocation,) = turn["allocations"]
        assert allocation["used"] == turn["out"]
        assert sum(block["out"] for block in allocation["blocks"]) <= allocation["used"]
        made = [item for item in ledger["items"] if item.get("s") and item["o"] in expanded(turn["kept"])]
        assert set(expanded(turn["replaced"])) <= set(expanded(made[-1]["s"]))


async def test_texts_are_there_only_where_they_were_captured(recorder, capturing):
    for telemetry in (recorder, capturing):
        await play(telemetry.recorder, messages(3), prompts=("Be kind to Ms Mustermann.",))
    bare, full = (page_model(telemetry.spans, title="t") for telemetry in (recorder, capturing))
    assert bare["texts"] == []
    assert "Mustermann" not in json.dumps(bare)
    texts = [text for (text,) in full["texts"]]
    ledger = full["conversations"][0]["ledgers"][0]
    assert texts[ledger["items"][0]["x"]].startswith("Question 0")
    assert [texts[number] for number in ledger["turns"][0]["said"]] == ["Be kind to Ms Mustermann."]


async def test_a_huge_text_is_cut_and_held_once(capturing):
    huge = "y" * 1_000_000
    for name in ("one", "other"):
        turns = [(ModelRequest(content=huge), ModelResponse(content="ok"))]
        await play(capturing.recorder, turns, name=name, budget=500_000)
    model = page_model(capturing.spans, title="t")
    assert [text for text in model["texts"] if len(text) > 1] == [[huge[:MAX_TEXT], len(huge)]]
    assert len(json.dumps(model)) < 50_000


def test_damaged_spans_cost_only_themselves():
    def span(number, **attributes):
        held = {**ASSEMBLY, "assembly.turn": number, "assembly.id": f"i{number}", **attributes}
        return StoredSpan("a" * 32, f"{number:016x}", None, "assemble_context", number, number + 1, held)

    spans = [
        span(0),
        span(1, **{"assembly.kept.items": ["x-y"]}),
        span(2, **{"assembly.kind.names": ["a"], "assembly.kind.tokens": ["?"], "assembly.budget.limit": "many"}),
        replace(span(3), attributes={**span(3).attributes, "assembly.turn": 0}),
    ]
    ledger = shown(spans)
    assert [turn["n"] for turn in ledger["turns"]] == [0, 2]
    assert "budget" not in ledger["turns"][1]
    assert "kinds" not in ledger["turns"][1]
    assert len(ledger["problems"]) >= 2


def test_a_ledger_of_which_nothing_can_be_read_is_named():
    broken = {**ASSEMBLY, "assembly.turn": 0, "assembly.kept.items": ["?"]}
    model = page_model([StoredSpan("a" * 32, "1" * 16, None, "assemble_context", 1, 2, broken)], title="t")
    assert model["conversations"] == []
    (problem,) = model["problems"]
    assert problem.startswith("turn 0 is skipped: span 1111111111111111 (assemble_context): assembly.kept.items")


@pytest.mark.parametrize("spans", [[], [StoredSpan("a" * 32, "b" * 16, None, "chat", 0, 1)]])
def test_spans_of_others_are_passed_over(spans):
    assert page_model(spans, title="t")["conversations"] == []


def test_an_allocation_by_itself_is_a_conversation_of_one_turn():
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        allocate(
            [
                Block("rules", 1, "be brief", cuttable=False),
                Block("passages", 5, ["one two three " * 20, "four five six " * 20], cuttable=True),
            ],
            120,
            10,
        )
    (conversation,) = page_model(telemetry.spans, title="one")["conversations"]
    (ledger,) = conversation["ledgers"]
    (turn,) = ledger["turns"]
    assert turn["steps"][0]["drops"] == [["low_rank", ["2"]]]
    assert [block["name"] for block in turn["allocations"][0]["blocks"]] == ["rules", "passages"]
    telemetry.shutdown()


async def test_a_turn_says_what_would_have_been_needed_only_where_the_budget_could_not_hold(recorder):
    await play(recorder.recorder, messages(3), budget=20)
    await play(recorder.recorder, messages(3), budget=900, conversation="roomy")
    narrow, roomy = (
        conversation["ledgers"][0] for conversation in page_model(recorder.spans, title="t")["conversations"]
    )
    for turn in narrow["turns"]:
        (overflow,) = [signal for signal in turn["signals"] if signal["what"] == "overflow"]
        assert turn["needs"] == 20 + overflow["tokens"] > 20
    assert not any("needs" in turn for turn in roomy["turns"])


async def test_conversations_know_the_files_that_they_come_from(recorder):
    await play(recorder.recorder, messages(1), conversation="one")
    await play(recorder.recorder, messages(1), conversation="two")
    of_one = {
        span.trace_id: "one.jsonl" for span in recorder.spans if span.attributes.get("gen_ai.conversation.id") == "one"
    }
    one, two = page_model(recorder.spans, title="t", files=of_one)["conversations"]
    assert one["file"] == "one.jsonl"
    assert "file" not in two


def local(turns, *, name="talk", prompts=("Be kind.",), of=slice(None)):
    said = [(event.content,) for turn in turns for event in turn]
    return LocalConversation(name, "talks.jsonl:1", prompts, said[of])


async def test_texts_come_from_a_file_where_sizes_agree(recorder):
    turns = messages(4)
    await play(recorder.recorder, turns)
    model = page_model(recorder.spans, title="t")
    assert model["texts"] == []
    assert add_texts(model, [local(turns, name="another", prompts=()), local(turns)]) == 1
    ((ledger,),) = [conversation["ledgers"] for conversation in model["conversations"]]
    texts = {row["o"]: model["texts"][row["x"]][0] for row in ledger["items"]}
    assert texts["0"] == turns[0][0].content
    assert texts["5"] == turns[2][1].content
    assert {model["texts"][turn["said"][0]][0] for turn in ledger["turns"]} == {"Be kind."}
    json.dumps(model, allow_nan=False)


async def test_a_conversation_without_an_id_is_known_by_its_sizes_only_where_one_has_them(recorder):
    turns = messages(4)
    await play(recorder.recorder, turns, conversation=None)
    nameless = local(turns, name=None)
    assert add_texts(page_model(recorder.spans, title="t"), [nameless, local(messages(3, size=9), name=None)]) == 1
    assert add_texts(page_model(recorder.spans, title="t"), [nameless, local(turns, name="twin")]) == 0


async def test_texts_that_an_item_contradicts_are_nowhere_on_the_page(recorder):
    turns = messages(4)
    await play(recorder.recorder, turns)
    for told in (local(messages(4, size=31)), local(turns, of=slice(0, 3)), local(turns, of=slice(1, None))):
        model = page_model(recorder.spans, title="t")
        assert add_texts(model, [told]) == 0
        assert model["texts"] == []
