"""Read recorded conversations from files, one at a time; an unreadable conversation does not affect the others."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import sys
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, cast

from otel_assembly.errors import TranscriptError
from otel_assembly.transcripts.conversation import Conversation, LoggedCall
from otel_assembly.transcripts.json_values import MalformedError
from otel_assembly.transcripts.records import Record, records
from otel_assembly.transcripts.transcript_format import Sample, TranscriptFormat, recognize, unknown_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Transcript", "read_transcripts"]

_GZIP = b"\x1f\x8b"

#: The most records at the beginning of a file that are used to recognize its format.
_SAMPLE = 100


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
        prompts: System prompts that are not among the messages.
        calls: The model calls, if the file states what each of them received. None: each response of the model is a
            call, which received all messages before it.
        is_request: True if the messages are those of a request, which the model received even without a response.
        format: The name of the file's format.
        unknown: The names of the parts of a prompt that the file does not contain, such as ``system prompt``.
        skipped: The number of records or messages that were not understood, by description.
    """

    id: str
    named: bool
    messages: list[dict[str, Any]]
    path: str
    line: int | None
    tools: list[dict[str, Any]]
    prompts: Sequence[str] = ()
    calls: Sequence[LoggedCall] | None = None
    is_request: bool = False
    format: str = ""
    unknown: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


def read_transcripts(
    paths: Sequence[str | os.PathLike[str]], *, growing: bool = False
) -> Iterator[Transcript | TranscriptError]:
    """Yield the conversations of the files in order, and an error in place of each unreadable conversation.

    Errors are yielded, not raised, so that the caller can continue. A file that cannot be read is one error. Files can
    be compressed with gzip; ``-`` is standard input.

    Args:
        paths: The files.
        growing: Whether another program appends to the files. A file that is still empty then has no conversation, and
            a last line that is not complete is left out.

    Yields:
        A `Transcript`, or a `TranscriptError` whose ``problem`` is one line with quotes of at most 40 characters.
    """
    for path in map(os.fsdecode, paths):
        name = "standard input" if path == "-" else path
        try:
            yield from _read(path, name, growing=growing)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            yield TranscriptError(name, None, "its gzip data is damaged or ends too early, expected a whole file")
        except OSError as error:
            yield TranscriptError(name, None, f"cannot be read: {error.strerror or type(error).__name__}")


def _read(path: str, name: str, *, growing: bool) -> Iterator[Transcript | TranscriptError]:
    problem = None if path == "-" else _file_problem(path)
    if problem is not None:
        yield TranscriptError(name, None, problem)
        return
    empty = True
    with _open_file(path) as stream:
        for transcript in _transcripts(name, records(_decompressed(stream), path, growing=growing)):
            empty = False
            yield transcript
    if empty and not growing:
        yield TranscriptError(name, None, "contains nothing, expected a conversation")


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

    The records together are one log, or each record has a format of its own. The first records determine which: reading
    continues until a format of either kind is recognized.
    """
    sample: list[Record] = []
    values: list[Any] = []
    is_recognized = False
    for record in file_records:
        sample.append(record)
        if not isinstance(record.value, MalformedError):
            values.append(record.value)
            log = recognize(Sample(values, is_complete=False), is_log=True)
            if log is not None:
                yield from _conversations_of(log, path, chain(sample, file_records), sample[0])
                return
            is_recognized = _format_of(record.value) is not None
        if is_recognized or len(sample) == _SAMPLE:
            break
    else:
        log = recognize(Sample(values, is_complete=True), is_log=True) if values else None
        if log is not None:
            yield from _conversations_of(log, path, iter(sample), sample[0])
            return
    if is_recognized:
        for record in chain(sample, file_records):
            yield from _conversations_of_record(path, record)
        return
    for record in chain(sample, file_records):
        if isinstance(record.value, MalformedError):
            yield TranscriptError(path, record.line, str(record.value))
    if values:
        first = next(record for record in sample if record.value is values[0])
        yield TranscriptError(path, first.line, unknown_format(Sample(values, is_complete=True), names_formats=True))


def _format_of(value: Any) -> TranscriptFormat | None:
    """Return the format of a record; for a list of records, the format of the first that has one."""
    found = recognize(Sample([value], is_complete=True), is_log=False)
    if found is None and isinstance(value, list):
        formats = (recognize(Sample([item], is_complete=True), is_log=False) for item in value)
        found = next(filter(None, formats), None)
    return found


def _conversations_of_record(path: str, record: Record) -> Iterator[Transcript | TranscriptError]:
    value = record.value
    if isinstance(value, MalformedError):
        yield TranscriptError(path, record.line, str(value))
        return
    found = recognize(Sample([value], is_complete=True), is_log=False)
    if found is not None:
        yield from _conversations_of(found, path, iter([record]), record)
    elif isinstance(value, list) and _format_of(value) is not None:
        for number, item in enumerate(value, 1):
            yield from _conversations_of_record(path, Record(record.line, f"{record.place}.{number}", item))
    else:
        yield TranscriptError(path, record.line, unknown_format(Sample([value], is_complete=True), names_formats=False))


def _conversations_of(
    found: TranscriptFormat, path: str, format_records: Iterable[Record], first: Record
) -> Iterator[Transcript | TranscriptError]:
    try:
        for conversation in found.read(iter(format_records)):
            if isinstance(conversation, Conversation):
                yield _transcript(path, first, found, conversation)
            else:
                yield TranscriptError(path, conversation.line or first.line, str(conversation))
    except MalformedError as error:
        yield TranscriptError(path, error.line or first.line, str(error))
    except Exception as error:  # noqa: BLE001  # the format can be the code of another package
        problem = f"cannot be read as {found.name}: {type(error).__name__}; expected the records of this format"
        yield TranscriptError(path, first.line, problem)


def _transcript(path: str, record: Record, found: TranscriptFormat, conversation: Conversation) -> Transcript:
    name = conversation.id if conversation.id is not None else f"{os.path.basename(path)}:{record.place}"
    return Transcript(
        id=f"{name}/{conversation.agent}" if conversation.agent else name,
        named=conversation.id is not None,
        messages=conversation.messages,
        path=path,
        line=record.line,
        tools=conversation.tools,
        prompts=conversation.prompts,
        calls=conversation.calls,
        is_request=conversation.is_request,
        format=found.name,
        unknown=conversation.unknown,
        skipped=conversation.skipped,
    )
