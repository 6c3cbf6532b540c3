"""The shapes that the telemetry contract is written in: attributes, spans, events, metrics, environment variables.

Nothing here knows a name of ours: the names are in `conventions` and the modules beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

AttributeType: TypeAlias = Literal["string", "int", "double", "boolean", "string[]", "int[]"]
Instrument: TypeAlias = Literal["histogram", "counter"]


class Level(StrEnum):
    """How sure a reader can be to find an attribute; OpenTelemetry's requirement levels that we use."""

    REQUIRED = "required"
    CONDITIONAL = "conditional"
    OPT_IN = "opt_in"


class DiffQuality(StrEnum):
    """What a span says of its counts where they are not the plain difference of input and output."""

    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One registered attribute.

    Attributes:
        name: The key, as exported.
        type: Its type on the wire; part of the contract.
        brief: What it says, in one sentence of Markdown.
        note: What a reader has to know beside that.
        values: The closed set of its values (of its elements, for an array); empty where it is open.
        opt_in: True for content, which is exported only when its capture is switched on.
        parallel_to: For an array, the attribute whose array it runs beside, entry by entry.
    """

    name: str
    type: AttributeType
    brief: str
    note: str = ""
    values: tuple[str, ...] = ()
    opt_in: bool = False
    parallel_to: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """An attribute on a span, an event or a metric, and when it is there.

    Attributes:
        name: The attribute's name.
        level: Whether it always is.
        when: The condition, in words; for a required one, what excuses its absence.
        unless: The attribute whose presence excuses its absence.
        given: The attribute that brings this one along: where that is present (and, for a boolean, true), this is too.
    """

    name: str
    level: Level
    when: str = ""
    unless: str = ""
    given: str = ""


def required(*names: str, unless: str = "") -> tuple[Use, ...]:
    """Attributes that are always there."""
    return tuple(Use(name, Level.REQUIRED, unless=unless) for name in names)


def conditional(*names: str, when: str = "", given: str = "") -> tuple[Use, ...]:
    """Attributes that are there under a condition."""
    return tuple(Use(name, Level.CONDITIONAL, when=when, given=given) for name in names)


def opt_in(*names: str) -> tuple[Use, ...]:
    """Content: there only when its capture is switched on."""
    return tuple(Use(name, Level.OPT_IN) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanType:
    """One kind of span.

    Attributes:
        name_pattern: Its name; ``{…}`` stands for the value of `named_by`.
        kind: Its OpenTelemetry span kind.
        parent: What it stands under, in words.
        brief: What it spans.
        attributes: What it carries, in the order in which the documentation shows it.
        events: Names of the events that can stand on it.
        named_by: The attribute whose value is in the span's name; without it the name is the bare verb.
    """

    name_pattern: str
    parent: str
    brief: str
    attributes: tuple[Use, ...]
    events: tuple[str, ...] = ()
    kind: str = "INTERNAL"
    named_by: str = ""

    @property
    def verb(self) -> str:
        """The part of the name that never varies."""
        return self.name_pattern.split(" ", 1)[0]

    def named(self, value: str | None = None) -> str:
        """The name of a span of this type whose `named_by` has this value."""
        return self.verb if value is None else f"{self.verb} {value}"


@dataclass(frozen=True, slots=True)
class EventType:
    """One kind of event: a span event, or a log record with this event name."""

    name: str
    attributes: tuple[Use, ...]
    brief: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument; `buckets` are the boundaries that a histogram advises the SDK to use."""

    name: str
    instrument: Instrument
    unit: str
    brief: str
    attributes: tuple[Use, ...]
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name under which a Prometheus exporter shows it."""
        seconds = "_seconds" if self.unit == "s" else ""
        total = "_total" if self.instrument == "counter" else ""
        return self.name.replace(".", "_") + seconds + total


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """A variable that changes what is exported; `standard` ones are OpenTelemetry's own."""

    name: str
    values: tuple[str, ...]
    default: str
    brief: str
    standard: bool = False
