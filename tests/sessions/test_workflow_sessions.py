"""Workflows: the graph, handoffs, finishes, and variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from protocol_sessions import Played

from otel_assembly import ModelResponse, Tool, ToolCallEvent, ToolResultEvent
from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError, ProtocolError
from otel_assembly.events import ToolResultsEvent
from otel_assembly.sessions import (
    EV_CONTEXT_SET,
    EV_PACKET,
    AgentTarget,
    Always,
    ContextEquals,
    Finish,
    FromSpeaker,
    Handoff,
    NamedWindowedSummary,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    SessionState,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionDecision,
    TransitionGraph,
    TransitionRegistry,
    WorkflowAdapter,
    register_condition,
    register_target,
)

ROUND = TransitionGraph.round_robin(["ann", "bob", "cid"])


def played(graph=ROUND, adapter=None, **knobs):
    return Played(adapter or WorkflowAdapter(), graph=graph.to_dict(), **knobs)


def graph(*rules, first="ann", default=None, max_turns=None):
    transitions = [Transition(when, then, *priority) for when, then, *priority in rules]
    return TransitionGraph(first, transitions, default or TerminateTarget(), max_turns)


class TestGraph:
    def test_round_robin_goes_round_until_max_turns(self):
        flow = played(TransitionGraph.round_robin(["ann", "bob", "cid"], max_turns=4))
        for sender in ("ann", "bob", "cid"):
            flow.say(sender)
            assert flow.result.next_state is None
        flow.say("ann")
        assert (flow.result.next_state, flow.result.auto_close_reason) == (SessionState.CLOSED, "max_turns")
        with pytest.raises(ProtocolError, match="expects no participant to speak, and 'bob' did"):
            flow.say("bob")

    def test_a_sequence_ends_after_its_last_step(self):
        flow = played(TransitionGraph.sequence(["ann", "cid", "bob"]))
        for sender in ("ann", "cid", "bob"):
            assert flow.awaited == sender
            flow.packet(sender, body="done")
        assert flow.result.auto_close_reason == "sequence_complete"

    @pytest.mark.parametrize("steps", [[], ["ann", "bob", "ann"]])
    def test_a_sequence_that_cannot_be_is_refused(self, steps):
        with pytest.raises(ConfigurationError, match=r"at least 1 step|names 'ann' twice"):
            TransitionGraph.sequence(steps)

    def test_nobody_goes_round(self):
        with pytest.raises(ConfigurationError, match="round_robin takes at least 1 participant"):
            TransitionGraph.round_robin([])

    def test_the_lowest_priority_is_looked_at_first_and_then_the_order(self):
        flow = played(
            graph(
                (Always(), AgentTarget("bob"), 5),
                (Always(), AgentTarget("cid"), 1),
                (Always(), AgentTarget("ann"), 1),
            )
        )
        flow.say("ann")
        assert flow.awaited == "cid"

    def test_stay_revert_and_terminate(self):
        flow = played(
            graph(
                (ToolCalled("again"), StayTarget()),
                (FromSpeaker("ann"), AgentTarget("bob")),
                (FromSpeaker("bob"), RevertToInitiatorTarget()),
                default=TerminateTarget("no rule"),
            )
        )
        flow.packet("ann", "handoff", tool="again")
        assert flow.awaited == "ann"
        flow.say("ann")
        flow.say("bob")
        assert flow.awaited == "ann"

    def test_where_no_rule_fits_the_default_ends_it(self):
        flow = played(graph((FromSpeaker("bob"), StayTarget())))
        flow.say("ann")
        assert flow.result.auto_close_reason == "after_work"

    def test_a_target_of_ones_own_is_registered_and_kept(self):
        @dataclass(frozen=True)
        class Named:
            who: str
            name: ClassVar[str] = "named_in_a_test"

            def resolve(self, state, envelope):
                return TransitionDecision(self.who)

        @dataclass(frozen=True)
        class Late:
            turns: int
            name: ClassVar[str] = "late_in_a_test"

            def evaluate(self, state, envelope):
                return state.turn_count >= self.turns

        own = graph((Late(2), Named("eve")), default=StayTarget())
        with pytest.raises(ProtocolError, match="there is no transition condition 'late_in_a_test'; known: always"):
            played(own)
        register_target(Named)
        register_condition(Late)
        flow = played(own)
        flow.say("ann")
        assert flow.awaited == "ann"
        flow.say("ann")  # eve takes no part: the session ends rather than wait for nobody
        assert flow.result.auto_close_reason == "unknown_speaker:eve"

    def test_an_adapter_with_a_registry_of_its_own_knows_no_others(self):
        @dataclass(frozen=True)
        class Elsewhere:
            name: ClassVar[str] = "elsewhere_in_a_test"

            def resolve(self, state, envelope):
                return TransitionDecision("bob")

        registry = TransitionRegistry()
        registry.register_target(Elsewhere)
        own = graph(default=Elsewhere())
        flow = played(own, WorkflowAdapter(registry=registry))
        flow.say("ann")
        assert flow.awaited == "bob"
        with pytest.raises(ProtocolError, match="no transition target 'elsewhere_in_a_test'"):
            played(own)


class TestGraphData:
    def test_it_is_read_back_equal(self):
        own = graph(
            (Always(), RoundRobinTarget(), 1),
            (ToolCalled("escalate"), AgentTarget("bob")),
            (ContextEquals("done", True), TerminateTarget("done")),
            (FromSpeaker("bob"), RevertToInitiatorTarget(), -3),
            default=StayTarget(),
            max_turns=10,
        )
        assert TransitionGraph.loads(own.to_dict()) == own
        assert TransitionGraph.loads(own.dumps()) == own

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            ("{", "a graph is not valid JSON"),
            ([], "a graph is a JSON object, not list"),
            ({}, "initial_speaker of a graph is None; give a participant's id"),
            ({"initial_speaker": "ann", "max_turns": 0}, "max_turns of a graph is 0; give 1 or more"),
            ({"initial_speaker": "ann", "max_turns": True}, "max_turns of a graph is True"),
            ({"initial_speaker": "ann", "transitions": {"a": 1}}, "transitions of a graph is a list, not dict"),
            ({"initial_speaker": "ann", "transitions": [7]}, "transition 0 of a graph is a JSON object, not int"),
            (
                {"initial_speaker": "ann", "transitions": [{"when": {"name": "always"}, "then": None}]},
                "transition 0 of a graph: a target is a JSON object with a name, not None",
            ),
            (
                {"initial_speaker": "ann", "default_target": {"name": "agent", "args": {"agent": "bob"}}},
                "transition target 'agent' does not accept {'agent': 'bob'}",
            ),
            (
                {"initial_speaker": "ann", "default_target": {"name": "agent", "args": {"agent_id": []}}},
                r"agent_id of transition target 'agent' is \[\]; give a text",
            ),
            ({"initial_speaker": "ann", "default_target": {"name": "agent", "args": [1]}}, "does not accept"),
            (
                {"initial_speaker": "a", "transitions": [{"when": {"name": "always"}, "then": {}, "priority": "1"}]},
                "priority of transition 0 of a graph is '1'; give a whole number",
            ),
        ],
    )
    def test_what_is_no_graph_is_refused_and_says_where(self, data, said):
        with pytest.raises(ConfigurationError, match=said):
            TransitionGraph.loads(data)

    @pytest.mark.parametrize(
        ("knobs", "said"),
        [
            ({}, r"takes the knob 'graph'; give TransitionGraph\(…\).to_dict\(\)"),
            ({"graph": ROUND}, "takes the knob 'graph'"),
            ({"graph": {}}, "cannot read its knob 'graph': initial_speaker"),
            ({"graph": graph(first="eve").to_dict()}, "its graph names 'eve', not in participants; they are 'ann'"),
            ({"graph": graph(default=AgentTarget("eve")).to_dict()}, "its graph names 'eve'"),
            ({"graph": graph((FromSpeaker("eve"), StayTarget())).to_dict()}, "its graph names 'eve'"),
            ({"graph": ROUND.to_dict(), "context_vars": [1]}, "takes a JSON object as its knob 'context_vars'"),
            ({"graph": ROUND.to_dict(), "names": ["Ann"]}, "needs {participant: name} as its knob 'names'"),
            (
                {"graph": ROUND.to_dict(), "names": {"eve": "Eve"}},
                "its knob 'names' names 'eve', who are not participants",
            ),
            ({"graph": ROUND.to_dict(), "names": {"ann": "A", "bob": "A"}}, "gives 'A' to two participants"),
            ({"graph": ROUND.to_dict(), "names": {"ann": "bob"}}, "gives 'bob' to two participants"),
        ],
    )
    def test_a_session_that_cannot_be_is_refused(self, knobs, said):
        with pytest.raises(ProtocolError, match=said):
            Played(WorkflowAdapter(), **knobs)


class TestPackets:
    def test_a_handoff_goes_to_its_target_before_any_rule(self):
        flow = played()
        flow.packet("ann", "handoff", "please look", target="cid", tool="to_cid", reason="an expert")
        assert flow.awaited == "cid"
        assert flow.adapter.extract_turn_input(flow.log[-1]) == "[Handed off via to_cid] an expert\nplease look"

    def test_a_tool_goes_where_its_rule_says(self):
        flow = played(graph((ToolCalled("to_cid"), AgentTarget("cid")), default=StayTarget()))
        flow.packet("ann", "handoff", tool="to_cid")
        assert flow.awaited == "cid"
        assert flow.adapter.render_envelope(flow.log[-1]) == "[Handed off via to_cid]"

    def test_a_finish_ends_it_with_its_reason(self):
        flow = played()
        flow.packet("ann", "finish", target="bob", reason="all is said")
        assert flow.result.auto_close_reason == "all is said"
        assert flow.awaited is None

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            ({"body": "x"}, r"has no routing; give event_data=\{'routing'"),
            ({"routing": "text"}, "has no routing"),
            ({"routing": {}}, "has the routing kind None; known: text, handoff, finish"),
            ({"routing": {"kind": "jump"}}, "has the routing kind 'jump'"),
            ({"routing": {"kind": ["text"]}}, r"has the routing kind \['text'\]"),
            ({"routing": {"kind": "handoff"}}, "is a handoff without a target; give its routing a target"),
            (
                {"routing": {"kind": "handoff", "target": "eve"}},
                "hands off to 'eve', not a participant; give one of",
            ),
            ({"routing": {"kind": "handoff", "target": 3}}, "target of its routing is of type int; give a text"),
            ({"routing": {"kind": "finish", "reason": None}}, "reason of its routing is of type NoneType"),
            ({"routing": {"kind": "text"}, "body": 7}, "its body is of type int; give a text"),
            ({"routing": {"kind": "text"}, "context_updates": [1]}, "its updates are of type list"),
            ({"routing": {"kind": "text"}, "context_updates": {"set": [1]}}, "'set' of its updates is no JSON object"),
            ({"routing": {"kind": "text"}, "context_updates": {"delete": "a"}}, "'delete' of its updates is no list"),
        ],
    )
    def test_a_packet_that_is_none_is_refused(self, data, said):
        flow = played()
        before = flow.state
        with pytest.raises(ProtocolError, match=said):
            flow.post("ann", EV_PACKET, data)
        assert flow.state == before

    def test_out_of_turn_is_refused(self):
        with pytest.raises(ProtocolError, match="expects 'ann' to speak, and 'bob' did"):
            played().packet("bob", body="me")


class TestVariables:
    def test_a_packet_sets_and_deletes_before_the_graph_is_asked(self):
        rules = graph((ContextEquals("kind", "bill"), AgentTarget("cid")), default=StayTarget())
        flow = played(rules, context_vars={"old": 1, "kept": [1]})
        flow.packet("ann", context_updates={"set": {"kind": "bill"}, "delete": ["old", "never"]})
        assert flow.awaited == "cid"
        assert flow.state.context_vars == {"kind": "bill", "kept": [1]}

    def test_anybody_who_takes_part_sets_them_at_any_time_and_no_turn_passes(self):
        flow = played()
        flow.post("cid", EV_CONTEXT_SET, {"set": {"a": 1, "b": 2}})
        flow.post("bob", EV_CONTEXT_SET, {"delete": ["a"]})
        assert (flow.awaited, flow.state.turn_count, flow.state.context_vars) == ("ann", 0, {"b": 2})
        with pytest.raises(ProtocolError, match="only accepts sends from participants"):
            flow.post("eve", EV_CONTEXT_SET, {"set": {"a": 1}})

    def test_one_that_is_not_set_is_none(self):
        flow = played(graph((ContextEquals("a", None), AgentTarget("bob")), default=StayTarget()))
        flow.say("ann")
        assert flow.awaited == "bob"

    def test_what_a_sender_does_with_its_values_later_changes_no_state(self):
        flow, values = played(), [1]
        flow.post("ann", EV_CONTEXT_SET, {"set": {"a": values}})
        values.append(2)
        assert flow.state.context_vars == {"a": [1]}

    @pytest.mark.parametrize("data", [{}, {"set": 3}, {"delete": [1]}])
    def test_what_changes_nothing_is_refused(self, data):
        with pytest.raises(ProtocolError, match=r"changes nothing|'set' of its updates|'delete' of its updates"):
            played().post("ann", EV_CONTEXT_SET, data)

    def test_what_is_nested_beyond_reason_is_refused_and_never_folded(self):
        deep = []
        for _ in range(2000):
            deep = [deep]
        flow = played()
        with pytest.raises(ProtocolError, match="the value of 'a' is nested deeper than 50 levels"):
            flow.post("ann", EV_CONTEXT_SET, {"set": {"a": deep}})


class Reply:
    def __init__(self, content=""):
        self.content = content


class TestRounds:
    """What an agent's round becomes."""

    def built(self, flow, events, content=""):
        return flow.adapter.build_round_envelope(flow.metadata, "ann", Reply(content), events, flow.state, None)

    def test_a_text_is_a_packet(self):
        flow = played()
        envelope = self.built(flow, [], "hello")
        assert envelope.event_data == {
            "routing": {"kind": "text"},
            "context_updates": {"set": {}, "delete": []},
            "body": "hello",
        }
        assert flow.adapter.render_envelope(envelope) == "hello"
        flow.post("ann", envelope.event_type, envelope.event_data)

    def test_a_silent_round_is_nothing(self):
        call = ToolCallEvent(name="look")
        done = ToolResultEvent(parent_id=call.id, content='{"target": "cid", "reason": ""}')
        assert self.built(played(), [call, done]) is None

    async def test_a_handoff_that_a_tool_of_our_agent_returned(self):
        def route() -> Handoff:
            return Handoff("The Expert", "knows")

        text = await Tool(route).run({}, Context(), lambda: None)
        call = ToolCallEvent(name="route")
        events = [
            ModelResponse(tool_calls=(call,)),
            ToolResultsEvent(results=(ToolResultEvent(parent_id=call.id, content=text),)),
        ]
        flow = played(names={"cid": "The Expert"})
        envelope = self.built(flow, events)
        assert envelope.event_data["routing"] == {
            "kind": "handoff",
            "target": "cid",
            "reason": "knows",
            "tool": "route",
        }
        flow.post("ann", envelope.event_type, envelope.event_data)
        assert flow.awaited == "cid"

    async def test_a_finish_that_a_tool_of_our_agent_returned(self):
        def stop() -> Finish:
            return Finish("it works")

        text = await Tool(stop).run({}, Context(), lambda: None)
        call = ToolCallEvent(name="stop")
        envelope = self.built(played(), [call, ToolResultEvent(parent_id=call.id, content=text)])
        assert envelope.event_data["routing"] == {
            "kind": "finish",
            "summary": "it works",
            "reason": "finished",
            "tool": "stop",
        }

    def test_a_tool_that_the_graph_names_with_the_reason_that_the_model_gave(self):
        flow = played(graph((ToolCalled("to_cid"), AgentTarget("cid"))))
        calls = [ToolCallEvent(name="other"), ToolCallEvent(name="to_cid", arguments='{"reason": "hard"}')]
        assert self.built(flow, calls).event_data["routing"] == {"kind": "handoff", "tool": "to_cid", "reason": "hard"}

    def test_the_first_call_that_asks_decides(self):
        flow = played(graph((ToolCalled("to_cid"), AgentTarget("cid")), (ToolCalled("to_bob"), AgentTarget("bob"))))
        calls = [ToolCallEvent(name="to_bob"), ToolCallEvent(name="to_cid", arguments="no json")]
        assert self.built(flow, calls).event_data["routing"]["tool"] == "to_bob"

    def test_an_agent_that_is_none_of_ours_gives_its_handoff_among_its_events(self):
        envelope = self.built(played(), [object(), Handoff("bob")], "over to you")
        assert envelope.event_data["routing"] == {"kind": "handoff", "target": "bob", "reason": ""}
        assert played().adapter.render_envelope(envelope) == "[Handed off]\nover to you"


class TestBuiltPackets:
    """What somebody without an agent sends."""

    def test_its_variables_are_set_and_its_target_is_found_by_name(self):
        flow = played(names={"cid": "The Expert"})
        envelope = flow.adapter.build_packet_envelope(
            flow.metadata, "ann", "look", routing=Handoff("The Expert"), context_set={"a": 1}, context_delete=["b"]
        )
        flow.post("ann", envelope.event_type, envelope.event_data)
        assert (flow.awaited, flow.state.context_vars) == ("cid", {"a": 1})

    def test_a_target_that_takes_no_part_is_refused(self):
        flow = played()
        with pytest.raises(ProtocolError, match="hands off to 'The Expert', not a participant"):
            flow.adapter.build_packet_envelope(flow.metadata, "ann", "look", routing=Handoff("The Expert"))

    def test_without_routing_the_graph_decides(self):
        flow = played()
        envelope = flow.adapter.build_packet_envelope(flow.metadata, "ann", "look")
        flow.post("ann", envelope.event_type, envelope.event_data)
        assert flow.awaited == "bob"


def test_the_view_is_two_rounds_with_names():
    flow = played()
    assert flow.adapter.default_view_policy(flow.metadata, "ann") == NamedWindowedSummary(6)
