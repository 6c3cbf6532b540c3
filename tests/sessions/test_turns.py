"""One server works on a turn at a time, and a successor continues where a dead server stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rows import created, on, row
from sessions.talk import Talk, opened, said, text

from otel_assembly import Agent, AlertPolicy, ConversationPolicy, Tool
from otel_assembly.errors import LogConflictError, LogUnavailableError, TurnClaimLostError
from otel_assembly.events import ModelResponse, ToolCallEvent, ToolErrorEvent, ToolResultEvent
from otel_assembly.sessions import DiscussionAdapter, Hub, MemorySessionLog, TurnClaim, serve

HERE = Path(__file__).parent
LONG_AGO, LATER = 1_000.0, 10_000.0


def claim_of(token, seq=1, *, continues=False):
    return TurnClaim("s", "bob", seq, continues, token)


async def expire(log, claim):
    """Let the lease of a claim be over."""
    assert await log.renew_turn(claim, LONG_AGO, -1.0)


# --- the log


async def test_of_many_who_claim_a_turn_one_succeeds(open_log):
    logs = [open_log() for _ in range(4)]
    await created(logs[0])
    seen = None
    for round_ in range(5):
        claims = [claim_of(f"{round_}-{number}", seq=round_ + 1) for number in range(8)]
        got = await asyncio.gather(
            *(logs[number % 4].claim_turn(claim, seen, LONG_AGO, 60.0) for number, claim in enumerate(claims))
        )
        assert sum(got) == 1
        turn = await logs[0].turn("s", "bob", LONG_AGO)
        assert turn.claim == claims[got.index(True)]
        assert 0 < turn.remaining <= 60
        seen = turn


async def test_a_claim_made_on_an_older_state_fails(open_log):
    log, other = open_log(), open_log()
    await created(log)
    assert await log.turn("s", "bob", LONG_AGO) is None
    assert await log.claim_turn(claim_of("a"), None, LONG_AGO, 60.0)
    seen = await other.turn("s", "bob", LONG_AGO)
    assert await log.renew_turn(claim_of("a"), LONG_AGO, 60.0)
    assert not await other.claim_turn(claim_of("b"), seen, LONG_AGO, 60.0)
    assert not await other.claim_turn(claim_of("b"), None, LONG_AGO, 60.0)
    assert not await other.renew_turn(claim_of("b"), LONG_AGO, 60.0)
    assert not await other.end_turn(claim_of("b"), finished=True)
    assert (await log.turn("s", "bob", LONG_AGO)).claim.token == "a"


async def test_a_lease_ends_by_the_clock(open_log, log_kind):
    log = open_log()
    await created(log)
    assert await log.claim_turn(claim_of("a"), None, LONG_AGO, 60.0)
    # PostgreSQL judges by its own clock, whatever the caller says.
    over = (await log.turn("s", "bob", LATER)).remaining <= 0
    assert over is (log_kind != "postgres")
    await expire(log, claim_of("a"))
    assert (await log.turn("s", "bob", LONG_AGO)).remaining <= 0


async def test_steps_are_stored_once_and_in_order_while_the_claim_holds(open_log):
    log, other = open_log(), open_log()
    await created(log)
    assert await log.claim_turn(claim_of("a", 5), None, LONG_AGO, 60.0)
    for number, body in enumerate(["one \x7f ö", "two"], 1):
        assert await log.add_work(claim_of("a", 5), number, body)
        assert await log.add_work(claim_of("a", 5), number, body)  # after a lost answer
    assert not await log.add_work(claim_of("a", 5), 9, "a gap")
    assert not await other.add_work(claim_of("b", 5), 3, "no claim")
    assert [(entry.seq, entry.number, entry.body) for entry in await other.work("s", "bob")] == [
        (5, 1, "one \x7f ö"),
        (5, 2, "two"),
    ]
    assert await other.work("s", "cid") == []
    turn = await other.turn("s", "bob", LONG_AGO)
    assert turn.entries == 2
    assert await other.claim_turn(claim_of("b", 5), turn, LONG_AGO, 60.0)
    assert not await log.add_work(claim_of("a", 5), 3, "late")
    assert await other.add_work(claim_of("b", 5), 3, "three")
    assert [entry.body for entry in await log.work("s", "bob")] == ["one \x7f ö", "two", "three"]


async def test_a_turn_that_is_finished_leaves_no_steps_and_is_not_claimed_again(open_log):
    log = open_log()
    await created(log)
    for seq in (3, 4):
        seen = await log.turn("s", "bob", LONG_AGO)
        assert await log.claim_turn(claim_of("a", seq), seen, LONG_AGO, 60.0)
        assert await log.add_work(claim_of("a", seq), 1, "step")
        assert await log.end_turn(claim_of("a", seq), finished=True)
        assert await log.work("s", "bob") == []
    turn = await log.turn("s", "bob", LONG_AGO)
    assert (turn.claim.token, turn.entries, turn.answered, turn.continued) == ("", 0, 4, 0)
    assert turn.is_finished(3, continues=False)
    assert not turn.is_finished(5, continues=False)
    assert not turn.is_finished(3, continues=True)


async def test_a_turn_that_is_given_up_keeps_its_steps(open_log):
    log = open_log()
    await created(log)
    assert await log.claim_turn(claim_of("a"), None, LONG_AGO, 60.0)
    assert await log.add_work(claim_of("a"), 1, "step")
    assert await log.end_turn(claim_of("a"), finished=False)
    turn = await log.turn("s", "bob", LONG_AGO)
    assert (turn.claim.token, turn.entries, turn.answered) == ("", 1, 0)
    assert [entry.body for entry in await log.work("s", "bob")] == ["step"]


@pytest.mark.parametrize("continues", [False, True])
async def test_an_answer_ends_its_turn_in_the_same_write(open_log, continues):
    log = open_log()
    first = await created(log)
    claim = claim_of("a", 1, continues=continues)
    assert await log.claim_turn(claim, None, LONG_AGO, 60.0)
    assert await log.add_work(claim, 1, "step")
    with pytest.raises(LogConflictError):
        await log.append([row("s", 3)], on(row("s", 2)), claim)
    assert len(await log.work("s", "bob")) == 1
    await log.append([row("s", 2)], on(first), claim)
    turn = await log.turn("s", "bob", LONG_AGO)
    assert (turn.claim.token, turn.answered, turn.continued) == ("", 0, 1) if continues else ("", 1, 0)
    assert await log.work("s", "bob") == []
    with pytest.raises(TurnClaimLostError, match=r"session 's': the turn of 'bob' that answers row 1"):
        await log.append([row("s", 3)], on(row("s", 2)), claim)


async def test_who_lost_a_claim_appends_nothing(open_log):
    log, other = open_log(), open_log()
    first = await created(log)
    assert await log.claim_turn(claim_of("old"), None, LONG_AGO, 60.0)
    assert await other.claim_turn(claim_of("new"), await other.turn("s", "bob", LONG_AGO), LONG_AGO, 60.0)
    with pytest.raises(TurnClaimLostError):
        await log.append([row("s", 2, envelope_id="old")], on(first), claim_of("old"))
    await other.append([row("s", 2, envelope_id="new")], on(first), claim_of("new"))
    assert [envelope.envelope_id for envelope in await log.rows_from("s", 2)] == ["new"]


async def test_of_a_post_and_a_takeover_at_once_one_is_first(open_log):
    log, other = open_log(), open_log()
    last = await created(log)
    for seq in range(2, 12):
        old, new = claim_of(f"old{seq}", seq), claim_of(f"new{seq}", seq)
        assert await log.claim_turn(old, await log.turn("s", "bob", LONG_AGO), LONG_AGO, 60.0)
        seen = await other.turn("s", "bob", LONG_AGO)
        posted, taken = await asyncio.gather(
            log.append([row("s", seq)], on(last), old),
            other.claim_turn(new, seen, LONG_AGO, 60.0),
            return_exceptions=True,
        )
        assert (posted is None) is not taken
        if posted is not None:
            assert isinstance(posted, TurnClaimLostError)
            await other.append([row("s", seq)], on(last), new)
        last = row("s", seq)
    assert [envelope.seq for envelope in await log.rows_from("s", 1)] == list(range(1, 12))


# --- servers


class Model:
    """Calls the tools that it is given for each request, then answers with what their results say."""

    model = "scripted"

    def __init__(self, *names, answer_after=None):
        self.names = names
        self.asked = 0
        self.answer_after = answer_after

    async def __call__(self, prompts, events, *, tools=(), tool_choice=None):
        self.asked += 1
        results = []
        for event in reversed(list(events)):
            if isinstance(event, ToolResultEvent | ToolErrorEvent):
                results.append(event)
            elif not isinstance(event, ModelResponse):
                break
        if results or not self.names:
            if self.answer_after is not None:
                await self.answer_after.wait()
            said = [getattr(result, "content", None) or result.error.partition(":")[0] for result in reversed(results)]
            return ModelResponse(content=", ".join(said) or "nothing to do")
        return ModelResponse(
            tool_calls=tuple(ToolCallEvent(id=f"c{at}", name=name) for at, name in enumerate(self.names))
        )


class Tools:
    """A tool that returns at once, and two that wait; all count how often they run."""

    def __init__(self, *, blocks=False):
        self.ran = []
        self.running = asyncio.Event()
        self.blocks = blocks

    async def fast(self) -> str:
        self.ran.append("fast")
        return "fast is done"

    async def slow(self) -> str:
        return await self._wait("slow")

    async def look(self) -> str:
        return await self._wait("look")

    async def _wait(self, name):
        self.ran.append(name)
        self.running.set()
        if self.blocks:
            await asyncio.Event().wait()
        return f"{name} is done"

    def agent(self, model, **more):
        tools = [self.fast, self.slow, Tool(self.look, idempotent=True)]
        return Agent("bob", "You are bob.", model, tools, assembly=[AlertPolicy(), ConversationPolicy()], **more)


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def a_hub(open_log, clock):
    return lambda: Hub(open_log(), [Talk(in_turns=False), DiscussionAdapter()], clock=clock)


@asynccontextmanager
async def serving(hub, agent, name, **more):
    settings = {"pause": 0.01, "lease_seconds": 1_000.0, **more}
    task = asyncio.create_task(serve(hub, agent, "bob", session_id=name, **settings))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(check):
    while not await check():
        await asyncio.sleep(0.01)


async def has_said(hub, name, *texts):
    async def check():
        return len(await said(hub, name)) >= len(texts)

    await until(check)
    assert await said(hub, name) == list(texts)


async def all_confirmed(hub, name):
    async def check():
        return not await hub.inbox(name, "bob")

    await until(check)


async def stored(log, count):
    """Wait until so many steps of bob's turn are stored."""

    async def check():
        (name,) = await log.session_ids()
        return len(await log.work(name, "bob")) >= count

    await until(check)


async def test_two_servers_run_a_tool_once_and_the_other_answers_the_next_request(open_log, a_hub):
    one, two = a_hub(), a_hub()
    name = await opened(one, "ann", "bob")
    first, second = Tools(blocks=True), Tools(blocks=True)
    async with serving(one, first.agent(Model("slow")), name), serving(two, second.agent(Model("slow")), name):
        await one.post(text(name, "ann", "pay"))
        await until(lambda: _any(first.running, second.running))
        await two.post(text(name, "ann", "did you?"))  # wakes both
        await stored(open_log(), 1)
        assert first.ran + second.ran == ["slow"]
        assert await said(one, name) == ["pay", "did you?"]


async def _any(*events):
    return any(event.is_set() for event in events)


async def test_a_successor_continues_from_the_results_that_were_stored(open_log, a_hub, caplog):
    one, two = a_hub(), a_hub()
    name = await opened(one, "ann", "bob")
    await one.post(text(name, "ann", "go"))
    died, alive = Tools(blocks=True), Tools()
    async with serving(one, died.agent(Model("fast", "slow", "look")), name):
        await stored(open_log(), 2)  # the response, and the result of "fast"
        await until(lambda: _has(died.ran, 3))
    model = Model("fast", "slow", "look")
    async with serving(two, alive.agent(model), name):
        await has_said(two, name, "go", "fast is done, outcome unknown, look is done")
        await all_confirmed(two, name)
    assert sorted(died.ran) == ["fast", "look", "slow"]
    assert alive.ran == ["look"]
    assert model.asked == 1
    (line,) = [record.getMessage() for record in caplog.records if record.name == "otel_assembly.sessions.audit"]
    assert line.startswith(f"outcome unknown: session={name!r} participant='bob' row=")
    assert line.endswith("tool='slow' call='c1'")
    assert await open_log().work(name, "bob") == []


async def _has(ran, count):
    return len(ran) >= count


async def test_what_was_stored_is_in_the_view_of_the_turns_that_follow(a_hub, open_log):
    one, two = a_hub(), a_hub()
    name = await opened(one, "ann", "bob")
    await one.post(text(name, "ann", "go"))
    died, alive = Tools(blocks=True), Tools()
    async with serving(one, died.agent(Model("fast", "slow")), name):
        await stored(open_log(), 2)
        await until(lambda: _has(died.ran, 2))
    seen = []

    class Watching(Model):
        async def __call__(self, prompts, events, **more):
            seen.append([type(event).__name__ for event in events if not type(event).__name__.startswith("Turn")])
            return await super().__call__(prompts, events, **more)

    async with serving(two, alive.agent(Watching("fast")), name):
        await has_said(two, name, "go", "fast is done, outcome unknown")
        await two.post(text(name, "ann", "again"))
        await has_said(two, name, "go", "fast is done, outcome unknown", "again", "fast is done")
    turn = ["ModelRequest", "ModelResponse", "ToolResultEvent", "ToolErrorEvent"]
    assert seen[0] == turn
    assert seen[1] == [*turn, "ModelResponse", "ModelRequest"]


async def test_a_server_that_lost_its_lease_neither_posts_nor_runs_a_tool(open_log, a_hub, clock):
    """It was paused for longer than the lease, and another server has taken over."""
    one, two = a_hub(), a_hub()
    name = await opened(one, "ann", "bob")
    await one.post(text(name, "ann", "go"))
    go_on = asyncio.Event()
    slow, fast = Tools(), Tools()
    late = Model("fast", answer_after=go_on)
    async with serving(one, slow.agent(late), name) as paused:
        await stored(open_log(), 2)
        clock.now += 2_000
        await expire_turn(open_log(), name)
        async with serving(two, fast.agent(Model("fast")), name):
            await has_said(two, name, "go", "fast is done")
        await two.post(text(name, "ann", "and?"))
        go_on.set()
        await has_said(one, name, "go", "fast is done", "and?", "fast is done")
        assert not paused.done()
    assert slow.ran == ["fast", "fast"]  # for the first request, and for the third
    assert fast.ran == []


async def expire_turn(log, name):
    """Let the lease of bob's turn be over, also where the server's clock says when: nobody else renews it so soon."""
    turn = await log.turn(name, "bob", 0.0)
    assert await log.renew_turn(turn.claim, 0.0, -1.0)


async def test_a_server_that_finds_its_lease_lost_cancels_the_turn(open_log, a_hub):
    one = a_hub()
    name = await opened(one, "ann", "bob")
    await one.post(text(name, "ann", "go"))
    cancelled = asyncio.Event()

    async def answer(events):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(one, answer, name, lease_seconds=0.3):
        log = open_log()

        async def claimed():
            turn = await log.turn(name, "bob", 0.0)
            return turn is not None and await log.claim_turn(
                TurnClaim(name, "bob", turn.claim.seq, False, "another"), turn, 1_000.0, 1_000.0
            )

        await until(claimed)
        await cancelled.wait()
    assert (await log.turn(name, "bob", 1_000.0)).claim.token == "another"


async def test_a_lease_that_nobody_renews_ends_though_the_clock_went_back(open_log, a_hub, clock):
    one = a_hub()
    name = await opened(one, "ann", "bob")
    asked = await one.post(text(name, "ann", "go"))
    dead = TurnClaim(name, "bob", asked.seq, False, "dead")
    assert await open_log().claim_turn(dead, None, 1_000_000.0, 0.2)
    async with serving(one, lambda events: "here", name, lease_seconds=0.2):
        await has_said(one, name, "go", "here")


async def test_a_callable_is_asked_by_one_server_and_by_its_successor(a_hub, open_log):
    one, two = a_hub(), a_hub()
    name = await opened(one, "ann", "bob")
    asked, started = [], asyncio.Event()

    async def hangs(events):
        asked.append("one")
        started.set()
        await asyncio.Event().wait()

    def answers(events):
        asked.append("two")
        return "here"

    async with serving(one, hangs, name):
        await one.post(text(name, "ann", "go"))
        await started.wait()
        async with serving(two, answers, name):
            await two.post(text(name, "ann", "hurry"))
            turn = await open_log().turn(name, "bob", 0.0)
            assert turn.claim.token
            assert asked == ["one"]
    async with serving(two, answers, name):
        await has_said(two, name, "go", "hurry", "here", "here")
    assert asked == ["one", "two", "two"]


async def test_a_turn_that_a_later_envelope_superseded_keeps_its_results(open_log, clock):
    """The turn of a discussion answers the newest envelope; what a dead server did for an older one is not lost."""
    hubs = [Hub(open_log(), [DiscussionAdapter()], clock=clock) for _ in range(2)]
    name = (await hubs[0].create("discussion", "ann", ["ann", "bob", "cid"])).session_id
    for who in ("bob", "cid"):
        await hubs[0].join(name, who)
    first = await hubs[0].post(text(name, "ann", "go"))
    log = open_log()
    claim = TurnClaim(name, "bob", first.seq, False, "dead")
    assert await log.claim_turn(claim, None, 0.0, 1.0)
    call = ToolCallEvent(id="c", name="slow")
    steps = [
        ModelResponse(tool_calls=(call, ToolCallEvent(id="d", name="fast"))),
        ToolResultEvent(parent_id="d", name="fast", content="fast is done"),
    ]
    for number, step in enumerate(steps, 1):
        assert await log.add_work(claim, number, step.model_dump_json())
    assert await log.end_turn(claim, finished=False)
    await hubs[0].post(text(name, "bob", "a moment"))
    await hubs[0].post(text(name, "cid", "well"))
    await hubs[0].post(text(name, "ann", "and?"))
    seen, tools = [], Tools()

    class Watching(Model):
        async def __call__(self, prompts, events, **more):
            seen.append([getattr(event, "content", "") or getattr(event, "error", "")[:15] for event in events])
            return await super().__call__(prompts, events, **more)

    async with serving(hubs[1], tools.agent(Watching()), name):
        await has_said(hubs[1], name, "go", "a moment", "well", "and?", "nothing to do")
    assert [message for message in seen[0] if message] == [
        "[ann]: go",
        "fast is done",
        "outcome unknown",
        "a moment",
        "[cid]: well",
        "[ann]: and?",
    ]
    assert tools.ran == []


async def test_a_result_is_stored_again_until_the_log_answers(open_log, a_hub, monkeypatch, caplog):
    one = a_hub()
    log = one._log
    name = await opened(one, "ann", "bob")
    add_work, failures = log.add_work, [3]

    async def failing(claim, number, body):
        if number == 2 and failures[0]:
            failures[0] -= 1
            raise LogUnavailableError("the log does not answer")
        return await add_work(claim, number, body)

    monkeypatch.setattr(log, "add_work", failing)
    tools = Tools()
    async with serving(one, tools.agent(Model("fast")), name):
        await one.post(text(name, "ann", "go"))
        await has_said(one, name, "go", "fast is done")
    assert tools.ran == ["fast"]
    assert caplog.text.count("storing the step again") == 3


async def test_a_turn_costs_three_writes_and_each_tool_one(log):
    """The claim, the answer (which ends the claim) and the cursor; a response that calls tools, and each result."""
    writes = []

    class Counting:
        def __getattr__(self, name):
            method = getattr(log, name)

            async def counted(*given, **more):
                writes.append(name)
                return await method(*given, **more)

            counted_names = ("append", "claim_turn", "renew_turn", "end_turn", "add_work", "move_cursor")
            return counted if name in counted_names else method

    hub = Hub(Counting(), [Talk(in_turns=False)])
    name = await opened(hub, "ann", "bob")
    tools = Tools()
    async with serving(hub, tools.agent(Model()), name):
        await all_confirmed(hub, name)
        await hub.post(text(name, "ann", "hello"))
        await all_confirmed(hub, name)
        writes.clear()
        await hub.post(text(name, "ann", "hello again"))
        await all_confirmed(hub, name)
        assert writes == ["append", "claim_turn", "append", "move_cursor"]
    async with serving(hub, tools.agent(Model("fast", "slow")), name):
        writes.clear()
        await hub.post(text(name, "ann", "go"))
        await all_confirmed(hub, name)
        assert writes == ["append", "claim_turn", *["add_work"] * 3, "append", "move_cursor"]


@pytest.mark.parametrize("seconds", [0, -1.0])
async def test_a_lease_takes_time(seconds):
    with pytest.raises(ValueError, match="lease_seconds"):
        await serve(Hub(MemorySessionLog(), []), lambda events: None, "bob", lease_seconds=seconds)


# --- processes that are killed


def started(*arguments):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])}
    command = [sys.executable, str(HERE / "turn_server.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("sqlite", "in the tool"),
        ("postgres", "after its result"),
        ("sqlite", "before the answer is posted"),
        pytest.param("postgres", "in the tool", marks=pytest.mark.slow),
        pytest.param("sqlite", "after its result", marks=pytest.mark.slow),
        pytest.param("postgres", "before the answer is posted", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_is_killed_is_succeeded_and_no_tool_runs_twice(request, tmp_path, kind, point):
    if kind == "postgres":
        server = request.getfixturevalue("postgres")
        where = server.dsn(server.new_schema())
    else:
        where = str(tmp_path / "killed.db")
    process = started(kind, where, tmp_path / "runs", point)
    try:
        reached = process.stdout.readline()
        assert reached == f"{point}\n", process.stderr.read()
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    again = started(kind, where, tmp_path / "runs", "")
    answered, errors = again.communicate()
    assert again.returncode == 0, errors
    assert errors.count("outcome unknown") == (point == "in the tool")
    pay, look = ("outcome unknown", 2) if point == "in the tool" else ("paid", 1)
    assert json.loads(answered) == ["pay and look", f"{pay}, seen"]
    runs = (tmp_path / "runs").read_text().split()
    assert runs.count("pay") == 1
    assert runs.count("look") == look


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_servers_that_are_killed_at_random_run_each_call_once_and_answer_each_request_once(request, tmp_path, kind):
    if kind == "postgres":
        server = request.getfixturevalue("postgres")
        where = server.dsn(server.new_schema())
    else:
        where = str(tmp_path / "killed.db")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])}
    command = [sys.executable, str(HERE / "turn_kills.py"), kind, where, str(tmp_path / "runs"), "8"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{kind}: 8 requests, 8 answers")
