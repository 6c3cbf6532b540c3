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
from otel_assembly.transcripts.records import Record, appended_records, has_lines, records
from otel_assembly.transcripts.transcript_format import Sample, TranscriptFormat, recognize, unknown_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_assembly.transcripts.growing_log import GrowingLog

__all__ = ["GrowingFile", "Transcript", "read_transcripts"]

_GZIP = b"\x1f\x8b"

#: The most records at the beginning of a file that are used to recognize its format.
_SAMPLE = 100

#: The bytes before appended lines that are compared, to notice that a file was replaced.
_COMPARED = 4096


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


@dataclass(slots=True)
class _Recognition:
    """Recognizes the format of a file by its first records.

    The records together are one log, or each record has a format of its own. The first records determine which: reading
    continues until a format of either kind is recognized.

    Attributes:
        sample: The records so far.
        values: The values of these records, without those that cannot be parsed.
        log: The format of all records together; None if it is unknown, or if each record has its own format.
        has_conversations: True if each record has its own format.
        is_decided: True if further records do not change the result.
    """

    sample: list[Record] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    log: TranscriptFormat | None = None
    has_conversations: bool = False
    is_decided: bool = False

    def add_until_decided(self, file_records: Iterator[Record]) -> None:
        """Add the next records of the file; those after the decision are left in the iterator."""
        for record in file_records:
            self.sample.append(record)
            if not isinstance(record.value, MalformedError):
                self.values.append(record.value)
                self.log = recognize(Sample(self.values, is_complete=False), is_log=True)
                self.has_conversations = self.log is None and _format_of(record.value) is not None
            self.is_decided = self.log is not None or self.has_conversations or len(self.sample) == _SAMPLE
            if self.is_decided:
                return

    def end(self) -> None:
        """Decide without further records."""
        if self.values and not self.is_decided:
            self.log = recognize(Sample(self.values, is_complete=True), is_log=True)


def _transcripts(path: str, file_records: Iterator[Record]) -> Iterator[Transcript | TranscriptError]:
    """Yield the conversations of a file's records."""
    found = _Recognition()
    found.add_until_decided(file_records)
    found.end()
    all_records = chain(found.sample, file_records)
    if found.log is not None:
        yield from _conversations_of(found.log, path, all_records, found.sample[0])
    elif found.has_conversations:
        for record in all_records:
            yield from _conversations_of_record(path, record)
    else:
        for record in all_records:
            if isinstance(record.value, MalformedError):
                yield TranscriptError(path, record.line, str(record.value))
        if found.values:
            first = next(record for record in found.sample if record.value is found.values[0])
            sample = Sample(found.values, is_complete=True)
            yield TranscriptError(path, first.line, unknown_format(sample, names_formats=True))


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
    found: TranscriptFormat,
    path: str,
    format_records: Iterable[Record],
    first: Record,
    log: GrowingLog | None = None,
) -> Iterator[Transcript | TranscriptError]:
    """Yield the conversations of records in one format; with a log, those of the log after the records are added."""
    try:
        for conversation in found.read(iter(format_records)) if log is None else log.read(format_records):
            if isinstance(conversation, Conversation):
                yield _transcript(path, first, found, conversation)
            else:
                yield TranscriptError(
                    path, conversation.line or first.line, str(conversation), recognized_as=found.name
                )
    except MalformedError as error:
        yield TranscriptError(path, error.line or first.line, str(error), recognized_as=found.name)
    except Exception as error:  # noqa: BLE001  # the format can be the code of another package
        problem = f"cannot be read as {found.name}: {type(error).__name__}; expected the records of this format"
        yield TranscriptError(path, first.line, problem, recognized_as=found.name)


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


class GrowingFile:
    """The conversations of a file to which a program appends.

    Only appended lines are parsed if the file is JSON Lines. Other files are read again as a whole. So is a file that
    seems truncated or replaced: it is shorter, has another inode, has the same size and another modification time, or
    differs in the last 4 KiB before the appended lines. An earlier edit in a file that grew is not noticed.

    Example::

        file = GrowingFile("session.jsonl")
        while True:
            for transcript in file.read():
                print(transcript)

    Args:
        path: The file's path.

    Attributes:
        is_partial: True if the last reading yielded only new conversations, because each record of the file contains
            whole conversations; False if it yielded all conversations of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fsdecode(path)
        self._start_again()

    def _start_again(self) -> None:
        self.is_partial = False
        self._recognition = _Recognition()
        self._records: list[Record] = []
        self._log: GrowingLog | None = None
        self._inode = self._size = self._modified = self._lines = self._position = 0
        #: The last 4 KiB of whole lines, which end at `_position`, and a complete value after it without a newline.
        self._before = self._unended = b""

    def read(self) -> Iterator[Transcript | TranscriptError]:
        """Yield the conversations of the file, or those of its appended records.

        The conversations and errors are those that `read_transcripts` yields for a growing file.
        """
        if _file_problem(self._path) is None:
            try:
                appended = self._appended()
            except OSError as error:
                yield TranscriptError(self._path, None, f"cannot be read: {error.strerror or type(error).__name__}")
                return
            if appended is not None:
                yield from self._read_records(appended)
                if self._recognition.is_decided:
                    return
        self._start_again()
        yield from read_transcripts([self._path], growing=True)

    def _appended(self) -> list[Record] | None:
        """Return the records that were not read yet; None if the file is not JSON Lines."""
        with open(self._path, "rb") as stream:
            if not self._continues(stream):
                self._start_again()
            stream.seek(0)
            if not self._position and not has_lines(stream, self._path):
                return None
            stream.seek(self._position)
            data = stream.read()
            found = os.fstat(stream.fileno())
        self._inode, self._modified, self._size = found.st_ino, found.st_mtime_ns, self._position + len(data)
        end = data.rfind(b"\n") + 1
        new = list(appended_records(data[:end], self._lines))
        self._lines += data.count(b"\n")
        last = list(appended_records(data[end:], self._lines))
        known = 1 if self._unended else 0
        self._unended = data[end:] if last else b""
        self._before = (self._before + data[max(0, end - _COMPARED) : end])[-_COMPARED:]
        self._position += end
        return [*new, *last][known:]

    def _continues(self, stream: IO[bytes]) -> bool:
        """Return whether the file is the one that was read before, with nothing changed but appended bytes."""
        found = os.fstat(stream.fileno())
        if found.st_ino != self._inode or found.st_size < self._size:
            return False
        if found.st_size == self._size and found.st_mtime_ns != self._modified:
            return False
        stream.seek(self._position - len(self._before))
        expected = self._before + self._unended
        if stream.read(len(expected)) != expected:
            return False
        # Only blanks can follow a value on its line.
        rest = stream.readline(_COMPARED) if self._unended else b""
        return not rest.strip() and len(rest) < _COMPARED

    def _read_records(self, appended: list[Record]) -> Iterator[Transcript | TranscriptError]:
        found, new = self._recognition, iter(appended)
        self.is_partial = found.has_conversations
        if not found.is_decided:
            found.add_until_decided(new)
            new = chain(found.sample, new)
        if found.has_conversations:
            for record in new:
                yield from _conversations_of_record(self._path, record)
        elif found.log is not None:
            if found.log.new_log is None:
                self._records += new
                yield from _conversations_of(found.log, self._path, self._records, found.sample[0])
                return
            self._log = self._log or found.log.new_log()
            for transcript in _conversations_of(found.log, self._path, new, found.sample[0], self._log):
                if isinstance(transcript, TranscriptError):
                    self._start_again()  # records may be missing in the log
                    self._recognition.is_decided = True
                yield transcript
        else:
            found.is_decided = False
