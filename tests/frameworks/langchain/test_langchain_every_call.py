"""An assembly is what a model call is sent: for every call of a chat model, in a run of a graph or outside of any."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, wrap_model_call
from langchain_agents import summarizer, tool_loop
from langchain_calls import Client, Streaming, assert_every_call_is_told, client
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, trim_messages
from langchain_graph_programs import line
from langchain_parts import weather
from langchain_programs import PROGRAMS

from otel_assembly import SlidingWindowPolicy
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.langchain import AssemblyMiddleware
from otel_assembly.observe.conversations import AssemblyInput

pytestmark = pytest.mark.filterwarnings(
    "ignore:create_react_agent has been moved", "ignore:AgentStatePydantic has been"
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_every_call_is_told_with_all_that_the_model_received(program, telemetry):
    log = []
    watched = await program(log)
    assert log
    assert_every_call_is_told(telemetry, log)
    assert len({span.trace_id for span in telemetry.spans}) == PROGRAMS[program], telemetry.tree()
    uninstrument("langchain")
    try:
        alone = []
        assert await program(alone) == watched
        assert [call.plain for call in alone] == [call.plain for call in log]
    finally:
        instrument("langchain")


def steps(span):
    return [child.name.removeprefix("apply_policy ") for child in span.children if child.name.startswith("apply")]


TALK = [HumanMessage("One."), AIMessage("Two."), HumanMessage("Three.")]


def test_several_prompts_at_once_are_a_call_each(telemetry):
    log = []
    model = client(log, "Yes.")
    model.generate([TALK, TALK[:1], [SystemMessage("Be brief."), *TALK]])
    told = assert_every_call_is_told(telemetry, log)
    assert [span.attributes["assembly.events.out"] for span in told] == [3, 1, 3]


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
@pytest.mark.skipif(not hasattr(Client, "_chat_model_stream_v3"), reason="this release answers in no such events")
async def test_answers_as_typed_events_are_calls_too(telemetry):
    log = []
    model = client(log, "In many words.", of=Streaming)
    assert model.stream_events(TALK, version="v3").output.text == "In many words. "
    assert (await (await model.astream_events(TALK, version="v3"))).text == "In many words. "
    assert_every_call_is_told(telemetry, log)


def test_a_model_that_is_called_outside_of_any_graph_has_no_named_conversation(telemetry):
    log = []
    model = client(log, "Yes.")
    messages = [HumanMessage("One.")]
    for _ in range(3):
        messages += [model.invoke(messages), HumanMessage("More.")]
    told = assert_every_call_is_told(telemetry, log)
    assert not [span for span in told if "gen_ai.conversation.id" in span.attributes]
    assert [span.attributes["assembly.turn"] for span in told] == [0, 1, 2]  # it is one list that goes on
    assert len({span.attributes["assembly.ledger.id"] for span in told}) == 1


def test_what_is_trimmed_outside_of_any_graph_is_a_step_of_the_call_that_it_is_trimmed_for(telemetry):
    log = []
    model = client(log, ConnectionError("no"), "Yes.").with_retry(wait_exponential_jitter=False, stop_after_attempt=2)
    kept = trim_messages(TALK, max_tokens=2, token_counter=len)
    assert telemetry.spans == []
    model.invoke([SystemMessage("Be brief."), *kept])
    told = assert_every_call_is_told(telemetry, log)
    assert [steps(span) for span in told] == [["trim_messages"]] * 2
    assert [span.attributes["assembly.dropped.count"] for span in told] == [1, 1]
    assert [span.attributes["assembly.newly_dropped.count"] for span in told] == [0, 0]
    assert [span.attributes.get("assembly.resumed.count") for span in told] == [1, None]


def test_a_node_that_slices_by_hand_leaves_out_what_no_hook_explains(telemetry):
    log = []
    model = client(log, "Yes.")
    graph = line(answer=lambda state: {"messages": [model.invoke(state["messages"][-2:])]}).compile()
    graph.invoke({"messages": TALK})
    (span,) = assert_every_call_is_told(telemetry, log)
    assert steps(span) == ["framework"]
    assert span.attributes["assembly.events.in"] == 3
    assert telemetry.span("apply_policy framework").dropped_reasons == {"0": "policy"}


def test_tries_of_one_call_have_the_same_input_and_steps_and_one_summary(telemetry):
    @wrap_model_call
    def insists(request, handler):
        try:
            return handler(request)
        except ConnectionError:
            return handler(request)

    log = []
    model = client(log, ConnectionError("no"), "Yes.")
    create_agent(model, [weather], middleware=[summarizer("S", at=8, keep=4), insists]).invoke(
        {"messages": tool_loop(4)}
    )
    one, other = assert_every_call_is_told(telemetry, log)
    assert steps(one) == steps(other) == ["summarization"]
    assert one.offered == other.offered
    assert len(telemetry.spans_named("compact_block summary")) == 1


def test_a_model_that_a_middleware_asks_itself_is_told_as_its_own(telemetry):
    log = []
    guard = client(log, "Fine.", name="gpt-4.1")

    class Guards(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            guard.invoke([SystemMessage("Is that fine?"), HumanMessage(request.messages[-1].text)])
            return handler(request)

    agent = create_agent(client(log, "Yes."), [], middleware=[summarizer("S", at=3, keep=1), Guards()])
    agent.invoke({"messages": TALK})
    asked, answered = assert_every_call_is_told(telemetry, log)
    assert steps(asked) == []
    assert steps(answered) == ["summarization"]
    assert asked.attributes["assembly.ledger.id"] != answered.attributes["assembly.ledger.id"]


@pytest.mark.parametrize("made", ["before", "after"])
def test_what_the_plug_in_sends_is_told_once(before_us, assembly_telemetry, made):
    log = []
    model = client(log, ConnectionError("no"), "Yes.")

    @wrap_model_call
    def insists(request, handler):
        try:
            return handler(request)
        except ConnectionError:
            return handler(request)

    if made == "after":
        before_us()
    agent = create_agent(model, [weather], middleware=[AssemblyMiddleware([SlidingWindowPolicy(2)]), insists])
    if made == "before":
        before_us()
    agent.invoke({"messages": TALK})
    assert [len(call.messages) for call in log] == [2, 2]
    (span,) = assembly_telemetry.spans_named("assemble_context")
    assert steps(span) == ["sliding_window"]
    assert span.attributes["assembly.events.out"] == 2


@pytest.mark.skipif("window" not in AssemblyInput.__annotations__, reason="windows are not told of")
def test_the_limit_that_a_models_profile_names_is_known(telemetry):
    log = []
    model = client(log, "Yes.", profile={"max_input_tokens": 1_000})
    if not hasattr(model, "profile"):
        pytest.skip("models of this release have no profile")
    create_agent(model, []).invoke({"messages": TALK})
    (span,) = assert_every_call_is_told(telemetry, log)
    assert span.attributes["assembly.model.window"] == 1_000


class Continuing(Client):
    """Has the setting by which `ChatOpenAI` sends the messages behind the last response alone."""

    use_previous_response_id: bool = True


def test_where_openai_holds_the_messages_before_the_input_is_unknown(telemetry):
    model = client([], "Yes.", of=Continuing)
    answered = AIMessage("Two.", response_metadata={"id": "resp_1"})
    model.invoke(TALK)
    model.invoke([TALK[0], answered, TALK[2]])
    model.invoke(TALK, previous_response_id="resp_1")
    told = telemetry.spans_named("assemble_context")
    assert [span.attributes.get("assembly.input.unknown") for span in told] == [None, True, True]
    assert [span.attributes["assembly.events.out"] for span in told] == [3, 1, 3]
