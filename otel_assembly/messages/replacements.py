"""Events that stand for others, in the shape of a framework's own, so that whatever sends the prompt can send them.

As with `describe`, a framework's module registers a row for each of its types; nothing else knows that they exist.
"""

from __future__ import annotations

from copy import copy
from functools import singledispatch
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

#: What the assistant says between a summary and a user's message.
SUMMARY_READ: Final = "Understood."
#: Marks our own summaries, where a framework's messages have room for what no model is sent.
OUR_SUMMARY: Final = "otel_assembly_summary"


@singledispatch
def summary_like(event: Any, text: str, events: Sequence[Any]) -> Any:
    """An event that says `text` in the place of earlier ones.

    Args:
        event: An event of the conversation, by whose type the row is found.
        text: The summary.
        events: What it stands for: leaves, never an earlier summary of some of them.

    Returns:
        None where no row covers the type.
    """
    return None


@singledispatch
def summary_reply(summary: Any, following: Any) -> Any:
    """Return the assistant's message between a summary and the message behind it, or None if none is needed.

    Some providers refuse two neighboring messages of the user (`ProviderRules.alternates`).

    Args:
        summary: What `summary_like` has made.
        following: The message behind it.
    """
    return None


@singledispatch
def result_texts(event: Any) -> Sequence[str]:
    """The texts of the tools' results in an event, one for each result that has a text; a text can be shortened.

    Returns:
        Nothing where no row covers the type.
    """
    return ()


@singledispatch
def shortened(event: Any, texts: Sequence[str]) -> Any:
    """The event with other texts in the place of its `result_texts`, which still answers the same calls.

    Returns:
        None where no row covers the type.
    """
    return None


def summary_text(text: str) -> str:
    """What a summary says to a model where its framework has no words of its own for that."""
    return f"[Earlier messages, summarised: details may be missing]\n{text}"


def register_summaries(made: Callable[[str], Any], *event_types: type) -> None:
    """Register what stands for events of these types that were summarised: what this makes of what a summary says."""
    for event_type in event_types:
        summary_like.register(event_type, lambda _, text, __: made(summary_text(text)))


def edited(original: T, **changes: Any) -> T:
    """A copy of a message, or of a part of one, with other values; what else it holds, it goes on to hold."""
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
    """Register how the tools' results in an event are shortened, whose parts say each its own.

    Args:
        event_type: The event's type.
        parts: Its parts, some of which are results; or the attribute that holds them.
        text: What a part says that can be shortened; nothing of any other part.
        saying: The same part with another text; or the attribute that holds the text.
        made_of: The event with other parts; by default a copy of it, where those have an attribute.
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
