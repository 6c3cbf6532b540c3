"""Programs that watch how the vocabulary is read; each prints what it saw, as JSON.

``python loading_programs.py NAME``.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import sys
import threading

import tiktoken

#: The thread in which each vocabulary was made, by its name.
READ: list[tuple[str, str]] = []
#: Nothing is read before it is set.
GO = threading.Event()

_init = tiktoken.Encoding.__init__


def _watched(self, name, **settings):
    assert GO.wait(500), "nobody let the reading go on"
    _init(self, name, **settings)
    READ.append((name, threading.current_thread().name))


tiktoken.Encoding.__init__ = _watched


def is_reading():
    return any(thread.name == "otel-assembly-vocabulary" for thread in threading.enumerate())


def elsewhere():
    """How many were read, and whether none of them in the main thread."""
    return [name for name, _ in READ], all(thread != "MainThread" for _, thread in READ)


def the_loop_runs():
    """The event loop runs while the first assemblies wait: it is the loop that lets the reading go on."""
    from otel_assembly import Assembler, ModelRequest, TokenBudgetPolicy

    assembler = Assembler([TokenBudgetPolicy(100)])
    began = is_reading()

    async def first():
        turns = [asyncio.create_task(assembler.assemble([], [ModelRequest(content="one two")])) for _ in range(5)]
        for _ in range(50):
            await asyncio.sleep(0)
        waited = not any(turn.done() for turn in turns)
        GO.set()
        return waited, [(await turn).totals.tokens_out for turn in turns]

    return began, asyncio.run(first()), *elsewhere()


def the_model_says_which():
    """What is read is the vocabulary of the model, where it is known."""
    from otel_assembly import Assembler, ContextAssembler, allocate_async
    from otel_assembly.tokens import CharacterCounter, TiktokenCounter

    GO.set()
    Assembler([], counter=CharacterCounter(4))
    none = not is_reading()
    Assembler([], model="gpt-4")
    settings = {"system": "s", "window": 4_000, "output_reserve": 10, "scopes": lambda user, task: set()}
    ContextAssembler(counter=TiktokenCounter("o200k_base"), **settings)
    asyncio.run(allocate_async([], 100, 10))
    asyncio.run(Assembler([], model="gpt-4").assemble([], []))
    names, is_elsewhere = elsewhere()
    return none, sorted(names), is_elsewhere


def in_step():
    """What cannot wait otherwise waits for the thread, and reads nothing itself."""
    from otel_assembly import Assembler
    from otel_assembly.tokens import TiktokenCounter

    Assembler([])
    threading.Timer(0.05, GO.set).start()
    return TiktokenCounter("o200k_base").count("one two"), *elsewhere()


def frameworks():
    """A framework that is hooked is imported: reading begins; its reducer, which is not async, waits for it."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otel_assembly.instrumentation import LangChainInstrumentor

    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    LangChainInstrumentor().instrument()
    before = is_reading()
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.messages import HumanMessage, trim_messages

    after = is_reading()
    threading.Timer(0.05, GO.set).start()
    talk = [HumanMessage("a"), HumanMessage("b")]
    kept = trim_messages(talk, max_tokens=1, token_counter=len, strategy="last")
    FakeListChatModel(responses=["yes"]).invoke(kept)
    return before, after, [span.name for span in memory.get_finished_spans()], *elsewhere()


def nothing():
    """Whoever makes no assembler and imports no framework reads nothing."""
    import otel_assembly.instrumentation as instrumentation
    from otel_assembly.cli import main

    for name in ("AG2", "AutoGen", "AgentScope", "LangChain"):
        getattr(instrumentation, f"{name}Instrumentor")().instrument()
    for command in (["--help"], ["replay", "--help"], ["demo", "--help"]):
        with contextlib.suppress(SystemExit):
            main(command)
    return is_reading(), READ


def forked():
    """A process forks while another thread reads: the child reads itself, and the parent does not read again."""
    from otel_assembly import Assembler, ModelRequest

    assembler = Assembler([])
    began = is_reading()

    def tokens():
        return asyncio.run(assembler.assemble([], [ModelRequest(content="one two")])).totals.tokens_out

    def child():
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            faulthandler.dump_traceback_later(30, exit=True)
            GO.set()
            os.write(writing, json.dumps([tokens(), [name for name, _ in READ]]).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            found = stream.read()
        os.waitpid(pid, 0)
        return json.loads(found or '"hangs"')

    children = [(child(), threading.Event().wait(seconds))[0] for seconds in (0.03, 0.2, 0)]
    GO.set()
    return began, children, [tokens(), [name for name, _ in READ]]


def damaged():
    """A vocabulary that cannot be read costs nobody anything who does not count; who counts is told."""
    import lzma

    from otel_assembly import Assembler, ModelRequest
    from otel_assembly.errors import TokenizerError

    def fails(content):
        raise lzma.LZMAError

    lzma.decompress = fails
    GO.set()
    assembler = Assembler([])
    assembly = asyncio.run(assembler.assemble([], [ModelRequest(content="one two")]))
    told = []
    for _ in range(2):
        try:
            told.append(assembly.totals.tokens_out)
        except TokenizerError as error:
            told.append("LZMAError" in str(error))
    return [event.content for event in assembly.events], told


def leaves():
    """The program ends while another thread reads."""
    from otel_assembly import Assembler

    seconds = float(os.environ["LEAVE_AFTER"])
    if seconds >= 0:
        GO.set()
    Assembler([])
    threading.Event().wait(max(0.0, seconds))
    return "left"


if __name__ == "__main__":
    found = globals()[sys.argv[1]]()
    print(f"\n{json.dumps(found)}")
