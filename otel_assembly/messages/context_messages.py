"""Reads the messages of AutoGen's model contexts: AutoGen's classes and the equivalent classes of this package."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.messages.replacements import register_results, register_summaries

if TYPE_CHECKING:
    from collections.abc import Callable

#: The ``source`` of summary messages. They cannot have a class of their own, because clients look up the exact class of
#: a message, and the saved state contains no class.
SUMMARY_SOURCE: Final = "summary_of_earlier_messages"
#: The ``source`` of AutoGen's message that states how many messages were skipped.
NOTE_SOURCE: Final = "System"
_NOTE: Final = re.compile(r"Skipped (\d+) messages\.")


def skip_note(skipped: int) -> str:
    """Return the text of the message that replaces `skipped` messages, in AutoGen's wording."""
    return f"Skipped {skipped} messages."


def reported_skips(message: Any) -> int | None:
    """Return how many messages were skipped, if `message` is AutoGen's note about that; None for other messages."""
    content = getattr(message, "content", None)
    if not isinstance(content, str) or getattr(message, "source", None) != NOTE_SOURCE:
        return None
    match = _NOTE.fullmatch(content)
    return int(match[1]) if match is not None else None


def register_messages(system: Any, user: Any, assistant: Any, results: Any, image: Callable[[Any], int]) -> None:
    """Register how to read, summarize and shorten messages of AutoGen's classes, or of equivalent classes.

    Args:
        system: The class of system messages.
        user: The class of user messages.
        assistant: The class of the model's answers.
        results: The class of messages that contain tool results.
        image: Returns the estimated tokens of an image in a user message.
    """

    def _user_facts(message: Any) -> EventFacts:
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
        (user, _user_facts, ("content", "source")),
        (assistant, _assistant_facts, ("content", "thought")),
        (results, _result_facts, ("content",)),
    ):
        describe.register(message_type, row)
        read_from(message_type, *attributes)
    register_summaries(lambda text: user(content=text, source=SUMMARY_SOURCE), system, user, assistant, results)
    register_results(
        results,
        lambda message: message.content,
        lambda result: result.content,
        lambda result, text: result.model_copy(update={"content": text}),
        lambda message, parts: message.model_copy(update={"content": parts}),
    )


def _assistant_facts(message: Any) -> EventFacts:
    if isinstance(message.content, str):
        return EventFacts(EventKind.RESPONSE, message.content)
    calls = message.content
    return EventFacts(
        EventKind.RESPONSE,
        message.thought or "",  # sent as the content only if the message has calls
        fields=[text for call in calls for text in (call.name, call.arguments)],
        opens=[call.id for call in calls],
        calls=[ToolCallFacts(call.id, call.name, call.arguments) for call in calls],
    )


def _result_facts(message: Any) -> EventFacts:
    texts = [result.content for result in message.content]
    return EventFacts(
        EventKind.TOOL_RESULT,
        texts[0] if texts else "",
        fields=texts[1:],
        closes=[result.call_id for result in message.content],
    )
