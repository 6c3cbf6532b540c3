"""``watch``: receive OTLP, run a command or follow a log, and show the assembly of each model call on a live page."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import sys
from argparse import REMAINDER, Action, ArgumentTypeError, BooleanOptionalAction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.threads import ThreadLimit
from otel_assembly.cli.extras import FOLLOWED_LOG, LIVE_PAGE, TABLES, require
from otel_assembly.cli.terminal import safe_text
from otel_assembly.cli.tree import LiveTree
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.otlp_endpoint import OTEL_EXPORTER_OTLP_ENDPOINT
from otel_assembly.telemetry.conventions_environment import CAPTURE_MESSAGE_CONTENT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence


_LOOPBACK: Final = "127.0.0.1"
_TITLE: Final = 80


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``watch`` and its options to the command line."""
    parser = commands.add_parser(
        "watch",
        help="run a program or follow a log, and show each model call on a web page: its prompt and dropped messages",
        usage="otel-assembly watch [OPTION ...] -- COMMAND [ARGUMENT ...]\n"
        "       otel-assembly watch [OPTION ...] PATH [OPTION ...]\n"
        "       otel-assembly watch [OPTION ...]",
        description="Serve a web page that shows each model call when it is made: the tokens of the prompt by kind of "
        "message, and the dropped messages with policy and reason. With COMMAND, run a Python program under "
        "opentelemetry-instrument, with the variables that send its telemetry to this page; the exit status is that of "
        "COMMAND. With PATH, show the log of a coding agent such as Claude Code or Codex, or another transcript, and "
        "its new turns when it grows. In a directory, the newest log in it or below it is followed. With neither, wait "
        "for programs that send OTLP over HTTP.",
        epilog="The page needs the token in the printed URL. Message content stays on this machine unless --forward or "
        "--host is used. --store, --forward and --stay do not apply to PATH.",
    )
    parser.add_argument(
        "words",
        nargs=REMAINDER,
        action=_PathOrCommand,
        metavar="PATH | -- COMMAND",
        help="a log or a directory of logs; or the command to run, with its arguments",
    )
    parser.add_argument("--port", type=_port, metavar="N", help="listen on this port (default: 4318, or a free port)")
    parser.add_argument(
        "--host",
        default=_LOOPBACK,
        metavar="ADDRESS",
        help="listen on this address instead of loopback; programs that send then need the token",
    )
    parser.add_argument(
        "--content",
        action=BooleanOptionalAction,
        help="capture the message content of COMMAND (default: yes, unless --forward is used or "
        f"{CAPTURE_MESSAGE_CONTENT.name} is set), or show that of PATH (default: yes)",
    )
    parser.add_argument("--tree", action="store_true", help="also print each turn in the terminal")
    parser.add_argument(
        "--store", metavar="FILE", help="keep the turns in this SQLite file, and show the turns that it already has"
    )
    parser.add_argument("--forward", metavar="URL", help="also send all telemetry, unchanged, to this OTLP endpoint")
    parser.add_argument(
        "--stay",
        action=BooleanOptionalAction,
        help="keep serving the page after COMMAND has ended, until Ctrl-C (default: yes in a terminal)",
    )
    parser.set_defaults(run=run, path=None, others=(), command_line=None)


class _PathOrCommand(Action):
    """Store PATH and read the options after it; the words after ``--`` are the command, with its own options."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values[:1] == ["--"]:
            namespace.command_line = values[1:]
        elif namespace.path is None and values:
            namespace.path, namespace.words = values[0], values
            unknown = parser.parse_known_args(values[1:], namespace)[1]
            namespace.others = [*namespace.others, *unknown]
        else:
            namespace.others = values


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:6]) > 65_535:
        raise ArgumentTypeError(f"must be a number from 0 to 65535, got {text!r}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Serve the page, and run the command or follow the log; return the exit status of the command, otherwise 0.

    Raises:
        ConfigurationError: The options do not fit together, the log is missing, the port is taken, or the store cannot
            be opened.
    """
    log = None if arguments.path is None else _log(arguments)
    if arguments.command_line == []:
        raise ConfigurationError(_SEPARATOR)
    if not hasattr(signal, "SIGHUP"):
        raise ConfigurationError("watch sends signals to its command, which Windows does not have; use WSL")
    require("watch", (*LIVE_PAGE, *(TABLES if arguments.tree else ()), *(FOLLOWED_LOG if log is not None else ())))
    from otel_assembly.watch import end_like

    return end_like(asyncio.run(_Watch(arguments, arguments.command_line or (), log).run()))


def _log(arguments: argparse.Namespace) -> Path:
    """Return the log to follow, after a check of the command line."""
    log = Path(arguments.path)
    if not log.is_file() and not log.is_dir():
        problem = "is a device or a pipe" if log.exists() else "does not exist"
        raise ConfigurationError(
            f"{log}: {problem}; name a log or its directory, or put -- before a command: "
            f"otel-assembly watch -- {shlex.join(arguments.words)}"
        )
    if arguments.command_line is not None:
        raise ConfigurationError("watch follows a log or runs a command, not both: name PATH, or -- COMMAND")
    if arguments.others:
        raise ConfigurationError(f"watch follows one log or directory; remove {shlex.join(arguments.others)}")
    options = {"--store": arguments.store, "--forward": arguments.forward, "--stay": arguments.stay}
    for option, value in options.items():
        if value is not None:
            raise ConfigurationError(f"{option} does not apply to a log; run watch without it")
    return log


class _Watch:
    def __init__(self, arguments: argparse.Namespace, command: Sequence[str], log: Path | None) -> None:
        from otel_assembly.page import RowStore
        from otel_assembly.watch import Feed, Forwarder, listen

        self._command = command
        self._log = log
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
        title = safe_text(" ".join(words) if self._log is None else self._log.name)[:_TITLE] or "watch"
        app = application(self._feed, token=self._token, title=title, loopback=self._loopback, forward=self._forward)
        async with WatchServer(app, self._listener, self._on_grpc):
            _say(f"watch on {self._endpoint}/?token={self._token}")
            try:
                if self._log is not None:
                    return await self._follow(self._log)
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

    async def _follow(self, path: Path) -> int:
        """Show the turns of a log, and its new turns, until Ctrl-C."""
        showing = asyncio.create_task(self._show_log(path))
        interrupted = asyncio.create_task(_interrupted())
        await asyncio.wait((showing, interrupted), return_when=asyncio.FIRST_COMPLETED)
        for task in (showing, interrupted):
            task.cancel()
        await asyncio.wait((showing, interrupted))
        if not showing.cancelled():
            showing.result()
        return 0

    async def _show_log(self, path: Path) -> None:
        from watchfiles import awatch

        from otel_assembly.cli.followed_log import FollowedLog

        shows_content = self._content is not False
        where = ", which only this machine can open" if self._loopback else ""
        shown = f"shown on the page{where}; --no-content hides it"
        _say(f"message content of the log is {shown if shows_content else 'hidden'}")
        log = FollowedLog(path, content=shows_content, say=_say)
        thread = ThreadLimit("log", 1)

        async def show(files: Iterable[Path]) -> None:
            began = asyncio.get_running_loop().time()
            updates = log.updates(files)
            while (update := await thread.run(partial(next, updates, None))) is not None:
                if update.removed is not None:
                    await self._feed.remove(update.removed)
                await self._feed.add(update.spans)
            self._feed.show_refusals(log.refusals)
            # A reading of a long log is followed by a pause of its duration, so that half of a processor stays free.
            await asyncio.sleep(asyncio.get_running_loop().time() - began)

        found = log.find()
        while True:
            changes = awatch(*found.folders, recursive=False, watch_filter=None, debounce=_DEBOUNCE, step=_QUIET)
            # The first call begins to watch the directories, before the log is read: no change is missed.
            change = asyncio.ensure_future(anext(changes))
            try:
                await asyncio.sleep(0)
                watched, found = found, await thread.run(log.find)
                has_new_folder = found.folders != watched.folders
                if not has_new_folder:
                    await show(found.files)
                while not has_new_folder:
                    paths = [Path(changed) for _, changed in await change]
                    change = asyncio.ensure_future(anext(changes))
                    has_new_folder = any(changed.is_dir() for changed in paths)
                    await show(paths)
            except OSError as error:
                raise ConfigurationError(f"{path}: cannot be followed: {error.strerror or error}") from error
            finally:
                change.cancel()
                await asyncio.wait((change,))
                await changes.aclose()
            found = await thread.run(log.find)

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
        # In a thread, because it starts the interpreter; the server answers meanwhile.
        program = await ThreadLimit("watch", 1).run(partial(python_program, self._command, environment))
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


_SEPARATOR: Final = "put -- before the command: otel-assembly watch -- python agent.py"
#: Changes of a log are collected until there is none for 50 milliseconds, or for 400 milliseconds.
_QUIET: Final = 50
_DEBOUNCE: Final = 400
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
