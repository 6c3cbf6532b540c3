"""Our own telemetry's failures: a warning once for each part, a counter always, and the agent goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

from otel_assembly._internal.forks import new_lock
from otel_assembly.telemetry.utf8 import sendable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

logger = logging.getLogger("otel_assembly")

#: Stands for a text that the redaction hook could not make fit to leave.
NOT_REDACTED: Final = "[redaction failed]"


class Failures:
    """Takes what goes wrong in telemetry and lets nothing of it reach the agent."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._lock = new_lock()
        self._warned: set[str] = set()

    def contained(self, component: str) -> _Contained:
        """A block in which an exception is a logged warning; what was being told to telemetry is lost."""
        return _Contained(self, component)

    def redacted(self, redact: Callable[[str], str] | None, text: str) -> str:
        """The text as it may leave; where the hook fails nothing of it does, and nothing else is lost."""
        if redact is None:
            return sendable(text)
        with self.contained("redaction"):
            answer: object = redact(text)
            if isinstance(answer, str):
                return sendable(answer)
            raise TypeError("a redaction hook returns a str")
        return NOT_REDACTED

    def take(self, component: str, error: BaseException) -> None:
        """Log the first failure of a component, and count every one.

        The exception's message is left out: it can quote what was being exported.
        """
        with self._lock:
            first = component not in self._warned
            self._warned.add(component)
        if first:
            logger.warning(
                "telemetry of context assembly failed in %s (%s); the agent goes on, and further failures there are "
                "only counted (assembly.telemetry.errors)",
                component,
                type(error).__name__,
            )
        try:
            self._count(component)
        except Exception:  # noqa: BLE001  # the counter may be what is broken
            logger.debug("a telemetry failure could not be counted")


class _Contained:
    __slots__ = ("_component", "_failures")

    def __init__(self, failures: Failures, component: str) -> None:
        self._failures = failures
        self._component = component

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self._failures.take(self._component, error)
        return True
