"""Whatever stands in a log: adapters fold it without raising, purely, and always to the same state."""

from __future__ import annotations

import copy
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol_sessions import WHO, metadata_of
from pydantic import TypeAdapter

from otel_assembly.errors import ProtocolError
from otel_assembly.sessions import (
    EV_CONTEXT_SET,
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_SESSION_INVITE,
    EV_SESSION_OPENED,
    EV_TEXT,
    AgentTarget,
    ConsultingAdapter,
    ContextEquals,
    ConversationAdapter,
    DiscussionAdapter,
    Envelope,
    FromSpeaker,
    PendingWaits,
    RoundRobinTarget,
    StayTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    WorkflowAdapter,
    deadlines,
)
from otel_assembly.sessions import SessionState as State

GRAPH = TransitionGraph(
    "ann",
    [
        Transition(ToolCalled("to_cid"), AgentTarget("cid")),
        Transition(ContextEquals("a", 1), StayTarget(), 1),
        Transition(FromSpeaker("bob"), RoundRobinTarget(), 2),
    ],
    RoundRobinTarget(),
    max_turns=30,
).to_dict()
PLAYED = st.sampled_from(
    [
        (ConsultingAdapter(), ("ann", "bob"), {}),
        (ConversationAdapter(), ("ann", "bob"), {}),
        (DiscussionAdapter(), WHO, {}),
        (WorkflowAdapter(), WHO, {"graph": GRAPH, "context_vars": {"a": 0}}),
    ]
)

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from([*WHO, "eve", "text", "handoff", "finish", "to_cid", "hide", "auto_close", "a", ""])
VALUES = ANY_JSON | WORDS | st.lists(WORDS, max_size=3)


def some(**values):
    return st.fixed_dictionaries({}, optional=values)


UPDATES = some(set=VALUES | st.dictionaries(WORDS, VALUES, max_size=2), delete=VALUES)
DATA = st.one_of(
    st.dictionaries(st.text(max_size=4), ANY_JSON, max_size=3),
    some(text=VALUES),
    some(
        routing=VALUES | some(kind=VALUES, target=VALUES, tool=VALUES, reason=VALUES),
        context_updates=VALUES | UPDATES,
        body=VALUES,
    ),
    UPDATES,
    some(kind=VALUES, action=VALUES, waited_for=VALUES, since_seq=VALUES),
)
KINDS = st.sampled_from(
    [
        EV_TEXT,
        EV_PACKET,
        EV_CONTEXT_SET,
        EV_EXPECTATION_VIOLATED,
        EV_SESSION_INVITE,
        EV_SESSION_OPENED,
        "ag2.task.x",
        "my",
    ]
)
ENVELOPES = st.lists(st.tuples(st.sampled_from([*WHO, "eve", "ag2.hub"]), KINDS, DATA), max_size=12)
QUICK = settings(
    max_examples=75, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def numbered(said):
    return [
        Envelope("s1", sender, kind, data, None, f"e{seq}", seq, float(seq), idempotency_key=f"k{seq}")
        for seq, (sender, kind, data) in enumerate(said, 1)
    ]


def folded(adapter, metadata, envelopes):
    state = adapter.initial_state(metadata)
    for envelope in envelopes:
        state = adapter.fold(envelope, state)
    return state


@QUICK
@given(PLAYED, ENVELOPES)
def test_a_fold_raises_on_nothing_changes_nothing_and_comes_to_the_same(played, said):
    adapter, participants, knobs = played
    metadata = metadata_of(adapter, *participants, **knobs)
    envelopes = numbered(said)
    untouched = copy.deepcopy(envelopes)
    state = adapter.initial_state(metadata)
    for envelope in envelopes:
        before = copy.deepcopy(state)
        after = adapter.fold(envelope, state)
        assert state == before
        state = after
        adapter.on_accepted(metadata, envelope, state)
        adapter.extract_turn_input(envelope)
        adapter.render_envelope(envelope)
    assert envelopes == untouched
    assert folded(adapter, metadata, envelopes) == state
    read = [Envelope.from_json(envelope.to_json()) for envelope in envelopes]
    assert folded(type(adapter)(), metadata, read) == state


@QUICK
@given(PLAYED, ENVELOPES)
def test_a_state_is_kept_as_json_and_read_back_equal(played, said):
    adapter, participants, knobs = played
    state = folded(adapter, metadata_of(adapter, *participants, **knobs), numbered(said))
    kept = TypeAdapter(type(state))
    assert kept.validate_json(json.dumps(kept.dump_python(state, mode="json"))) == state


@QUICK
@given(PLAYED, ENVELOPES)
def test_what_is_refused_is_a_protocol_error_and_what_passes_keeps_the_rotation_whole(played, said):
    adapter, participants, knobs = played
    metadata = metadata_of(adapter, *participants, **knobs)
    state, waits = adapter.initial_state(metadata), PendingWaits()
    for envelope in numbered(said):
        try:
            adapter.validate_send(metadata, envelope, state)
        except ProtocolError:
            assert envelope.event_type in (EV_TEXT, EV_PACKET, EV_CONTEXT_SET)
            continue
        state = adapter.fold(envelope, state)
        closed = adapter.on_accepted(metadata, envelope, state).next_state is not None
        turn = adapter.expected_next(metadata, state)
        waits = waits.after(envelope, metadata, turn)
        assert turn is None or turn.participant_id in participants
        for deadline in deadlines(metadata, State.ACTIVE, waits):
            assert set(deadline.waited_for) <= set(participants)
        if isinstance(adapter, DiscussionAdapter):
            assert state.participant_order == participants
            assert set(state.hidden) <= set(participants)
            assert (turn is None) == (len(state.hidden) == len(participants))
            assert turn is None or turn.participant_id not in state.hidden
        if isinstance(adapter, WorkflowAdapter):
            assert (turn is None) == bool(state.pending_close_reason)
        if closed and isinstance(adapter, ConsultingAdapter | WorkflowAdapter):
            return
