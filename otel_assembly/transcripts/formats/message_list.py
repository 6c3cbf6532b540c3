"""A file whose records are the messages of one conversation: a list of messages, or one message per line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.transcripts.formats.conversations import convert, is_message
from otel_assembly.transcripts.json_values import MalformedError
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.records import Record


def _are_messages(sample: Sample) -> bool:
    # One message at the beginning can be a mistake in a file of conversations.
    return all(map(is_message, sample.values)) and (sample.is_complete or len(sample.values) > 1)


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    found = list(records)
    is_cut = len(found) > 1 and isinstance(found[-1].value, MalformedError)  # the file is still being written
    line: int | None = None

    def messages() -> Iterator[tuple[str, Any]]:
        nonlocal line
        for index, record in enumerate(found[:-1] if is_cut else found):
            line = record.line
            if isinstance(record.value, MalformedError):
                raise MalformedError(f"message {index}: {record.value}")
            yield f"message {index}", record.value

    try:
        conversation = convert(None, messages())
    except MalformedError as error:
        error.line = line
        yield error
        return
    if is_cut:
        conversation.skipped["incomplete last message"] += 1
    yield conversation


MESSAGE_LIST = TranscriptFormat(
    "list of messages", (Check("messages with a 'role'", _are_messages),), _read, is_log=True, is_general=True
)
