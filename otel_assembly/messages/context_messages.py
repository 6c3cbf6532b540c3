"""Rows for the messages of AutoGen's model contexts: AutoGen's classes and our equivalents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.messages.replacements import register_results, register_summaries

if TYPE_CHECKING:
    from collections.abc import Callable

#: The source of summary messages. A subclass cannot mark them, because clients look up the exact class of a message and
#: the saved state contains no class.
SUMMARY_SOURCE: Final = "summary_of_earlier_messages"
#: The source of a note about skipped messages.
NOTE_SOURCE: Final = "System"
_NOTE: Final = re.compile(r"Skipped (\d+) messages\.")


def skip_note(skipped: int) -> str:
    """Return the text that replaces skipped messages, in AutoGen's wording."""
    return f"Skipped {skipped} messages."


def reported_skips(message: Any) -> int | None:
    """Return the number of skipped messages in a note; None for other messages."""
    content = getattr(message, "content", None)
    if not isinstance(content, str) or getattr(message, "source", None) != NOTE_SOURCE:
        return None
    said = _NOTE.fullmatch(content)
    return int(said[1]) if said is not None else None


def register_messages(system: Any, user: Any, assistant: Any, results: Any, image: Callable[[Any], int]) -> None:
    """Register the rows and replacements for AutoGen's classes or for ours.

    Args:
        system: The class of system messages.
        user: The class of user messages.
        assistant: The class of the model's answers.
        results: The class of messages with tool results.
        image: Returns the estimated tokens of an image in a user message.
    """

    def _asked(message: Any) -> EventFacts:
        content, kind = message.content, EventKind.REQUEST
        if message.source == SUMMARY_SOURCE:
            kind = EventKind.SUMMARY
        elif reported_skips(message) is not None:
            kind = EventKind.OTHER  # a note is not a request
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
        message.thought or "",  # sent as the content of a message with calls, and not sent otherwise
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
