"""Blocking work runs in threads of the package's own: what hangs there stops nothing else, and no exit."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Executor
from pathlib import Path

import pytest
from spoken_agents import calls, said

import otel_assembly
from otel_assembly import Agent, ConversationPolicy, Tool, WorkingMemoryPolicy
from otel_assembly.events import ToolFinishedLate, event_from_json, event_to_json
from otel_assembly.knowledge import DiskKnowledgeStore, SqliteKnowledgeStore
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel

PACKAGE = Path(otel_assembly.__file__).parent


class NoExecutor(Executor):
    """A default executor that takes no work, as one does whose threads all hang."""

    def submit(self, *_, **__):
        raise AssertionError("the default executor is used")


@pytest.fixture
def hang():
    """A synchronous tool that returns when it is released, and how often it was started."""

    class Hang:
        def __init__(self):
            self.released = threading.Event()
            self.started = []

        def hung(self) -> str:
            """Hang."""
            self.started.append(1)
            self.released.wait()
            return "at last"

    hang = Hang()
    yield hang
    hang.released.set()


def without_default_executor():
    loop = asyncio.get_running_loop()
    loop._default_executor = NoExecutor()  # set_default_executor takes a ThreadPoolExecutor only


def runs_in_own_executor(call):
    """Whether a call is ``….run_in_executor(self.…, …)``."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "run_in_executor"
        and isinstance(call.args[0], ast.Attribute)
        and isinstance(call.args[0].value, ast.Name)
        and call.args[0].value.id == "self"
    )


def test_no_code_of_the_package_names_the_default_executor():
    found = []
    unbounded = {"to_thread", "run_in_executor", "getaddrinfo", "getnameinfo", "run_sync"}
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if not any(name in source for name in unbounded):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        # anyio's workers are bounded by a limiter, which must not be the one that the process shares; `run_in_executor`
        # may name an executor of our own, an attribute of the object.
        bounded = {
            part
            for node in nodes
            if isinstance(node, ast.Call)
            and (any(keyword.arg == "limiter" for keyword in node.keywords) or runs_in_own_executor(node))
            for part in ast.walk(node.func)
        }
        # Outside of an event loop, `socket` resolves names in the calling thread.
        bounded |= {node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "socket"}
        for node in nodes:
            if node in bounded:
                continue
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in unbounded:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}")
    assert found == []


async def test_tools_stores_and_counting_work_without_the_default_executor(tmp_path):
    without_default_executor()

    def look() -> str:
        return "fine"

    for store in (DiskKnowledgeStore(tmp_path / "disk"), SqliteKnowledgeStore(tmp_path / "file.db")):
        await store.write("/memory/working.md", "remember")
        agent = Agent(
            "helper",
            "",
            ScriptedModel(calls("look"), "done"),
            [look],
            assembly=[WorkingMemoryPolicy(), ConversationPolicy()],
            knowledge=store,
        )
        # More text than is counted in the event loop's own thread.
        assert (await agent.ask("word " * 40_000)).content == "done"
        assert "result look: fine" in said(agent.session)
    await store.close()


async def test_hung_tools_of_one_agent_hold_up_no_other_agent_and_no_store(tmp_path, hang):
    hung = calls(*["hung"] * 60)
    first = Agent("first", "", ScriptedModel(hung, "done"), [hang.hung], tool_timeout=0.5)
    assert (await first.ask("Go.")).content == "done"
    assert 0 < len(hang.started) <= 40  # its own bound
    errors = [line for line in said(first.session) if line.startswith("error")]
    assert sum("still runs and may still take effect" in line for line in errors) == len(hang.started)
    assert sum("did not start within 0.5 s" in line for line in errors) == 60 - len(hang.started)

    def quick() -> str:
        return "quick"

    second = Agent(
        "second",
        "",
        ScriptedModel(calls("quick"), "done"),
        [quick],
        assembly=[WorkingMemoryPolicy(), ConversationPolicy()],
        knowledge=DiskKnowledgeStore(tmp_path),
    )
    await second.ask("Go.")
    assert "result quick: quick" in said(second.session)


async def test_a_call_that_got_no_thread_in_time_never_runs(hang):
    ran = []

    def quick() -> str:
        ran.append(1)
        return "quick"

    tools = [hang.hung, Tool(quick, timeout=0.01)]
    agent = Agent("helper", "", ScriptedModel(calls("hung", "quick"), "done"), tools, max_tool_threads=1)
    ask = asyncio.ensure_future(agent.ask("Go."))
    async with agent.session.stream.events(otel_assembly.events.ToolErrorEvent) as errors:
        error = await anext(aiter(errors))
    assert "did not start within 0.01 s" in error.error
    assert not error.still_running
    hang.released.set()
    await ask
    assert ran == []
    assert "result hung: at last" in said(agent.session)


async def test_a_late_end_is_recorded(hang, caplog):
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        agent = Agent(
            "helper",
            "",
            ScriptedModel(calls("hung"), "done"),
            [Tool(hang.hung, name="hung", timeout=1)],
            middlewares=[TracingMiddleware()],
        )
        await agent.ask("Go.")
    (error,) = (event for event in agent.session.history if isinstance(event, otel_assembly.events.ToolErrorEvent))
    assert error.still_running
    assert event_from_json(event_to_json(error)) == error
    assert telemetry.span("execute_tool hung").attributes["assembly.tool.still_running"] is True
    async with agent.session.stream.events(ToolFinishedLate) as ends:
        hang.released.set()
        late = await anext(aiter(ends))
    assert (late.parent_id, late.name, late.error) == ("call-0", "hung", "")
    assert late.seconds >= 0.5
    assert agent.session.history[-1] == late
    assert "the function of tool hung ended after" in caplog.text
    loaded = agent.load_session(agent.session.save())
    assert loaded.session.history[-1] == late
    telemetry.shutdown()


@pytest.mark.parametrize("traced", [True, False], ids=["with hooks", "without hooks"])
@pytest.mark.parametrize("names", [["slow"], ["slow", "quick"]], ids=["one call", "two calls"])
async def test_a_cancelled_call_whose_function_continues_is_marked(hang, names, traced):
    loop, started = asyncio.get_running_loop(), asyncio.Event()

    def slow() -> str:
        loop.call_soon_threadsafe(started.set)
        return hang.hung()

    def quick() -> str:
        return "quick"

    telemetry, middlewares = RecordedTelemetry(), [TracingMiddleware()] if traced else []
    agent = Agent("helper", "", ScriptedModel(calls(*names), "done"), [slow, quick], middlewares=middlewares)
    with telemetry.as_default():
        ask = asyncio.ensure_future(agent.ask("Go."))
        await started.wait()
        ask.cancel()
        await asyncio.wait([ask])
    (error,) = (
        event
        for event in agent.session.history
        if isinstance(event, otel_assembly.events.ToolErrorEvent) and event.name == "slow"
    )
    assert error.still_running
    assert error.error.endswith("the ask was cancelled; it still runs and may still take effect")
    if traced:
        assert telemetry.span("execute_tool slow").attributes["assembly.tool.still_running"] is True
    async with agent.session.stream.events(ToolFinishedLate) as ends:
        hang.released.set()
        assert (await anext(aiter(ends))).name == "slow"


async def test_a_late_end_with_an_error_names_its_type(hang):
    def fails() -> str:
        hang.hung()
        raise LookupError

    agent = Agent("helper", "", ScriptedModel(calls("fails"), "done"), [Tool(fails, timeout=1)])
    await agent.ask("Go.")
    async with agent.session.stream.events(ToolFinishedLate) as ends:
        hang.released.set()
        assert (await anext(aiter(ends))).error == "LookupError"


async def test_a_tool_that_raises_stop_iteration_has_a_result():
    def empty() -> str:
        return next(iter(()))

    agent = Agent("helper", "", ScriptedModel(calls("empty"), "done"), [empty], tool_timeout=60)
    await agent.ask("Go.")
    assert any(line.startswith("error empty:") and "StopIteration" in line for line in said(agent.session))


def test_one_agent_works_in_event_loops_of_several_threads(hang):
    def quick() -> str:
        return "quick"

    agent = Agent("helper", "", ScriptedModel(*[calls("quick"), "done"] * 8), [quick, hang.hung], max_tool_threads=2)
    lines = []

    def work() -> None:
        own = agent.open_session()
        own.model = ScriptedModel(calls(*["quick"] * 10), "done")
        asyncio.run(own.ask("Go."))
        lines.append(said(own.session).count("result quick: quick"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines == [10, 10, 10, 10]


EXITS = """
import asyncio, os, threading
from otel_assembly import Agent, ModelResponse, ToolCallEvent
from otel_assembly.testing import ScriptedModel

def hung() -> str:
    threading.Event().wait()

def quick() -> str:
    return "quick"

def agent(*names):
    made = ModelResponse(tool_calls=tuple(ToolCallEvent(id=str(n), name=name) for n, name in enumerate(names)))
    return Agent("helper", "", ScriptedModel(made, "done"), [hung, quick], tool_timeout=TIMEOUT, max_tool_threads=4)
"""


def run(program, timeout="1"):
    program = EXITS.replace("TIMEOUT", timeout) + program
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stderr, ended.returncode) == ("", 0)
    return ended.stdout


def test_a_process_with_hung_tools_exits():
    assert run('print(asyncio.run(agent(*["hung"] * 4).ask("Go.")).content)') == "done\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="the system has no fork")
def test_a_forked_child_has_all_threads_again():
    program = """
one = agent(*["hung"] * 4)
asyncio.run(one.ask("Go."))
child = os.fork()
if not child:
    own = one.open_session()
    own.model = ScriptedModel(ModelResponse(tool_calls=(ToolCallEvent(id="q", name="quick"),)), "done")
    asyncio.run(own.ask("Go."))
    print([e.content for e in own.session.history if e.type == "tool_result"], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    ended = subprocess.run(
        [sys.executable, "-c", EXITS.replace("TIMEOUT", "1") + program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "['quick']\n"


# Stores


HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
"""


async def test_a_disk_store_does_not_wait_for_ever_for_the_lock_of_another_process(tmp_path):
    pytest.importorskip("fcntl", reason="the system has no flock")
    store = DiskKnowledgeStore(tmp_path, busy_timeout=0.05)
    await store.write("/notes", "old")
    command = [sys.executable, "-c", HOLDER]
    pipe = subprocess.PIPE
    (lock,) = (path for path in tmp_path.iterdir() if path.name != "notes")
    with subprocess.Popen([*command, str(lock)], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout.readline() == b"locked\n"
        for change in (store.write("/notes", "new"), store.append("/notes", "new"), store.delete("/notes")):
            with pytest.raises(
                otel_assembly.errors.KnowledgeStoreError, match="kept the lock of the store for too long"
            ):
                await change
        assert await store.read("/notes") == "old"
        holder.communicate(b"\n")
    await store.write("/notes", "new")
    with subprocess.Popen([*command, str(tmp_path / "notes")], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(otel_assembly.errors.KnowledgeStoreError, match=r"cannot read '/notes'.*too long"):
            await store.read("/notes")
        holder.communicate(b"\n")
    assert await store.read("/notes") == "new"


async def test_a_call_of_a_store_waits_for_a_thread_only_so_long(tmp_path, monkeypatch):
    store = SqliteKnowledgeStore(tmp_path / "file.db", busy_timeout=0.05)
    await store.write("/notes", "old")
    released = threading.Event()
    monkeypatch.setattr(store.__class__, "_exists", lambda *_: released.wait())
    waiting = [asyncio.ensure_future(store.exists("/notes")) for _ in range(20)]
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert all("none of 16 threads became free" in str(task.exception()) for task in done)
    released.set()
    if pending:
        await asyncio.wait(pending)
    assert await store.read("/notes") == "old"
    await store.close()
