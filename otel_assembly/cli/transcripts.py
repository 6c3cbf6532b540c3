"""Read recorded conversations from files, one at a time; an unreadable conversation does not affect the others."""

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
        id: The id in the record; if it has none, ``file:place``. In the saved state of a team of agents, ``/`` and the
            agent's name are appended.
        named: True if `id` is from the record, False if it was made from the file's name.
        messages: The messages in order, in a form that `otel_assembly.messages` reads; at least one.
        path: The file's path, as it was passed to `read_transcripts`.
        line: The line where the record begins, from 1; None if unknown.
        tools: The tool schemas of the record, unchanged.
    """

    id: str
    named: bool
    messages: list[dict[str, Any]]
    path: str
    line: int | None
    tools: list[dict[str, Any]]


def read_transcripts(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Transcript | TranscriptError]:
    """Yield the conversations of the files in order, and an error in place of each unreadable conversation.

    Errors are yielded, not raised, so that the caller can continue. A file that cannot be read is one error. Files can
    be compressed with gzip; ``-`` is standard input.

    Yields:
        A `Transcript`, or a `TranscriptError` whose ``problem`` is one line with quotes of at most 40 characters.
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
    problem = None if path == "-" else _file_problem(path)
    if problem is not None:
        yield TranscriptError(name, None, problem)
        return
    empty = True
    with _open_file(path) as stream:
        for transcript in _transcripts(name, records(_decompressed(stream), path)):
            empty = False
            yield transcript
    if empty:
        yield TranscriptError(name, None, f"contains nothing, expected {EXPECTED}")


@contextmanager
def _open_file(path: str) -> Iterator[IO[bytes]]:
    if path != "-":
        with open(path, "rb") as stream:
            yield stream
        return
    with TemporaryFile() as copy:  # the input is read twice, which a pipe does not allow
        if sys.stdin is not None:
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.seek(0)
        yield copy


def _decompressed(stream: IO[bytes]) -> IO[bytes]:
    packed = stream.read(len(_GZIP)) == _GZIP
    stream.seek(0)
    return cast("IO[bytes]", gzip.open(stream)) if packed else stream


def _file_problem(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "does not exist, expected a file of conversations"
    except ValueError:
        return "is not a path: it contains a character that is not allowed in file names"
    if stat.S_ISDIR(mode):
        return "is a directory, expected a file of conversations"
    # A device may have no end, and a pipe without a writer would block forever.
    return None if stat.S_ISREG(mode) else "is a device or a pipe, expected a regular file, or - for standard input"


def _transcripts(path: str, file_records: Iterator[Record]) -> Iterator[Transcript | TranscriptError]:
    """Yield the conversations of a file's records.

    Each record is a conversation, or all records are the messages of one conversation. This depends on the first record
    that has the form of either.
    """
    whole = True
    for record in file_records:
        if is_message(record.value):
            yield from _conversation_of_messages(path, record, file_records, whole=whole)
            return
        yield from _conversations_of_record(path, record)
        if is_conversation(record.value):
            break
        whole = False
    for record in file_records:
        yield from _conversations_of_record(path, record)


def _conversation_of_messages(
    path: str, first: Record, rest: Iterator[Record], *, whole: bool
) -> Iterator[Transcript | TranscriptError]:
    """Yield the conversation whose messages are the records, or an error for the first unreadable message.

    `whole` is false if an earlier record was unreadable; then no conversation is yielded.
    """
    converter = Converter()
    messages: list[dict[str, Any]] = []
    for index, record in enumerate(chain([first], rest)):
        value = record.value
        if isinstance(value, dict) and not is_message(value) and is_conversation(value):
            yield TranscriptError(path, first.line, "a message on its own among conversations, expected one of them")
            for following in chain([record], rest):
                yield from _conversations_of_record(path, following)
            return
        try:
            if isinstance(value, MalformedError):
                raise value
            messages += converter.convert(value)
        except MalformedError as error:
            yield TranscriptError(path, record.line, f"message {index}: {error}")
            return
    if whole:
        yield from _conversations_of_record(path, Record(first.line, first.place, messages))


def _conversations_of_record(path: str, record: Record) -> Iterator[Transcript | TranscriptError]:
    value = record.value
    if isinstance(value, MalformedError):
        yield TranscriptError(path, record.line, str(value))
        return
    is_list = (
        isinstance(value, list) and not is_message(value[0] if value else None) and any(map(is_conversation, value))
    )
    places = [(f"{record.place}.{number}", item) for number, item in enumerate(value, 1)] if is_list else []
    for place, item in places or [(record.place, value)]:
        for conversation in conversations(item):
            if isinstance(conversation, Conversation):
                yield _transcript(path, record, place, conversation)
            else:
                yield TranscriptError(path, record.line, str(conversation))


def _transcript(path: str, record: Record, place: str, conversation: Conversation) -> Transcript:
    name = conversation.id if conversation.id is not None else f"{os.path.basename(path)}:{place}"
    transcript_id = f"{name}/{conversation.agent}" if conversation.agent else name
    return Transcript(
        transcript_id, conversation.id is not None, conversation.messages, path, record.line, conversation.tools
    )
