"""Creates readers of message parts that are objects. A reader is a function that adds one part to a `Draft`.

Frameworks differ only in the attributes that contain the texts, calls and files of a part.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, compress, islice, repeat
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly.messages.content_snapshot import read_as
from otel_assembly.messages.draft import Draft
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from otel_assembly.messages.event_facts import EventKind

    #: A reader: adds one part to a draft.
    Row: TypeAlias = Callable[[Draft, Any], None]
    #: The location of a value in a part: the name of an attribute, or a function of the part.
    Where: TypeAlias = str | Callable[[Any], Any]


def _getter(where: Where) -> Callable[[Any], Any]:
    """Return a function that returns the value at a location in a part."""
    return attrgetter(where) if isinstance(where, str) else where


class ReadingRow:
    """A reader of parts that also returns the values that it reads, so that parts can be compared.

    Args:
        row: The reader.
        reads: The locations of all values that the reader uses: attributes, functions of a part, or another reader,
            which uses the same part. None is ignored.
        columns: Functions that take several parts, and return a value that the reader uses for each of them.
    """

    __slots__ = ("_columns", "_row")

    def __init__(
        self, row: Row, *reads: Where | ReadingRow | None, columns: Iterable[Callable[[Any], Iterable[Any]]] = ()
    ) -> None:
        self._row = row
        self._columns: list[Callable[[Any], Iterable[Any]]] = [
            where.contents if isinstance(where, ReadingRow) else partial(map, _getter(where))
            for where in reads
            if where is not None
        ]
        self._columns += columns

    def __call__(self, draft: Draft, part: Any) -> None:
        """Add one part to a draft."""
        self._row(draft, part)

    def contents(self, parts: Sequence[Any]) -> list[Any]:
        """Return the values that the reader uses of each part; parts with equal values have equal facts.

        Attributes are read without a call of a Python function per part, because old messages are compared often.
        """
        columns = [column(parts) for column in self._columns]
        return list(zip(*columns, strict=True)) if columns else [()] * len(parts)


def says(*texts: Where, sealed: Where | None = None, shown: Where | None = None) -> Row:
    """Return a reader for parts with text.

    Args:
        texts: The locations of a part's texts. A location is the name of an attribute, or a function of the part.
        sealed: The location of encrypted data, which only the provider can read; None if the parts have none.
        shown: The location of an audio clip or file, or of a list of them; the value there is None for a part without
            files. None: the parts never have files.
    """
    getters = [_getter(text) for text in texts]

    def row(draft: Draft, part: Any) -> None:
        for text_of in getters:
            draft.text(text_of(part))
        if sealed is not None:
            draft.encrypted(_getter(sealed)(part))
        _add_files(draft, part, shown)

    return ReadingRow(row, *texts, sealed, shown)


def thinks(*texts: Where, sealed: Where | None = None) -> ReadingRow:
    """Return a reader for parts with reasoning.

    Args:
        texts: The locations of a part's texts.
        sealed: The location of encrypted data.
    """
    text_row = says(*texts, sealed=sealed)

    def row(draft: Draft, part: Any) -> None:
        with draft.thinking():
            text_row(draft, part)

    return ReadingRow(row, *texts, sealed)


def _add_files(draft: Draft, part: Any, shown: Where | None) -> None:
    """Add the file or the files at a location in a part, if there are any."""
    files = None if shown is None else _getter(shown)(part)
    if files is not None:
        for file in files if isinstance(files, list | tuple) else (files,):
            draft.file(_detail(file) or _detail(part))


def asks(call: Where | None, name: Where, arguments: Where, *, awaiting: Callable[[Any], bool] | bool = False) -> Row:
    """Return a reader for parts that are tool calls.

    Args:
        call: The location of the call's id: the name of an attribute, or a function of the part. None for a tool that
            the provider runs itself, which needs no result.
        name: The location of the tool's name.
        arguments: The location of the arguments.
        awaiting: A function that returns True if the call waits for an approval. True for parts that request an
            approval; the message can also contain the call as another part, which is not added twice.
    """
    name_of, arguments_of = _getter(name), _getter(arguments)

    def row(draft: Draft, part: Any) -> None:
        call_id = None if call is None else _getter(call)(part)
        if call is None:
            draft.spell(name_of(part), arguments_of(part))
        elif awaiting is True and call_id in draft.opens:
            draft.awaiting.append(call_id)
        else:
            waits = awaiting(part) if callable(awaiting) else awaiting
            draft.call(call_id, name_of(part), arguments_of(part), awaiting=waits)

    return ReadingRow(row, call, name, arguments, awaiting if callable(awaiting) else None)


def answers(
    call: Where | None, *texts: Where, shown: Where | None = None, held: ReadingRow | None = None
) -> ReadingRow:
    """Return a reader for parts that are tool results.

    Args:
        call: The location of the call's id: the name of an attribute, or a function of the part. None for a tool that
            the provider runs itself.
        texts: The locations of the result's texts.
        shown: The location of the result's file, or of a list of files; None if results have no files.
        held: A reader of the result's content, if that contains more than texts and files; otherwise None.
    """

    def row(draft: Draft, part: Any) -> None:
        draft.texts += filter(None, (_getter(text)(part) for text in texts))
        with draft.aside():
            _add_files(draft, part, shown)
            if held is not None:
                held(draft, part)
        if call is not None:
            draft.result(_getter(call)(part))

    return ReadingRow(row, call, *texts, shown, held)


def holds(
    content: Where,
    rows: Mapping[Any, Row],
    of: Where,
    *,
    contents: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
) -> ReadingRow:
    """Return a reader for parts that contain a text, or a list of texts and other parts.

    Args:
        content: The location of the content: the name of an attribute, or a function of the part.
        rows: The readers of the contained parts, by type.
        of: The location of a contained part's type.
        contents: Returns the content of each of several parts; None if `content` is called for each of them.
    """
    content_of = _getter(content)
    column = partial(map, content_of) if contents is None else contents
    return ReadingRow(lambda draft, part: read_each(draft, rows, of, content_of(part)), columns=[column])


def read_each(draft: Draft, rows: Mapping[Any, Row], of: Where, content: Any) -> None:
    """Add a text, a part, or a list of texts and parts to a draft. None in a list is ignored.

    Args:
        draft: Collects the facts of the message.
        rows: The readers of the parts, by type.
        of: The location of a part's type: the name of an attribute, or a function of the part. For parts without a
            type, the reader under the key None is used.
        content: The text, part or list.

    Raises:
        TypeError: `content` is None.
    """
    if content is None:
        raise TypeError("the content is None")
    if isinstance(content, str):
        draft.text(content)
    elif isinstance(content, list | tuple):
        for element in content:
            if element is not None:
                read_each(draft, rows, of, element)
    else:
        read_part(draft, rows, of(content) if callable(of) else getattr(content, of, None), content)


def shows(draft: Draft, part: Any) -> None:
    """Add a part that is an image, an audio clip or a file to a draft."""
    draft.file(_detail(part))


def _detail(part: Any) -> Any:
    """Return the ``detail`` setting of an image, such as ``low``, from the part or its options for the provider."""
    places = (part, *(getattr(part, name, None) for name in _OPTIONS))
    details = (place.get("detail") if isinstance(place, dict) else getattr(place, "detail", None) for place in places)
    return next((detail for detail in details if isinstance(detail, str)), None)


_OPTIONS: Final = ("vendor_metadata", "additional_properties", "metadata", "meta")


def is_silent(draft: Draft, _: Any) -> None:
    """Add nothing: the reader of parts that are not sent to the model."""


def read_part(draft: Draft, rows: Mapping[Any, Row], kind: Any, part: Any) -> None:
    """Add a part to a draft with the reader of its type; a part of an unknown type as the JSON of its attributes.

    Args:
        draft: Collects the facts of the message.
        rows: The readers, by type.
        kind: The part's type.
        part: The part.
    """
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
    read_all: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
    types_of: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> None:
    """Register how `describe` reads events that consist of parts.

    Args:
        event_type: The type of the events.
        parts: The attribute with the list of parts; its value can be None.
        of: The location of a part's type: the name of an attribute, or a function of the part.
        rows: The readers of the parts, by type.
        kind: Returns the kind of the event, from the event and the facts of its parts.
        known: Further fields of `EventFacts`: a function of the event, or the location of each field's value. None for
            no further fields.
        read: Returns all values that `kind` reads. Events are equal if these values, the further fields and the parts
            are equal. If None, and `read_all` is None, call `read_from` or `read_as` for this type.
        read_all: Returns all values that `kind` and `known` read, for each of several events. It replaces `read`, which
            is called once per event.
        types_of: Returns the types of several parts; None if `of` is called for each of them.
    """
    kind_of = _getter(of)
    fields_of = known if callable(known) else _values_at(known or {})

    def row(event: Any) -> EventFacts:
        draft, fields = Draft(), fields_of(event)
        for part in getattr(event, parts) or ():
            read_part(draft, rows, kind_of(part), part)
        return draft.facts(kind(event, draft), fields, **{name: fields[name] for name in fields if name != "id"})

    describe.register(event_type, row)
    if read is not None:
        read_all = partial(_values_of_each, (read, fields_of))
    if read_all is not None:
        contents_of_all = partial(_contents_of_all, read_all, parts, types_of or partial(map, kind_of), rows)
        read_as(event_type, lambda event: contents_of_all([event])[0], contents_of_all)


def _values_of_each(functions: Sequence[Callable[[Any], Any]], events: Sequence[Any]) -> Iterable[Any]:
    return zip(*[map(function, events) for function in functions], strict=True)


def _contents_of_all(
    read_all: Callable[[Sequence[Any]], Iterable[Any]],
    parts: str,
    types_of: Callable[[Sequence[Any]], Iterable[Any]],
    rows: Mapping[Any, Row],
    events: Sequence[Any],
) -> list[Any]:
    """Return the values that `describe` reads of each event; the arguments are those of `register_parts`."""
    part_lists = [getattr(event, parts) or () for event in events]
    part_contents = _contents_of_parts(types_of, rows, list(chain.from_iterable(part_lists)))
    grouped = [list(islice(part_contents, length)) for length in map(len, part_lists)]
    return list(zip(read_all(events), grouped, strict=True))


def _contents_of_parts(
    types_of: Callable[[Sequence[Any]], Iterable[Any]], rows: Mapping[Any, Row], parts: Sequence[Any]
) -> Iterator[Any]:
    """Return the type of each part, and the values that its reader uses; the part itself if these are unknown."""
    types = list(types_of(parts))
    contents_by_type: dict[Any, Iterator[Any]] = {}
    for part_type in set(types):
        same_type = list(compress(parts, map(eq, types, repeat(part_type))))
        row = rows.get(part_type)
        contents_by_type[part_type] = iter(row.contents(same_type) if isinstance(row, ReadingRow) else same_type)
    return zip(types, map(next, map(contents_by_type.__getitem__, types)), strict=True)


def _values_at(places: Mapping[str, Where]) -> Callable[[Any], Mapping[str, Any]]:
    getters = {name: _getter(where) for name, where in places.items()}
    return lambda event: {name: get(event) or None for name, get in getters.items()}


def result_text(of: Where, kind: str, text: Where) -> Callable[[Any], str]:
    """Return a function that returns a part's text if the part is a tool result, else an empty string.

    Pass that function as the argument `text` of `register_results`.

    Args:
        of: The location of a part's type: the name of an attribute, or a function of the part.
        kind: The type of parts that are tool results.
        text: The location of a result's text.
    """
    kind_of, text_of = _getter(of), _getter(text)

    def text_of_result(part: Any) -> str:
        value = text_of(part) if kind_of(part) == kind else None
        return value if isinstance(value, str) else ""

    return text_of_result


def function_schema(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """Return the schema of a tool in OpenAI's format."""
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}
