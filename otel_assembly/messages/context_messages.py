"""Rows for the messages of AutoGen's model contexts: AutoGen's own classes, and ours of the same shape."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.messages.replacements import register_results, register_summaries

if TYPE_CHECKING:
    from collections.abc import Callable

#: Who says a summary: clients look up a message's very class, so that its source alone tells it from a request, and it
#: outlives the state's JSON.
SUMMARY_SOURCE: Final = "summary_of_earlier_messages"
#: Who says how many messages were skipped.
NOTE_SOURCE: Final = "System"
_NOTE: Final = re.compile(r"Skipped (\d+) messages\.")


def skip_note(skipped: int) -> str:
    """What stands in the place of messages that were skipped, as AutoGen words it."""
    return f"Skipped {skipped} messages."


def reported_skips(message: Any) -> int | None:
    """How many messages a note says were skipped; None for any other message."""
    content = getattr(message, "content", None)
    if not isinstance(content, str) or getattr(message, "source", None) != NOTE_SOURCE:
        return None
    said = _NOTE.fullmatch(content)
    return int(said[1]) if said is not None else None


def register_messages(system: Any, user: Any, assistant: Any, results: Any, image: Callable[[Any], int]) -> None:
    """Register how one family of these messages is read, and how others stand for them.

    Args:
        system: The class of system messages.
        user: That of user messages.
        assistant: That of the model's answers.
        results: That of messages with the results of tool calls.
        image: The tokens of what is no text in a user message.
    """

    def _asked(message: Any) -> EventFacts:
        content, kind = message.content, EventKind.REQUEST
        if message.source == SUMMARY_SOURCE:
            kind = EventKind.SUMMARY
        elif reported_skips(message) is not None:
            kind = EventKind.OTHER  # it asks for nothing
        if isinstance(content, str):
            return EventFacts(kind, content, name=message.source)
        texts = [part for part in content if isinstance(part, str)]
        media = sum(image(part) for part in content if not isinstance(part, str))
        return EventFacts(kind, texts[0] if texts else "", fields=texts[1:], name=message.source, media_tokens=media)

    for message_type, row, attributes in (
        (system, lambda message: EventFacts(EventKind.SYSTEM, message.content), ("content",)),
        (user, _asked, ("content", "source")),
        (assistant, _answered, ("content", "thought")),
        (results, _results, ("content",)),
    ):
        describe.register(message_type, row)
        read_from(message_type, *attributes)
    register_summaries(lambda said: user(content=said, source=SUMMARY_SOURCE), system, user, assistant, results)
    register_results(
        results,
        lambda message: message.content,
        lambda result: result.content,
        lambda result, text: result.model_copy(update={"content": text}),
        lambda message, made: message.model_copy(update={"content": made}),
    )


def _answered(message: Any) -> EventFacts:
    if isinstance(message.content, str):
        return EventFacts(EventKind.RESPONSE, message.content)
    calls = message.content
    return EventFacts(
        EventKind.RESPONSE,
        message.thought or "",  # beside calls it is sent as the message's content, beside a text it is not
        fields=[text for call in calls for text in (call.name, call.arguments)],
        opens=[call.id for call in calls],
        calls=[ToolCallFacts(call.id, call.name, call.arguments) for call in calls],
    )


def _results(message: Any) -> EventFacts:
    texts = [result.content for result in message.content]
    return EventFacts(
        EventKind.TOOL_RESULT,
        texts[0] if texts else "",
        fields=texts[1:],
        closes=[result.call_id for result in message.content],
    )
