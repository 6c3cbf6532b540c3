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

#: How many connections a store opens at most; who needs another one waits.
_CONNECTIONS: Final = 16

#: Offsets past this one are past the end of any text that Redis holds.
_FAR: Final = 1 << 40

#: Clients that are open in the process that forked this one; nothing is done with them.
_of_parents: builtins.list[object] = []

# A file is a string, a directory a set of the names beneath it, those of directories with a slash at their end. Redis
# has no empty sets, so that a directory goes with its last file. A script is atomic: nobody sees the half of it.
_COMMON: Final = """
local prefix, depth = ARGV[1], tonumber(ARGV[2])
local function file(at) return prefix .. ':file:' .. at end
local function folder(at) return prefix .. ':dir:' .. at end
local function given(n) return ARGV[2 + depth + n] end

-- The path, and the directory that each of its names stands in.
local path, parents = '', {}
for d = 1, depth do
  parents[d] = path
  path = path .. '/' .. ARGV[2 + d]
end

-- What a file here would lie beneath, as the depth of that file; -1 where a directory is here. Keys of other types,
-- which somebody else has put there, raise before anything is changed.
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
  redis.call('SET', file(path), given(1))
end
return {{way, 0}}
"""

_APPEND: Final = f"""{_COMMON}
local way = obstacle()
if way ~= 0 then return {{way, 0}} end
local size = redis.call('STRLEN', file(path))
enter()
redis.call('APPEND', file(path), given(1))
return {{0, size}}
"""

# What is given: whether there has to be a file, and with what; whether there is to be one, and with what.
_REPLACE: Final = f"""{_COMMON}
local held = redis.call('GET', file(path))
if (held and 1 or 0) ~= tonumber(given(1)) or (held and held ~= given(2)) then return {{0, 0}} end
if given(3) == '1' then
  local way = obstacle()
  if way ~= 0 then return {{way, 0}} end
  enter()
  redis.call('SET', file(path), given(4))
elseif held then
  remove()
end
return {{0, 1}}
"""

_DELETE: Final = f"""{_COMMON}
remove()
return {{0, 0}}
"""


class RedisKnowledgeStore:
    """A `KnowledgeStore` in Redis 5 or later, or in what speaks its protocol and runs its scripts; extra ``redis``.

    Any number of stores, tasks, threads, processes and machines may share one `prefix`; every call is one command, and
    atomic. Give it a database that evicts nothing, and that writes to disk what is to outlive the server. A call that
    failed may have been carried out; none is sent twice.

    Connections belong to their event loop, and are closed as it ends (as ``asyncio.run`` ends one), or before by
    ``close()``, or at the end of an ``async with``. A forked child opens its own.

    Args:
        server: Its URL, as `redis.asyncio.Redis.from_url` takes it (``rediss://`` for TLS); or a `redis.asyncio.Redis`
            of yours, made without ``decode_responses``, which serves the one event loop that it belongs to, retries as
            you told it, and stays yours to close.
        prefix: How the names of all its keys begin; stores of different prefixes know nothing of each other.
        timeout: Seconds that the server may take to be reached, or to answer; of a client of yours, its own hold.

    Raises:
        ConfigurationError: The extra is not installed, the URL is none, the client blocks or decodes, the prefix is
            empty, or the time-out is not positive.
    """

    __slots__ = ("__weakref__", "_closed", "_given", "_opened", "_prefix", "_raises", "_timeout", "_url")

    def __init__(self, server: str | Redis, *, prefix: str = "otel-assembly:knowledge", timeout: float = 10.0) -> None:
        instance("server", server)
        if type(prefix) is not str or not prefix:
            raise ConfigurationError(f"prefix must be a text that is not empty, got {prefix!r}")
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be above 0 s, not {timeout}")
        self._prefix = prefix
        self._timeout = timeout
        self._closed = False
        self._opened: dict[asyncio.AbstractEventLoop, tuple[Redis, AsyncGenerator[Redis, None]]] = {}
        self._raises = (_redis("exceptions").RedisError, OSError)
        self._url = server if isinstance(server, str) else ""
        self._given: Redis | None = None if isinstance(server, str) else server
        _check(self._client() if isinstance(server, str) else server)
        after_fork_in_child(self._leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close this loop's connections; closing twice is no error, any other use raises `KnowledgeStoreError`."""
        self._closed = True
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened[1].aclose()

    async def read(self, path: str) -> str | None:
        """See `KnowledgeStore.read`."""
        data = await self._ask("read", path, "GET", self._file(split_file_path(path)))
        return None if data is None else self._text("read", path, data, decode)

    async def write(self, path: str, content: str) -> None:
        """See `KnowledgeStore.write`."""
        names = split_file_path(path)
        await self._run("write", path, _WRITE, names, encode(path, content))

    async def list(self, path: str = "/") -> builtins.list[str]:
        """See `KnowledgeStore.list`."""
        names = await self._ask("list", path, "SMEMBERS", self._folder(split_path(path)))
        return sorted(self._text("list", path, name, bytes.decode) for name in names)

    async def delete(self, path: str) -> None:
        """See `KnowledgeStore.delete`."""
        await self._run("delete", path, _DELETE, split_path(path))

    async def exists(self, path: str) -> bool:
        """See `KnowledgeStore.exists`."""
        names = split_path(path)
        found = await self._ask("look up", path, "EXISTS", self._file(names), self._folder(names))
        return not names or bool(found)

    async def append(self, path: str, content: str) -> int:
        """See `KnowledgeStore.append`."""
        names = split_file_path(path)
        return await self._run("append to", path, _APPEND, names, encode(path, content))

    async def replace(self, path: str, old: str | None, new: str | None) -> bool:
        """See `ComparingKnowledgeStore.replace`."""
        names = split_file_path(path)
        given = (*_optional(path, old), *_optional(path, new))
        return bool(await self._run("replace", path, _REPLACE, names, *given))

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """See `KnowledgeStore.read_range`; no more than the range is fetched."""
        key = self._file(split_file_path(path))
        first, last = byte_range(start, end)
        to = -1 if last is None else min(last, _FAR) - 1
        data = await self._ask("read", path, "GETRANGE", key, min(first, _FAR), to)
        return self._text("read", path, data, lambda fetched: range_text(fetched, start, end))

    def _file(self, names: tuple[str, ...]) -> str:
        return f"{self._prefix}:file:" + "".join(f"/{name}" for name in names)

    def _folder(self, names: tuple[str, ...]) -> str:
        return f"{self._prefix}:dir:" + "".join(f"/{name}" for name in names)

    async def _run(self, action: str, path: str, script: str, names: tuple[str, ...], *given: bytes) -> int:
        """Run a script on what stands at `names`.

        Raises:
            KnowledgePathError: A file cannot be there.
        """
        arguments: tuple[str | bytes | int, ...] = (self._prefix, len(names), *names, *given)
        obstacle, answer = await self._ask(action, path, "EVAL", script, 1, self._folder(()), *arguments)
        if obstacle > 0:
            raise KnowledgePathError(f"path {path!r} lies beneath '/{'/'.join(names[:obstacle])}', which is a file")
        if obstacle < 0:
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file beneath it")
        return int(answer)

    async def _ask(self, action: str, path: str, *command: str | bytes | int) -> Any:
        if self._closed:
            raise KnowledgeStoreError(f"cannot {action} {path!r}: the store is closed")
        try:
            client: Any = await self._of_this_loop() if self._given is None else self._given
            return await client.execute_command(*command)
        except self._raises as error:
            raise KnowledgeStoreError(f"cannot {action} {path!r}: {error}") from error

    async def _of_this_loop(self) -> Redis:
        loop = asyncio.get_running_loop()
        if loop in self._opened:
            return self._opened[loop][0]
        for ended in [one for one in tuple(self._opened) if one.is_closed()]:
            self._opened.pop(ended, None)
        keeper = _kept(self._client())
        client = await anext(keeper)
        self._opened[loop] = client, keeper
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
            # Neither the URL nor what is said of it: a part of the password may be taken for a port.
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

    def _leave(self) -> None:
        """A child would close its parent's connections, were it to let go of them."""
        _of_parents.append(self._opened)
        self._opened = {}


async def _kept(client: Redis) -> AsyncGenerator[Redis, None]:
    """A client whose connections are closed with the generator, which its event loop does when it is shut down."""
    try:
        yield client
    finally:
        await client.connection_pool.disconnect()


def _optional(path: str, text: str | None) -> tuple[bytes, bytes]:
    return (b"0", b"") if text is None else (b"1", encode(path, text))


def _check(client: Any) -> None:
    """Refuse a client that cannot be awaited, or whose answers are no bytes."""
    if not inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
        raise ConfigurationError(
            f"server is a {type(client).__qualname__} that cannot be awaited; give a URL, or a client of redis.asyncio"
        )
    if client.get_encoder().decode_responses:
        raise ConfigurationError(
            "the Redis client decodes what it is answered, and a range of bytes may begin within a character; make it "
            "without decode_responses"
        )


def _redis(module: str) -> Any:
    try:
        return import_module(f"redis.{module}")
    except ModuleNotFoundError as missing:
        raise ConfigurationError(
            "RedisKnowledgeStore needs the extra redis; install it: pip install 'otel-assembly[redis]'"
        ) from missing
