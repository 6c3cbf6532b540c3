"""A knowledge store in Redis: for agents that run on more than one machine."""

from __future__ import annotations

import asyncio
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import instance
from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.errors import ConfigurationError, KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge.paths import byte_range, decode, encode, range_text, split_file_path, split_path

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType
    from typing import Self

    from redis.asyncio import Redis

#: The most connections that a store opens for each event loop; further calls wait for a free connection.
_CONNECTIONS: Final = 16

#: An offset beyond the end of any text in Redis; larger offsets are replaced by it, because Redis would refuse them.
_FAR: Final = 1 << 40

#: Clients of the parent process, kept so that the child does not close their connections.
_parent_clients: builtins.list[object] = []

# A file is a string. A directory is a set of the names in it; the names of directories end with a slash. Redis removes
# an empty set, so a directory disappears with its last file. A script is atomic.
_COMMON: Final = """
local prefix, depth = ARGV[1], tonumber(ARGV[2])
local function file(at) return prefix .. ':file:' .. at end
local function folder(at) return prefix .. ':dir:' .. at end
local function argument(n) return ARGV[2 + depth + n] end

-- The path, and for each of its names the directory that contains the name.
local path, parents = '', {}
for d = 1, depth do
  parents[d] = path
  path = path .. '/' .. ARGV[2 + d]
end

-- Returns 0 if a file can be written at the path, -1 if the path is a directory, and the depth of a file in the path
-- that would have to be a directory. Keys of other types, from another program, raise before anything is changed.
local function obstacle()
  for d = 1, depth do
    redis.call('SCARD', folder(parents[d]))
    if d > 1 and redis.call('EXISTS', file(parents[d])) == 1 then return d - 1 end
  end
  redis.call('STRLEN', file(path))
  return redis.call('EXISTS', folder(path)) == 1 and -1 or 0
end

local function enter()
  for d = depth, 1, -1 do
    local name = ARGV[2 + d] .. (d < depth and '/' or '')
    if redis.call('SADD', folder(parents[d]), name) == 0 then return end
  end
end

local function empty(at)
  for _, name in ipairs(redis.call('SMEMBERS', folder(at))) do
    if string.sub(name, -1) == '/' then empty(at .. '/' .. string.sub(name, 1, -2))
    else redis.call('DEL', file(at .. '/' .. name)) end
  end
  redis.call('DEL', folder(at))
end

local function remove()
  empty(path)
  redis.call('DEL', file(path))
  for d = depth, 1, -1 do
    local name = ARGV[2 + d]
    if d == depth then redis.call('SREM', folder(parents[d]), name) end
    redis.call('SREM', folder(parents[d]), name .. '/')
    if redis.call('EXISTS', folder(parents[d])) == 1 then return end
  end
end
"""

_WRITE: Final = f"""{_COMMON}
local way = obstacle()
if way == 0 then
  enter()
  redis.call('SET', file(path), argument(1))
end
return {{way, 0}}
"""

_APPEND: Final = f"""{_COMMON}
local way = obstacle()
if way ~= 0 then return {{way, 0}} end
local size = redis.call('STRLEN', file(path))
enter()
redis.call('APPEND', file(path), argument(1))
return {{0, size}}
"""

# Arguments: 1 and the expected content, or 0 and "" for no file; then the new content in the same form.
_REPLACE: Final = f"""{_COMMON}
local current = redis.call('GET', file(path))
if (current and 1 or 0) ~= tonumber(argument(1)) or (current and current ~= argument(2)) then return {{0, 0}} end
if argument(3) == '1' then
  local way = obstacle()
  if way ~= 0 then return {{way, 0}} end
  enter()
  redis.call('SET', file(path), argument(4))
elseif current then
  remove()
end
return {{0, 1}}
"""

_DELETE: Final = f"""{_COMMON}
remove()
return {{0, 0}}
"""


class RedisKnowledgeStore:
    """A `KnowledgeStore` in Redis 5 or later, or in a compatible server with Lua scripts; needs the extra ``redis``.

    Any number of stores, tasks, threads, processes and machines may share one `prefix`. Each call is one atomic
    command. Use a database without eviction, and with persistence if the texts have to survive a restart of the server.
    A call that raised may still have been executed, because its answer can be lost; no call is sent twice.

    Each event loop has its own connections. They are closed when the event loop shuts down (as in ``asyncio.run``), by
    ``close()``, or at the end of an ``async with``. A forked child opens new connections.

    Args:
        server: The server's URL for `redis.asyncio.Redis.from_url` (``rediss://`` for TLS), or a `redis.asyncio.Redis`
            without ``decode_responses``. Such a client is used in its own event loop only, with its own retries and
            timeouts, and is not closed by the store.
        prefix: The prefix of all keys of the store; stores with different prefixes are independent.
        timeout: The seconds to wait for a connection, and for an answer; ignored if `server` is a client.

    Raises:
        ConfigurationError: The extra is not installed, the URL is invalid, the client is synchronous or decodes
            responses, the prefix is empty, or `timeout` is not positive.
    """

    __slots__ = ("__weakref__", "_callers_client", "_closed", "_opened", "_prefix", "_raises", "_timeout", "_url")

    def __init__(self, server: str | Redis, *, prefix: str = "otel-assembly:knowledge", timeout: float = 10.0) -> None:
        instance("server", server)
        if type(prefix) is not str or not prefix:
            raise ConfigurationError(f"prefix must be a non-empty text, got {prefix!r}")
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be above 0 s, not {timeout}")
        self._prefix = prefix
        self._timeout = timeout
        self._closed = False
        self._opened: dict[asyncio.AbstractEventLoop, tuple[Redis, AsyncGenerator[Redis, None]]] = {}
        self._raises = (_redis("exceptions").RedisError, OSError)
        self._url = server if isinstance(server, str) else ""
        self._callers_client: Redis | None = None if isinstance(server, str) else server
        _check(self._client() if isinstance(server, str) else server)
        after_fork_in_child(self._keep_parent_clients)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of the running event loop; afterwards, other calls raise `KnowledgeStoreError`.

        Closing twice is no error.
        """
        self._closed = True
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened[1].aclose()

    async def read(self, path: str) -> str | None:
        """Return the content of a file; None if there is no file, or for a directory."""
        data = await self._ask("read", path, "GET", self._file(split_file_path(path)))
        return None if data is None else self._text("read", path, data, decode)

    async def write(self, path: str, content: str) -> None:
        """Replace the content of a file; a missing file is created."""
        names = split_file_path(path)
        await self._run("write", path, _WRITE, names, encode(path, content))

    async def list(self, path: str = "/") -> builtins.list[str]:
        """Return the names in a directory, sorted by code point; names of directories end with ``/``."""
        names = await self._ask("list", path, "SMEMBERS", self._folder(split_path(path)))
        return sorted(self._text("list", path, name, bytes.decode) for name in names)

    async def delete(self, path: str) -> None:
        """Remove a file, or a directory with its content; a missing path is no error."""
        await self._run("delete", path, _DELETE, split_path(path))

    async def exists(self, path: str) -> bool:
        """Return True if a file or a directory exists at this path."""
        names = split_path(path)
        keys = await self._ask("look up", path, "EXISTS", self._file(names), self._folder(names))
        return not names or bool(keys)

    async def append(self, path: str, content: str) -> int:
        """Append to a file, and return the offset in bytes at which the new content begins."""
        names = split_file_path(path)
        return await self._run("append to", path, _APPEND, names, encode(path, content))

    async def replace(self, path: str, old: str | None, new: str | None) -> bool:
        """Replace the content `old` of a file by `new`, where None means no file; return False if it is not `old`."""
        names = split_file_path(path)
        contents = (*_optional(path, old), *_optional(path, new))
        return bool(await self._run("replace", path, _REPLACE, names, *contents))

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """Return the characters whose first byte is in ``[start, end)``; with `end` None, up to the end of the file.

        Only the bytes of the range are fetched from the server.
        """
        key = self._file(split_file_path(path))
        first, last = byte_range(start, end)
        to = -1 if last is None else min(last, _FAR) - 1
        data = await self._ask("read", path, "GETRANGE", key, min(first, _FAR), to)
        return self._text("read", path, data, lambda fetched: range_text(fetched, start, end))

    def _file(self, names: tuple[str, ...]) -> str:
        return f"{self._prefix}:file:" + "".join(f"/{name}" for name in names)

    def _folder(self, names: tuple[str, ...]) -> str:
        return f"{self._prefix}:dir:" + "".join(f"/{name}" for name in names)

    async def _run(self, action: str, path: str, script: str, names: tuple[str, ...], *contents: bytes) -> int:
        """Run one of the Lua scripts for a path, and return its result.

        Raises:
            KnowledgePathError: The path is a directory, or a part of the path is a file.
        """
        arguments: tuple[str | bytes | int, ...] = (self._prefix, len(names), *names, *contents)
        obstacle, answer = await self._ask(action, path, "EVAL", script, 1, self._folder(()), *arguments)
        if obstacle > 0:
            raise KnowledgePathError(f"path {path!r} is below '/{'/'.join(names[:obstacle])}', which is a file")
        if obstacle < 0:
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file in it")
        return int(answer)

    async def _ask(self, action: str, path: str, *command: str | bytes | int) -> Any:
        if self._closed:
            raise KnowledgeStoreError(f"cannot {action} {path!r}: the store is closed")
        try:
            client: Any = await self._loop_client() if self._callers_client is None else self._callers_client
            return await client.execute_command(*command)
        except self._raises as error:
            raise KnowledgeStoreError(f"cannot {action} {path!r}: {error}") from error

    async def _loop_client(self) -> Redis:
        loop = asyncio.get_running_loop()
        if loop in self._opened:
            return self._opened[loop][0]
        for ended in [other_loop for other_loop in tuple(self._opened) if other_loop.is_closed()]:
            self._opened.pop(ended, None)
        generator = _closing_with_loop(self._client())
        client = await anext(generator)
        self._opened[loop] = client, generator
        return client

    def _client(self) -> Redis:
        asyncio_redis = _redis("asyncio")
        try:
            pool = asyncio_redis.BlockingConnectionPool.from_url(
                self._url,
                max_connections=_CONNECTIONS,
                timeout=self._timeout,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                # A call that is sent again, because its answer was lost, would append twice.
                retry=_redis("asyncio.retry").Retry(_redis("backoff").NoBackoff(), 0),
            )
        except (ValueError, TypeError):
            # The message quotes neither the URL nor the error, because both may contain a part of the password.
            raise ConfigurationError(
                "the URL of the Redis server cannot be read; write it as redis://user:password@host:6379/0, with '/', "
                "'@' and ':' of the password as %2F, %40 and %3A"
            ) from None
        client: Redis = asyncio_redis.Redis(connection_pool=pool)
        return client

    @staticmethod
    def _text(action: str, path: str, data: bytes, read: Callable[[bytes], str]) -> str:
        try:
            return read(data)
        except UnicodeDecodeError as error:
            raise KnowledgeStoreError(f"cannot {action} {path!r}: {error}") from error

    def _keep_parent_clients(self) -> None:
        """Keep the parent's clients alive in a forked child, because collecting them would close their connections."""
        _parent_clients.append(self._opened)
        self._opened = {}


async def _closing_with_loop(client: Redis) -> AsyncGenerator[Redis, None]:
    """Yield the client, and close its connections afterwards.

    An event loop closes its open async generators when it shuts down, and so these connections.
    """
    try:
        yield client
    finally:
        await client.connection_pool.disconnect()


def _optional(path: str, text: str | None) -> tuple[bytes, bytes]:
    """Return the arguments of a Lua script for a content that can be None."""
    return (b"0", b"") if text is None else (b"1", encode(path, text))


def _check(client: Any) -> None:
    """Raise `ConfigurationError` for a synchronous client, or for one that decodes responses to text."""
    if not inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
        raise ConfigurationError(
            f"server is a {type(client).__qualname__} that cannot be awaited; give a URL, or a client of redis.asyncio"
        )
    if client.get_encoder().decode_responses:
        raise ConfigurationError(
            "the Redis client decodes responses, which fails for bytes that begin within a character; create it "
            "without decode_responses"
        )


def _redis(module: str) -> Any:
    try:
        return import_module(f"redis.{module}")
    except ModuleNotFoundError as missing:
        raise ConfigurationError(
            "RedisKnowledgeStore needs the extra redis; install it: pip install 'otel-assembly[redis]'"
        ) from missing
