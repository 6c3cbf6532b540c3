"""`mcp_tools`: makes the tools of an MCP server available to an agent."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import ConfigurationError, ToolError
from otel_assembly.runtime.tools import Tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

_INVALID_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_-]")


@asynccontextmanager
async def mcp_tools(
    server: str | Sequence[str],
    *,
    prefix: str = "",
    timeout: float = 60.0,  # noqa: ASYNC109  # the limit of each tool call, not of this function
    env: Mapping[str, str] | None = None,
    needs_approval: bool = False,
) -> AsyncIterator[list[Tool]]:
    """Connect to an MCP server for the duration of the block, and return its tools.

    ::

        async with mcp_tools(["python", "server.py"]) as tools:
            agent = Agent("helper", "Be brief.", model, tools)

    If the server dies or does not answer in time, the running call gets an error result that names the server.
    A tool is `Tool.idempotent` if the server annotates it with ``readOnlyHint`` or ``idempotentHint``.

    Args:
        server: The URL of a streamable HTTP server, or the command, as a list, that starts a stdio server.
        prefix: A prefix for the tools' names, if two servers have tools of the same name.
        timeout: The time limit of the connection, and of each call, in seconds.
        env: Environment variables for the command, in addition to the default ones of the ``mcp`` package; None for no
            others.
        needs_approval: True if a person must approve each call before it runs.

    Raises:
        ConfigurationError: The ``mcp`` package is not installed, or the server cannot be reached.
    """
    if not timeout > 0:
        raise ConfigurationError(f"timeout must be above 0 s, not {timeout}")
    connection = _Connection(server, dict(env) if env is not None else None, timeout)
    await connection.open()
    try:
        definitions = await connection.request(connection.list_tools)
        yield [_tool(connection, definition, prefix, needs_approval) for definition in definitions]
    except _NoAnswerError as error:
        raise ConfigurationError(f"MCP server {connection.name} did not list its tools: {error}") from error
    finally:
        await connection.close()


class _NoAnswerError(Exception):
    """Raised if the server does not answer or refuses a request. The message is part of the tool's error result."""


class _Connection:
    """A connection to an MCP server.

    The ``mcp`` package's session runs in a separate task, so that its failure does not cancel the callers.
    """

    def __init__(self, server: str | Sequence[str], env: dict[str, str] | None, timeout: float) -> None:
        self.name = repr(server if isinstance(server, str) else " ".join(server))
        self._server, self._env, self._timeout = server, env, timeout
        self._closing = asyncio.Event()
        self._session: Any = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        ready = asyncio.Event()
        task = self._task = asyncio.create_task(self._keep_open(self._transport(), ready))
        ready_task = asyncio.create_task(ready.wait())
        problem = "it did not answer in time"
        try:
            await asyncio.wait({task, ready_task}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                problem = _type_names(error)
        finally:
            ready_task.cancel()
            if not ready.is_set():  # also if this task is cancelled: no other code closes the connection
                await self._cancel()
        if not ready.is_set():
            raise ConfigurationError(f"MCP server {self.name} cannot be reached: {problem}")

    async def close(self) -> None:
        """Close the connection; cancel the connection's task if it does not end within the time limit."""
        self._closing.set()
        try:
            if self._task is not None:
                await asyncio.wait({self._task}, timeout=self._timeout)
        finally:
            await self._cancel()

    async def _cancel(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # mark the error as retrieved: it was reported, or the connection is closing

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the definitions of all tools, as the server sends them."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = await (self._session.list_tools() if cursor is None else self._session.list_tools(cursor=cursor))
            fields = page.model_dump(by_alias=True)
            tools += fields["tools"]
            cursor = fields.get("nextCursor")
            if not cursor:
                return tools

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool on the server and return the result as JSON values."""
        result = await self._session.call_tool(name, arguments)
        fields: dict[str, Any] = result.model_dump(by_alias=True, mode="json")
        return fields

    async def request(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Send a request to the server and return the answer.

        Args:
            work: The method of this class that sends the request.
            arguments: The arguments of the method.

        Raises:
            _NoAnswerError: The connection is closed, or the request failed or exceeded the time limit.
        """
        task = self._task
        if task is None or task.done():
            raise _NoAnswerError("the connection is closed")
        request_task = asyncio.ensure_future(work(*arguments))
        try:
            done, _ = await asyncio.wait(
                {request_task, task}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if request_task in done:
                return request_task.result()
            raise _NoAnswerError("the connection is closed" if done else f"it took more than {self._timeout:g} s")
        except (_NoAnswerError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _NoAnswerError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error
        finally:
            request_task.cancel()

    def _transport(self) -> Any:
        try:
            if isinstance(self._server, str):
                http = import_module("mcp.client.streamable_http")
                return http.streamable_http_client(self._server)
            stdio = import_module("mcp.client.stdio")
        except ImportError as missing:
            raise ConfigurationError("mcp_tools needs mcp; install it: pip install 'otel-assembly[mcp]'") from missing
        if not self._server:
            raise ConfigurationError("the command that starts an MCP server is empty; give a list, or the server's URL")
        command, *arguments = self._server
        return stdio.stdio_client(stdio.StdioServerParameters(command=command, args=arguments, env=self._env))

    async def _keep_open(self, transport: Any, ready: asyncio.Event) -> None:
        async with (
            transport as (incoming, outgoing, *_),
            import_module("mcp").ClientSession(incoming, outgoing) as session,
        ):
            await session.initialize()
            self._session = session
            ready.set()
            await self._closing.wait()


def _tool(connection: _Connection, definition: Mapping[str, Any], prefix: str, needs_approval: bool) -> Tool:
    name = _INVALID_CHARACTERS.sub("_", prefix + definition["name"])

    async def call(**arguments: Any) -> str:
        try:
            result = await connection.request(connection.call, definition["name"], arguments)
        except _NoAnswerError as error:
            raise ToolError(name, f"got no answer from MCP server {connection.name}: {error}") from error
        text = _text(result)
        if result.get("isError"):
            raise ToolError(name, f"failed on MCP server {connection.name}: {text}")
        return text

    # MCP defines absent hints as false. A read-only call has no effect, so it may be repeated too.
    hints = definition.get("annotations") or {}
    return Tool(
        call,
        name=name,
        description=definition.get("description") or "",
        parameters=definition["inputSchema"],
        needs_approval=needs_approval,
        idempotent=bool(hints.get("idempotentHint") or hints.get("readOnlyHint")),
    )


def _text(result: Mapping[str, Any]) -> str:
    """Convert a tool result to text.

    Texts are unchanged, and media are replaced by a placeholder. A result with only structured data becomes JSON.
    """
    lines = []
    for block in result["content"]:
        kind = block["type"]
        if kind == "text":
            lines.append(block["text"])
        elif kind == "resource" and "text" in block["resource"]:
            lines.append(block["resource"]["text"])
        else:
            lines.append(f"[{kind} {block.get('uri') or block.get('mimeType') or ''}]".replace(" ]", "]"))
    if not lines and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return "\n".join(lines)


def _type_names(error: BaseException) -> str:
    """Return the name of an error's type; for an exception group, the names of its errors' types."""
    if isinstance(error, BaseExceptionGroup):
        return ", ".join(dict.fromkeys(_type_names(inner) for inner in error.exceptions))
    return type(error).__name__
