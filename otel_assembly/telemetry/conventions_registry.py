"""Reads the registry of the telemetry contract: data, in OpenTelemetry's language for definitions (``registry/``).

What a definition says beside that language stands in its annotation ``otel_assembly``; each file of the registry says
which there are. A file is read when something of it is first asked for. A process that only exports reads none: what
it needs of the metrics is in ``instruments``.
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
"""Where the files are; OpenTelemetry's Weaver takes it for ``--registry``."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNLESS: Final = re.compile(r"always, unless `(.+)`")
_GIVEN: Final = re.compile(r"if `(.+)` is (?:set|true)")


class Level(StrEnum):
    """How sure a reader can be to find an attribute; OpenTelemetry's requirement levels that we use."""

    REQUIRED = "required"
    CONDITIONAL = "conditionally_required"
    OPT_IN = "opt_in"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One registered attribute.

    Attributes:
        name: The key, as exported.
        type: Its type on the wire; part of the contract.
        brief: What it says, in one sentence of Markdown.
        note: What a reader has to know beside that.
        members: The closed set of its values (of its elements, for an array), each with what it means; empty where the
            set is open.
        parallel_to: For an array, the attribute whose array it runs beside, entry by entry.
    """

    name: str
    type: str
    brief: str
    note: str
    members: Mapping[str, str]
    parallel_to: str

    @property
    def values(self) -> tuple[str, ...]:
        """The closed set of its values; empty where it is open."""
        return tuple(self.members)


@dataclass(frozen=True, slots=True)
class Use:
    """An attribute on a span, an event or a metric, and when it is there.

    Attributes:
        name: The attribute's name.
        level: Whether it always is.
        when: The condition, in words.
        unless: For a required one, the attribute whose presence excuses its absence.
        given: The attribute that brings this one along: where that is present (and, for a boolean, true), this is too.
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
        verb: The part of its name that never varies.
        named_by: The attribute whose value follows in the name; without it the name is the bare verb.
        kind: Its OpenTelemetry span kind.
        parent: What it stands under, in words.
        brief: What it spans.
        attributes: What it carries, in the order in which the documentation shows it.
        events: Names of the events that can stand on it.
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
        """Its name; ``{…}`` stands for the value of `named_by`, and says in a word what that is."""
        variable = self.named_by.removesuffix(".name").rpartition(".")[2]
        return f"{self.verb} {{{variable}}}" if variable else self.verb

    def named(self, value: str | None = None) -> str:
        """The name of a span of this type whose `named_by` has this value."""
        return self.verb if value is None else f"{self.verb} {value}"


@dataclass(frozen=True, slots=True)
class EventType:
    """One kind of event: a span event, or a log record with this event name."""

    name: str
    brief: str
    attributes: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument; `buckets` are the boundaries that a histogram advises the SDK to use."""

    name: str
    instrument: str
    unit: str
    brief: str
    attributes: tuple[Use, ...]
    buckets: tuple[float, ...]

    @property
    def prometheus_name(self) -> str:
        """The name under which a Prometheus exporter shows it."""
        seconds = "_seconds" if self.unit == "s" else ""
        total = "_total" if self.instrument == "counter" else ""
        return self.name.replace(".", "_") + seconds + total


@cache
def attributes() -> Mapping[str, Attribute]:
    """Every registered attribute by its name: ours, and then those of OpenTelemetry that we use."""
    said = {one["key"]: (one["type"], one) for one in _file("attributes")["attributes"]}
    for one in _file("referenced")["attribute_groups"][0]["attributes"]:
        said[one["ref"]] = _ours(one)["type"], one
    members = {name: _members(kind) for name, (kind, _) in said.items() if isinstance(kind, dict)}
    found = {name: _attribute(name, kind, one, members) for name, (kind, one) in said.items()}
    return MappingProxyType(found)


@cache
def spans() -> tuple[SpanType, ...]:
    """Every kind of span."""
    return tuple(map(_span, _file("spans")["spans"]))


@cache
def model_call_stamp() -> tuple[Use, ...]:
    """What is put on the span of the model call that an assembly's prompt is sent with, whoever makes that span."""
    return tuple(_uses([{"ref_group": "attributes.assembly.model_call"}]))


@cache
def traced() -> tuple[Use, ...]:
    """What `TracingMiddleware` puts on GenAI's spans of an agent's run."""
    return tuple(_uses([{"ref_group": "attributes.assembly.traced"}]))


@cache
def events() -> tuple[EventType, ...]:
    """Every kind of event."""
    return tuple(
        EventType(one["name"], one["brief"], tuple(_uses(one["attributes"]))) for one in _file("events")["events"]
    )


@cache
def metrics() -> tuple[Metric, ...]:
    """Every instrument."""
    return tuple(
        Metric(
            *(one["name"], one["instrument"], one["unit"], one["brief"]),
            tuple(_uses(one["attributes"])),
            tuple(map(float, _ours(one).get("buckets", ()))),
        )
        for one in _file("metrics")["metrics"]
    )


@cache
def _file(name: str) -> Any:
    return yaml.load((FOLDER / f"{name}.yaml").read_bytes(), Loader=_LOADER)  # noqa: S506  # it is a safe one


def _ours(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    ours: Mapping[str, Any] = definition.get("annotations", {}).get("otel_assembly", {})
    return ours


def _members(kind: Mapping[str, Any]) -> dict[str, str]:
    return {member["id"]: member["brief"] for member in kind["members"]}


def _attribute(name: str, kind: Any, said: Mapping[str, Any], enums: Mapping[str, Mapping[str, str]]) -> Attribute:
    ours = _ours(said)
    of = name if name in enums else ours.get("values_of", "")
    members = {**enums.get(of, {}), **dict.fromkeys(ours.get("values", ()), "")}
    wire = "string" if name in enums else kind
    return Attribute(name, wire, said["brief"], said.get("note", ""), members, ours.get("parallel_to", ""))


def _span(said: Mapping[str, Any]) -> SpanType:
    ours = _ours(said)
    verb, _, variable = said["name"]["note"].partition(" ")
    return SpanType(
        *(verb, variable.strip("{}"), said["kind"].upper(), ours["parent"], said["brief"]),
        tuple(_uses(said["attributes"])),
        tuple(ours.get("events", ())),
    )


def _uses(refs: Iterable[Mapping[str, Any]]) -> Iterator[Use]:
    for one in refs:
        if "ref_group" in one:
            yield from _uses(_groups()[one["ref_group"]]["attributes"])
        else:
            yield _use(one["ref"], one["requirement_level"])


@cache
def _groups() -> Mapping[str, Any]:
    return {group["id"]: group for group in _file("spans")["attribute_groups"]}


def _use(name: str, level: Any) -> Use:
    """Two kinds of condition are for programs too: an attribute excuses the absence, or brings this one along."""
    if isinstance(level, str):
        return Use(name, Level(level))
    when = level[Level.CONDITIONAL]
    if excused := _UNLESS.fullmatch(when):
        return Use(name, Level.REQUIRED, unless=excused[1])
    if brought := _GIVEN.fullmatch(when):
        return Use(name, Level.CONDITIONAL, given=brought[1])
    return Use(name, Level.CONDITIONAL, when)
