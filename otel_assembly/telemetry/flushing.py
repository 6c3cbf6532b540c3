"""Export queued telemetry before a process ends: `flush`, an ASGI middleware, and a SIGTERM handler.

By default, the SDK exports spans every 5 seconds and metrics every 60 seconds, and the rest when the interpreter exits.
SIGTERM by default ends a Python process without this exit. Then the newest spans are lost, and also the newest values
of the counters that alert rules use.
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

#: Half the time that `docker stop` waits before it kills a process; other supervisors usually wait longer.
FLUSH_SECONDS: Final = 5.0
_ON: Final = frozenset({"true", "1", "yes", "on"})
_OFF: Final = frozenset({"", "false", "0", "no", "off"})
_LATE: Final = b"otel-assembly: telemetry was not exported completely before the process ended by SIGTERM\n"


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Export the queued spans, metrics and log records.

    This flushes the global providers and those passed to `configure`, each in its own thread. If the Collector of one
    exporter does not respond, the others are still flushed, and the call returns after `seconds`.

    Args:
        seconds: The longest time to wait.

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
            # The SDK's providers return False after a timeout; other implementations may return None.
            flushed.append(force_flush(max(int(seconds * 1_000), 1)) is not False)
        except Exception as error:  # noqa: BLE001  # telemetry must not fail the program
            logger.warning("otel-assembly: telemetry could not be flushed (%s)", type(error).__name__)

    try:
        threads = [
            threading.Thread(target=export, args=(force_flush,), name="otel-assembly-flush", daemon=True)
            for force_flush in _force_flushes()
        ]
        for thread in threads:
            thread.start()
    except RuntimeError:  # the interpreter is shutting down, when the SDK flushes in its own exit handler
        return False
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    return len(flushed) == len(threads) and all(flushed)


def _force_flushes() -> list[Callable[[int], Any]]:
    """Return the `force_flush` method of each provider; the API's no-op providers have none."""
    providers: list[Any] = [trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()]
    emitter = getattr(vars(DEFAULT).get("recorder"), "emitter", None)
    if emitter is not None:
        configured = emitter.providers
        providers += [configured.tracer, configured.meter, configured.logger]
    distinct = {id(provider): provider for provider in providers}
    methods = [getattr(provider, "force_flush", None) for provider in distinct.values()]
    return [method for method in methods if callable(method)]


class FlushOnShutdown:
    """ASGI middleware that exports queued telemetry after the application's shutdown.

    Use it with servers that raise the signal again after their graceful shutdown, such as uvicorn. It also works with
    applications that do not support the lifespan protocol.

    Args:
        app: The application.
        seconds: The longest time that the export may take.

    Example::

        app = FlushOnShutdown(app)
    """

    def __init__(self, app: App, *, seconds: float = FLUSH_SECONDS) -> None:
        _check_seconds(seconds)
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        """Forward the call to the application; after the lifespan's shutdown, export queued telemetry."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        received = started = flushed = False

        async def receive_message() -> Message:
            nonlocal received
            received = True
            return await receive()

        async def send_message(message: Message) -> None:
            nonlocal started, flushed
            started = started or message["type"].startswith("lifespan.startup.")
            if message["type"].startswith("lifespan.shutdown."):
                flushed = True
                await self._flush()
            await send(message)

        try:
            await self._app(scope, receive_message, send_message)
        except Exception:
            if received:  # the application supports the protocol, so this is a failure
                raise
        finally:
            if started and not flushed:
                await self._flush()
        if not received:
            # The application does not support the lifespan protocol, so answer the server in its place.
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._flush()
            await send({"type": "lifespan.shutdown.complete"})

    async def _flush(self) -> None:
        from anyio import CapacityLimiter, to_thread

        await to_thread.run_sync(flush, self._seconds, limiter=CapacityLimiter(1))


class _SigtermHandler:
    """A signal handler: exports queued telemetry, then calls the previous handler or applies the default action."""

    def __init__(self, seconds: float, previous: Callable[[int, FrameType | None], Any] | int) -> None:
        self.seconds = seconds
        self._previous = previous
        self._flushing = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # A second signal during the flush asks not to wait.
        if not self._flushing:
            self._flushing = True
            try:
                # `flush` uses other threads, because this one may hold a lock of the SDK that it was interrupted in.
                if not flush(self.seconds):
                    os.write(2, _LATE)
            finally:
                self._flushing = False
        if callable(self._previous):
            self._previous(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Still alive: the kernel does not apply the default action to the first process of a container.
        signal.signal(number, self)


def flush_on_sigterm(seconds: float = FLUSH_SECONDS) -> bool:
    """Install a SIGTERM handler that exports queued telemetry and then calls the previous handler.

    If there was no previous handler, the process then ends by the signal. A second SIGTERM does not wait for the
    export. Call this function in the main thread, before the server installs its handlers. A handler that is installed
    later replaces this one. It must call the previous handler, as uvicorn's does, or exit the interpreter normally, for
    example with ``sys.exit``, so that the SDK flushes.

    Args:
        seconds: The longest time that the export may take.

    Returns:
        True if the handler is installed. False, without any change, if this is not the main thread, if SIGTERM is
        ignored, or if code other than Python handles it.

    Raises:
        ConfigurationError: `seconds` is not above 0.
    """
    _check_seconds(seconds)
    previous = signal.getsignal(signal.SIGTERM)
    if isinstance(previous, _SigtermHandler):
        previous.seconds = seconds
        return True
    if previous is None or previous is signal.SIG_IGN:
        logger.debug("otel-assembly: SIGTERM is ignored or not handled by Python, so no SIGTERM handler is installed")
        return False
    try:
        signal.signal(signal.SIGTERM, _SigtermHandler(seconds, previous))
    except ValueError:  # not the main thread
        logger.warning("otel-assembly: only the main thread can install the handler that flushes on SIGTERM")
        return False
    return True


def flush_on_sigterm_if_set() -> bool:
    """Call `flush_on_sigterm` if ``OTEL_ASSEMBLY_FLUSH_ON_SIGTERM`` is ``true`` or a number of seconds."""
    value = os.environ.get(FLUSH_ON_SIGTERM.name, "").strip().lower()
    if value in _OFF:
        return False
    try:
        return flush_on_sigterm(FLUSH_SECONDS if value in _ON else float(value))
    except ValueError:  # not a number, or a ConfigurationError
        logger.warning(
            "%s must be true, false or seconds above 0; it is %r, so no SIGTERM handler is installed",
            FLUSH_ON_SIGTERM.name,
            value,
        )
        return False


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ConfigurationError(f"seconds is {seconds!r}; give seconds above 0")
