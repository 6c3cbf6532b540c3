"""Records the halts that AG2's own events announce: each once, linked to the conversation's last assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.recorder import AgentIdentity
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder, emit_halt

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall

#: The halt events that were recorded; a framework may publish an event several times.
_REPORTED: Final[IdentityWeakMap[bool]] = IdentityWeakMap()
#: A reference to the last assembly of each conversation.
_LAST_ASSEMBLIES: Final[IdentityWeakMap[object]] = IdentityWeakMap()


def assembled(conversation: Any, call: ModelCall) -> None:
    """Remember a model call's assembly as the last one of its conversation, to which a later halt is linked."""
    if call.assembly is not None:
        _LAST_ASSEMBLIES.put(conversation, call.assembly.recording.assembly_reference)


def already_reported(halt: Any) -> bool:
    """Mark a halt as recorded, and return True if it was recorded before."""
    reported = _REPORTED.get(halt) is not None
    _REPORTED.put(halt, True)
    return reported


def report_halt(instrumentation: Instrumentation, conversation: Any, halt: Any) -> None:
    """Record that a conversation was halted, unless the halt was recorded before.

    `conversation` is the object that `assembled` was called with. `halt` is AG2's event, which has a reason and a
    source.
    """
    if already_reported(halt):
        return
    recorder, identity = instrumentation.recorder, AgentIdentity(framework=instrumentation.framework)
    otel_recorder = recorder if isinstance(recorder, OpenTelemetryRecorder) else None
    event = HaltEvent(reason=str(halt.reason), source=str(halt.source))
    # None: the current run's or the last assembly's identity takes precedence over this one.
    emit_halt(event, _LAST_ASSEMBLIES.get(conversation), None, identity, recorder=otel_recorder)
