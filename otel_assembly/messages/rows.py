"""Factories of rows: functions that add one part of a message to a `Draft`.

The parts are objects. Frameworks differ only in the attributes that contain the texts, calls and files of a part.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly.messages.content_snapshot import read_as
from otel_assembly.messages.draft import Draft
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.messages.event_facts import EventKind

    #: Reads one part.
    Row: TypeAlias = Callable[[Draft, Any], None]
    #: The location of a value in a part: the name of an attribute, or a function of the part.
    Where: TypeAlias = str | Callable[[Any], Any]


def _getter(where: Where) -> Callable[[Any], Any]:
    return attrgetter(where) if isinstance(where, str) else where


class ReadingRow:
    """A row with a known list of the values that it reads. Parts with equal values are equal.

    Args:
        row: The row.
        reads: The locations of all values that it reads.
    """

    __slots__ = ("_getters", "_row")

    def __init__(self, row: Row, *reads: Where | None) -> None:
        self._row = row
        self._getters = [_getter(where) for where in reads if where is not None]

    def __call__(self, draft: Draft, part: Any) -> None:
        """Read one part."""
        self._row(draft, part)

    def content(self, part: Any) -> list[Any]:
        """Return the values that the row reads of a part."""
        return [get(part) for get in self._getters]


def says(*texts: Where, sealed: Where | None = None, shown: Where | None = None) -> Row:
    """Return the row of a part with text.

    Args:
        texts: The locations of its texts.
        sealed: The location of encrypted data, which only the provider can read.
        shown: The location of a clip or file, or of a list of them. The value is None if there is none.
    """
    said = [_getter(text) for text in texts]

    def row(draft: Draft, part: Any) -> None:
        for text in said:
            draft.text(text(part))
        if sealed is not None:
            draft.encrypted(_getter(sealed)(part))
        _show(draft, part, shown)

    return ReadingRow(row, *texts, sealed, shown)


def thinks(*texts: Where, sealed: Where | None = None) -> ReadingRow:
    """Return the row of a part with reasoning.

    Args:
        texts: The locations of its texts.
        sealed: The location of encrypted data.
    """
    said = says(*texts, sealed=sealed)

    def row(draft: Draft, part: Any) -> None:
        with draft.thinking():
            said(draft, part)

    return ReadingRow(row, *texts, sealed)


def _show(draft: Draft, part: Any, shown: Where | None) -> None:
    held = None if shown is None else _getter(shown)(part)
    if held is not None:
        for one in held if isinstance(held, list | tuple) else (held,):
            draft.file(_detail(one) or _detail(part))


def asks(call: Where | None, name: Where, arguments: Where, *, awaiting: Callable[[Any], bool] | bool = False) -> Row:
    """Return the row of a tool call.

    Args:
        call: The location of the call's id. None for a tool that the provider runs itself: it needs no result.
        name: The location of the tool's name.
        arguments: The location of the arguments.
        awaiting: Returns True if a part waits for an approval. True for a part that requests an approval: its call can
            be in the message already.
    """
    asked, arguing = _getter(name), _getter(arguments)

    def row(draft: Draft, part: Any) -> None:
        own = None if call is None else _getter(call)(part)
        if call is None:
            draft.spell(asked(part), arguing(part))
        elif awaiting is True and own in draft.opens:
            draft.awaiting.append(own)
        else:
            draft.call(own, asked(part), arguing(part), awaiting=awaiting(part) if callable(awaiting) else awaiting)

    return ReadingRow(row, call, name, arguments, awaiting if callable(awaiting) else None)


def answers(
    call: Where | None, *texts: Where, shown: Where | None = None, held: ReadingRow | None = None
) -> ReadingRow:
    """Return the row of a tool result.

    Args:
        call: The location of the call's id. None for a tool that the provider runs itself.
        texts: The locations of its texts.
        shown: The location of its files.
        held: The row of its content, if the result contains more than texts.
    """

    def row(draft: Draft, part: Any) -> None:
        draft.texts += filter(None, (_getter(text)(part) for text in texts))
        with draft.aside():
            _show(draft, part, shown)
            if held is not None:
                held(draft, part)
        if call is not None:
            draft.result(_getter(call)(part))

    return ReadingRow(row, call, *texts, shown, None if held is None else held.content)


def holds(content: Where, rows: Mapping[Any, Row], of: Where) -> ReadingRow:
    """Return the row of a part that contains a text, or a list of texts and parts.

    Args:
        content: The location of the content.
        rows: The rows of the contained parts, by type.
        of: The location of a part's type.
    """
    content_of = _getter(content)
    return ReadingRow(lambda draft, part: read_each(draft, rows, of, content_of(part)), content)


def read_each(draft: Draft, rows: Mapping[Any, Row], of: Where, held: Any) -> None:
    """Read a text, a part, or a list of them. None in a list is ignored.

    Args:
        draft: Collects the facts.
        rows: The rows of the parts, by type.
        of: The location of a part's type. Parts without a type use the row of None.
        held: The text, part or list.

    Raises:
        TypeError: `held` is None.
    """
    if held is None:
        raise TypeError("nothing is held")
    if isinstance(held, str):
        draft.text(held)
    elif isinstance(held, list | tuple):
        for one in held:
            if one is not None:
                read_each(draft, rows, of, one)
    else:
        read_part(draft, rows, of(held) if callable(of) else getattr(held, of, None), held)


def shows(draft: Draft, part: Any) -> None:
    """Read an image, a clip or a file."""
    draft.file(_detail(part))


def _detail(part: Any) -> Any:
    """Return the ``detail`` of an image, from the part or from its options for the provider."""
    held = (part, *(getattr(part, name, None) for name in _OPTIONS))
    details = (one.get("detail") if isinstance(one, dict) else getattr(one, "detail", None) for one in held)
    return next((detail for detail in details if isinstance(detail, str)), None)


_OPTIONS: Final = ("vendor_metadata", "additional_properties", "metadata", "meta")


def is_silent(draft: Draft, _: Any) -> None:
    """Ignore a part that is not sent to the model."""


def read_part(draft: Draft, rows: Mapping[Any, Row], kind: Any, part: Any) -> None:
    """Read a part with the row of its type. A part of an unknown type counts by its attributes."""
    row = rows.get(kind)
    if row is not None:
        row(draft, part)
    else:
        name = kind if isinstance(kind, str) else type(part).__name__
        draft.other(name, part.to_dict() if hasattr(part, "to_dict") else getattr(part, "__dict__", str(part)))


def register_parts(
    event_type: type,
    parts: str,
    of: Where,
    rows: Mapping[Any, Row],
    kind: Callable[[Any, Draft], EventKind],
    known: Callable[[Any], Mapping[str, Any]] | Mapping[str, Where] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> None:
    """Register the row of an event type whose events consist of parts.

    Args:
        event_type: The type.
        parts: The attribute with the list of parts, or with None.
        of: The location of a part's type.
        rows: The rows of the parts, by type.
        kind: Returns the kind of the event, from the event and the facts of its parts.
        known: Further fields of `EventFacts`: a function of the event, or the location of each field's value.
        read: Returns all values that `kind` reads. Events are equal if these values, the further fields and the parts
            are equal. If None, call `read_from` or `read_as` for this type.
    """
    kind_of = _getter(of)
    known_of = known if callable(known) else _found_at(known or {})

    def said(part: Any) -> Any:
        row = rows.get(what := kind_of(part))
        return (what, row.content(part)) if isinstance(row, ReadingRow) else part

    def row(event: Any) -> EventFacts:
        draft, also = Draft(), known_of(event)
        for part in getattr(event, parts) or ():
            read_part(draft, rows, kind_of(part), part)
        return draft.facts(kind(event, draft), also, **{name: one for name, one in also.items() if name != "id"})

    describe.register(event_type, row)
    if read is not None:
        read_as(event_type, lambda event: (read(event), known_of(event), list(map(said, getattr(event, parts) or ()))))


def _found_at(places: Mapping[str, Where]) -> Callable[[Any], Mapping[str, Any]]:
    getters = {name: _getter(where) for name, where in places.items()}
    return lambda event: {name: get(event) or None for name, get in getters.items()}


def result_text(of: Where, kind: str, text: Where) -> Callable[[Any], str]:
    """Return a function for `register_results`: it returns the text of a tool result, else an empty string.

    Args:
        of: The location of a part's type.
        kind: The type of tool results.
        text: The location of a result's text.
    """
    kind_of, text_of = _getter(of), _getter(text)

    def said(part: Any) -> str:
        held = text_of(part) if kind_of(part) == kind else None
        return held if isinstance(held, str) else ""

    return said


def function_schema(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """Return the schema of a tool in OpenAI's format."""
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}
