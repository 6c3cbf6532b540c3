"""`GrowingLog`: a log whose conversations can be read again after records are appended to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.json_values import MalformedError
from otel_assembly.transcripts.log_records import INCOMPLETE, unparsed_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.records import Record

__all__ = ["GrowingLog"]


class GrowingLog(ABC):
    """The records of one log, as far as they were added.

    Attributes:
        skipped: The number of records that were not understood, by description.
    """

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._unparsed: Record | None = None

    def add(self, record: Record) -> None:
        """Add the next record of the log."""
        if self._unparsed is not None:
            self.skipped[unparsed_problem(self._unparsed)] += 1
            self._unparsed = None
        if isinstance(record.value, MalformedError):
            self._unparsed = record
        elif isinstance(record.value, dict):
            self.add_object(record.value)
        else:
            self.skipped["record that is not an object"] += 1

    @abstractmethod
    def add_object(self, record: dict[str, Any]) -> None:
        """Add the next record that is an object."""

    @abstractmethod
    def conversations(self) -> Iterator[Conversation]:
        """Yield the conversations of the records that were added; more records can be added later.

        Calls that the log already had are the same objects as before, unless a record changed an earlier call.

        Raises:
            MalformedError: There is no conversation.
        """

    def skipped_so_far(self) -> Counter[str]:
        """Return the number of records that were not understood, with a last line that is not complete."""
        return self.skipped + Counter([INCOMPLETE] * (self._unparsed is not None))

    def read(self, records: Iterable[Record]) -> Iterator[Conversation]:
        """Add records, and yield the conversations."""
        for record in records:
            self.add(record)
        yield from self.conversations()
