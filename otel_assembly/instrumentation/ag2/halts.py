"""Halts: a `HaltEvent` on an agent's stream, whoever put it there."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from functools import wraps
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_assembly.events import HaltEvent
from otel_assembly.recorder import Whose
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder, tell_halt

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly

#: Halts that were told of a moment ago; one that is passed on to another stream is not told again.
_TOLD: Final[deque[weakref.ref[Any]]] = deque(maxlen=64)

#: What is remembered of the last assembly of a history of AG2's.
_LAST: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()


def follow(stream: Any, assembly: ObservedAssembly | None) -> None:
    """Remember the last assembly of a stream: a halt that comes when no span is open is linked to it."""
    if assembly is not None:
        _LAST[stream.history] = assembly.recording.trail


def told(halt: Any) -> bool:
    """Whether this halt has been told; from now on it has."""
    if any(one() is halt for one in _TOLD):
        return True
    _TOLD.append(weakref.ref(halt))
    return False


def send(package: str, original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `MemoryStream.send` of one of AG2's packages, through which every event of a stream goes."""
    halt_type = sys.modules[f"{package}.events"].HaltEvent

    @wraps(original)
    async def sent(self: Any, event: Any, context: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, event, context)
        if isinstance(event, halt_type):
            with instrumentation.contained():
                if not told(event):
                    _tell(instrumentation, HaltEvent(reason=str(event.reason), source=str(event.source)), self)
        return await original(self, event, context)

    return sent


def _tell(instrumentation: Instrumentation, halt: HaltEvent, stream: Any) -> None:
    recorder = instrumentation.recorder
    told_by = recorder if isinstance(recorder, OpenTelemetryRecorder) else None
    tell_halt(halt, _LAST.get(stream.history), None, Whose(framework=instrumentation.framework), recorder=told_by)
