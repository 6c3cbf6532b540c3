"""`TranscriptFormat`: recognizes and reads one format of transcripts. Formats are found by entry point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_assembly.errors import ConfigurationError
from otel_assembly.transcripts.json_values import excerpt, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.growing_log import GrowingLog
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["Check", "Sample", "TranscriptFormat", "has_keys", "installed_formats", "recognize", "unknown_format"]

#: The group of entry points. Each entry is a `TranscriptFormat`.
ENTRY_POINTS = "otel_assembly.transcripts"

#: The most keys of an object that an error message names.
_NAMED_KEYS = 4


class Sample(NamedTuple):
    """The first values of a file, or one value of it.

    Attributes:
        values: The values; values that cannot be parsed are left out.
        is_complete: True if the file has no further values.
    """

    values: Sequence[Any]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of a format.

    Attributes:
        expected: The condition in words, such as ``a record with 'sessionId'``.
        is_met: Returns whether a sample meets the condition; it accepts any JSON values and raises nothing.
    """

    expected: str
    is_met: Callable[[Sample], bool]


@dataclass(frozen=True, slots=True)
class TranscriptFormat:
    """One format of transcripts.

    Attributes:
        name: The format's name in messages, such as ``Claude Code``.
        checks: The conditions, the most general one first. A sample that meets all of them has this format.
        read: Returns the conversations in the records, and a `MalformedError` for each unreadable conversation. If it
            raises a `MalformedError`, the rest of the records is unreadable.
        is_log: True if the records of a file together are one log; `read` receives all of them. False if each record
            contains whole conversations; `read` then receives one record.
        is_general: True if other formats, which are more specific, take precedence.
        new_log: Returns an empty log, to which the records of a growing file are added. None: `read` receives all
            records of the file again when the file has changed.

    Example:
        >>> from otel_assembly.transcripts import Check, Conversation, TranscriptFormat, has_keys
        >>> def read(records):
        ...     for record in records:
        ...         yield Conversation(None, [{"role": "user", "content": record.value["question"]}])
        >>> QUESTIONS = TranscriptFormat("questions", (Check("a record with 'question'", has_keys("question")),), read)
    """

    name: str
    checks: tuple[Check, ...]
    read: Callable[[Iterator[Record]], Iterator[Conversation | MalformedError]]
    is_log: bool = False
    is_general: bool = False
    new_log: Callable[[], GrowingLog] | None = None


@lru_cache(maxsize=1)
def installed_formats() -> tuple[TranscriptFormat, ...]:
    """Return the installed formats, the more specific ones first.

    Raises:
        ConfigurationError: A format cannot be imported, or none is installed.
    """
    formats: list[TranscriptFormat] = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            loaded = entry.load()
        except Exception as error:  # the code of another package
            problem = f"the transcript format {entry.name!r} cannot be imported: {type(error).__name__}: {error}"
            raise ConfigurationError(problem) from error
        if not isinstance(loaded, TranscriptFormat):
            raise ConfigurationError(f"the entry point {entry.name!r} of {ENTRY_POINTS} is no TranscriptFormat")
        formats.append(loaded)
    if not formats:
        raise ConfigurationError("no transcript format is installed; install the package otel-assembly again")
    return tuple(sorted(formats, key=lambda found: (found.is_general, found.name)))


def recognize(sample: Sample, *, is_log: bool) -> TranscriptFormat | None:
    """Return the format of a sample; None if no format matches.

    Args:
        sample: The first values of a file, or, if `is_log` is false, one value of it.
        is_log: Whether formats of whole files are tried, or formats of single records.
    """
    for candidate in installed_formats():
        if candidate.is_log is is_log and all(check.is_met(sample) for check in candidate.checks):
            return candidate
    return None


def unknown_format(sample: Sample, *, names_formats: bool) -> str:
    """Return the problem of a sample of unknown format: its content, and the nearest format with its unmet condition.

    Args:
        sample: The values.
        names_formats: Whether the result names all formats that were tried.
    """
    formats = installed_formats()
    ranked = [(_share_met(candidate, sample), -index, candidate) for index, candidate in enumerate(formats)]
    share, _, nearest = max(ranked)
    text = f"{_content(sample)}, expected a conversation"
    if share:
        unmet = next(check.expected for check in nearest.checks if not check.is_met(sample))
        text += f"; the nearest format is {nearest.name}, which needs {unmet}"
    if names_formats:
        text += f"; tried: {', '.join(sorted(candidate.name for candidate in formats))}"
    return text


def _share_met(candidate: TranscriptFormat, sample: Sample) -> float:
    for met, check in enumerate(candidate.checks):
        if not check.is_met(sample):
            return met / len(candidate.checks)
    return 0.0  # the file has other formats, too: this one is not the problem


def _content(sample: Sample) -> str:
    value = next((value for value in sample.values if isinstance(value, dict)), next(iter(sample.values), None))
    if not isinstance(value, dict):
        return kind_of(value)
    keys = ", ".join(excerpt(key) for key in list(value)[:_NAMED_KEYS]) or "no keys"
    return f"an object with {keys}{', …' if len(value) > _NAMED_KEYS else ''}"


def has_keys(*keys: str, **values: str) -> Callable[[Sample], bool]:
    """Return a condition: one value of the sample is an object with these keys.

    Args:
        keys: The keys.
        values: Further keys, each with its value.
    """

    def is_met(sample: Sample) -> bool:
        return any(
            isinstance(value, dict)
            and all(key in value for key in keys)
            and all(value.get(key) == expected for key, expected in values.items())
            for value in sample.values
        )

    return is_met
