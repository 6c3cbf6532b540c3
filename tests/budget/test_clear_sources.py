"""Whom the CLEAR pass asks, in which order, and what it does when one of them fails or brings what it may not."""

from __future__ import annotations

import asyncio
import logging

import pytest
from clearing import Failing, Source, contents, desk, passage, sent

from otel_assembly import AssemblyError, Context, HaltedError, Task
from otel_assembly.context_assembler import Candidate
from otel_assembly.errors import SourceFailedError
from otel_assembly.testing import RecordedTelemetry

ASKED = "Why was I billed twice?"
CANARY = "canary"


# The legal boundary


async def test_scopes_are_asked_first_and_everybody_else_only_within_them():
    calls = []

    def scopes(user, task):
        calls.append(("scopes", user, task.query))
        return ["public", "ada"]

    def state(task, permitted):
        calls.append(("state", task.entity, frozenset(permitted)))

    assembler = desk(
        Source("docs", calls=calls), recall=Source("memory", calls=calls), state=state, scopes=scopes, k=3, recall_k=7
    )
    context = await assembler.assemble(Task(ASKED, entity="c-17"), user="ada")
    permitted = frozenset({"public", "ada"})
    assert calls[0] == ("scopes", "ada", ASKED)
    assert sorted(calls[1:]) == [
        ("docs", ASKED, permitted, 3),
        ("memory", ASKED, permitted, 7),
        ("state", "c-17", permitted),
    ]
    assert context.scopes == permitted


async def test_where_nothing_is_permitted_nobody_is_asked():
    calls = []
    source = Source(calls=calls, brings=[passage(1)])
    assembler = desk(
        source,
        recall=source,
        state=lambda *asked: calls.append(asked),
        scopes=lambda user, task: (),
        rerank=calls.append,
    )
    context = await assembler.assemble(Task(ASKED), user=None)
    assert calls == []
    assert len(context.messages) == 2


@pytest.mark.parametrize("found", ["public", None, [1], 7])
async def test_scopes_that_are_none_stop_everything(found):
    calls = []
    with pytest.raises(SourceFailedError, match="scopes"):
        await desk(Source(calls=calls), scopes=lambda user, task: found).assemble(Task(ASKED), user=None)
    assert calls == []


async def test_scopes_that_fail_stop_everything_even_where_failures_are_passed_over():
    def scopes(user, task):
        raise PermissionError(CANARY)

    with pytest.raises(SourceFailedError, match="raised PermissionError") as raised:
        await desk(scopes=scopes, on_retriever_error="skip").assemble(Task(ASKED), user=None)
    assert CANARY not in str(raised.value)


def forbidden(number):
    return Candidate(f"{CANARY}-id-{number}", f"{CANARY}-text-{number}", f"{CANARY}-scope", source=f"{CANARY}-source")


async def test_what_is_forbidden_is_never_a_candidate_and_nobody_hears_of_it(caplog):
    caplog.set_level(logging.DEBUG)
    seen = []

    def rerank(query, candidates):
        seen.extend(candidates)
        return [*candidates, forbidden(7)]

    async def told(*extra):
        telemetry = RecordedTelemetry()
        docs = Source(f"{'docs'}", [*extra, passage(1), *extra, passage(2)])
        memory = Source("memory", [*extra, Candidate("m", "Likes tea.", "public")])
        assembler = desk(docs, recall=memory, rerank=rerank, recorder=telemetry.recorder)
        conversation = Context(conversation_id="c")
        contexts = [await assembler.assemble(Task(ASKED), None, conversation) for _ in range(2)]
        return telemetry, contexts

    telemetry, contexts = await told(forbidden(1), forbidden(2))
    plain, expected = await told()
    everything = "\n".join(
        [*map(repr, telemetry.spans), *map(repr, telemetry.logs), repr(telemetry.metrics), caplog.text]
    )
    assert len(telemetry.spans) > 5
    assert CANARY not in everything
    assert not any(CANARY in message.id for message in seen)
    for context, same in zip(contexts, expected, strict=True):
        assert context.messages == same.messages
        assert context.assembly.totals == same.assembly.totals
        assert CANARY not in repr(context.decisions)
        assert CANARY not in repr(context.allocation.items)
    # Not even how many there were: the spans are those of a world without them.
    assert [span.attributes.get("assembly.events.in") for span in telemetry.spans] == [
        span.attributes.get("assembly.events.in") for span in plain.spans
    ]


async def test_who_brings_what_is_forbidden_is_named_with_the_mend_and_nothing_else(caplog):
    await desk(Source("docs", [forbidden(1), forbidden(2)])).assemble(Task(ASKED), user=None)
    (record,) = (record for record in caplog.records if record.name == "otel_assembly")
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "'docs'" in message
    assert "must apply the scopes before it searches" in message
    assert CANARY not in message
    assert "2" not in message


async def test_with_capture_off_nothing_permitted_leaves_either(caplog):
    caplog.set_level(logging.DEBUG)
    telemetry = RecordedTelemetry()
    docs = Source(
        "docs", [passage(f"{CANARY}-id", f"{CANARY} text " * 40, source=f"{CANARY}-source", version=n) for n in (1, 2)]
    )
    assembler = desk(
        docs,
        Failing(ValueError(CANARY), name="wiki"),
        recall=Source("memory", [Candidate(f"{CANARY}-m", f"{CANARY} memory", "public")]),
        state=lambda task, scopes: {CANARY: CANARY},
        on_retriever_error="skip",
        window=150,
        output_reserve=10,
        floors={},
        recorder=telemetry.recorder,
    )
    task = Task(f"{CANARY}?", summary=f"{CANARY} summary. " * 50, recent=[f"{CANARY} turn"], entity=CANARY)
    for _ in range(2):
        await assembler.assemble(task, CANARY, Context(conversation_id="c"))
    with pytest.raises(AssemblyError) as raised:
        await assembler.assemble(Task(f"{CANARY} " * 200), CANARY, Context(conversation_id="c"))
    assert CANARY not in str(raised.value)
    assert any(span.name.startswith("compact_block") for span in telemetry.spans)
    assert telemetry.violations() == []
    everything = [*map(repr, telemetry.spans), *map(repr, telemetry.logs), repr(telemetry.metrics), caplog.text]
    assert CANARY not in "\n".join(everything)


# Many sources at once, some of which fail


async def test_all_sources_are_asked_at_once():
    everybody = asyncio.Barrier(4)
    sources = [Source(name, [passage(name)], wait=everybody.wait) for name in ("one", "two", "three")]

    async def state(task, scopes):
        await everybody.wait()
        return "plan: pro"

    context = await desk(*sources[:2], recall=sources[2], state=state).assemble(Task(ASKED), user=None)
    assert len(context.messages) == 6


async def never():
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (Failing(ValueError(CANARY), name="wiki"), "raised ValueError"),
        (Failing(TimeoutError(CANARY), name="wiki"), "raised TimeoutError"),
        (Source("wiki", wait=never), "took longer than 0.01 s"),
        (Source("wiki", brings=[CANARY]), "returned a str"),
    ],
)
@pytest.mark.parametrize("role", ["retriever", "recall"])
async def test_a_source_that_fails_is_named_and_stops_the_assembly_or_is_passed_over(broken, problem, role, caplog):
    sound = Source("docs", [passage(1)])
    places = {"retrievers": [sound, broken]} if role == "retriever" else {"retrievers": [sound], "recall": broken}
    with pytest.raises(SourceFailedError, match=f"{role} 'wiki' {problem}") as raised:
        await desk(**places, deadline=0.01).assemble(Task(ASKED), user=None)
    assert (raised.value.source, raised.value.role) == ("wiki", role)
    assert CANARY not in str(raised.value)
    assert f"{role} 'wiki' {problem}" in caplog.text
    assert CANARY not in caplog.text

    context = await desk(**places, deadline=0.01, on_retriever_error="skip").assemble(Task(ASKED), user=None)
    assert "Passage 1 says what it says." in contents(context)
    assert [(failure.source, failure.problem) for failure in context.failures] == [("wiki", problem)]


def errors_counted(telemetry):
    points = telemetry.metrics.get("assembly.policy.errors", [])
    return [(point.attributes["assembly.policy.name"], point.attributes["error.type"], point.value) for point in points]


@pytest.mark.parametrize("mode", ["skip", "raise"])
@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (Failing(ValueError(CANARY), name="wiki"), "ValueError"),
        (Source("wiki", wait=never), "TimeoutError"),
        (Source("wiki", brings=[CANARY]), "otel_assembly.errors.SourceFailedError"),
    ],
)
async def test_a_source_that_fails_is_counted_by_its_role_and_name(broken, error, mode):
    telemetry = RecordedTelemetry()
    assembler = desk(
        Source(brings=[passage(1), forbidden(1)]),
        broken,
        deadline=0.01,
        on_retriever_error=mode,
        recorder=telemetry.recorder,
    )
    for _ in range(2):
        try:
            await assembler.assemble(Task(ASKED), None, context=Context(agent_name="clerk"))
        except SourceFailedError:
            assert mode == "raise"
    assert errors_counted(telemetry) == [("retriever wiki", error, 2)]
    assert {metric.attributes["gen_ai.agent.name"] for metric in telemetry.metrics["assembly.policy.errors"]} == {
        "clerk"
    }
    assert CANARY not in repr(telemetry.metrics)
    if mode == "skip":
        assert telemetry.span("assemble_context").status != "ERROR"
    assert telemetry.violations() == []


async def test_when_one_fails_the_others_are_not_waited_for():
    ended = []

    async def endless():
        try:
            await never()
        finally:
            ended.append("cancelled")

    with pytest.raises(SourceFailedError, match="wiki"):
        await desk(Source("docs", wait=endless), Failing(ValueError(), name="wiki")).assemble(Task(ASKED), user=None)
    assert ended == ["cancelled"]


async def test_cancelling_the_caller_cancels_the_sources():
    ended, begun = [], asyncio.Event()

    async def endless():
        begun.set()
        try:
            await never()
        finally:
            ended.append("cancelled")

    turn = asyncio.ensure_future(desk(Source("docs", wait=endless)).assemble(Task(ASKED), user=None))
    await begun.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert ended == ["cancelled"]


async def test_a_halt_is_no_failure_of_a_source():
    halted = Failing(HaltedError("enough", "monitor"), name="wiki")
    with pytest.raises(HaltedError):
        await desk(halted, on_retriever_error="skip").assemble(Task(ASKED), user=None)


async def test_state_is_never_passed_over():
    def state(task, scopes):
        raise KeyError(CANARY)

    with pytest.raises(SourceFailedError, match="state 'state' raised KeyError"):
        await desk(state=state, on_retriever_error="skip").assemble(Task(ASKED), user=None)


async def test_a_rerank_that_fails_leaves_the_order_as_it_was():
    def rerank(query, candidates):
        raise ValueError

    docs = Source("docs", [passage(1), passage(2)])
    context = await desk(docs, rerank=rerank, on_retriever_error="skip").assemble(Task(ASKED), user=None)
    assert contents(context)[1] == "Passage 1 says what it says."
    assert [failure.role for failure in context.failures] == ["rerank"]
    with pytest.raises(SourceFailedError, match="rerank"):
        await desk(docs, rerank=rerank).assemble(Task(ASKED), user=None)


async def test_what_a_rerank_leaves_out_is_no_candidate_but_what_is_stale_stays_told():
    docs = Source("docs", [passage(1), passage(2), passage(3, current=False)])
    context = await desk(docs, rerank=lambda query, found: found[1:]).assemble(Task(ASKED), user=None)
    assert "Passage 1" not in sent(context)
    assert [item.reason.value for item in context.allocation.dropped] == ["stale"]


async def test_two_users_at_once_see_what_is_theirs():
    class Everything:
        async def search(self, query, *, scopes, k):
            return [passage(name, f"Belongs to {name}.", scope=name) for name in sorted(scopes)]

    assembler = desk(Everything(), scopes=lambda user, task: {user})
    names = [f"user-{n}" for n in range(20)]
    prompts = await asyncio.gather(*(assembler.assemble(Task(ASKED), name, Context()) for name in names))
    for name, context in zip(names, prompts, strict=True):
        assert contents(context)[1] == f"Belongs to {name}."
        assert context.allocation.used == context.assembly.totals.tokens_out
