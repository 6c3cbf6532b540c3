"""`BudgetPolicy` with a compactor: what is cut leaves a summary, and what is too long is shortened, never lost."""

from __future__ import annotations

import pytest
from recount import assert_sendable, prompt_tokens

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.budget import Compactors
from otel_assembly.decision import DecisionOutcome
from otel_assembly.events import CompactionSummary, TurnStarted
from otel_assembly.messages import summary_like
from otel_assembly.telemetry import read_ledgers


def words(count, word="word"):
    return " ".join(f"{word}{number}" for number in range(count))


def talk(turns, size=30):
    """Turns of a user and an assistant, each some hundred tokens long."""
    return [
        message
        for turn in range(turns)
        for message in (
            {"role": "user", "content": f"question {turn}: {words(size)}"},
            {"role": "assistant", "content": f"answer {turn}: {words(size)}"},
        )
    ]


class Compactor:
    """Answers with so many words, and remembers what it was given."""

    def __init__(self, answer="what was said before"):
        self.given, self.answer = [], answer

    async def __call__(self, text, target_tokens):
        self.given.append((text, target_tokens))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def budget(window, compact, **more):
    return BudgetPolicy(window, 0, compact=compact, **{"step_tokens": 0, "summary_tokens": 40, **more})


async def test_a_summary_stands_where_the_cut_turns_stood(assembly_telemetry):
    messages = [*talk(12), {"role": "user", "content": "and now?"}]
    compactor = Compactor()
    assembly = await Assembler([budget(600, compactor)]).assemble(["be brief"], History(messages), Context())

    assert "what was said before" in assembly.events[0]["content"]
    assert assembly.events[-1] is messages[-1]
    assert assembly.kinds["summary"] == prompt_tokens([], [assembly.events[0]]) - prompt_tokens([], [])
    assert assembly.totals.tokens_out == prompt_tokens(assembly.prompts, assembly.events) <= 600
    assert assembly.totals.dropped == 0
    assert assembly.totals.compacted == len(messages) - (len(assembly.events) - 1)
    assert [decision.item for decision in assembly.decisions if decision.outcome is DecisionOutcome.COMPACTED] == [
        str(item) for item in range(assembly.totals.compacted)
    ]
    ((given, target),) = compactor.given
    assert target == 40
    assert all(messages[index]["content"] in given for index in range(assembly.totals.compacted))


async def test_the_summary_is_kept_until_the_cut_moves_and_then_made_of_itself_and_what_has_gone_since():
    compactor, history, context = Compactor(), History(), Context()
    assembler = Assembler([budget(600, compactor)])
    summaries, cuts = [], []
    for message in talk(24):
        if message["role"] == "assistant":
            assembly = await assembler.assemble([], history, context)
            summaries.append(assembly.events[0])
            cuts.append(assembly.totals.compacted)
        history.append(message)
    moves = sum(cuts[turn] != cuts[turn - 1] for turn in range(1, len(cuts)))
    assert len(compactor.given) == moves > 3
    assert all((summaries[turn] is summaries[turn - 1]) == (cuts[turn] == cuts[turn - 1]) for turn in range(1, 24))
    # The first was made of messages; each later one of the one before, and of nothing that it covers already.
    assert "question 0" in compactor.given[0][0]
    assert all("what was said before" in given and "question 0" not in given for given, _ in compactor.given[1:])


async def test_the_provenance_of_a_summary_of_summaries_is_all_the_leaves(assembly_telemetry):
    history, context = History(), Context()
    assembler = Assembler([budget(600, Compactor())])
    for message in talk(20):
        if message["role"] == "assistant":
            assembly = await assembler.assemble([], history, context)
        history.append(message)
    made = assembly_telemetry.spans_named("compact_block older")
    assert len(made) > 3
    last = made[-1].attributes
    (ledger,) = read_ledgers(assembly_telemetry.spans).values()
    assert ledger.problems == []
    leaves = {item for run in last["assembly.compaction.provenance"] for item in _run(run)}
    gone = {item for item, exit_ in ledger.exits(assembly.turn).items() if exit_.outcome == "compacted"}
    assert leaves == gone
    assert last["assembly.compaction.result"] in assembly.items
    assert last["assembly.compaction.result"].startswith("m")
    assert assembly_telemetry.violations() == []


def _run(text):
    first, _, last = text.partition("-")
    return map(str, range(int(first), int(last or first) + 1))


@pytest.mark.parametrize("answer", [RuntimeError("secret"), "", "Error: rate limit", words(200)])
async def test_a_compactor_that_fails_costs_nothing_but_the_summary(answer, assembly_telemetry):
    messages = [*talk(12), {"role": "user", "content": "and now?"}]
    plain = await Assembler([BudgetPolicy(600, 0, step_tokens=0)]).assemble([], messages, Context())
    assembly_telemetry.clear()
    compactors = Compactors(Compactor(answer), fallback=None)
    assembler, context, history = Assembler([budget(600, compactors)]), Context(), History(messages)
    assembly = await assembler.assemble([], history, context)
    assert assembly.events == plain.events
    assert assembly.totals.dropped == plain.totals.dropped > 0
    attempts = assembly_telemetry.spans_named("compact_block older")
    assert len(attempts) == 2
    assert all(span.attributes["error.type"] for span in attempts)
    assert "secret" not in str([dict(span.attributes) for span in assembly_telemetry.spans])
    # What failed is not tried again for the same turns.
    await assembler.assemble([], history, context)
    assert len(assembly_telemetry.spans_named("compact_block older")) == 2


def with_result(text):
    return [
        ModelRequest(content="read the file"),
        ModelResponse(content="", tool_calls=(ToolCallEvent(id="a", name="read", arguments="{}"),)),
        ToolResultEvent(parent_id="a", name="read", content=text),
    ]


async def test_a_megabyte_of_a_tools_result_is_shortened_to_fit(assembly_telemetry):
    events = with_result("one row of the file\n" * 50_000)
    assembly = await Assembler([budget(2_000, Compactors())]).assemble(["be brief"], events, Context())
    assert [type(event) for event in assembly.events] == [ModelRequest, ModelResponse, ToolResultEvent]
    assert assembly.events[2].parent_id == "a"
    assert assembly.totals.tokens_out == prompt_tokens(assembly.prompts, assembly.events) <= 2_000
    assert (assembly.totals.compacted, assembly.totals.events_injected, assembly.totals.overflowed) == (1, 1, False)
    assert events[2].content == "one row of the file\n" * 50_000
    (made,) = assembly_telemetry.spans_named("compact_block recent")
    assert made.attributes["assembly.compaction.provenance"] == ["2"]
    assert made.attributes["assembly.compaction.outcome"] == "compacted"
    assert assembly_telemetry.violations() == []


async def test_the_shorter_result_stands_on_later_turns_too_and_is_made_once():
    compactor, context = Compactor(words(20)), Context()
    history = History(with_result(words(5_000)))
    assembler = Assembler([budget(1_000, compactor)])
    first = await assembler.assemble([], history, context)
    history.append(ModelResponse(content="it says this and that"))
    history.append(ModelRequest(content="go on"))
    second = await assembler.assemble([], history, context)
    assert second.events[2] is first.events[2]
    assert len(compactor.given) == 1
    assert second.prefix.reuse == 1.0
    assert_sendable([*history], [*second.events[:2], history[2], *second.events[3:]])


async def test_where_no_room_is_left_for_any_of_the_result_the_budget_overflows():
    events = with_result(words(5_000))
    with pytest.raises(ContextOverflowError) as caught:
        await Assembler([budget(36, Compactors())]).assemble([], events, Context())
    assert caught.value.cause == "newest_atom"


async def test_without_a_compactor_a_megabyte_overflows():
    events = with_result("one row of the file\n" * 50_000)
    with pytest.raises(ContextOverflowError):
        await Assembler([BudgetPolicy(2_000, 0)]).assemble([], events, Context())


async def test_one_request_and_sixty_tool_calls_keep_the_request():
    events = [ModelRequest(content="the whole point of it all")]
    for number in range(60):
        events += with_result(words(60, "row"))[1:]
        events[-2] = events[-2].model_copy(
            update={"tool_calls": (ToolCallEvent(id=f"c{number}", name="read", arguments="{}"),)}
        )
        events[-1] = events[-1].model_copy(update={"parent_id": f"c{number}"})
    assembly = await Assembler([budget(2_000, Compactors())]).assemble([], events, Context())
    assert events[0] in assembly.events
    assert any(isinstance(event, CompactionSummary) and event.lossy for event in assembly.events)
    assert assembly.totals.tokens_out <= 2_000


async def test_events_without_a_row_for_summaries_are_dropped_with_one_warning(caplog):
    class Odd(dict):
        pass

    summary_like.register(Odd, lambda message, text, events: None)
    messages = [Odd(message) for message in talk(12)]
    assembly = await Assembler([budget(600, Compactor())]).assemble([], messages, Context())
    assert assembly.totals.dropped > 0
    assert "cannot be replaced by a summary" in caplog.text


class Redact:
    """A policy of a user that replaces an event by a new object with the same content on each turn."""

    name = "redact"

    async def apply(self, prompts, events, context):
        return prompts, [{"role": "user", "content": "[redacted]"}, *events[1:]]


@pytest.mark.parametrize("kind", [History, list])
async def test_a_summary_is_reused_after_a_policy_that_replaces_an_event(kind):
    compact, context = Compactor(), Context()
    assembler, messages = (
        Assembler([Redact(), budget(600, compact)]),
        kind([*talk(12), {"role": "user", "content": "?"}]),
    )
    for _ in range(3):
        assembly = await assembler.assemble([], messages, context)
        messages.append({"role": "assistant", "content": "yes"})
    assert assembly.totals.compacted
    assert len(compact.given) == 1


async def test_a_summary_that_is_made_ahead_lacks_what_a_filter_drops_and_is_used_by_the_next_turn():
    compact, context, messages = Compactor(), Context(budget_ratio=0.8), History()
    for message in talk(12):
        messages.extend([message, TurnStarted(turn=1)])
    messages.append({"role": "user", "content": "?"})
    assembler = Assembler([ConversationPolicy(), budget(900, compact)])
    assert await assembler.compact_ahead([], messages, context)
    assembly = await assembler.assemble([], messages, context)
    assert assembly.totals.compacted
    assert len(compact.given) == 1
