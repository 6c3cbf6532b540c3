"""Rows for parts of messages that are objects: what a `Draft` is told of each, by what a part calls itself.

Where a part holds its text, its call or its file differs by framework; what is made of that does not.
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
    #: Where something of a part is: the name of an attribute, or what gets it of the part.
    Where: TypeAlias = str | Callable[[Any], Any]


def _getter(where: Where) -> Callable[[Any], Any]:
    return attrgetter(where) if isinstance(where, str) else where


class ReadingRow:
    """A row of which it is known what it reads: by that, and nothing else, copies of a part are known.

    Args:
        row: The row.
        reads: Where all that stands which it reads.
    """

    __slots__ = ("_getters", "_row")

    def __init__(self, row: Row, *reads: Where | None) -> None:
        self._row = row
        self._getters = [_getter(where) for where in reads if where is not None]

    def __call__(self, draft: Draft, part: Any) -> None:
        """Read one part."""
        self._row(draft, part)

    def content(self, part: Any) -> list[Any]:
        """What the row reads of a part."""
        return [get(part) for get in self._getters]


def says(*texts: Where, sealed: Where | None = None, shown: Where | None = None) -> Row:
    """The row of a part that is said.

    Args:
        texts: The attributes that hold its texts, or what gets them of the part.
        sealed: The one that holds what only the provider can read.
        shown: The one that holds a clip or a file beside them, or several; None of it where there is none.
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
    """Return the row of a part that holds what a model thought.

    Args:
        texts: As `says` takes them.
        sealed: Likewise.
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
    """The row of a tool's call, by where its id, the tool's name and the arguments are.

    One without an id is of a tool that the provider runs itself: nobody owes it a result. Whether one waits for an
    approval, `awaiting` says of the part; True of a part that asks for it, whose call may stand in the message already.
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
    """The row of what a tool has returned, which nobody says.

    Args:
        call: Where the id of its call is; None of a tool that the provider runs itself.
        texts: Where its texts are.
        shown: Where the files are that are sent beside them.
        held: The row of what it holds, where that is more than texts.
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
    """The row of a part that holds others: a text, or a list of texts and parts.

    Args:
        content: Where they are.
        rows: The rows of those parts.
        of: As `read_each` takes it.
    """
    content_of = _getter(content)
    return ReadingRow(lambda draft, part: read_each(draft, rows, of, content_of(part)), content)


def read_each(draft: Draft, rows: Mapping[Any, Row], of: Where, held: Any) -> None:
    """Read a text, a part, or several of them, of which some may be nothing.

    Args:
        draft: What is told of them.
        rows: The rows of the parts.
        of: The attribute by which a part says what it is, or what says it; what says nothing has the row of None.
        held: What is read.

    Raises:
        TypeError: There is nothing where something should be held.
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
    """The row of an image, a clip or a file."""
    draft.file(_detail(part))


def _detail(part: Any) -> Any:
    """How closely an image is looked at, where frameworks keep it: on the part, or among what a provider is told."""
    held = (part, *(getattr(part, name, None) for name in _OPTIONS))
    details = (one.get("detail") if isinstance(one, dict) else getattr(one, "detail", None) for one in held)
    return next((detail for detail in details if isinstance(detail, str)), None)


_OPTIONS: Final = ("vendor_metadata", "additional_properties", "metadata", "meta")


def is_silent(draft: Draft, _: Any) -> None:
    """The row of what no model reads."""


def read_part(draft: Draft, rows: Mapping[Any, Row], kind: Any, part: Any) -> None:
    """Read a part by its row; one of a kind that has none counts by what it holds."""
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
    """Register how an event is read that consists of parts.

    Args:
        event_type: The event's type.
        parts: The attribute that holds its parts, or nothing.
        of: Where a part says what it is.
        rows: The rows of its parts, by that.
        kind: What the event is, from the event and what was found in its parts.
        known: What else is known of it, by the names of `EventFacts`; or where each is, and nothing there is not known.
        read: All that `kind` reads of it: by that, by what is known of it, and by what the rows read of its parts, its
            copies are known; without, `read_from` or `read_as` says it.
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
    """What `register_results` takes for the text of a part: that of a tool's result, where it is one.

    Args:
        of: Where a part says what it is.
        kind: What a result says that it is.
        text: Where its text is.
    """
    kind_of, text_of = _getter(of), _getter(text)

    def said(part: Any) -> str:
        held = text_of(part) if kind_of(part) == kind else None
        return held if isinstance(held, str) else ""

    return said


def function_schema(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """The schema of a tool, in the form in which most providers are offered one."""
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}
