"""Views: how a participant's model sees a session; an adapter says which one is the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from otel_assembly.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FullTranscript:
    """Everything that a participant may see, word for word."""

    name: ClassVar[str] = "full_transcript"


@dataclass(frozen=True, slots=True)
class WindowedSummary:
    """The newest entries word for word, and one line that stands for those before them.

    Attributes:
        recent_n: How many of the newest there are; 1 or more.
    """

    recent_n: int
    name: ClassVar[str] = "windowed_summary"

    def __post_init__(self) -> None:
        _check_recent(self.name, self.recent_n)


@dataclass(frozen=True, slots=True)
class NamedTranscript:
    """Everything that a participant may see, what others said with their names in front."""

    name: ClassVar[str] = "named_transcript"


@dataclass(frozen=True, slots=True)
class NamedWindowedSummary:
    """`WindowedSummary`, what others said with their names in front.

    Attributes:
        recent_n: How many of the newest there are; 1 or more.
    """

    recent_n: int
    name: ClassVar[str] = "named_windowed_summary"

    def __post_init__(self) -> None:
        _check_recent(self.name, self.recent_n)


#: The views that the package has.
BuiltInView: TypeAlias = FullTranscript | WindowedSummary | NamedTranscript | NamedWindowedSummary


def _check_recent(name: str, recent_n: object) -> None:
    if type(recent_n) is not int or recent_n < 1:
        raise ConfigurationError(f"recent_n of the view {name!r} is {recent_n!r}; give a number of entries, 1 or more")
