"""The tools of a real MCP server, over standard streams and by HTTP; a server that dies hurts nobody."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from otel_assembly import Agent, ConfigurationError, ModelResponse, ToolCallEvent, ToolResultEvent
from otel_assembly.events import ToolErrorEvent
from otel_assembly.runtime import mcp_tools
from otel_assembly.testing import ScriptedModel

SERVER = str(Path(__file__).with_name("mcp_server.py"))
STDIO = [sys.executable, SERVER]


def calls(name, arguments="{}"):
    return ModelResponse(tool_calls=(ToolCallEvent(id=f"call-{name}", name=name, arguments=arguments),))


@contextmanager
def http_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["stdio", "http"])
def server(request):
    if request.param == "stdio":
        yield STDIO
    else:
        with http_server() as url:
            yield url


async def test_its_tools_are_an_agents_tools(server):
    async with mcp_tools(server, prefix="kitchen.") as tools:
        model = ScriptedModel(calls("kitchen_multiply", '{"a": 6, "b": 7}'), calls("kitchen_burn"), "42")
        agent = Agent("cook", "", model, tools)
        assert (await agent.ask("6 * 7?")).content == "42"
    (definition,) = [
        tool["function"] for tool in model.received[0].tools if tool["function"]["name"].endswith("multiply")
    ]
    assert definition["description"] == "Multiply two numbers."
    assert set(definition["parameters"]["properties"]) == {"a", "b"}
    by_id = {event.parent_id: event for event in agent.session.history if hasattr(event, "parent_id")}
    assert by_id["call-kitchen_multiply"].content == "42"
    assert "it is burnt" in by_id["call-kitchen_burn"].error


async def test_a_server_that_dies_is_named_and_the_session_goes_on(server):
    async with mcp_tools(server) as tools:
        agent = Agent(
            "cook", "", ScriptedModel(calls("die"), calls("multiply", '{"a": 1, "b": 2}'), "sorry", "yes"), tools
        )
        assert (await agent.ask("?")).content == "sorry"
        errors = [event for event in agent.session.history if isinstance(event, ToolErrorEvent)]
        assert [error.name for error in errors] == ["die", "multiply"]
        named = server if isinstance(server, str) else SERVER
        assert all("MCP server" in error.error and named in error.error for error in errors)
        assert (await agent.ask("still there?")).content == "yes"


async def test_a_tool_is_idempotent_if_its_server_annotates_it_so_and_its_name_may_begin_with_a_digit():
    async with mcp_tools(STDIO) as tools:
        idempotent = {tool.name: tool.idempotent for tool in tools}
    assert {name for name, flag in idempotent.items() if flag} == {"multiply", "burn"}
    assert "3d_print" in idempotent


async def test_a_call_that_takes_too_long_is_an_error_of_that_call():
    # The limit is also that of connecting, so the server is already running: only a handshake is left to do in 5 s.
    with http_server() as url:
        async with mcp_tools(url, timeout=5) as tools:
            agent = Agent("cook", "", ScriptedModel(calls("sleep"), "late"), tools)
            assert (await agent.ask("?")).content == "late"
    (error,) = [event for event in agent.session.history if isinstance(event, ToolErrorEvent)]
    assert "it took more than 5 s" in error.error


@pytest.mark.parametrize("server", [["no-such-command-at-all"], "http://127.0.0.1:9/mcp", [sys.executable, "-c", ""]])
async def test_a_server_that_is_not_there_is_named(server):
    with pytest.raises(ConfigurationError, match="cannot be reached"):
        async with mcp_tools(server):
            pass


async def test_a_timeout_is_positive():
    with pytest.raises(ConfigurationError, match="above 0 s"):
        async with mcp_tools(STDIO, timeout=0):
            pass


#: A program that says that it runs, and never answers.
SILENT = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(60)"


def is_gone(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


async def test_who_is_cancelled_while_it_connects_leaves_no_server_behind(tmp_path):
    started = tmp_path / "pid"

    async def connect():
        async with mcp_tools([sys.executable, "-c", f"import os; {SILENT}", str(started)], timeout=50):
            pass

    connecting = asyncio.create_task(connect())
    while not (started.exists() and started.read_text()):
        await asyncio.sleep(0.05)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert is_gone(int(started.read_text()))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_command_that_is_empty_is_refused():
    with pytest.raises(ConfigurationError, match="the command that starts an MCP server is empty"):
        async with mcp_tools([]):
            pass


async def test_data_without_a_text_is_what_the_model_reads():
    async with mcp_tools(STDIO) as tools:
        agent = Agent("cook", "", ScriptedModel(calls("weigh"), "250 g"), tools)
        await agent.ask("?")
    (result,) = [event for event in agent.session.history if isinstance(event, ToolResultEvent)]
    assert result.content == '{"grams": 250}'
