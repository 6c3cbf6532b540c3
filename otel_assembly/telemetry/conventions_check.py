"""Check exported telemetry against the registry, in tests of this library, of policies or of instrumentations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_registry as registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_assembly.telemetry.conventions_registry import Attribute, SpanType, Use

_SCALARS: Final[Mapping[str, type]] = {"string": str, "int": int, "double": float, "boolean": bool}


def span_type(span_name: str) -> SpanType | None:
    """Return the registered type of the span with this name; None if no such span is registered."""
    verb = span_name.split(" ", 1)[0]
    return next((span for span in registry.spans() if span.verb == verb), None)


def violations(
    span_name: str, attributes: Mapping[str, Any], events: Iterable[tuple[str, Mapping[str, Any]]] = ()
) -> list[str]:
    """Return one sentence for each way in which a span violates the registered conventions; empty if it conforms.

    Args:
        span_name: The span's name, as exported.
        attributes: The span's attributes, as exported or as passed to the SDK.
        events: The name and the attributes of each event of the span.
    """
    span = span_type(span_name)
    if span is None:
        return [f"{span_name!r} is not a registered span"]
    problems = [
        *_name_problems(span, span_name, attributes),
        *_attribute_problems(span.attributes, attributes),
        *_sum_problems(attributes),
    ]
    for event_name, event_attributes in events:
        if event_name not in span.events:
            problems.append(f"event {event_name!r} is registered, but not for this name")
        else:
            problems += event_violations(event_name, event_attributes)
    return [f"{span_name}: {problem}" for problem in problems]


def event_violations(event_name: str, attributes: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each way in which a span event or a log record violates the registered conventions."""
    event = next((event for event in registry.events() if event.name == event_name), None)
    if event is None:
        return [f"{event_name!r} is not a registered event"]
    return [f"{event_name}: {problem}" for problem in _attribute_problems(event.attributes, attributes)]


def metric_violations(name: str, kind: str, attributes: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each way in which a metric's data point violates the registered conventions.

    Args:
        name: The metric's name.
        kind: The instrument: ``histogram`` or ``counter``.
        attributes: The data point's attributes.
    """
    metric = next((metric for metric in registry.metrics() if metric.name == name), None)
    if metric is None:
        return [f"{name!r} is not a registered metric"]
    problems = list(_attribute_problems(metric.attributes, attributes))
    if kind != metric.instrument:
        problems.insert(0, f"is a {kind}, registered as a {metric.instrument}")
    return [f"{name}: {problem}" for problem in problems]


def _name_problems(span: SpanType, span_name: str, attributes: Mapping[str, Any]) -> Iterator[str]:
    expected = span.named(attributes.get(span.named_by) if span.named_by else None)
    if span_name != expected:
        yield f"its name should be {expected!r}"


def _attribute_problems(uses: Iterable[Use], attributes: Mapping[str, Any]) -> Iterator[str]:
    known = {use.name: use for use in uses}
    registered = registry.attributes()
    for name, value in attributes.items():
        if name not in registered:
            yield f"{name!r} is not a registered attribute"
        elif name not in known:
            yield f"{name!r} is registered, but not for this name"
        else:
            yield from _value_problems(registered[name], value, attributes)
    for use in known.values():
        if use.name not in attributes and _is_required(use, attributes):
            yield f"{use.name!r} is missing" + (f", which {use.given!r} requires" if use.given else "")


def _is_required(use: Use, attributes: Mapping[str, Any]) -> bool:
    if use.given:
        return attributes.get(use.given, False) is not False
    return use.level is registry.Level.REQUIRED and not (use.unless and use.unless in attributes)


def _value_problems(attribute: Attribute, value: Any, attributes: Mapping[str, Any]) -> Iterator[str]:
    if not _has_type(attribute, value):
        yield f"{attribute.name!r} should be {attribute.type}, is {_type_text(value)}"
        return
    array = attribute.type.endswith("[]")
    if attribute.members:
        for element in dict.fromkeys(value if array else (value,)):
            if element not in attribute.members:
                yield f"{attribute.name!r} must not be {element!r}"
    parallel = attributes.get(attribute.parallel_to)
    if isinstance(parallel, (list, tuple)) and len(parallel) != len(value):
        yield f"{attribute.name!r} has {len(value)} entries, {attribute.parallel_to!r} has {len(parallel)}"


def _has_type(attribute: Attribute, value: Any) -> bool:
    """Return whether a value has exactly the registered type; in OTLP, a ``bool`` or a NumPy number is no ``int``."""
    scalar = _SCALARS[attribute.type.removesuffix("[]")]
    if attribute.type.endswith("[]"):
        return type(value) in (list, tuple) and all(type(element) is scalar for element in value)
    return type(value) is scalar


def _type_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        elements = sorted({type(element).__name__ for element in value})
        return f"{type(value).__name__}[{', '.join(elements)}]"
    return type(value).__name__


def _sum_problems(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Check the equation of a span's counts of events, and that tokens by kind add up to the output tokens."""
    before = _integers(attributes, names.EVENTS_IN, names.EVENTS_INJECTED)
    after = _integers(attributes, names.EVENTS_OUT, names.DROPPED_COUNT, names.COMPACTED_COUNT)
    if len(before) == 2 and len(after) == 3 and sum(before) != sum(after):
        yield f"events in + injected = {sum(before)}, out + dropped + compacted = {sum(after)}"
    kinds, out = attributes.get(names.KIND_TOKENS, ()), _integers(attributes, names.TOKENS_OUT)
    if kinds and out and _has_type(registry.attributes()[names.KIND_TOKENS], kinds) and sum(kinds) != out[0]:
        yield f"{names.KIND_TOKENS!r} sums to {sum(kinds)}, {names.TOKENS_OUT!r} is {out[0]}"


def _integers(attributes: Mapping[str, Any], *attribute_names: str) -> list[int]:
    """Return the values of the named attributes, without missing and mistyped ones, which other checks report."""
    return [value for name in attribute_names if type(value := attributes.get(name)) is int]
