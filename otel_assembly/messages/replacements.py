"""Replacement events (summaries and shortened results) in the types of a framework.

As for `describe`, each framework's module registers functions (rows) for its types.
"""

from __future__ import annotations

from copy import copy
from functools import singledispatch
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

#: The text of the assistant message between a summary and a user message.
SUMMARY_READ: Final = "Understood."
#: Marks our summaries in the metadata of a message, if the framework's messages have metadata.
OUR_SUMMARY: Final = "otel_assembly_summary"


@singledispatch
def summary_like(event: Any, text: str, events: Sequence[Any]) -> Any:
    """Return a summary event that replaces earlier events.

    Args:
        event: An event of the conversation. Its type selects the row.
        text: The summary.
        events: The replaced events. An earlier summary is expanded to the events that it replaced.

    Returns:
        None if the type is not registered.
    """
    return None


@singledispatch
def summary_reply(summary: Any, following: Any) -> Any:
    """Return the assistant message between a summary and the next message, or None if none is needed.

    Some providers reject two consecutive user messages (`ProviderRules.alternates`).

    Args:
        summary: The return value of `summary_like`.
        following: The next message.
    """
    return None


@singledispatch
def result_texts(event: Any) -> Sequence[str]:
    """Return the texts of the tool results in an event, one per result with a text.

    Returns:
        An empty sequence if the type is not registered.
    """
    return ()


@singledispatch
def shortened(event: Any, texts: Sequence[str]) -> Any:
    """Return a copy of the event with other texts in place of its `result_texts`. The ids of calls stay the same.

    Returns:
        None if the type is not registered.
    """
    return None


def summary_text(text: str) -> str:
    """Return the content of a summary message, for frameworks without their own wording."""
    return f"[Earlier messages, summarised: details may be missing]\n{text}"


def register_summaries(made: Callable[[str], Any], *event_types: type) -> None:
    """Register a function that creates a summary message from a text, for events of these types."""
    for event_type in event_types:
        summary_like.register(event_type, lambda _, text, __: made(summary_text(text)))


def edited(original: T, **changes: Any) -> T:
    """Return a shallow copy of a message or part with changed attributes."""
    made = copy(original)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def register_results(
    event_type: type,
    parts: str | Callable[[Any], Iterable[Any]],
    text: Callable[[Any], str],
    saying: str | Callable[[Any, str], Any],
    made_of: Callable[[Any, list[Any]], Any] | None = None,
) -> None:
    """Register how to shorten the tool results of an event type whose events consist of parts.

    Args:
        event_type: The type.
        parts: Returns the parts of an event; or the attribute with the parts.
        text: Returns the text of a tool result. Returns an empty string for other parts.
        saying: Returns a copy of a part with another text; or the attribute with the text.
        made_of: Returns a copy of an event with other parts. Required if `parts` is a function.
    """
    parts_of = attrgetter(parts) if isinstance(parts, str) else parts

    def _texts(event: Any) -> Sequence[str]:
        return [said for part in parts_of(event) if (said := text(part))]

    def _saying(part: Any, said: str) -> Any:
        return edited(part, **{saying: said}) if isinstance(saying, str) else saying(part, said)

    def _made_of(event: Any, made: list[Any]) -> Any:
        return edited(event, **{str(parts): made}) if made_of is None else made_of(event, made)

    def _shortened(event: Any, texts: Sequence[str]) -> Any:
        given = iter(texts)
        made = [(part, next(given) if text(part) else "") for part in parts_of(event)]
        return _made_of(event, [_saying(part, said) if said and said != text(part) else part for part, said in made])

    result_texts.register(event_type, _texts)
    shortened.register(event_type, _shortened)
