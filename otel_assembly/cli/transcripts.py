"""Reading recorded conversations from files, one at a time, without losing the good ones to a bad one."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import sys
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, cast

from otel_assembly.cli.transcript_forms import EXPECTED, Conversation, conversations, is_conversation, is_message
from otel_assembly.cli.transcript_json import MalformedError
from otel_assembly.cli.transcript_messages import Converter
from otel_assembly.cli.transcript_records import Record, records
from otel_assembly.errors import TranscriptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Transcript", "read_transcripts"]

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Transcript:
    """One recorded conversation.

    Attributes:
        id: What the record calls it, else ``file:place``; the context of a team's agent ends in ``/agent``.
        named: Whether the record gave the id; what was made up from the file's name is no conversation's id.
        messages: Messages that `describe` reads, in order, at least one; the parsed objects where they are that.
        path: The file, as it was given.
        line: The line where it begins, from 1.
        tools: The schemas of the tools that the record lists, as they stand there.
    """

    id: str
    named: bool
    messages: list[dict[str, Any]]
    path: str
    line: int | None
    tools: list[dict[str, Any]]


def read_transcripts(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Transcript | TranscriptError]:
    """Every conversation of the files, in order, and in the place of each unreadable one an error.

    Errors are yielded and not raised, so that the caller decides whether to go on. A file that cannot be read at all
    is one error. What is compressed with gzip is read as what it holds, and ``-`` is standard input.

    Yields:
        A `Transcript`, or a `TranscriptError` whose ``problem`` is one line and quotes at most 40 characters at a time.
    """
    for path in map(os.fsdecode, paths):
        name = "standard input" if path == "-" else path
        try:
            yield from _read(path, name)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            yield TranscriptError(name, None, "its gzip data is damaged or ends too early, expected a whole file")
        except OSError as error:
            yield TranscriptError(name, None, f"cannot be read: {error.strerror or type(error).__name__}")


def _read(path: str, name: str) -> Iterator[Transcript | TranscriptError]:
    problem = None if path == "-" else _no_file(path)
    if problem is not None:
        yield TranscriptError(name, None, problem)
        return
    empty = True
    with _opened(path) as stream:
        for found in _transcripts(name, records(_unpacked(stream), path)):
            empty = False
            yield found
    if empty:
        yield TranscriptError(name, None, f"holds nothing, expected {EXPECTED}")


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path != "-":
        with open(path, "rb") as stream:
            yield stream
        return
    with TemporaryFile() as kept:  # what is read is looked at twice, which a pipe does not allow
        if sys.stdin is not None:
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.seek(0)
        yield kept


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    packed = stream.read(len(_GZIP)) == _GZIP
    stream.seek(0)
    return cast("IO[bytes]", gzip.open(stream)) if packed else stream


def _no_file(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "does not exist, expected a file of conversations"
    except ValueError:
        return "is no path: it has a character that no file's name can have"
    if stat.S_ISDIR(mode):
        return "is a directory, expected a file of conversations"
    # A device may have no end, and a pipe without a writer would wait for ever.
    return None if stat.S_ISREG(mode) else "is a device or a pipe, expected a regular file, or - for standard input"


def _transcripts(path: str, found: Iterator[Record]) -> Iterator[Transcript | TranscriptError]:
    """The first record that can be told decides whether each is a conversation, or all are the messages of one."""
    whole = True
    for record in found:
        if is_message(record.value):
            yield from _of_messages(path, record, found, whole=whole)
            return
        yield from _of_record(path, record)
        if is_conversation(record.value):
            break
        whole = False
    for record in found:
        yield from _of_record(path, record)


def _of_messages(
    path: str, first: Record, rest: Iterator[Record], *, whole: bool
) -> Iterator[Transcript | TranscriptError]:
    """The conversation that the file is; `whole` is false where a message of it is already reported as unreadable."""
    converter = Converter()
    messages: list[dict[str, Any]] = []
    for index, record in enumerate(chain([first], rest)):
        value = record.value
        if isinstance(value, dict) and not is_message(value) and is_conversation(value):
            yield TranscriptError(path, first.line, "a message on its own among conversations, expected one of them")
            for each in chain([record], rest):
                yield from _of_record(path, each)
            return
        try:
            if isinstance(value, MalformedError):
                raise value
            messages += converter.convert(value)
        except MalformedError as error:
            yield TranscriptError(path, record.line, f"message {index}: {error}")
            return
    if whole:
        yield from _of_record(path, Record(first.line, first.place, messages))


def _of_record(path: str, record: Record) -> Iterator[Transcript | TranscriptError]:
    value = record.value
    if isinstance(value, MalformedError):
        yield TranscriptError(path, record.line, str(value))
        return
    several = (
        isinstance(value, list) and not is_message(value[0] if value else None) and any(map(is_conversation, value))
    )
    places = [(f"{record.place}.{number}", each) for number, each in enumerate(value, 1)] if several else []
    for place, each in places or [(record.place, value)]:
        for found in conversations(each):
            if isinstance(found, Conversation):
                yield _transcript(path, record, place, found)
            else:
                yield TranscriptError(path, record.line, str(found))


def _transcript(path: str, record: Record, place: str, found: Conversation) -> Transcript:
    name = found.id if found.id is not None else f"{os.path.basename(path)}:{place}"
    own = f"{name}/{found.agent}" if found.agent else name
    return Transcript(own, found.id is not None, found.messages, path, record.line, found.tools)
