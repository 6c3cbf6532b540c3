"""Programs that fork while other threads are at work; each prints what its processes found, as JSON.

``python fork_programs.py NAME…`` prints an object of what each found, or of its traceback. A child that has not
answered in time is killed, and answers ``"hangs"``; where it hung is on stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import gc
import json
import os
import select
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_assembly
from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ConversationPolicy,
    EventFacts,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    SlidingWindowPolicy,
    Task,
    TokenBudgetPolicy,
    WorkingMemoryPolicy,
    configure,
    describe,
)
from otel_assembly.context_assembler import Candidate, Proposal, QueuedWriteGate
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore, SqliteKnowledgeStore
from otel_assembly.messages import EventKind
from otel_assembly.runtime import Stream
from otel_assembly.telemetry import SpanFileExporter
from otel_assembly.tokens import CalibratedCounter, CharacterCounter

#: Seconds within which a child answers that does not hang; far more than any needs.
PATIENCE = 15

IN_CHILD = [ModelRequest(content="in a child")]


def child(work):
    """What a forked child answers."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        answer = "failed"
        try:
            os.close(reading)
            faulthandler.dump_traceback_later(PATIENCE - 3)
            answer = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], PATIENCE)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.read()
    os.waitpid(pid, 0)
    return json.loads(answer) if answer else "hangs"


class Held:
    """Something is done in another thread, which stops inside of it until the ``with`` block ends."""

    def __init__(self):
        self._at, self._on = threading.Event(), threading.Event()
        self._by = None

    def __call__(self):
        """Called where the thread is to stop; any other goes on."""
        if threading.current_thread() is self._by:
            self._at.set()
            self._on.wait(500)

    @contextlib.contextmanager
    def while_in(self, work):
        self._by = threading.Thread(target=work, daemon=True)
        self._by.start()
        assert self._at.wait(500), "the other thread never came there"
        try:
            yield
        finally:
            self._on.set()
            self._by.join(500)


class Note:
    """An event of somebody's own."""

    def __init__(self, text, held=lambda: None):
        self.text, self.held = text, held


@describe.register
def _(note: Note) -> EventFacts:
    note.held()
    return EventFacts(EventKind.REQUEST, note.text)


def assembled(assembler, events, context=None):
    return asyncio.run(assembler.assemble(["be brief"], events, context))


def told(assembly):
    return [assembly.id, assembly.totals.tokens_out, len(assembly.events)]


def in_describe():
    """Another thread is reading an event of the very conversation."""
    assembler, held = Assembler([SlidingWindowPolicy(2)]), Held()
    first, second = [Note("a")], [Note("a"), Note("b", held)]
    assembled(assembler, first, Context(conversation_id="c"))
    with held.while_in(lambda: assembled(assembler, second, Context(conversation_id="c"))):
        return child(lambda: told(assembled(assembler, first, Context(conversation_id="c")))[1:])


class StopsAt(str):
    """A text during whose measuring a thread stops."""

    def isascii(self):
        self.held()
        return super().isascii()


def in_append():
    """Another thread is half way through an append to the very history; the child goes on with what was whole."""
    held, history = Held(), History([ModelRequest(content="one"), ModelResponse(content="two")])
    text = StopsAt("three")
    text.held = held
    assembler = Assembler([TokenBudgetPolicy(1_000)])
    assembled(assembler, history)

    def work():
        history.append(ModelRequest(content="four"))
        found, fresh = assembled(assembler, history), assembled(Assembler([TokenBudgetPolicy(1_000)]), list(history))
        return [told(found)[1:], told(fresh)[1:], [event.content for event in found.events]]

    with held.while_in(lambda: history.append(Note(text))):
        return child(work)


def everything(folder):
    """All that can be asked of the engine, once."""
    exporter = SpanFileExporter(folder / "spans.jsonl")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    configure(tracer_provider=provider, meter_provider=MeterProvider([InMemoryMetricReader()]))
    stores = [MemoryKnowledgeStore(), SqliteKnowledgeStore(folder / "store.db"), SqliteKnowledgeStore(":memory:")]
    counter = CalibratedCounter("some-model", CharacterCounter(4))
    chain = [WorkingMemoryPolicy(), ConversationPolicy(), BudgetPolicy(4_000, 100)]
    assembler = Assembler(chain, counter=counter)
    stream = Stream()
    contexts = [
        Context(conversation_id="c", agent_name="agent", dependencies={KnowledgeStore: stores[0]}),
        Context(agent_name="agent", stream=stream, tools=({"name": "t"},)),
    ]

    class Source:
        name = "docs"

        async def search(self, query, *, scopes, k):
            return [Candidate("doc", "It says so.", "public")]

    desk = ContextAssembler(
        system="s", window=1_000, output_reserve=10, scopes=lambda user, task: {"public"}, retrievers=[Source()]
    )

    async def use():
        tokens = []
        with otel_assembly.invoke_agent("agent"):
            for store in stores:
                await store.write("/memory/working.md", "Remember this.")
                assert await store.read("/memory/working.md") == "Remember this."
            for context in contexts:
                assembly = await assembler.assemble(["p"], [ModelRequest(content="q")], context)
                tokens.append(assembly.totals.tokens_out + len(assembly.decisions) + assembly.prefix.tokens)
            await stream.send(ObserverAlert(source="s", severity="warning", message="m"))
            await assembler.assemble([], stream.history, contexts[1])
            for model in (None, "gpt-4", "claude-x"):
                await Assembler([TokenBudgetPolicy(100)], model=model).assemble([], [ModelRequest(content="q")])
            assembler.observe_usage(100, 130)
            tokens.append((await desk.assemble(Task(query="q"), user="u")).allocation.used)
        return tokens

    return use


def our_locks():
    """All locks that something of ours refers to, wherever it is kept."""
    kinds = type(threading.Lock()), type(threading.RLock())
    found = {}
    gc.collect()
    for thing in gc.get_objects():
        kind = type(thing)
        ours = str(getattr(kind, "__module__", "")).partition(".")[0] == "otel_assembly"
        if kind is functools.cached_property:
            values = [getattr(thing, "lock", None)] if thing.func.__module__.startswith("otel_assembly") else []
        elif ours:
            slots = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
            values = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in slots)]
        else:
            continue
        found |= {id(value): value for value in values if isinstance(value, kinds)}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "otel_assembly":
            found |= {id(value): value for value in vars(module).values() if isinstance(value, kinds)}
    return list(found.values())


def every_lock():
    """Another thread holds every lock that we have made."""
    with tempfile.TemporaryDirectory() as folder:
        use = everything(Path(folder))
        before = asyncio.run(use())
        locks, held = our_locks(), Held()

        def hold():
            with contextlib.ExitStack() as stack:
                for lock in locks:
                    stack.enter_context(lock)
                held()

        def work():
            with contextlib.suppress(otel_assembly.errors.KnowledgeStoreError):
                return len(asyncio.run(use()))
            return "the store in memory is lost"

        with held.while_in(hold):
            first = child(work)
        after = child(lambda: len(asyncio.run(use())))
        return [len(locks), len(before), first, after]


def own_lock():
    """The thread that forks holds the lock itself, and lets go of it in both processes."""
    assembler, found = Assembler([SlidingWindowPolicy(2)]), []

    def forks():
        if not found:
            found.append(None)
            found[0] = child(lambda: "goes on in a child")

    first = told(assembled(assembler, [Note("a", forks)], Context(conversation_id="c")))[1:]
    return [found[0], first == told(assembled(assembler, [Note("a")], Context(conversation_id="c")))[1:]]


def threads():
    """Four threads assemble without a pause, while the process forks again and again."""
    assembler = Assembler([ConversationPolicy(), BudgetPolicy(2_000, 100)])
    going = threading.Event()
    stop = threading.Event()

    def talk(number):
        turn = 0
        while not stop.is_set():
            events = [ModelRequest(content=f"{number} {turn} {at}") for at in range(40)]
            assembled(assembler, events, Context(conversation_id=f"c{turn % 2}"))
            turn += 1
            if turn > 2:
                going.set()

    workers = [threading.Thread(target=talk, args=(number,), daemon=True) for number in range(4)]
    for worker in workers:
        worker.start()
    going.wait(500)
    answers = []
    for turn in range(12):
        context = Context(conversation_id=f"c{turn % 2}")
        answers.append(child(lambda context=context: told(assembled(assembler, list(IN_CHILD), context))[2]))
        if answers[-1] == "hangs":
            break
    stop.set()
    for worker in workers:
        worker.join(500)
    return answers


def collected():
    """The garbage collector takes conversations away while the child looks at every lock."""
    assembler, held = Assembler([SlidingWindowPolicy(2)]), [History() for _ in range(2_000)]
    gc.collect()
    gc.disable()
    for _ in range(50):
        History()
    # From here to the locks, far fewer objects are made; from there on, several for each conversation that is held.
    gc.set_threshold(gc.get_count()[0] + 1_000)
    gc.enable()
    answer = child(lambda: told(assembled(assembler, list(IN_CHILD)))[2])
    gc.set_threshold(700)
    return [len(held), answer]


def ids():
    """One conversation goes on in a parent and in two children."""
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    configure(tracer_provider=provider)
    assembler, context, history = Assembler([SlidingWindowPolicy(3)]), Context(conversation_id="c"), History()
    given, own = [], Context()

    def turn():
        given.append(ModelRequest(content=f"{len(given)}"))
        history.append(given[-1])
        for events, where in ((list(given), context), (history, None), (list(given), own)):
            assembled(assembler, events, where)
        spans = [span.attributes for span in memory.get_finished_spans() if span.name == "assemble_context"]
        memory.clear()
        keys = ("assembly.id", "assembly.ledger.id", "assembly.turn", "assembly.previous.id", "assembly.arrived.items")
        return [[value if isinstance(value := span.get(key), (str, int)) else value and list(value) for key in keys]
                for span in spans]  # fmt: skip

    before = turn()
    children = [child(lambda: [turn(), turn()]) for _ in range(2)]
    return {"parent": [before, turn()], "children": children}


def stores():
    """A child writes to the file that its parent has open, and both go on; what is in memory is a copy."""
    with tempfile.TemporaryDirectory() as folder:
        file, memory = SqliteKnowledgeStore(Path(folder) / "store.db"), SqliteKnowledgeStore(":memory:")

        async def append(store, text):
            await store.append("/log", text)
            return await store.read("/log")

        for store in (file, memory):
            asyncio.run(append(store, "parent "))
        after_fork_in_child = child(lambda: [asyncio.run(append(store, "child ")) for store in (file, memory)])
        in_parent = [asyncio.run(append(store, "parent")) for store in (file, memory)]
        again = child(lambda: [asyncio.run(store.read("/log")) for store in (file, memory)])
        asyncio.run(file.close())
        return [after_fork_in_child, in_parent, again]


def queue():
    """What was queued is written by the process that it was queued in, and by no other."""
    written = []

    class Gate:
        async def offer(self, proposals):
            written.extend(proposal.answer for proposal in proposals)
            return []

    gate = QueuedWriteGate(Gate())

    async def offer(text):
        await gate.offer([Proposal(Candidate(text, text, "public"), "a", text)])

    async def finish(text):
        await offer(text)
        await gate.flush()
        return list(written), gate.queued

    async def both():
        # The loop has not come to the queue yet, so that all still waits.
        await offer("parent's")
        answer = child(lambda: asyncio.run(finish("child's")))
        return [answer, await finish("parent's other")]

    return asyncio.run(both())


if __name__ == "__main__":
    answers = {}
    for name in sys.argv[1:]:
        try:
            answers[name] = globals()[name]()
        except Exception:
            answers[name] = traceback.format_exc()
    print(json.dumps(answers))
