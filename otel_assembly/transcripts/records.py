"""Read the JSON values of a file one at a time.

A zip file, such as a log of inspect-ai, has one value per JSON file in its folder ``samples``. A ``.jsonl`` file has
one value per line, and so has any other file whose first line is a whole JSON value followed by more lines. Every other
file is one JSON document; if it is a list, each item is a value.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from otel_assembly.transcripts.json_values import MalformedError, excerpt, parse, skip_space, value_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["MAX_DOCUMENT_BYTES", "MAX_LINE_BYTES", "Record", "appended_records", "has_lines", "records"]

#: The longest line. A longer line is an error, and reading continues with the next one.
MAX_LINE_BYTES = 32 * 1024 * 1024

#: The longest JSON document, which is read into memory as a whole.
MAX_DOCUMENT_BYTES = 512 * 1024 * 1024

_LINE_SUFFIXES = frozenset({".jsonl", ".ndjson"})
_BOM = b"\xef\xbb\xbf"

#: The first bytes of zstd, xz, bzip2 and gzip (inside gzip) files, and of zip files.
_COMPRESSED = (b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"\x1f\x8b")
_ZIP = b"PK\x03\x04"
_ZIP_FOLDER = "samples/"


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON value of a transcript file, such as a conversation or a message.

    Attributes:
        line: The line where the value begins, from 1; None for an error of the whole file.
        place: The line of the value, or its number in the file's list, from 1; unique in the file.
        value: The parsed value, or a `MalformedError`.
    """

    line: int | None
    place: str
    value: Any


def records(stream: IO[bytes], path: str, *, growing: bool = False) -> Iterator[Record]:
    """Yield a record for each JSON value of a file: for each line of JSON Lines, or for each value of one document.

    The value of a record is a `MalformedError` if the value cannot be parsed; this error is not raised. In JSON Lines,
    reading then continues with the next line. In a document, reading stops if the end of the value is unknown. If the
    whole file is unreadable, for example compressed or binary, the only record contains the error.

    Args:
        stream: The file's contents, which must be seekable.
        path: The file's path, which is not opened; its suffix, such as ``.jsonl``, helps to recognize JSON Lines.
        growing: Whether another program appends to the file: a last line that is not complete is then left out.
    """
    lines = _lines(stream)
    first = next(lines, None)
    if first is None:
        return
    _, head = first
    if head is not None and head.startswith(_ZIP):
        yield from _zip_records(stream)
        return
    problem = _format_problem(head) if head is not None else None
    if problem is not None:
        yield Record(None, "1", MalformedError(problem))
        return
    by_line = _is_by_line(path, head, lines, growing=growing)
    stream.seek(0)
    yield from _line_records(_lines(stream), growing=growing) if by_line else _document_records(stream)


def has_lines(stream: IO[bytes], path: str) -> bool:
    """Return whether a file has one value per line; false as long as it has less than two lines, which decide this."""
    lines = list(islice(_lines(stream), 2))
    head = lines[0][1] if len(lines) > 1 else None
    if head is None or head.startswith(_ZIP) or _format_problem(head) is not None:
        return False
    return _is_by_line(path, head, iter(lines[1:]), growing=True)


def appended_records(data: bytes, number: int) -> Iterator[Record]:
    """Yield a record for each line of JSON Lines that were appended to a file; an incomplete last line is left out.

    Args:
        data: The lines.
        number: The number of lines before them.
    """
    return _line_records(_lines(BytesIO(data), number), growing=True)


def _zip_records(stream: IO[bytes]) -> Iterator[Record]:
    """Yield the values of the JSON files in the folder ``samples`` of a zip file."""
    try:
        with zipfile.ZipFile(stream) as archive:
            members = [name for name in archive.namelist() if name.startswith(_ZIP_FOLDER) and name.endswith(".json")]
            if not members:
                yield Record(None, "1", MalformedError("is a zip file without 'samples/*.json': unpack it first"))
            for name in members:
                with archive.open(name) as member:
                    data = member.read(MAX_DOCUMENT_BYTES + 1)
                try:
                    if len(data) > MAX_DOCUMENT_BYTES:
                        raise MalformedError(f"longer than {MAX_DOCUMENT_BYTES >> 20} MiB")
                    value: Any = parse(_decode(data))
                except MalformedError as error:
                    value = MalformedError(f"{excerpt(name)}: {error}")
                yield Record(None, name, value)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # RuntimeError: the file is encrypted; NotImplementedError: Python cannot unpack its compression.
        problem = f"is a zip file that cannot be read ({type(error).__name__}): unpack it first"
        yield Record(None, "1", MalformedError(problem))


def _format_problem(head: bytes) -> str | None:
    if head.startswith(_COMPRESSED):
        return "is compressed, expected JSON as it is or in gzip: unpack it first"
    if b"\0" in head[:4]:
        return "is binary or UTF-16, expected JSON in UTF-8"
    if head.lstrip()[:1] in (b"{", b"["):
        return None
    try:
        head.decode()
    except UnicodeDecodeError:
        return "is not UTF-8, expected JSON in UTF-8"
    return None


def _is_by_line(
    path: str, head: bytes | None, next_lines: Iterator[tuple[int, bytes | None]], *, growing: bool
) -> bool:
    number, second = next(next_lines, (0, None))
    if os.path.splitext(path.lower().removesuffix(".gz"))[1] in _LINE_SUFFIXES:
        if growing and not number:
            return True
        # Accept an indented document with the suffix .jsonl, which would otherwise be an error on each line.
        is_spread = head is not None and (head.strip() == b"[" or (head.strip() == b"{" and not _begins_value(second)))
        return not is_spread
    if not _begins_value(head) or second is None or head is None:
        return False
    try:
        parse(head.decode())
    except MalformedError as error:
        return error.end is not None
    except UnicodeDecodeError:
        return False
    return True


def _begins_value(line: bytes | None) -> bool:
    return line is not None and line.lstrip().startswith((b"{", b"["))


def _lines(stream: IO[bytes], number: int = 0) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and the bytes of each line that is not blank; None in place of a line that is too long."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif line.strip():
            yield number, line


def _line_records(lines: Iterable[tuple[int, bytes | None]], *, growing: bool) -> Iterator[Record]:
    for number, line in lines:
        value: Any
        try:
            if line is None:
                raise MalformedError(f"longer than {MAX_LINE_BYTES >> 20} MiB, expected one conversation per line")
            value = parse(_decode(line.rstrip()))
        except MalformedError as error:
            if growing and line is not None and not line.endswith(b"\n"):
                return
            value = error
        yield Record(number, str(number), value)


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = error.start - data.rfind(b"\n", 0, error.start)
        raise MalformedError(f"not UTF-8: byte 0x{data[error.start]:02x} at column {at}", at=error.start) from None


def _document_records(stream: IO[bytes]) -> Iterator[Record]:
    data = stream.read(MAX_DOCUMENT_BYTES + 1).removeprefix(_BOM)
    if len(data) > MAX_DOCUMENT_BYTES:
        problem = f"longer than {MAX_DOCUMENT_BYTES >> 20} MiB: write one conversation per line (.jsonl)"
        yield Record(None, "1", MalformedError(problem))
        return
    try:
        text = _decode(data)
    except MalformedError as error:
        yield Record(data.count(b"\n", 0, error.at) + 1, "1", error)
        return
    del data
    yield from _Document(text).records()


class _Document:
    """A JSON document; the items of a list are parsed one at a time, so that an error does not lose earlier items."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._counted = 0
        self._line = 1

    def records(self) -> Iterator[Record]:
        number = 0
        try:
            start = skip_space(self._text, 0)
            values = self._items(start + 1) if self._text.startswith("[", start) else self._single_value(start)
            for number, (at, value) in enumerate(values, 1):
                yield Record(self._line_of(at), str(number), value)
        except MalformedError as error:
            yield Record(self._line_of(error.at or 0), str(number + 1), error)

    def _single_value(self, at: int) -> Iterator[tuple[int, Any]]:
        value, end = self._value(at)
        yield at, value
        self._expect_end(end)

    def _items(self, at: int) -> Iterator[tuple[int, Any]]:
        at = skip_space(self._text, at)
        has_more = not self._text.startswith("]", at)
        while has_more:
            value, end = self._value(at)
            yield at, value
            at = skip_space(self._text, end)
            has_more = self._text.startswith(",", at)
            if has_more:
                at = skip_space(self._text, at + 1)
            elif not self._text.startswith("]", at):
                raise MalformedError("not JSON: expected ',' or ']' after an item of the list", at=at)
        self._expect_end(at + 1)

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            return value_at(self._text, at)
        except MalformedError as error:
            if error.end is None:
                raise
            return error, error.end

    def _expect_end(self, at: int) -> None:
        rest = skip_space(self._text, at)
        if rest != len(self._text):
            raise MalformedError("text after the JSON value, expected the end of the file", at=rest)

    def _line_of(self, at: int) -> int:
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line
