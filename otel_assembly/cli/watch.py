"""``watch``: receive OTLP, run a command, and show the assembly of each of its model calls on a live page."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from argparse import REMAINDER, ArgumentTypeError, BooleanOptionalAction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_assembly.cli.extras import LIVE_PAGE, TABLES, require
from otel_assembly.cli.terminal import safe_text
from otel_assembly.cli.tree import LiveTree
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.otlp_endpoint import OTEL_EXPORTER_OTLP_ENDPOINT
from otel_assembly.telemetry.conventions_environment import CAPTURE_MESSAGE_CONTENT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


_LOOPBACK: Final = "127.0.0.1"
_TITLE: Final = 80


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``watch`` and its options to the command line."""
    parser = commands.add_parser(
        "watch",
        help="run a program and show its model calls live: each prompt by kind of message, and the dropped messages",
        usage="otel-assembly watch [OPTION ...] [-- COMMAND [ARGUMENT ...]]",
        description="Receive OTLP over HTTP on this machine and serve a page that shows each turn when its model call "
        "is made: the tokens of the prompt by kind of message, and the dropped messages with policy and reason. "
        "COMMAND is run with the variables that send its telemetry here, and a Python program under "
        "opentelemetry-instrument. Without COMMAND, other programs can send. The exit status is that of COMMAND.",
        epilog="The page needs the token of the printed URL. Message content is captured for COMMAND only, and stays "
        "on this machine unless --forward is used.",
    )
    parser.add_argument("program", nargs=REMAINDER, metavar="-- COMMAND", help="the command to run, with its arguments")
    parser.add_argument("--port", type=_port, metavar="N", help="listen on this port (default: 4318, or a free port)")
    parser.add_argument(
        "--host", default=_LOOPBACK, metavar="ADDRESS", help="listen on this address; senders then need the token"
    )
    parser.add_argument(
        "--content",
        action=BooleanOptionalAction,
        help="capture the message content of COMMAND (default: yes, unless --forward is used or "
        f"{CAPTURE_MESSAGE_CONTENT.name} is set)",
    )
    parser.add_argument("--tree", action="store_true", help="print each turn in the terminal, too")
    parser.add_argument("--store", metavar="FILE", help="keep the turns in this file, and show its earlier turns")
    parser.add_argument("--forward", metavar="URL", help="send all telemetry on to this OTLP endpoint, unchanged")
    parser.add_argument(
        "--stay",
        action=BooleanOptionalAction,
        help="serve the page after COMMAND has ended, until Ctrl-C (default: yes at a terminal)",
    )
    parser.set_defaults(run=run)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:6]) > 65_535:
        raise ArgumentTypeError(f"must be a number from 0 to 65535, got {text!r}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Serve the page and run the command; return the exit status of the command, or 0 without a command.

    Raises:
        ConfigurationError: The options do not fit together, the port is taken, or the store cannot be opened.
    """
    separator, *command = arguments.program or ["--"]
    if separator != "--" or (arguments.program and not command):
        raise ConfigurationError("put -- before the command: otel-assembly watch -- python agent.py")
    if not hasattr(signal, "SIGHUP"):
        raise ConfigurationError("watch sends signals to its command, which Windows does not have; use WSL")
    require("watch", (*LIVE_PAGE, *(TABLES if arguments.tree else ())))
    from otel_assembly.watch import end_like

    return end_like(asyncio.run(_Watch(arguments, command).run()))


class _Watch:
    def __init__(self, arguments: argparse.Namespace, command: Sequence[str]) -> None:
        from otel_assembly.page import RowStore
        from otel_assembly.watch import Feed, Forwarder, listen

        self._command = command
        self._content: bool | None = arguments.content
        self._stays: bool = arguments.stay if arguments.stay is not None else _at_terminal()
        self._forward = Forwarder(arguments.forward, self._on_failure) if arguments.forward else None
        self._tree = LiveTree(sys.stderr if command else sys.stdout) if arguments.tree else None
        self._token = secrets.token_urlsafe(24)
        self._loopback: bool = arguments.host in (_LOOPBACK, "::1", "localhost")
        self._listener = listen(arguments.host, arguments.port)
        host, self._port = self._listener.getsockname()[:2]
        self._host = _LOOPBACK if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        self._feed = Feed(RowStore(Path(arguments.store) if arguments.store else None), self._tree, _say)
        self._grpc = False

    @property
    def _endpoint(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def run(self) -> int:
        """Serve the page, and run the command; return the status of the command, negative for a signal."""
        from otel_assembly.watch import WatchServer, application

        words = [Path(word).name if word.startswith("/") else word for word in self._command]
        title = safe_text(" ".join(words))[:_TITLE] or "watch"
        app = application(self._feed, token=self._token, title=title, loopback=self._loopback, forward=self._forward)
        async with WatchServer(app, self._listener, self._on_grpc):
            _say(f"watch on {self._endpoint}/?token={self._token}")
            try:
                return await (self._run_command() if self._command else self._wait_for_senders())
            finally:
                self._feed.close()

    async def _wait_for_senders(self) -> int:
        _say(
            f"waiting for OTLP: set {OTEL_EXPORTER_OTLP_ENDPOINT}={self._endpoint} {_PROTOCOL}{self._sender_headers()}"
        )
        await _interrupted()
        return 0

    def _sender_headers(self) -> str:
        from otel_assembly.watch import TOKEN_HEADER

        return "" if self._loopback else f" OTEL_EXPORTER_OTLP_HEADERS={TOKEN_HEADER}={self._token}"

    async def _run_command(self) -> int:
        from otel_assembly.watch import TOKEN_HEADER, Child, ChildError, child_environment, python_program

        environment = child_environment(
            os.environ,
            self._endpoint,
            content=self._captures(),
            forwards=self._forward is not None,
            headers="" if self._loopback else f"{TOKEN_HEADER}={self._token}",
        )
        child = Child()
        program = await asyncio.to_thread(python_program, self._command, environment)
        if program is not None and program.missing:
            _say(
                f"{program.interpreter} has no {program.missing[0]}, so the command is not instrumented; install it: "
                f"{program.interpreter} -m pip install 'otel-assembly[otlp-http]'"
            )
        try:
            status = await child.run(self._command if program is None else program.command, environment)
        except ChildError as error:
            _say(error)
            return error.status
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        self._feed.show_end(f"the command {how}")
        if not self._feed.assemblies:
            _say(_NOTHING)
        if self._stays:
            _say(f"the command {how}; the page stays until Ctrl-C")
            await _interrupted()
        return status

    def _captures(self) -> bool | None:
        """Return whether to capture content, None to leave the user's setting, and print which."""
        name, url = CAPTURE_MESSAGE_CONTENT.name, self._forward.url if self._forward is not None else None
        setting = os.environ.get(name)
        if self._content is None and setting:
            _say(f"message content: {name}={safe_text(setting)}, as the environment sets it")
            return None
        content = url is None if self._content is None else self._content
        if content:
            where = "shown on the page" if url is None else f"shown on the page and sent to {url}"
            _say(f"message content is captured and {where}; --no-content turns this off")
        else:
            _say("message content is not captured" + ("; --content turns this on" if self._content is None else ""))
        return content

    def _on_failure(self, reason: str) -> None:
        _say(f"{reason}; senders are asked to try again")

    def _on_grpc(self) -> None:
        if not self._grpc:
            _say(f"a program sends OTLP over gRPC, which watch does not receive; for that program, set {_PROTOCOL}")
        self._grpc = True


_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
_NOTHING: Final = (
    "no assembly has arrived; if the command starts a Python program itself, start that program with "
    "opentelemetry-instrument, and see which clients are captured with otel-assembly doctor"
)


def _say(text: object) -> None:
    print(f"otel-assembly: {safe_text(text)}", file=sys.stderr, flush=True)


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


async def _interrupted() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
