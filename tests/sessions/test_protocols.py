"""Consulting, conversation and discussion: who may speak when, and what closes a session."""

from __future__ import annotations

import pytest
from protocol_sessions import Played, metadata_of

from otel_assembly.errors import ConfigurationError, ProtocolError
from otel_assembly.sessions import (
    EV_SESSION_OPENED,
    EV_TEXT,
    ConsultingAdapter,
    ConversationAdapter,
    DiscussionAdapter,
    Envelope,
    Expectation,
    ExpectedTurn,
    FullTranscript,
    NamedTranscript,
    NamedWindowedSummary,
    SessionAdapter,
    SessionState,
    TransitionGraph,
    WindowedSummary,
    WorkflowAdapter,
)


@pytest.mark.parametrize(
    "adapter", [ConsultingAdapter(), ConversationAdapter(), DiscussionAdapter(), WorkflowAdapter()]
)
def test_each_is_an_adapter_of_version_1(adapter):
    assert isinstance(adapter, SessionAdapter)
    assert adapter.manifest.version == 1


@pytest.mark.parametrize(
    ("adapter", "type_name", "expected"),
    [
        (ConsultingAdapter(), "consulting", [("acks_within", 30, "auto_close"), ("reply_within", 600, "auto_close")]),
        (ConversationAdapter(), "conversation", [("max_silence", 3600, "audit")]),
        (DiscussionAdapter(), "discussion", [("turn_within", 120, "warn"), ("turn_within", 600, "hide")]),
        (WorkflowAdapter(), "workflow", [("turn_within", 120, "warn"), ("turn_within", 600, "auto_close")]),
    ],
)
def test_manifests_are_ag2s(adapter, type_name, expected):
    assert adapter.manifest.type == type_name
    assert [
        (expectation.kind, expectation.seconds, expectation.action) for expectation in adapter.manifest.expectations
    ] == expected


@pytest.mark.parametrize(
    ("adapter", "participants", "said"),
    [
        (ConsultingAdapter(), ("ann", "bob", "cid"), "takes exactly 2 participants, not 3: 'ann', 'bob', 'cid'"),
        (ConversationAdapter(), ("ann",), "takes exactly 2 participants, not 1"),
        (DiscussionAdapter(), ("ann",), "takes at least 2 participants, not 1"),
        (DiscussionAdapter(), ("ann", "bob", "bob"), "names 'bob' twice; name each participant once"),
    ],
)
def test_participants_are_counted(adapter, participants, said):
    with pytest.raises(ProtocolError, match=said):
        adapter.validate_create(metadata_of(adapter, *participants))


def test_the_creator_takes_part():
    adapter = ConversationAdapter()
    with pytest.raises(ProtocolError, match="'eve' is not a participant; add the creator"):
        adapter.validate_create(metadata_of(adapter, "ann", "bob", creator="eve"))


class TestConsulting:
    def test_one_question_one_answer_and_it_is_over(self):
        played = Played(ConsultingAdapter(), "ann", "bob")
        assert played.awaited == "ann"
        question = played.say("ann", "which one?")
        assert played.adapter.expected_next(played.metadata, played.state) == ExpectedTurn("bob", question.envelope_id)
        assert played.result.next_state is None
        played.say("bob", "this one")
        assert (played.result.next_state, played.result.auto_close_reason) == (
            SessionState.CLOSED,
            "consulting_complete",
        )
        assert played.awaited is None
        with pytest.raises(ProtocolError, match="already complete: its question was answered; create another session"):
            played.say("ann")

    def test_the_creator_asks_wherever_it_is_listed(self):
        played = Played(ConsultingAdapter(), "bob", "ann", creator="ann")
        with pytest.raises(ProtocolError, match="the question from the initiator 'ann', but 'bob' sent a text"):
            played.say("bob")
        played.say("ann")
        with pytest.raises(ProtocolError, match="the answer from the respondent 'bob'"):
            played.say("ann")

    def test_the_view_is_all_of_it(self):
        adapter = ConsultingAdapter()
        assert adapter.default_view_policy(metadata_of(adapter, "ann", "bob"), "bob") == FullTranscript()


class TestConversation:
    def test_anybody_speaks_at_any_time(self):
        played = Played(ConversationAdapter(), "ann", "bob")
        for sender in ("ann", "ann", "bob"):
            played.say(sender)
        assert (played.state.turn_count, played.state.last_speaker_id, played.state.last_envelope_id) == (
            3,
            "bob",
            "e3",
        )
        assert played.awaited is None

    def test_a_stranger_does_not(self):
        with pytest.raises(
            ProtocolError, match=r"only accepts sends from participants \('ann', 'bob'\), not from 'eve'"
        ):
            Played(ConversationAdapter(), "ann", "bob").say("eve")

    def test_the_view_is_a_window_of_ten(self):
        adapter = ConversationAdapter()
        assert adapter.default_view_policy(metadata_of(adapter, "ann", "bob"), "bob") == WindowedSummary(10)


class TestDiscussion:
    def test_the_turn_goes_round_from_the_creator_on(self):
        played = Played(DiscussionAdapter(), creator="bob")
        spoken = []
        for _ in range(5):
            spoken.append(played.awaited)
            played.say(played.awaited)
        assert spoken == ["bob", "cid", "ann", "bob", "cid"]
        assert played.state.turn_count == 5

    def test_out_of_turn_is_refused(self):
        with pytest.raises(ProtocolError, match="expects 'ann' to speak, and 'bob' did; post again when"):
            Played(DiscussionAdapter()).say("bob")

    @pytest.mark.parametrize("ordering", ["dynamic", None, 3])
    def test_it_has_one_ordering(self, ordering):
        with pytest.raises(ProtocolError, match=r"the knob 'ordering' is .* the only supported value is 'round_robin'"):
            Played(DiscussionAdapter(), ordering=ordering)

    def test_who_is_silent_is_left_out_until_it_posts(self):
        played = Played(DiscussionAdapter())
        played.say("ann")
        played.violate("hide", "bob")
        assert (played.awaited, played.state.hidden) == ("cid", ("bob",))
        played.say("cid")
        played.say("ann")
        assert played.awaited == "cid"
        played.say("bob", "sorry, I am back")  # at any time, and the turn stays with cid
        assert (played.awaited, played.state.hidden) == ("cid", ())
        played.say("cid")
        played.say("ann")
        assert played.awaited == "bob"
        assert played.refolded() == played.state

    def test_who_takes_the_turn_of_a_hidden_one_answers_the_newest_text(self):
        played = Played(DiscussionAdapter())
        text = played.say("ann")
        played.violate("hide", "bob")
        assert played.adapter.expected_next(played.metadata, played.state) == ExpectedTurn("cid", text.envelope_id)

    def test_where_all_are_hidden_any_of_them_may_begin_again(self):
        played = Played(DiscussionAdapter(), "ann", "bob")
        played.violate("hide", "ann")
        played.violate("hide", "bob")
        assert (played.awaited, played.state.hidden) == (None, ("ann", "bob"))
        played.say("bob")
        assert (played.awaited, played.state.hidden) == ("bob", ("ann",))
        played.say("ann")
        played.say("bob")
        assert played.awaited == "ann"

    @pytest.mark.parametrize("action", ["audit", "warn", "notify"])
    def test_other_violations_leave_the_turn_where_it_is(self, action):
        played = Played(DiscussionAdapter())
        before = played.state
        played.violate(action, "ann")
        assert (played.state, played.result.next_state) == (before, None)

    def test_the_view_is_two_rounds_with_names(self):
        adapter = DiscussionAdapter()
        assert adapter.default_view_policy(metadata_of(adapter), "ann") == NamedWindowedSummary(6)


def adapters_and_sessions():
    graph = TransitionGraph.round_robin(["ann", "bob"]).to_dict()
    return [
        (ConsultingAdapter(), {}),
        (ConversationAdapter(), {}),
        (DiscussionAdapter(), {}),
        (WorkflowAdapter(), {"graph": graph}),
    ]


@pytest.mark.parametrize(("adapter", "knobs"), adapters_and_sessions())
def test_a_text_that_is_none_is_refused(adapter, knobs):
    played = Played(adapter, "ann", "bob", **knobs)
    with pytest.raises(ProtocolError, match=r"from 'ann' has the text of type int; give event_data=\{'text': '…'\}"):
        played.post("ann", EV_TEXT, {"text": 7})
    with pytest.raises(ProtocolError, match="has the text missing"):
        played.post("ann", EV_TEXT, {})


@pytest.mark.parametrize(("adapter", "knobs"), adapters_and_sessions())
def test_unknown_types_pass_and_change_no_state(adapter, knobs):
    played = Played(adapter, "ann", "bob", **knobs)
    before = played.state
    for kind in ("my.own", "ag2.task.progress", EV_SESSION_OPENED):
        played.post("bob", kind, {"anything": [1, None]})
    assert (played.state, played.result.next_state) == (before, None)


@pytest.mark.parametrize(("adapter", "knobs"), adapters_and_sessions())
def test_auto_close_closes_with_what_was_violated(adapter, knobs):
    played = Played(adapter, "ann", "bob", **knobs)
    played.violate("auto_close", "ann", kind="reply_within")
    assert played.result.next_state is SessionState.CLOSED
    assert played.result.auto_close_reason == "expectation_violated:reply_within"


class Reply:
    def __init__(self, content):
        self.content = content


@pytest.mark.parametrize(("adapter", "knobs"), adapters_and_sessions()[:3])
def test_a_round_is_the_text_of_the_reply(adapter, knobs):
    played = Played(adapter, "ann", "bob", **knobs)
    built = adapter.build_round_envelope(played.metadata, "ann", Reply("yes"), [], played.state, None)
    assert built == Envelope("s1", "ann", EV_TEXT, {"text": "yes"})
    assert adapter.extract_turn_input(built) == adapter.render_envelope(built) == "yes"
    assert adapter.build_round_envelope(played.metadata, "ann", Reply(""), [], played.state, None) is None


@pytest.mark.parametrize(
    ("adapter_class", "expectation", "said"),
    [
        (ConsultingAdapter, Expectation("ack_within", 3, "warn"), "waits for 'ack_within'; known: acks_within"),
        (ConsultingAdapter, Expectation("acks_within", 3, "remove"), "the action 'remove'; known: audit"),
        (ConsultingAdapter, Expectation("acks_within", 0, "warn"), "waits for 0 s; give a number above 0"),
        (ConsultingAdapter, Expectation("acks_within", float("nan"), "warn"), "waits for nan s"),
        (
            WorkflowAdapter,
            Expectation("turn_within", 3, "hide"),
            "the protocol has no rotation to skip participants in",
        ),
    ],
)
def test_expectations_that_cannot_work_are_refused(adapter_class, expectation, said):
    with pytest.raises(ConfigurationError, match=said):
        adapter_class([expectation])


def test_expectations_of_ones_own():
    own = Expectation("turn_within", 5, "hide")
    assert DiscussionAdapter([own]).manifest.expectations == (own,)
    assert DiscussionAdapter([]).manifest.expectations == ()


def test_views_have_ag2s_names_and_check_their_windows():
    views = [FullTranscript(), WindowedSummary(1), NamedTranscript(), NamedWindowedSummary(1)]
    assert [view.name for view in views] == [
        "full_transcript",
        "windowed_summary",
        "named_transcript",
        "named_windowed_summary",
    ]
    for view in (WindowedSummary, NamedWindowedSummary):
        for wrong in (0, -1, True, 2.0, "3"):
            with pytest.raises(ConfigurationError, match=r"recent_n of the view .* must be"):
                view(wrong)
