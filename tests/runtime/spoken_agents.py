"""What agents of these tests call, and how their conversations are read."""

from __future__ import annotations

from otel_assembly import ModelRequest, ModelResponse, ObserverAlert, ToolCallEvent, ToolResultEvent
from otel_assembly.events import ToolErrorEvent


def calls(*named, arguments="{}"):
    """A response that calls these tools, each with these arguments."""
    made = (ToolCallEvent(id=f"call-{index}", name=name, arguments=arguments) for index, name in enumerate(named))
    return ModelResponse(tool_calls=tuple(made))


def said(session):
    """What stands in the history that a model could be sent, in short."""
    lines = []
    for event in session.history:
        if isinstance(event, ModelRequest):
            lines.append(f"ask {event.content}")
        elif isinstance(event, ModelResponse):
            lines.append(
                f"say {event.content}" if not event.tool_calls else f"call {[c.name for c in event.tool_calls]}"
            )
        elif isinstance(event, ToolResultEvent):
            lines.append(f"result {event.name}: {event.content}")
        elif isinstance(event, ToolErrorEvent):
            lines.append(f"error {event.name}: {event.error}")
    return lines


def transfer(amount: int) -> str:
    """Send money."""
    return f"sent {amount}"


class Watchdog:
    """Raises a FATAL alert when it reads a word."""

    name = "watchdog"
    watches = object

    def __init__(self, word):
        self.word = word

    async def process(self, event, context):
        if self.word in str(getattr(event, "content", "")):
            return ObserverAlert(source="watchdog", severity="fatal", message=f"saw {self.word}")
        return None
