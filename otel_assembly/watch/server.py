"""The HTTP server of `watch`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from starlette.types import ASGIApp

#: The port of OTLP over HTTP.
OTLP_PORT: Final = 4318
_GRPC: Final = b"PRI * HTTP/2"
_CONNECTIONS: Final = 512


def listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket.

    Args:
        host: An address of this machine, or the name of one.
        port: The port; None: port 4318 if it is free, otherwise a free port.

    Raises:
        ConfigurationError: The port is taken, or the host is no address of this machine.
    """
    for wanted in (OTLP_PORT, 0) if port is None else (port,):
        try:
            family, _, _, _, address = socket.getaddrinfo(host, wanted, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=128)
        except OSError as error:
            failure = error
    reason = (failure.strerror or str(failure)).lower()
    advice = (
        "end the program that listens there, or choose --port 0 for a free port" if port else "choose another --host"
    )
    raise ConfigurationError(f"cannot listen on {host}:{port or OTLP_PORT}: {reason}; {advice}") from failure


class WatchServer:
    """Serves an application on a socket while the ``async with`` block runs.

    Args:
        app: The application.
        listener: The listening socket.
        on_grpc: Called when a sender speaks gRPC, which is not supported.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, on_grpc: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            http=_protocol(on_grpc),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
            server_header=False,
        )
        self._server = _Server(config)
        self._listener = listener
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the command."""
        yield


def _protocol(on_grpc: Callable[[], None]) -> type[asyncio.Protocol]:
    class Protocol(H11Protocol):
        """HTTP/1.1, with a check of the first bytes."""

        is_checked = False

        def data_received(self, data: bytes) -> None:
            if not self.is_checked and data.startswith(_GRPC):
                on_grpc()
                transport: Any = self.transport
                transport.close()
                return
            self.is_checked = True
            super().data_received(data)

    return Protocol
