"""Read the registry of this library's semantic conventions (``registry/``), in the format of OpenTelemetry Weaver.

Properties that the format does not have are in annotations named ``otel_assembly``, which the comment at the top of
each file describes. A file is read on first use. A process that only exports reads no file, because the generated
module `instruments` has the metrics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FOLDER: Final = Path(__file__).with_name("registry")
"""The folder of the registry, as for Weaver's option ``--registry``."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNLESS: Final = re.compile(r"always, unless `(.+)`")
_GIVEN: Final = re.compile(r"if `(.+)` is (?:set|true)")


class Level(StrEnum):
    """Whether an attribute is always present; the requirement levels of OpenTelemetry that the registry uses."""

    REQUIRED = "required"
    CONDITIONAL = "conditionally_required"
    OPT_IN = "opt_in"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One registered attribute.

    Attributes:
        name: The exported name.
        type: The exported type, such as ``int`` or ``string[]``.
        brief: The meaning, as one sentence of Markdown.
        note: More details.
        members: The allowed values (for an array, of its elements) with their meanings; empty if any value is allowed.
        parallel_to: For an array, the attribute whose array it is parallel to.
        values_of: The other attribute whose values are also allowed here; empty if there is none.
    """

    name: str
    type: str
    brief: str
    note: str
    members: Mapping[str, str]
    parallel_to: str
    values_of: str

    @property
    def values(self) -> tuple[str, ...]:
        """The allowed values; empty if any value is allowed."""
        return tuple(self.members)


@dataclass(frozen=True, slots=True)
class Use:
    """The use of an attribute on a span, an event or a metric.

    Attributes:
        name: The attribute's name.
        level: The requirement level.
        when: For a conditional attribute, the condition as text.
        unless: For a required attribute: the name of another attribute. If that is present, this one may be absent.
        given: For a conditional attribute: the name of another attribute. If that is present and not false, this one is
            required.
    """

    name: str
    level: Level
    when: str = ""
    unless: str = ""
    given: str = ""


@dataclass(frozen=True, slots=True)
class SpanType:
    """One kind of span.

    Attributes:
        verb: The fixed part of the name.
        named_by: The attribute whose value follows the verb in the name; empty if the name is only the verb.
        kind: The OpenTelemetry span kind.
        parent: The parent span, described as text.
        brief: The operation that the span records.
        attributes: The attributes, in the order of the documentation.
        events: The names of the events that the span may have.
    """

    verb: str
    named_by: str
    kind: str
    parent: str
    brief: str
    attributes: tuple[Use, ...]
    events: tuple[str, ...]

    @property
    def name_pattern(self) -> str:
        """The span's name with a placeholder for the value of `named_by`, such as ``apply_policy {policy}``."""
        variable = self.named_by.removesuffix(".name").rpartition(".")[2]
        return f"{self.verb} {{{variable}}}" if variable else self.verb

    def named(self, value: str | None = None) -> str:
        """Return the name of a span whose attribute `named_by` has this value."""
        return self.verb if value is None else f"{self.verb} {value}"


@dataclass(frozen=True, slots=True)
class EventType:
    """One kind of event: a span event, or a log record with this event name.

    Attributes:
        name: The event's name.
        brief: The meaning, as one sentence of Markdown.
        attributes: The attributes, in the order of the documentation.
    """

    name: str
    brief: str
    attributes: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: The metric's name.
        instrument: ``counter`` or ``histogram``.
        unit: The unit, as in the Unified Code for Units of Measure.
        brief: The meaning, as one sentence of Markdown.
        attributes: The attributes, in the order of the documentation.
        buckets: The advised bucket boundaries of a histogram; empty for a counter.
    """

    name: str
    instrument: str
    unit: str
    brief: str
    attributes: tuple[Use, ...]
    buckets: tuple[float, ...]

    @property
    def prometheus_name(self) -> str:
        """The metric's name in Prometheus."""
        seconds = "_seconds" if self.unit == "s" else ""
        total = "_total" if self.instrument == "counter" else ""
        return self.name.replace(".", "_") + seconds + total


@cache
def attributes() -> Mapping[str, Attribute]:
    """Return all attributes by name: those of this library, then those of OpenTelemetry that this library uses."""
    definitions = {entry["key"]: (entry["type"], entry) for entry in _file("attributes")["attributes"]}
    for entry in _file("referenced")["attribute_groups"][0]["attributes"]:
        definitions[entry["ref"]] = _annotation(entry)["type"], entry
    members = {name: _members(kind) for name, (kind, _) in definitions.items() if isinstance(kind, dict)}
    by_name = {name: _attribute(name, kind, entry, members) for name, (kind, entry) in definitions.items()}
    return MappingProxyType(by_name)


@cache
def spans() -> tuple[SpanType, ...]:
    """Return all span types."""
    return tuple(map(_span, _file("spans")["spans"]))


@cache
def model_call_stamp() -> tuple[Use, ...]:
    """Return the attributes that this library adds to the span of a model call, whoever created that span."""
    return tuple(_uses([{"ref_group": "attributes.assembly.model_call"}]))


@cache
def traced() -> tuple[Use, ...]:
    """Return the attributes that `TracingMiddleware` adds to GenAI spans."""
    return tuple(_uses([{"ref_group": "attributes.assembly.traced"}]))


@cache
def events() -> tuple[EventType, ...]:
    """Return all event types."""
    return tuple(
        EventType(entry["name"], entry["brief"], tuple(_uses(entry["attributes"])))
        for entry in _file("events")["events"]
    )


@cache
def metrics() -> tuple[Metric, ...]:
    """Return all metrics."""
    return tuple(
        Metric(
            *(entry["name"], entry["instrument"], entry["unit"], entry["brief"]),
            tuple(_uses(entry["attributes"])),
            tuple(map(float, _annotation(entry).get("buckets", ()))),
        )
        for entry in _file("metrics")["metrics"]
    )


@cache
def _file(name: str) -> Any:
    return yaml.load((FOLDER / f"{name}.yaml").read_bytes(), Loader=_LOADER)  # noqa: S506  # a safe loader


def _annotation(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    annotation: Mapping[str, Any] = definition.get("annotations", {}).get("otel_assembly", {})
    return annotation


def _members(kind: Mapping[str, Any]) -> dict[str, str]:
    return {member["id"]: member["brief"] for member in kind["members"]}


def _attribute(
    name: str, kind: Any, definition: Mapping[str, Any], enums: Mapping[str, Mapping[str, str]]
) -> Attribute:
    annotation = _annotation(definition)
    values_of = annotation.get("values_of", "")
    members = {**enums.get(values_of or name, {}), **dict.fromkeys(annotation.get("values", ()), "")}
    exported_type, parallel_to = "string" if name in enums else kind, annotation.get("parallel_to", "")
    return Attribute(
        name, exported_type, definition["brief"], definition.get("note", ""), members, parallel_to, values_of
    )


def _span(definition: Mapping[str, Any]) -> SpanType:
    annotation = _annotation(definition)
    verb, _, variable = definition["name"]["note"].partition(" ")
    return SpanType(
        *(verb, variable.strip("{}"), definition["kind"].upper(), annotation["parent"], definition["brief"]),
        tuple(_uses(definition["attributes"])),
        tuple(annotation.get("events", ())),
    )


def _uses(refs: Iterable[Mapping[str, Any]]) -> Iterator[Use]:
    for entry in refs:
        if "ref_group" in entry:
            yield from _uses(_groups()[entry["ref_group"]]["attributes"])
        else:
            yield _use(entry["ref"], entry["requirement_level"])


@cache
def _groups() -> Mapping[str, Any]:
    return {group["id"]: group for group in _file("spans")["attribute_groups"]}


def _use(name: str, level: Any) -> Use:
    """Build a `Use`; the conditions "always, unless `x`" and "if `x` is set" become fields that programs can check."""
    if isinstance(level, str):
        return Use(name, Level(level))
    when = level[Level.CONDITIONAL]
    if match := _UNLESS.fullmatch(when):
        return Use(name, Level.REQUIRED, unless=match[1])
    if match := _GIVEN.fullmatch(when):
        return Use(name, Level.CONDITIONAL, given=match[1])
    return Use(name, Level.CONDITIONAL, when)
