"""Export what is queued before a process ends: `flush`, an ASGI middleware, and a handler of SIGTERM.

The SDK exports spans every five seconds and metrics every minute, and what is left when the interpreter exits. Python's
default action on SIGTERM ends the process without that exit, so that the newest spans are lost, and with them the
counters that page somebody.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import _logs, metrics, trace

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.errors import ConfigurationError
from otel_assembly.telemetry.conventions_environment import FLUSH_ON_SIGTERM

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from types import FrameType

    App = Callable[[Any, Any, Any], Awaitable[None]]
    Message = MutableMapping[str, Any]

logger = logging.getLogger("otel_assembly")

#: Half of what `docker stop` grants a process, which is the shortest of the usual times.
FLUSH_SECONDS: Final = 5.0
_ON: Final = frozenset({"true", "1", "yes", "on"})
_OFF: Final = frozenset({"", "false", "0", "no", "off"})
_LATE: Final = b"otel-assembly: telemetry was not exported whole before the process ended by SIGTERM\n"


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Export the spans, metrics and log records that are queued.

    The providers are those that assemblies are recorded to: the global ones, and those given to `configure`. They
    export at the same time, each in a thread of its own, so that an exporter whose Collector does not answer neither
    takes the time of the others nor holds the caller up for longer than `seconds`.

    Args:
        seconds: How long to wait, at most.

    Returns:
        True if everything was exported in time.

    Example::

        @celery.signals.worker_process_shutdown.connect
        def export(**_):
            otel_assembly.telemetry.flush()
    """
    until = time.monotonic() + seconds
    flushed: list[bool] = []

    def export(force_flush: Callable[[int], Any]) -> None:
        try:
            # The SDK's providers return False if they were late; a meter provider of other make may return None.
            flushed.append(force_flush(max(int(seconds * 1_000), 1)) is not False)
        except Exception as error:  # noqa: BLE001 - telemetry never hurts the program
            logger.warning("otel-assembly: telemetry was not flushed: %s", type(error).__name__)

    try:
        threads = [
            threading.Thread(target=export, args=(force_flush,), name="otel-assembly-flush", daemon=True)
            for force_flush in _force_flushes()
        ]
        for thread in threads:
            thread.start()
    except RuntimeError:  # the interpreter is shutting down; the SDK exports by itself then
        return False
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    return len(flushed) == len(threads) and all(flushed)


def _force_flushes() -> list[Callable[[int], Any]]:
    """The method of each provider that exports what it holds; the API's own providers have none."""
    providers: list[Any] = [trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()]
    emitter = getattr(vars(DEFAULT).get("recorder"), "emitter", None)
    if emitter is not None:
        own = emitter.providers
        providers += [own.tracer, own.meter, own.logger]
    distinct = {id(provider): provider for provider in providers}
    methods = [getattr(provider, "force_flush", None) for provider in distinct.values()]
    return [method for method in methods if callable(method)]


class FlushOnShutdown:
    """ASGI middleware that exports what is queued when the server has shut the application down.

    Use it with servers that end by the signal itself after their graceful shutdown, such as uvicorn. An application
    without a lifespan of its own may be wrapped as well.

    Args:
        app: The application.
        seconds: How long the export may take.

    Example::

        app = FlushOnShutdown(app)
    """

    def __init__(self, app: App, *, seconds: float = FLUSH_SECONDS) -> None:
        _check_seconds(seconds)
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        """Pass a connection on to the application; at the end of its lifespan, flush."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        received = started = flushed = False

        async def receiving() -> Message:
            nonlocal received
            received = True
            return await receive()

        async def sending(message: Message) -> None:
            nonlocal started, flushed
            started = started or message["type"].startswith("lifespan.startup.")
            if message["type"].startswith("lifespan.shutdown."):
                flushed = True
                await self._flush()
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        except Exception:
            if received:  # it knows the protocol, and failed
                raise
        finally:
            if started and not flushed:
                await self._flush()
        if not received:
            # The application does not know lifespans, which is no failure: we answer for it.
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._flush()
            await send({"type": "lifespan.shutdown.complete"})

    async def _flush(self) -> None:
        from anyio import CapacityLimiter, to_thread

        await to_thread.run_sync(flush, self._seconds, limiter=CapacityLimiter(1))


class _SigtermHandler:
    """Flushes, then does what would have been done without it."""

    def __init__(self, seconds: float, previous: Callable[[int, FrameType | None], Any] | int) -> None:
        self.seconds = seconds
        self._previous = previous
        self._flushing = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # A second signal while the first one is worked on means that whoever sent it does not want to wait.
        if not self._flushing:
            self._flushing = True
            try:
                # In other threads: this one may have been interrupted while it held a lock of the SDK.
                if not flush(self.seconds):
                    os.write(2, _LATE)
            finally:
                self._flushing = False
        if callable(self._previous):
            self._previous(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Only the first process of a container is still alive: the kernel spares it the default action.
        signal.signal(number, self)


def flush_on_sigterm(seconds: float = FLUSH_SECONDS) -> bool:
    """On SIGTERM, export what is queued, then do what the process would have done without this.

    The handler that was there before is called; if there was none, the process ends by the signal. A second SIGTERM
    does not wait for the export. Call it in the main thread, before the server's own handlers are installed. A handler
    that is installed later takes this one's place: it should call the handler that it found, as uvicorn does, or let
    the interpreter exit, as after ``sys.exit``, where the SDK exports by itself.

    Args:
        seconds: How long the export may take.

    Returns:
        True if the handler is installed. False if this is not the main thread, if SIGTERM is ignored, or if something
        that is not Python handles it; then nothing has changed.

    Raises:
        ConfigurationError: The seconds are not above 0.
    """
    _check_seconds(seconds)
    previous = signal.getsignal(signal.SIGTERM)
    if isinstance(previous, _SigtermHandler):
        previous.seconds = seconds
        return True
    if previous is None or previous is signal.SIG_IGN:
        logger.debug("otel-assembly: SIGTERM is ignored, or not handled by Python; it will not flush")
        return False
    try:
        signal.signal(signal.SIGTERM, _SigtermHandler(seconds, previous))
    except ValueError:  # not the main thread
        logger.warning("otel-assembly: only the main thread can install the handler that flushes on SIGTERM")
        return False
    return True


def flush_on_sigterm_if_set() -> bool:
    """Call `flush_on_sigterm` if the environment asks for it: ``true``, or the seconds that the export may take."""
    value = os.environ.get(FLUSH_ON_SIGTERM.name, "").strip().lower()
    if value in _OFF:
        return False
    try:
        return flush_on_sigterm(FLUSH_SECONDS if value in _ON else float(value))
    except ValueError:  # a ConfigurationError is one
        logger.warning(
            "%s must be true, false or seconds above 0; it is %r, and nothing flushes", FLUSH_ON_SIGTERM.name, value
        )
        return False


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ConfigurationError(f"seconds is {seconds!r}; give seconds above 0")
