"""Whether what was emitted is what the contract says; for tests, ours and those of policies and instrumentations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_registry as registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_assembly.telemetry.conventions_registry import Attribute, SpanType, Use

_SCALARS: Final[Mapping[str, type]] = {"string": str, "int": int, "double": float, "boolean": bool}


def span_type(span_name: str) -> SpanType | None:
    """The registered type of a span of this name, if it is one of ours."""
    verb = span_name.split(" ", 1)[0]
    return next((span for span in registry.spans() if span.verb == verb), None)


def violations(
    span_name: str, attributes: Mapping[str, Any], events: Iterable[tuple[str, Mapping[str, Any]]] = ()
) -> list[str]:
    """Everything about one span that the contract does not allow, a sentence each; empty for a good span.

    Args:
        span_name: As exported.
        attributes: As exported, or as handed to the SDK.
        events: Name and attributes of each of its events.
    """
    span = span_type(span_name)
    if span is None:
        return [f"{span_name!r} is not a registered span"]
    problems = [*_named(span, span_name, attributes), *_uses(span.attributes, attributes), *_sums(attributes)]
    for event_name, event_attributes in events:
        if event_name not in span.events:
            problems.append(f"event {event_name!r} is not registered for it")
        else:
            problems += event_violations(event_name, event_attributes)
    return [f"{span_name}: {problem}" for problem in problems]


def event_violations(event_name: str, attributes: Mapping[str, Any]) -> list[str]:
    """Everything about one event, on a span or as a log record, that the contract does not allow."""
    event = next((event for event in registry.events() if event.name == event_name), None)
    if event is None:
        return [f"{event_name!r} is not a registered event"]
    return [f"{event_name}: {problem}" for problem in _uses(event.attributes, attributes)]


def metric_violations(name: str, kind: str, attributes: Mapping[str, Any]) -> list[str]:
    """Everything about one data point that the contract does not allow; `kind` is ``histogram`` or ``counter``."""
    metric = next((metric for metric in registry.metrics() if metric.name == name), None)
    if metric is None:
        return [f"{name!r} is not a registered metric"]
    problems = list(_uses(metric.attributes, attributes))
    if kind != metric.instrument:
        problems.insert(0, f"is a {kind}, registered as a {metric.instrument}")
    return [f"{name}: {problem}" for problem in problems]


def _named(span: SpanType, span_name: str, attributes: Mapping[str, Any]) -> Iterator[str]:
    expected = span.named(attributes.get(span.named_by) if span.named_by else None)
    if span_name != expected:
        yield f"its name should be {expected!r}"


def _uses(uses: Iterable[Use], attributes: Mapping[str, Any]) -> Iterator[str]:
    known = {use.name: use for use in uses}
    registered = registry.attributes()
    for name, value in attributes.items():
        if name not in registered:
            yield f"{name!r} is not a registered attribute"
        elif name not in known:
            yield f"{name!r} is registered, but not for it"
        else:
            yield from _value(registered[name], value, attributes)
    for use in known.values():
        if use.name not in attributes and _due(use, attributes):
            yield f"{use.name!r} is missing" + (f", which goes with {use.given!r}" if use.given else "")


def _due(use: Use, attributes: Mapping[str, Any]) -> bool:
    if use.given:
        return attributes.get(use.given, False) is not False
    return use.level is registry.Level.REQUIRED and not (use.unless and use.unless in attributes)


def _value(attribute: Attribute, value: Any, attributes: Mapping[str, Any]) -> Iterator[str]:
    if not _typed(attribute, value):
        yield f"{attribute.name!r} should be {attribute.type}, is {_shown(value)}"
        return
    array = attribute.type.endswith("[]")
    if attribute.members:
        for one in dict.fromkeys(value if array else (value,)):
            if one not in attribute.members:
                yield f"{attribute.name!r} has no value {one!r}"
    beside = attributes.get(attribute.parallel_to)
    if isinstance(beside, (list, tuple)) and len(beside) != len(value):
        yield f"{attribute.name!r} has {len(value)} entries, {attribute.parallel_to!r} has {len(beside)}"


def _typed(attribute: Attribute, value: Any) -> bool:
    """By the very type: a ``bool`` is an ``int`` to Python and not on the wire, a NumPy number is neither."""
    scalar = _SCALARS[attribute.type.removesuffix("[]")]
    if attribute.type.endswith("[]"):
        return type(value) in (list, tuple) and all(type(one) is scalar for one in value)
    return type(value) is scalar


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        inside = sorted({type(one).__name__ for one in value})
        return f"{type(value).__name__}[{', '.join(inside)}]"
    return type(value).__name__


def _sums(attributes: Mapping[str, Any]) -> Iterator[str]:
    """The two equations by which a reader checks a span."""
    before = _ints(attributes, names.EVENTS_IN, names.EVENTS_INJECTED)
    after = _ints(attributes, names.EVENTS_OUT, names.DROPPED_COUNT, names.COMPACTED_COUNT)
    if len(before) == 2 and len(after) == 3 and sum(before) != sum(after):
        yield f"events in + injected = {sum(before)}, out + dropped + compacted = {sum(after)}"
    kinds, out = attributes.get(names.KIND_TOKENS, ()), _ints(attributes, names.TOKENS_OUT)
    if kinds and out and _typed(registry.attributes()[names.KIND_TOKENS], kinds) and sum(kinds) != out[0]:
        yield f"{names.KIND_TOKENS!r} sums to {sum(kinds)}, {names.TOKENS_OUT!r} is {out[0]}"


def _ints(attributes: Mapping[str, Any], *wanted: str) -> list[int]:
    """Those of them that are there and of the right type; what is not has its own sentence already."""
    return [value for name in wanted if type(value := attributes.get(name)) is int]
