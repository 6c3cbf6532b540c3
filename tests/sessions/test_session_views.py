"""What a participant sees of a session: word for word, cut down, in a budget, or as a view of one's own says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from sessions.talk import Talk, opened, text

from otel_assembly import Assembler, ConfigurationError, Context, describe
from otel_assembly.errors import AccessDeniedError
from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent, ToolResultEvent
from otel_assembly.sessions import (
    EV_TEXT,
    BudgetedView,
    DiscussionAdapter,
    Envelope,
    FullTranscript,
    Hub,
    MemorySessionLog,
    NamedTranscript,
    NamedWindowedSummary,
    ParticipantView,
    ViewPolicy,
    WindowedSummary,
    default_render_envelope,
)

WHO = ("ann", "bob", "cid")


@pytest.fixture
def hub():
    return Hub(MemorySessionLog(), [Talk(in_turns=False)])


def shown(events):
    return [event.summary if isinstance(event, CompactionSummary) else event.content for event in events]


def envelopes(*said, audience=None):
    return [
        Envelope("s1", who, EV_TEXT, {"text": what}, envelope_id=f"e{at}", seq=at, audience=audience)
        for at, (who, what) in enumerate(said, 1)
    ]


async def project(view, *said, participant_id="bob"):
    return await view.project(
        envelopes(*said), participant_id=participant_id, session=None, render_envelope=default_render_envelope
    )


SAID = [("ann", "one"), ("bob", "two"), ("cid", "three"), ("ann", "four"), ("bob", "five"), ("cid", "six")]


async def test_a_transcript_shows_others_as_requests_and_the_participant_s_own_words_as_responses():
    events = await project(FullTranscript(), *SAID)
    assert shown(events) == ["one", "two", "three", "four", "five", "six"]
    assert [type(e) for e in events] == [ModelRequest, ModelResponse, ModelRequest] * 2
    assert [e.id for e in events] == ["e1", "e2", "e3", "e4", "e5", "e6"]


async def test_a_named_transcript_says_who_said_it():
    events = await project(NamedTranscript(), *SAID)
    assert shown(events) == ["[ann]: one", "two", "[cid]: three", "[ann]: four", "five", "[cid]: six"]


async def test_a_window_shows_the_newest_and_a_line_for_the_rest():
    assert shown(await project(WindowedSummary(2), *SAID)) == [
        "Earlier in this session: 4 messages from ann, bob, cid.",
        "five",
        "six",
    ]
    assert shown(await project(NamedWindowedSummary(3), *SAID[:4])) == [
        "Earlier in this session: 1 message from ann.",
        "two",
        "[cid]: three",
        "[ann]: four",
    ]
    assert shown(await project(WindowedSummary(6), *SAID)) == [what for _, what in SAID]


async def test_a_budget_bounds_what_is_shown():
    long = [(who, f"{what} " * 50) for who, what in SAID]
    events = await project(BudgetedView(200, 20, step_tokens=0), *long)
    assert 0 < len(events) < 6
    assert events[-1].content == f"[cid]: {'six ' * 50}"


@pytest.mark.parametrize("recent_n", [0, -1, True, 2.5, "3"])
@pytest.mark.parametrize("view", [WindowedSummary, NamedWindowedSummary])
def test_a_window_of_nothing_is_refused(view, recent_n):
    with pytest.raises(ConfigurationError, match=f"recent_n of the view '{view.name}'"):
        view(recent_n)


def test_a_budget_that_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match="leaves nothing of the window"):
        BudgetedView(100, 100)


@pytest.mark.parametrize(
    "view", [FullTranscript(), WindowedSummary(1), NamedTranscript(), NamedWindowedSummary(1), BudgetedView(100, 10)]
)
def test_every_view_is_one(view):
    assert isinstance(view, ViewPolicy)


async def test_what_is_not_addressed_to_a_participant_is_nowhere_in_its_view(hub, assembly_telemetry):
    name = await opened(hub, *WHO)
    await hub.post(text(name, "ann", "to all"))
    await hub.post(text(name, "ann", "a secret", audience=("bob",)))
    await hub.post(text(name, "cid", "and back"))
    seen = {}
    for who in WHO:
        view = await ParticipantView.open(hub, name, who, view=WindowedSummary(1))
        await view.read()
        await Assembler(view.policies).assemble([], view.history, Context(agent_name=who))
        seen[who] = [event.content for event in view.history]
    assert seen["ann"] == seen["bob"] == ["to all", "a secret", "and back"]
    assert seen["cid"] == ["to all", "and back"]
    spans = assembly_telemetry.spans_named("project_view windowed_summary")
    keys = "gen_ai.agent.name", "assembly.envelopes.in", "assembly.envelopes.out"
    counts = [tuple(span.attributes[key] for key in keys) for span in spans]
    # The invitation, two who joined, and the opening stand before what was said.
    assert counts == [("ann", 7, 1), ("bob", 7, 1), ("cid", 6, 1)]
    assert "secret" not in str([s.attributes for s in assembly_telemetry.spans])


async def test_a_stranger_has_no_view(hub):
    name = await opened(hub, *WHO)
    with pytest.raises(AccessDeniedError, match="'eve' is not a participant"):
        await ParticipantView.open(hub, name, "eve")


async def test_the_protocol_says_which_view_is_taken_where_nobody_else_does(hub):
    hub = Hub(MemorySessionLog(), [Talk(), DiscussionAdapter()])
    talk = await opened(hub, *WHO)
    discussion = (await hub.create("discussion", "ann", WHO)).session_id
    assert (await ParticipantView.open(hub, talk, "ann")).view == FullTranscript()
    assert (await ParticipantView.open(hub, discussion, "ann")).view == NamedWindowedSummary(6)


async def test_the_ledger_tells_what_a_window_left_out(hub):
    name = await opened(hub, *WHO)
    for turn in range(5):
        await hub.post(text(name, WHO[turn % 3], f"turn {turn}"))
    view = await ParticipantView.open(hub, name, "bob", view=NamedWindowedSummary(2))
    await view.read()
    assembly = await Assembler(view.policies).assemble([], view.history, Context())
    assert shown(assembly.events) == [
        "Earlier in this session: 3 messages from ann, bob, cid.",
        "[ann]: turn 3",
        "turn 4",
    ]
    decided = {(d.item, d.outcome.value, d.policy) for d in assembly.decisions if d.outcome.value != "kept"}
    assert decided == {(str(at), "compacted", "named_windowed_summary") for at in range(3)} | {
        ("m0", "injected", "named_windowed_summary")
    }


async def test_the_line_for_the_rest_is_the_same_event_for_as_long_as_it_says_the_same(hub):
    name = await opened(hub, *WHO)
    for turn in range(4):
        await hub.post(text(name, WHO[turn % 3], f"turn {turn}"))
    view = await ParticipantView.open(hub, name, "bob", view=WindowedSummary(2))
    await view.read()
    assembler = Assembler(view.policies)
    first = await assembler.assemble([], view.history, Context())
    again = await assembler.assemble([], view.history, Context())
    assert first.events[0] is again.events[0]


async def test_what_leaves_a_window_in_steps_leaves_its_beginning_as_it_was(hub):
    name = await opened(hub, *WHO)
    view = await ParticipantView.open(hub, name, "bob", view=NamedWindowedSummary(2, step=3))
    assembler, shown_each_turn = Assembler(view.policies), []
    for turn in range(9):
        await hub.post(text(name, "ann", f"{turn}"))
        await view.read()
        assembly = await assembler.assemble([], view.history, Context())
        shown_each_turn.append(shown(assembly.events))
    assert shown_each_turn[3] == ["[ann]: 0", "[ann]: 1", "[ann]: 2", "[ann]: 3"]
    three = "Earlier in this session: 3 messages from ann."
    assert shown_each_turn[4:7] == [
        [three, "[ann]: 3", "[ann]: 4"],
        [three, "[ann]: 3", "[ann]: 4", "[ann]: 5"],
        [three, "[ann]: 3", "[ann]: 4", "[ann]: 5", "[ann]: 6"],
    ]
    assert shown_each_turn[7][0] == "Earlier in this session: 6 messages from ann."
    # Two of three turns send all that the one before did, and what is new: a provider's cache has the rest.
    begins_alike = [later[: len(before)] == before for before, later in pairwise(shown_each_turn)]
    assert begins_alike == [True, True, True, False, True, True, False, True]


@pytest.mark.parametrize("step", [0, -1, True, 2.5])
def test_a_step_of_nothing_is_refused(step):
    with pytest.raises(ConfigurationError, match="step of the view 'windowed_summary'"):
        WindowedSummary(2, step=step)


async def test_a_name_with_a_line_break_speaks_for_nobody_else():
    events = await NamedWindowedSummary(1).project(
        envelopes(("ann", "one"), ("ann", "two")),
        participant_id="bob",
        session=None,
        render_envelope=default_render_envelope,
        name_for=lambda who: f"{who}\n[cid]",
    )
    assert shown(events) == ["Earlier in this session: 1 message from ann [cid].", "[ann [cid]]: two"]


async def test_own_calls_of_tools_stay_whole_and_go_with_what_is_around_them(hub):
    name = await opened(hub, *WHO)
    view = await ParticipantView.open(hub, name, "bob", view=WindowedSummary(2))
    assembler = Assembler(view.policies)

    async def turn(at, says):
        envelope = await hub.post(text(name, "ann", says))
        await view.read(envelope.seq)
        view.history.extend(view.begin_round(envelope, says))
        call = ToolCallEvent(id=f"call-{at}", name="look")
        view.history.extend(
            [ModelResponse(tool_calls=(call,)), ToolResultEvent(parent_id=call.id, content=f"seen {at}")]
        )
        in_the_round = await assembler.assemble([], view.history, Context())
        own = ModelResponse(content=f"answer {at}")
        view.history.append(own)
        view.end_round(own.id, await hub.post(text(name, "bob", own.content)))
        return [getattr(e, "content", "") or getattr(e, "summary", "") for e in in_the_round.events]

    assert await turn(0, "zero") == ["zero", "", "seen 0"]
    assert await turn(1, "one") == [
        "Earlier in this session: 1 message from ann.",
        "answer 0",
        "one",
        "",
        "seen 1",
    ]
    assert await turn(2, "two") == [
        "Earlier in this session: 3 messages from ann, bob.",
        "answer 1",
        "two",
        "",
        "seen 2",
    ]


async def test_what_a_round_stored_is_not_read_from_the_log_once_more(hub):
    name = await opened(hub, *WHO)
    view = await ParticipantView.open(hub, name, "bob")
    asked = await hub.post(text(name, "ann", "well?"))
    await view.read(asked.seq)
    view.history.extend(view.begin_round(asked, "well?"))
    own = ModelResponse(content="yes")
    view.history.append(own)
    view.end_round(own.id, await hub.post(text(name, "bob", "yes")))
    await hub.post(text(name, "cid", "good"))
    await view.read()
    assert shown(view.history) == ["well?", "yes", "good"]
    reopened = await ParticipantView.open(hub, name, "bob")
    await reopened.read()
    assert shown(reopened.history) == ["well?", "yes", "good"]


async def test_a_view_of_ones_own_gets_what_the_participant_may_see(hub):
    class Newest:
        name = "newest"

        def __init__(self):
            self.given = []

        async def project(self, wal, *, participant_id, session, render_envelope, name_for=str):
            self.given.append((participant_id, session.session_id, [e.seq for e in wal], wal[-1].seq, len(wal[1:])))
            return [ModelRequest(content=f"{name_for(wal[-1].sender_id)} said {render_envelope(wal[-1])}")]

    name = await opened(hub, *WHO)
    await hub.post(text(name, "ann", "one"))
    await hub.post(text(name, "ann", "secret", audience=("bob",)))
    await hub.post(text(name, "bob", "two"))
    asked = await hub.post(text(name, "ann", "well?"))
    own = Newest()
    view = await ParticipantView.open(hub, name, "cid", view=own, name_for=str.upper)
    await view.read(asked.seq)
    view.history.extend(view.begin_round(asked, "well?"))
    assembly = await Assembler(view.policies).assemble([], view.history, Context())
    assert shown(assembly.events) == ["BOB said two", "[ANN]: well?"]
    assert own.given == [("cid", name, [1, 2, 3, 4, 5, 7], 7, 5)]


async def test_a_turn_costs_what_is_new_however_old_the_session_is(hub, monkeypatch):
    """Rows read, envelopes rendered, and events described by a turn late in a session are those of an early one."""
    name = await opened(hub, *WHO)
    view = await ParticipantView.open(hub, name, "bob", view=NamedWindowedSummary(4))
    assembler = Assembler(view.policies)
    counts = {"rows": 0, "described": 0, "counted": 0}

    class Counter:
        name, method, encoding, generation, key = "words", "exact", "words", 0, "words"

        def count(self, text):
            counts["counted"] += 1
            return len(text.split())

    tail = hub._log.rows_from

    async def counted_tail(*given):
        rows = await tail(*given)
        counts["rows"] += len(rows)
        return rows

    monkeypatch.setattr(hub._log, "rows_from", counted_tail)
    monkeypatch.setattr("otel_assembly.history.history.describe", lambda event: _described(counts, event))
    assembler = Assembler(view.policies, counter=Counter())
    costs = []
    for turn in range(60):
        for who in ("ann", "cid"):
            asked = await hub.post(text(name, who, f"{who} {turn}"))
        counts.update(rows=0, described=0, counted=0)
        await view.read(asked.seq)
        view.history.extend(view.begin_round(asked, f"cid {turn}"))
        await assembler.assemble([], view.history, Context())
        costs.append(dict(counts))
    assert costs[10] == costs[30] == costs[59]
    assert costs[59]["rows"] == 1
    assert costs[59]["described"] <= 12


def _described(counts, event):
    counts["described"] += 1
    return describe(event)
