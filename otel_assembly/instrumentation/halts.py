"""Halts that a framework's own events tell of: each is reported once, with its conversation's last assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.recorder import AgentIdentity
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder, emit_halt

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall

#: The halts that were reported; one that is passed on is not reported again.
_REPORTED: Final[IdentityWeakMap[bool]] = IdentityWeakMap()
#: What is remembered of the last assembly of a conversation.
_LAST: Final[IdentityWeakMap[object]] = IdentityWeakMap()


def assembled(conversation: Any, call: ModelCall) -> None:
    """A model call of this conversation was prepared: a halt that comes after it is told with its assembly."""
    if call.assembly_reference is not None:
        _LAST.put(conversation, call.assembly_reference)


def already_reported(halt: Any) -> bool:
    """Whether this halt has been reported; from now on it has."""
    reported = _REPORTED.get(halt) is not None
    _REPORTED.put(halt, True)
    return reported


def report_halt(instrumentation: Instrumentation, conversation: Any, halt: Any) -> None:
    """An event that has a reason and a source halts a conversation."""
    if already_reported(halt):
        return
    recorder, identity = instrumentation.recorder, AgentIdentity(framework=instrumentation.framework)
    told_by = recorder if isinstance(recorder, OpenTelemetryRecorder) else None
    event = HaltEvent(reason=str(halt.reason), source=str(halt.source))
    emit_halt(event, _LAST.get(conversation), None, identity, recorder=told_by)
