"""Reading recorded conversations from files, one at a time, without losing the good ones to a bad one."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from otel_assembly.cli.transcript_forms import EXPECTED, Conversation, conversations, is_conversation, is_message
from otel_assembly.cli.transcript_json import MalformedError
from otel_assembly.cli.transcript_messages import Converter
from otel_assembly.cli.transcript_records import Record, records
from otel_assembly.errors import TranscriptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Transcript", "read_transcripts"]


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
    is one error.

    Yields:
        A `Transcript`, or a `TranscriptError` whose ``problem`` is one line and quotes at most 40 characters at a time.
    """
    for path in paths:
        name = os.fsdecode(path)
        try:
            yield from _read(name)
        except OSError as error:
            yield TranscriptError(name, None, f"cannot be read: {error.strerror or type(error).__name__}")


def _read(path: str) -> Iterator[Transcript | TranscriptError]:
    problem = _no_file(path)
    if problem is not None:
        yield TranscriptError(path, None, problem)
        return
    empty = True
    with open(path, "rb") as stream:
        for found in _transcripts(path, records(stream, path)):
            empty = False
            yield found
    if empty:
        yield TranscriptError(path, None, f"holds nothing, expected {EXPECTED}")


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
    return None if stat.S_ISREG(mode) else "is a device or a pipe, expected a regular file"


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
