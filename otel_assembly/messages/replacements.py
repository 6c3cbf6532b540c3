"""Creates replacement events (summaries and shortened tool results) in the types of a framework.

As for `describe`, each framework's module registers a function per message type.
"""

from __future__ import annotations

from copy import copy
from functools import singledispatch
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

#: The text of the assistant message that is inserted between a summary and a user message, if roles must alternate.
SUMMARY_READ: Final = "Understood."
#: The metadata key that marks a message as a summary of this package, if the framework's messages have metadata.
OUR_SUMMARY: Final = "otel_assembly_summary"


@singledispatch
def summary_like(event: Any, text: str, events: Sequence[Any]) -> Any:
    """Return a new event with a summary, in the type that its framework uses.

    Args:
        event: An event of the conversation, whose type selects the registered function.
        text: The summary.
        events: The events that the summary replaces. If an earlier summary is among the replaced events, this list
            contains the events that the earlier summary replaced, instead of that summary.

    Returns:
        None if no function is registered for the type.
    """
    return None


@singledispatch
def summary_reply(summary: Any, following: Any) -> Any:
    """Return an assistant message to insert between a summary and the next message; None if none is needed.

    A summary is a user message, and some providers reject two consecutive user messages (`ProviderRules.alternates`).

    Args:
        summary: The return value of `summary_like`.
        following: The next message.
    """
    return None


@singledispatch
def result_texts(event: Any) -> Sequence[str]:
    """Return the texts of the tool results in an event, one per result; results without a text are skipped.

    Returns:
        An empty sequence if no function is registered for the event's type.
    """
    return ()


@singledispatch
def shortened(event: Any, texts: Sequence[str]) -> Any:
    """Return a copy of an event with tool results, with new texts. The ids of the calls stay the same.

    Args:
        event: The event.
        texts: The new texts, in the order of `result_texts`.

    Returns:
        None if no function is registered for the event's type.
    """
    return None


def summary_text(text: str) -> str:
    """Return the text of a summary message: a fixed heading and the summary.

    This text is used for frameworks that do not have their own heading.
    """
    return f"[Earlier messages, summarised: details may be missing]\n{text}"


def register_summaries(create: Callable[[str], Any], *event_types: type) -> None:
    """Register how to create a summary message, for `summary_like`.

    Args:
        create: Takes the text of the message, and returns the message.
        event_types: The types of events that such a message can replace.
    """
    for event_type in event_types:
        summary_like.register(event_type, lambda _, text, __: create(summary_text(text)))


def edited(original: T, **changes: Any) -> T:
    """Return a shallow copy of a message or part with changed attributes."""
    clone = copy(original)
    for name, value in changes.items():
        setattr(clone, name, value)
    return clone


def register_results(
    event_type: type,
    parts: str | Callable[[Any], Iterable[Any]],
    text: Callable[[Any], str],
    saying: str | Callable[[Any, str], Any],
    made_of: Callable[[Any, list[Any]], Any] | None = None,
) -> None:
    """Register how to read and replace the texts of tool results, for events that consist of parts.

    This registers functions for `result_texts` and `shortened`.

    Args:
        event_type: The type of the events.
        parts: The attribute with an event's parts, or a function that returns them.
        text: Returns the text of a part that is a tool result, and an empty string for other parts.
        saying: The attribute with a part's text, or a function that returns a copy of a part with another text.
        made_of: Returns a copy of an event with other parts. Required if `parts` is a function.
    """
    parts_of = attrgetter(parts) if isinstance(parts, str) else parts

    def _texts(event: Any) -> Sequence[str]:
        return [part_text for part in parts_of(event) if (part_text := text(part))]

    def _with_text(part: Any, new_text: str) -> Any:
        return edited(part, **{saying: new_text}) if isinstance(saying, str) else saying(part, new_text)

    def _with_parts(event: Any, new_parts: list[Any]) -> Any:
        return edited(event, **{str(parts): new_parts}) if made_of is None else made_of(event, new_parts)

    def _shortened(event: Any, texts: Sequence[str]) -> Any:
        next_text = iter(texts)
        pairs = [(part, next(next_text) if text(part) else "") for part in parts_of(event)]
        return _with_parts(event, [_with_text(part, new) if new and new != text(part) else part for part, new in pairs])

    result_texts.register(event_type, _texts)
    shortened.register(event_type, _shortened)
