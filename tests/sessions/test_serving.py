"""An agent that answers for a participant: once for each turn, however many serve it and whenever they are killed."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from contextlib import asynccontextmanager

import pytest
from sessions.talk import Talk, opened, said, text

from otel_assembly import Agent, AlertPolicy, ConfigurationError, ConversationPolicy, HaltedError, ObserverAlert, Tool
from otel_assembly.errors import LogUnavailableError, ModelCallError, NotFoundError
from otel_assembly.events import ModelResponse, ToolCallEvent
from otel_assembly.sessions import (
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    AgentTarget,
    ConsultingAdapter,
    ConversationAdapter,
    DiscussionAdapter,
    Expectation,
    FromSpeaker,
    Handoff,
    Hub,
    MemorySessionLog,
    NamedWindowedSummary,
    ParticipantView,
    SessionState,
    StayTarget,
    Transition,
    TransitionGraph,
    WorkflowAdapter,
    serve,
)
from otel_assembly.testing import ScriptedModel

WHO = ("ann", "bob", "cid")


@pytest.fixture(params=["memory", "sqlite"])
def log_kind(request):
    return request.param


def a_hub(log, **more):
    adapters = [
        ConsultingAdapter(),
        ConversationAdapter(),
        DiscussionAdapter(),
        WorkflowAdapter(),
        Talk(in_turns=False),
    ]
    return Hub(log, adapters, **more)


@pytest.fixture
def hub(log):
    return a_hub(log)


@asynccontextmanager
async def served(hub, agents, **settings):
    """Agents that are served by the participants' ids, for as long as the block lasts."""
    given = {"pause": 0.01, "lease_seconds": 1_000.0, **settings}
    tasks = [asyncio.create_task(serve(hub, agent, who, **given)) for who, agent in agents]
    try:
        yield tasks
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(check):
    while not await check():
        await asyncio.sleep(0.01)


async def has_said(hub, name, *texts):
    async def check():
        return len(await said(hub, name)) >= len(texts)

    await until(check)
    assert await said(hub, name) == list(texts)


async def all_confirmed(hub, name, *who):
    async def check():
        return not any([await hub.inbox(name, item) for item in who])

    await until(check)


def agent_of(name, *answers, **more):
    return Agent(name, f"You are {name}.", ScriptedModel(*answers), **more)


def down(problem):
    """A provider that does not answer."""
    return ModelCallError(problem, provider="scripted", model="scripted")


def sent(agent, call=-1):
    """The texts of a model call; that a turn began is none."""
    texts = [getattr(e, "content", None) or getattr(e, "summary", "") for e in agent.model.received[call].events]
    return [text for text in texts if text]


async def test_agents_join_and_speak_in_turn(hub):
    bob, cid = agent_of("bob", "I am bob", "again bob"), agent_of("cid", "I am cid", "")
    async with served(hub, [("bob", bob), ("cid", cid)]):
        name = (await hub.create("discussion", "ann", WHO)).session_id

        async def is_open():
            return (await hub.folded(name)).state is SessionState.ACTIVE

        await until(is_open)
        await hub.post(text(name, "ann", "who is there?"))
        await has_said(hub, name, "who is there?", "I am bob", "I am cid")
        await hub.post(text(name, "ann", "and now?"))
        await has_said(hub, name, "who is there?", "I am bob", "I am cid", "and now?", "again bob")
        await all_confirmed(hub, name, "bob", "cid")
    assert sent(cid, 0) == ["[ann]: who is there?", "[bob]: I am bob"]
    assert sent(bob) == ["[ann]: who is there?", "I am bob", "[cid]: I am cid", "[ann]: and now?"]


async def test_an_answer_names_what_it_answers(hub):
    name = await opened(hub, "ann", "bob")
    asked = await hub.post(text(name, "ann", "well?"))
    async with served(hub, [("bob", agent_of("bob", "yes"))], session_id=name):
        await has_said(hub, name, "well?", "yes")
    answer = (await hub.envelopes(name))[-1]
    assert (answer.causation_id, answer.idempotency_key) == (asked.envelope_id, asked.envelope_id)


def cut_off(content, reason="max_tokens"):
    return ModelResponse(content=content, finish_reason=reason)


@pytest.mark.parametrize("answer", [lambda: agent_of("bob", cut_off("It is 4")), lambda: lambda _: cut_off("It is 4")])
@pytest.mark.parametrize(("kind", "key"), [("consulting", "text"), ("workflow", "body")])
async def test_an_answer_that_was_cut_off_says_so(open_log, kind, key, answer):
    hub, reader = a_hub(open_log()), a_hub(open_log())
    graph = TransitionGraph.round_robin(["ann", "bob"]).to_dict()
    knobs = {"graph": graph} if kind == "workflow" else {}
    name = (await hub.create(kind, "ann", ["ann", "bob"], knobs=knobs)).session_id
    async with served(hub, [("bob", answer())], session_id=name):

        async def is_open():
            return (await hub.folded(name)).state is SessionState.ACTIVE

        await until(is_open)
        asked = await hub.post(text(name, "ann", "what is it?"))

        async def is_answered():
            return await reader.posted_under(name, "bob", asked.envelope_id)

        await until(is_answered)
    envelopes = await reader.envelopes(name)
    (answered,) = (
        envelope for envelope in envelopes if envelope.causation_id == asked.envelope_id and envelope.sender_id == "bob"
    )
    assert answered.event_data[key] == "It is 4"
    assert (answered.is_truncated, answered.finish_reason, asked.is_truncated) == (True, "length", False)


async def test_the_models_of_others_read_that_an_answer_was_cut_off(hub):
    bob = agent_of("bob", cut_off("It is 4"), "It is 42")
    cid = agent_of("cid", "It is 4?", cut_off("So", "content_filter"))
    name = (await hub.create("discussion", "ann", WHO)).session_id
    for who in ("bob", "cid"):
        await hub.join(name, who)
    async with served(hub, [("bob", bob), ("cid", cid)], session_id=name):
        await hub.post(text(name, "ann", "what is it?"))
        await has_said(hub, name, "what is it?", "It is 4", "It is 4?")
        await hub.post(text(name, "ann", "well?"))
        await has_said(hub, name, "what is it?", "It is 4", "It is 4?", "well?", "It is 42", "So")
    assert sent(cid, 0) == ["[ann]: what is it?", "[bob]: It is 4\n[incomplete: length]"]
    assert sent(bob)[:2] == ["[ann]: what is it?", "It is 4"]
    reopened = await ParticipantView.open(hub, name, "bob")
    await reopened.read()
    own = [event for event in reopened.history if isinstance(event, ModelResponse)]
    assert [(event.content, event.is_truncated) for event in own] == [("It is 4", True), ("It is 42", False)]
    assert reopened.history[-1].content == "[cid]: So\n[incomplete: content_filter]"


async def test_an_answer_that_was_cut_off_before_its_first_word_is_audited(hub, caplog):
    name = await opened(hub, "ann", "bob")
    with caplog.at_level(logging.ERROR, "otel_assembly.sessions.audit"):
        async with served(hub, [("bob", agent_of("bob", cut_off("")))], session_id=name):
            await hub.post(text(name, "ann", "well?"))
            await all_confirmed(hub, name, "bob")
    assert await said(hub, name) == ["well?"]
    assert "unanswered" in caplog.text
    assert "the model's answer was cut off (length)" in caplog.text


async def test_one_session_is_served_until_it_is_over(hub):
    name = (await hub.create("consulting", "ann", ["ann", "bob"])).session_id
    task = asyncio.create_task(serve(hub, agent_of("bob", "42"), "bob", session_id=name))

    async def is_open():
        return (await hub.folded(name)).state is SessionState.ACTIVE

    await until(is_open)
    await hub.post(text(name, "ann", "what is it?"))
    await task
    assert await said(hub, name) == ["what is it?", "42"]
    assert (await hub.folded(name)).state is SessionState.CLOSED
    assert not await hub.inbox(name, "bob")


async def test_a_callable_is_served_like_an_agent(hub):
    given = []

    async def answer(events):
        given.append([event.content for event in events])
        return f"{len(events)} events"

    name = await opened(hub, *WHO)
    async with served(hub, [("bob", answer)], session_id=name, view=NamedWindowedSummary(3)):
        await hub.post(text(name, "ann", "one"))
        await has_said(hub, name, "one", "1 events")
        await hub.post(text(name, "cid", "two"))
        await has_said(hub, name, "one", "1 events", "two", "3 events")
    assert given == [["[ann]: one"], ["[ann]: one", "1 events", "[cid]: two"]]


async def test_a_callable_may_say_nothing_or_route(hub):
    graph = TransitionGraph.round_robin(list(WHO))
    name = (await hub.create("workflow", "ann", WHO, knobs={"graph": graph.to_dict()})).session_id

    class Reply:
        content = "over to cid"
        events = (Handoff("cid", "he knows"),)

    async with served(hub, [("bob", lambda events: Reply()), ("cid", lambda events: None)], session_id=name):

        async def is_open():
            return (await hub.folded(name)).state is SessionState.ACTIVE

        await until(is_open)
        await hub.post(text(name, "ann", "who knows?"))
        await all_confirmed(hub, name, "bob", "cid")

        async def handed():
            return (await hub.folded(name)).adapter_state.expected_next_speaker == "cid"

        await until(handed)
        await all_confirmed(hub, name, "bob", "cid")
    assert (await hub.envelopes(name))[-1].event_data["routing"]["kind"] == "handoff"


def staying(max_turns):
    """A workflow that gives bob the turn, and leaves it with him."""
    rules = (Transition(FromSpeaker("ann"), AgentTarget("bob")), Transition(FromSpeaker("bob"), StayTarget()))
    return {"graph": TransitionGraph("ann", rules, max_turns=max_turns).to_dict()}


async def test_who_keeps_the_turn_in_a_workflow_is_asked_to_go_on(open_log):
    one, two = a_hub(open_log()), a_hub(open_log())
    name = (await one.create("workflow", "ann", WHO, knobs=staying(4))).session_id
    bob = agent_of("bob", "first", "second", "third")
    async with served(one, [("bob", bob), ("cid", agent_of("cid"))], session_id=name) as tasks:

        async def is_open():
            return (await two.folded(name)).state is SessionState.ACTIVE

        await until(is_open)
        await one.post(text(name, "ann", "count"))
        await asyncio.gather(*tasks)
    packets = [e for e in await two.envelopes(name) if e.event_type == EV_PACKET]
    assert [e.event_data["body"] for e in packets] == ["first", "second", "third"]
    assert [e.causation_id for e in packets[1:]] == [e.envelope_id for e in packets[:-1]]
    again = "It is your turn again: go on."
    assert sent(bob) == ["[ann]: count", "first", again, "second", again]


async def test_who_keeps_the_turn_and_says_nothing_is_not_asked_for_ever(open_log):
    hub = a_hub(open_log())
    name = (await hub.create("workflow", "ann", ["ann", "bob"], knobs=staying(None))).session_id
    asked = []

    async def answer(events):
        asked.append([event.content for event in events])
        return "one" if len(asked) == 1 else None

    async with served(hub, [("bob", answer)], session_id=name, sweep_seconds=0.01):

        async def is_open():
            return (await hub.folded(name)).state is SessionState.ACTIVE

        await until(is_open)
        await hub.post(text(name, "ann", "count"))

        async def asked_twice():
            return len(asked) > 1

        await until(asked_twice)
        await asyncio.sleep(0.2)
    assert asked == [["[ann]: count"], ["[ann]: count", "one", "It is your turn again: go on."]]
    # Another server of bob's asks again: it does not know that he has nothing to say.
    async with served(a_hub(open_log()), [("bob", lambda events: "two")], session_id=name):

        async def went_on():
            return (await hub.folded(name)).adapter_state.turn_count > 2

        await until(went_on)


async def test_who_is_alone_in_a_discussion_waits_for_the_others(hub):
    hub = Hub(hub._log, [DiscussionAdapter([Expectation("turn_within", 0.05, "hide")])])
    name = (await hub.create("discussion", "ann", ["ann", "bob"])).session_id
    await hub.join(name, "bob")
    ann = agent_of("ann", "one", "two")
    await hub.post(text(name, "ann", "is anybody there?"))
    async with served(hub, [("ann", ann)], session_id=name, sweep_seconds=0.02):

        async def is_alone():
            return "bob" in (await hub.folded(name)).adapter_state.hidden

        await until(is_alone)
        await asyncio.sleep(0.1)
    assert ann.model.received == []


async def test_two_servers_of_one_participant_ask_once(open_log):
    one, two = a_hub(open_log()), a_hub(open_log())
    name = await opened(one, "ann", "bob")
    asked, answer_now = [], asyncio.Event()

    def slow(word):
        async def answer(prompts, events):
            asked.append(word)
            await answer_now.wait()
            return word

        return answer

    bobs = [agent_of("bob", slow(word), "next") for word in ("first", "second")]

    async def is_asked():
        return bool(asked)

    async def all_said():
        return len(await said(one, name)) == 4

    async with served(one, [("bob", bobs[0])]), served(two, [("bob", bobs[1])]):
        await one.post(text(name, "ann", "well?"))
        await until(is_asked)
        await two.post(text(name, "ann", "are you there?"))  # wakes both servers
        answer_now.set()
        await until(all_said)
    assert sum(len(bob.model.received) for bob in bobs) == 2
    well, there, answer, more = await said(one, name)
    assert (well, there, answer) == ("well?", "are you there?", asked[0])
    # The other server's agent has not answered yet.
    assert more == ("next" if len(asked) == 1 else asked[1])


async def test_a_server_that_was_killed_before_it_posted_asks_again_and_one_that_was_killed_after_does_not(open_log):
    hub = a_hub(open_log())
    name = await opened(hub, "ann", "bob")
    await hub.post(text(name, "ann", "well?"))
    asking = asyncio.Event()

    async def hangs(prompts, events):
        asking.set()
        await asyncio.Event().wait()

    async with served(hub, [("bob", agent_of("bob", hangs))]):
        await asking.wait()
    assert await said(hub, name) == ["well?"]

    posts = a_hub(open_log())
    post = posts.post

    async def post_and_die(*given, **more):
        await post(*given, **more)
        raise asyncio.CancelledError

    posts.post = post_and_die
    async with served(posts, [("bob", agent_of("bob", "yes"))]):
        await has_said(hub, name, "well?", "yes")
    assert [d.envelope.event_data for d in await hub.inbox(name, "bob")][-1] == {"text": "well?"}

    silent = agent_of("bob")
    async with served(a_hub(open_log()), [("bob", silent)]):
        await all_confirmed(hub, name, "bob")
    assert await said(hub, name) == ["well?", "yes"]
    assert silent.model.received == []


async def test_an_agent_that_raises_is_asked_again_and_its_tools_do_not_run_twice(hub, caplog):
    ran = []

    def look() -> str:
        """Look."""
        ran.append(1)
        return "seen"

    call = ModelResponse(tool_calls=(ToolCallEvent(id="c1", name="look"),))
    bob = agent_of("bob", call, down("it is not there"), "it is there", tools=[look])
    name = await opened(hub, "ann", "bob")
    async with served(hub, [("bob", bob)], session_id=name):
        await hub.post(text(name, "ann", "look!"))
        await has_said(hub, name, "look!", "it is there")
    assert ran == [1]
    assert sent(bob) == ["look!", "seen"]
    assert "'bob' raised ModelCallError on row" in caplog.text


async def test_what_cannot_be_answered_is_told_and_what_comes_next_is_answered(hub, caplog):
    bob = agent_of("bob", *[down("secret words")] * 2, "now I can")
    name = await opened(hub, "ann", "bob")
    async with served(hub, [("bob", bob)], session_id=name, attempts=2):
        asked = await hub.post(text(name, "ann", "one"))
        await all_confirmed(hub, name, "bob")
        await hub.post(text(name, "ann", "two"))
        await has_said(hub, name, "one", "two", "now I can")
    (line,) = [r.message for r in caplog.records if r.levelno == logging.ERROR]
    assert line.startswith(f"unanswered: session={name!r} participant='bob' envelope={asked.envelope_id!r} row=")
    assert line.endswith("error=ModelCallError")
    assert sent(bob) == ["one", "two"]


async def test_a_halted_conversation_is_served_no_more_and_what_it_leaves_is_answered_by_the_next_server(hub, caplog):
    async def alarm(prompts, events):
        await bob_session.stream.send(ObserverAlert(source="watch", severity="fatal", message="stop"))
        return "too late"

    bob = agent_of("bob", alarm)
    open_session = bob.open_session
    bob_session = None

    def opened_for(*given, **more):
        nonlocal bob_session
        own = open_session(*given, **more)
        bob_session = own.session
        return own

    bob.open_session = opened_for
    name = await opened(hub, "ann", "bob")
    await hub.post(text(name, "ann", "well?"))
    with pytest.raises(HaltedError):
        await serve(hub, bob, "bob", session_id=name)
    assert (await hub.inbox(name, "bob"))[0].envelope.event_data == {"text": "well?"}
    async with served(hub, [("bob", agent_of("bob", "all is well"))]):
        await has_said(hub, name, "well?", "all is well")


async def test_what_expired_is_no_turn_s_input_and_is_in_the_view(log):
    now = [1_000.0]
    hub = a_hub(log, clock=lambda: now[0])
    name = await opened(hub, "ann", "bob")
    await hub.post(text(name, "ann", "quick!", ttl_seconds=5))
    now[0] += 10
    await hub.post(text(name, "ann", "never mind"))
    bob = agent_of("bob", "fine")
    async with served(hub, [("bob", bob)], session_id=name):
        await has_said(hub, name, "quick!", "never mind", "fine")
    assert sent(bob) == ["quick!", "never mind"]


async def test_a_turn_is_one_assembly_whose_chain_begins_with_the_view(hub, assembly_telemetry):
    bob = agent_of("bob", "one", "two", "three", assembly=[AlertPolicy(), ConversationPolicy()])
    name = await opened(hub, "ann", "bob")
    async with served(hub, [("bob", bob)], session_id=name, view=NamedWindowedSummary(2)):
        for turn, answer in enumerate(("one", "two", "three")):
            await hub.post(text(name, "ann", f"turn {turn}"))

            async def answered(answer=answer):
                return (await said(hub, name))[-1] == answer

            await until(answered)
    assert len(bob.model.received) == 3
    names = [s.name for s in assembly_telemetry.spans]
    assert names.count("assemble_context bob") + names.count("assemble_context") == 3, names
    policies = [n for n in names if n.startswith("apply_policy")]
    assert policies == ["apply_policy alert", "apply_policy named_windowed_summary", "apply_policy conversation"] * 3
    counts = [
        (s.attributes["assembly.envelopes.in"], s.attributes["assembly.envelopes.out"])
        for s in assembly_telemetry.spans_named("project_view named_windowed_summary")
    ]
    assert [out for _, out in counts] == [1, 2, 2]
    assert sent(bob) == ["Earlier in this session: 3 messages from ann, bob.", "two", "[ann]: turn 2"]


async def test_a_turn_that_a_later_envelope_gave_is_answered_with_all_that_came_before(hub):
    """What bob said meanwhile is in what cid answers; the older envelope is confirmed alone."""
    name = (await hub.create("discussion", "ann", WHO)).session_id
    for who in ("bob", "cid"):
        await hub.join(name, who)
    await hub.post(text(name, "ann", "one"))
    await hub.post(text(name, "bob", "two"))
    cid = agent_of("cid", "three")
    async with served(hub, [("cid", cid)], session_id=name):
        await has_said(hub, name, "one", "two", "three")
        await all_confirmed(hub, name, "cid")
    assert sent(cid) == ["[ann]: one", "[bob]: two"]


async def test_a_silent_agent_says_nothing(hub):
    bob = agent_of("bob", "")
    name = await opened(hub, "ann", "bob")
    async with served(hub, [("bob", bob)], session_id=name):
        await hub.post(text(name, "ann", "psst"))
        await all_confirmed(hub, name, "bob")
    assert await said(hub, name) == ["psst"]
    assert len(bob.model.received) == 1


async def test_a_call_that_waits_for_a_person_is_told(hub, caplog):
    def pay() -> str:
        """Pay."""
        return "paid"

    call = ModelResponse(tool_calls=(ToolCallEvent(id="c1", name="pay"),))
    bob = agent_of("bob", call, tools=[Tool(pay, needs_approval=True)])
    name = await opened(hub, "ann", "bob")
    async with served(hub, [("bob", bob)], session_id=name):
        await hub.post(text(name, "ann", "pay!"))
        await all_confirmed(hub, name, "bob")
    assert "tool calls await an approval, which an agent under serve() cannot get: pay" in caplog.text
    assert await said(hub, name) == ["pay!"]


async def test_what_was_not_met_is_told_by_who_serves(log):
    hub = Hub(log, [DiscussionAdapter([Expectation("turn_within", 0.05, "notify")])])
    name = (await hub.create("discussion", "ann", WHO)).session_id
    async with served(hub, [("bob", lambda events: None), ("cid", lambda events: None)], sweep_seconds=0.05):

        async def told():
            return any(e.event_type == EV_EXPECTATION_VIOLATED for e in await hub.envelopes(name))

        await until(told)


async def test_many_sessions_are_served_at_once_and_foreign_ones_are_left_alone(hub):
    async def answer(events):
        await asyncio.sleep(0.05)
        return f"re: {events[-1].content}"

    names = [await opened(hub, "ann", "bob") for _ in range(5)]
    foreign = await opened(hub, "ann", "eve")
    async with served(hub, [("bob", answer)]):
        for name in (*names, foreign):
            await hub.post(text(name, "ann", f"hello {name}"))
        for name in names:
            await has_said(hub, name, f"hello {name}", f"re: hello {name}")
    assert await said(hub, foreign) == [f"hello {foreign}"]


async def test_a_log_that_does_not_answer_for_a_while_loses_nothing(log, monkeypatch, caplog):
    hub = a_hub(log)
    name = await opened(hub, "ann", "bob")
    left = [2]
    by_key = log.by_key

    async def failing(*given):
        if left[0]:
            left[0] -= 1
            raise LogUnavailableError("the log does not answer")
        return await by_key(*given)

    monkeypatch.setattr(log, "by_key", failing)
    async with served(hub, [("bob", agent_of("bob", "yes"))], session_id=name):
        await hub.post(text(name, "ann", "well?"))
        await has_said(hub, name, "well?", "yes")
    assert "the log does not answer; trying again" in caplog.text


async def test_a_session_that_stops_stops_no_other_and_never_without_a_word(hub, caplog):
    names = [await opened(hub, "ann", "bob") for _ in range(2)]

    def default_view_policy(metadata, participant_id):
        if metadata.session_id == names[0]:
            raise RuntimeError("no view of this one")

    (await hub.adapter(names[0])).default_view_policy = default_view_policy
    async with served(hub, [("bob", lambda events: "yes")]):
        for name in names:
            await hub.post(text(name, "ann", "well?"))
        await has_said(hub, names[1], "well?", "yes")

        async def told():
            return f"session {names[0]!r} is no longer served for 'bob': RuntimeError" in caplog.text

        await until(told)
    assert await said(hub, names[0]) == ["well?"]


async def test_a_server_keeps_nothing_of_a_session_that_is_over(log):
    leases = []

    class Watched(Hub):
        def turn_lease(self, session_id, participant_id, seconds):
            lease = super().turn_lease(session_id, participant_id, seconds)
            leases.append(weakref.ref(lease))
            return lease

    hub = Watched(log, [ConsultingAdapter()])
    async with served(hub, [("bob", lambda events: "42")]):
        for _ in range(5):
            name = (await hub.create("consulting", "ann", ["ann", "bob"])).session_id

            async def is_open(name=name):
                return (await hub.folded(name)).state is SessionState.ACTIVE

            await until(is_open)
            await hub.post(text(name, "ann", "what is it?"))
            await has_said(hub, name, "what is it?", "42")

        async def forgotten():
            gc.collect()
            return not any(lease() for lease in leases)

        await until(forgotten)
        assert len(leases) == 5


async def test_a_session_that_is_not_there_is_an_error(hub):
    with pytest.raises(NotFoundError, match="there is no session 'nowhere'"):
        await serve(hub, agent_of("bob"), "bob", session_id="nowhere")


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"pause": -1}, {"sweep_seconds": 0}])
async def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        await serve(Hub(MemorySessionLog(), []), agent_of("bob"), "bob", **wrong)


async def test_what_is_no_agent_is_refused():
    with pytest.raises(ConfigurationError, match="a dict cannot be served"):
        await serve(Hub(MemorySessionLog(), []), {}, "bob")
