"""`assemble_sync`: what `assemble` does, for programs without ``await``; with and without event loops."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import sys
import threading
from collections import Counter
from contextlib import contextmanager

import anyio
import pytest
import trio
from assembling import Stream, requests, said, told, user, warning
from counting import Calls, WordCounter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from strategies import TOOLS, conversations, prompt_lists

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextAssembler,
    ContextOverflowError,
    ConversationPolicy,
    HaltedError,
    HeadAndTailPolicy,
    History,
    ModelRequest,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    Task,
    TokenBudgetPolicy,
    WorkingMemoryPolicy,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.errors import PolicyFailedError
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.testing import RecordedTelemetry
from otel_assembly.tokens import CharacterCounter

VARIABLE = contextvars.ContextVar("variable", default="default")


class Waits:
    """An async policy that waits, and keeps the newest two events."""

    name = "waits"

    def __init__(self, sleep=asyncio.sleep):
        self.sleep, self.ran_in, self.variables = sleep, [], []

    async def apply(self, prompts, events, context):
        await self.sleep(0.001)
        self.ran_in.append(threading.current_thread())
        self.variables.append(VARIABLE.get())
        VARIABLE.set("set by the policy")
        return prompts, events[-2:]


#: What a program starts for an event loop: a socket that wakes it up, and for a thread.
_STARTS = ("socket.__new__", "_thread.start_new_thread")
_started: Counter[str] | None = None


def _count_starts(event, _):
    if _started is not None and event in _STARTS:
        _started[event] += 1


sys.addaudithook(_count_starts)


@contextmanager
def starts():
    """Count the event loops and threads that are started in this block."""
    global _started  # an audit hook cannot be removed
    _started = Counter()
    try:
        yield _started
    finally:
        _started = None


# --- The same as assemble ---------------------------------------------------------------------------------------------

windows = st.builds(SlidingWindowPolicy, st.integers(1, 8), transparent=st.booleans())
budgets = st.builds(TokenBudgetPolicy, st.integers(40, 400), on_overflow=st.sampled_from(["raise", "drop"]))
compacting = st.builds(
    lambda window: BudgetPolicy(window, 10, compact=ExtractiveCompactor(), summary_tokens=20), st.integers(100, 400)
)
chains = st.lists(
    st.one_of(
        st.builds(AlertPolicy),
        st.builds(ConversationPolicy),
        st.builds(HeadAndTailPolicy, st.integers(1, 4), st.integers(1, 4)),
        windows,
        budgets,
        compacting,
        st.builds(Waits),
    ),
    min_size=1,
    max_size=4,
)


def results(run, policies, prompts, events, as_list, middle):
    """What an assembler returns, raises and exports in two turns, with `run` in place of the call of `assemble`."""
    telemetry, context = RecordedTelemetry(), Context(agent_name="desk", tools=TOOLS)
    assembler = Assembler(policies, counter=CharacterCounter(4), recorder=telemetry.recorder)
    history, seen = History(), []
    for part in (events[:middle], events):
        history.extend(part[len(history) :])
        try:
            assembly = run(assembler, prompts, part if as_list else history, context)
        except (ContextOverflowError, HaltedError) as error:
            seen.append((type(error), str(error), told(error.assembly)))
        else:
            seen.append((assembly.prompts, assembly.events, told(assembly), assembly.totals))
    for span in telemetry.spans:
        attributes = {name: value for name, value in span.attributes.items() if name not in UNIQUE}
        seen.append((span.name, span.parent and span.parent.name, span.status, attributes, len(span.events)))
    return seen


#: Attributes that differ between any two assemblies; a stack trace names the event loop, too.
UNIQUE = ("assembly.id", "assembly.previous.id", "assembly.ledger.id", "exception.stacktrace")


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(policies=chains, prompts=prompt_lists, events=conversations(), as_list=st.booleans(), data=st.data())
def test_results_decisions_and_spans_are_those_of_assemble(policies, prompts, events, as_list, data):
    middle = data.draw(st.integers(0, len(events)))
    given = policies, prompts, events, as_list, middle
    awaited = results(lambda assembler, *turn: asyncio.run(assembler.assemble(*turn)), *given)
    assert results(Assembler.assemble_sync, *given) == awaited


def test_errors_are_those_of_assemble():
    class Fails:
        name = "fails"

        async def apply(self, prompts, events, context):
            await asyncio.sleep(0)
            raise KeyError("secret")

    with pytest.raises(PolicyFailedError, match="raised KeyError") as failed:
        Assembler([Fails()]).assemble_sync([], requests("a"))
    assert isinstance(failed.value.__cause__, KeyError)
    with pytest.raises(ContextOverflowError) as overflow:
        Assembler([TokenBudgetPolicy(5)], counter=WordCounter()).assemble_sync([], requests("one two three four"))
    assert overflow.value.assembly is not None
    with pytest.raises(ConfigurationError, match="prompts"):
        Assembler([]).assemble_sync("one text", [])


def test_a_halt_stops_the_loop_and_is_sent_to_the_stream():
    stream = Stream()
    context = Context(stream=stream)
    alert = ObserverAlert(source="watch", severity=Severity.FATAL, message="loop")
    with pytest.raises(HaltedError, match="loop"):
        Assembler([AlertPolicy(), SlidingWindowPolicy(1)]).assemble_sync([], [*requests("a"), alert], context)
    assert [type(event).__name__ for event in stream.sent] == ["HaltEvent"]
    with pytest.raises(HaltedError):
        context.guard.check()


def test_an_alert_in_the_history_halts_the_loop():
    assembler, history, context = Assembler([AlertPolicy(), ConversationPolicy()]), History(requests("a")), Context()
    assembler.assemble_sync([], history, context)
    history.append(ObserverAlert(source="costs", severity="fatal", message="too expensive"))
    with pytest.raises(HaltedError, match="too expensive"):
        assembler.assemble_sync([], history, context)


# --- What it needs ----------------------------------------------------------------------------------------------------

IN_PLACE = [
    AlertPolicy(),
    ConversationPolicy(),
    SlidingWindowPolicy(12),
    HeadAndTailPolicy(3, 6),
    BudgetPolicy(4_000, 0),
]


def several_turns(assembler):
    history, context = History(), Context()
    for number in range(12):
        history.extend([*requests(f"question {number}"), warning(f"slow {number}")])
        assembly = assembler.assemble_sync(["p"], history, context)
    return assembly


def test_built_in_policies_start_no_event_loop_and_no_thread(recorder):
    assembler = Assembler([*IN_PLACE, TokenBudgetPolicy(300)], counter=WordCounter(), recorder=recorder.recorder)
    with starts() as started:
        assembly = several_turns(assembler)
        assembler.assemble_sync([], [user("x" * 1_000) for _ in range(2_000)])  # a long list, and a long text
    assert assembly.turn == 11
    assert not started


async def test_built_in_policies_start_nothing_inside_an_event_loop():
    with starts() as started:
        several_turns(Assembler(IN_PLACE, counter=WordCounter()))
    assert not started


def test_a_policy_that_is_a_plain_function_starts_nothing():
    class Plain:
        name = "plain"

        def apply(self, prompts, events, context):
            VARIABLE.set("set in place")
            return prompts, events[-1:]

    with starts() as started:
        assembly = contextvars.copy_context().run(
            lambda: (Assembler([Plain()]).assemble_sync([], requests("a", "b")), VARIABLE.get())
        )
    assert said(assembly[0]) == ["b"]
    assert assembly[1] == "set in place"
    assert not started


def test_a_vocabulary_is_waited_for():
    assert Assembler([BudgetPolicy(4_000, 0)], model="gpt-4").assemble_sync([], [user("hello")]).totals.tokens_out > 0


def test_a_call_of_a_turn_costs_no_more_than_one_of_assemble(recorder):
    chain = [ConversationPolicy(), SlidingWindowPolicy(12), BudgetPolicy(4_000, 0)]

    def calls(assemble):
        assembler = Assembler(chain, counter=WordCounter(), recorder=recorder.recorder)
        history = History(requests(*map(str, range(30))))
        assemble(assembler, history)
        made = []
        for number in range(6):
            history.append(ModelRequest(content=f"{number}"))
            with Calls() as counted:
                assemble(assembler, history)
            made.append(counted.made)
        return made

    awaited = calls(lambda assembler, history: asyncio.run(assembler.assemble(["p"], history)))
    synchronous = calls(lambda assembler, history: assembler.assemble_sync(["p"], history))
    # A few calls depend on what other tests of the process have imported.
    assert max(synchronous) <= 1.02 * min(awaited)


# --- Policies that wait -----------------------------------------------------------------------------------------------


def test_a_policy_that_waits_runs_on_a_loop_of_this_thread_and_the_default_loop_stays():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    policy = Waits()
    VARIABLE.set("the caller's")
    try:
        assert said(Assembler([policy]).assemble_sync([], requests("a", "b", "c"))) == ["b", "c"]
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert policy.ran_in == [threading.current_thread()]
    assert policy.variables == ["the caller's"]
    assert VARIABLE.get() == "the caller's"


async def test_inside_an_event_loop_a_policy_that_waits_runs_on_a_loop_of_a_daemon_thread(recorder):
    policy = Waits()
    VARIABLE.set("the caller's")
    assembler = Assembler([policy, BudgetPolicy(4_000, 0)], counter=WordCounter(), recorder=recorder.recorder)
    with TracerProvider().get_tracer("program").start_as_current_span("request") as around:
        assert said(assembler.assemble_sync([], requests("a", "b", "c"))) == ["b", "c"]
    (thread,) = policy.ran_in
    assert thread.daemon
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    assert policy.variables == ["the caller's"]
    assert VARIABLE.get() == "the caller's"
    (span,) = recorder.spans_named("assemble_context")
    assert int(span.trace_id, 16) == around.get_span_context().trace_id


def test_it_works_in_trio():
    async def main():
        built_in = Assembler(IN_PLACE, counter=WordCounter()).assemble_sync([], requests("a"))
        waiting = Assembler([Waits(anyio.sleep)]).assemble_sync([], requests("a", "b", "c"))
        return said(built_in), said(waiting)

    assert trio.run(main) == (["a"], ["b", "c"])


@pytest.mark.parametrize("is_async", [False, True])
def test_threads_share_an_assembler(is_async):
    assembler, ended = Assembler([Waits() if is_async else SlidingWindowPolicy(2)]), []

    def work(number):
        for turn in range(20):
            events = requests(*(f"{number} {event}" for event in range(turn + 3)))
            assembly = assembler.assemble_sync([], events, Context(conversation_id=f"{is_async} {number}"))
            ended.append((said(assembly), [event.content for event in events[-2:]], assembly.turn, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 120
    assert all(kept == newest and number == turn for kept, newest, number, turn in ended)


def test_a_store_and_a_summarizer_are_waited_for():
    store, asked = MemoryKnowledgeStore(), []
    asyncio.run(store.write("/memory/working.md", "The guest is vegan."))

    async def summarize(text, target_tokens):
        await asyncio.sleep(0)
        asked.append(text)
        return "earlier words"

    chain = [WorkingMemoryPolicy(), BudgetPolicy(60, 0, compact=summarize, summary_tokens=8)]
    assembler = Assembler(chain, counter=WordCounter())
    context = Context(dependencies={KnowledgeStore: store})
    assembly = assembler.assemble_sync([], requests(*("word " * 10 for _ in range(9))), context)
    assert "vegan" in assembly.prompts[0]
    assert len(asked) == 1
    assert "earlier words" in str(assembly.events[0])


def test_blocks_are_assembled_too():
    assembler = ContextAssembler(
        system="Be brief.", scopes=lambda user, task: (), window=1_000, output_reserve=0, counter=WordCounter()
    )
    assert "Where?" in str(assembler.assemble_sync(Task("Where?"), "guest").messages)


async def test_blocks_are_assembled_inside_an_event_loop():
    assembler = ContextAssembler(
        system="Be brief.", scopes=lambda user, task: (), window=1_000, output_reserve=0, counter=WordCounter()
    )
    assert "Where?" in str(assembler.assemble_sync(Task("Where?"), "guest").messages)


async def test_it_does_not_wait_for_a_task_whose_event_loop_it_blocks(recorder):
    """The task has read a part of its list, and only goes on when this call has returned."""
    assembler = Assembler([SlidingWindowPolicy(3)], counter=WordCounter(), recorder=recorder.recorder)
    context, events = Context(conversation_id="shared"), [user(f"message {number}") for number in range(900)]
    assembler.assemble_sync([], events[:1], context)
    task = asyncio.create_task(assembler.assemble([], events, context))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    assembly = assembler.assemble_sync([], [*events, user("new")], context)
    assert said(await task) == [f"message {number}" for number in (897, 898, 899)]
    assert assembly.items[-1] == "900"
    arrived = [item for span in recorder.spans_named("assemble_context") for item in span.arrived]
    assert sorted(map(int, arrived)) == list(range(901))


# --- Interrupts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def _ctrl_c():
    """Let Ctrl-C interrupt: a process that a shell has started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted:
    """A policy during which the user presses Ctrl-C."""

    name = "interrupted"

    def __init__(self):
        self.cancelled = False

    async def apply(self, prompts, events, context):
        try:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.mark.usefixtures("_ctrl_c")
def test_an_interrupt_cancels_the_policy_and_is_recorded(recorder):
    policy = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Assembler([policy], recorder=recorder.recorder).assemble_sync([], requests("a"))
    assert policy.cancelled
    assert recorder.spans_named("assemble_context")[0].attributes["error.type"] == "KeyboardInterrupt"


@pytest.mark.usefixtures("_ctrl_c")
def test_an_interrupt_cancels_the_policy_that_runs_in_a_thread():
    policy = Interrupted()

    async def main():
        Assembler([policy]).assemble_sync([], requests("a"))

    loop = asyncio.new_event_loop()  # asyncio.run would handle the signal itself
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    loop.close()
    assert policy.cancelled
