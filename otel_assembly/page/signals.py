"""Alerts, halts, overflows and errors of a turn, from the events and attributes of its spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.page.numbers import integer, known, text
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.telemetry.ledger_lists import SpanLike


def turn_signals(assembly: SpanLike, policies: Iterable[SpanLike]) -> list[dict[str, Any]]:
    """What a turn's spans signal, each thing once: the policy that says it is nearer to the cause."""
    found: list[dict[str, Any]] = []
    for span in (*policies, assembly):
        for signal in (*_events(span), *_errors(span)):
            if not any(_same(signal, other) for other in found):
                found.append(signal)
    stated = integer(assembly.attributes.get(names.ALERTS_DELIVERED)) or 0
    unsaid = stated - sum(signal["what"] == "alert" for signal in found)
    if unsaid > 0:
        found.append({"what": "alert", "count": unsaid, "untold": True})
    halts = integer(assembly.attributes.get(names.HALTS_EMITTED)) or 0
    if not any(signal["what"] == "halt" for signal in found):
        if halts:
            found.append({"what": "halt", "untold": True})
        elif assembly.attributes.get(names.ERROR_TYPE) == names.ERROR_ASSEMBLY_HALT:  # halted before this turn
            found.append({"what": "error", "says": names.ERROR_ASSEMBLY_HALT})
    return found


def halts_of(span: SpanLike) -> list[dict[str, Any]]:
    """The halts that a span of another kind tells of, such as the run's."""
    return [signal for signal in _events(span) if signal["what"] == "halt"]


def _events(span: SpanLike) -> Iterator[dict[str, Any]]:
    policy = text(span.attributes.get(names.POLICY_NAME))
    for event in getattr(span, "events", ()):
        held = event.attributes
        if event.name == names.EVENT_ALERT:
            yield known(
                {
                    "what": "alert",
                    "severity": text(held.get(names.ALERT_SEVERITY)),
                    "source": text(held.get(names.ALERT_SOURCE)),
                    "says": text(held.get(names.ALERT_MESSAGE)),
                    "policy": policy,
                }
            )
        elif event.name == names.EVENT_HALT:
            yield known(
                {
                    "what": "halt",
                    "source": text(held.get(names.HALT_SOURCE)),
                    "says": text(held.get(names.HALT_REASON)),
                    "policy": policy,
                }
            )


def _errors(span: SpanLike) -> Iterator[dict[str, Any]]:
    """Overflow has attributes of its own, which stand on the span whatever carries the events."""
    held = span.attributes
    policy = text(held.get(names.POLICY_NAME))
    if held.get(names.OVERFLOWED) is True:
        yield known(
            {
                "what": "overflow",
                "cause": text(held.get(names.OVERFLOW_CAUSE)),
                "tokens": integer(held.get(names.OVERFLOW_TOKENS)),
                "policy": policy,
            }
        )
    error = text(held.get(names.ERROR_TYPE))
    if error is not None and error not in (names.ERROR_CONTEXT_OVERFLOW, names.ERROR_ASSEMBLY_HALT):
        yield known({"what": "error", "says": error, "policy": policy})


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """A policy's span and its assembly's tell the same; two alerts of one policy are two."""
    if one["what"] == "alert" and one.get("policy") is not None:
        return False
    return {**one, "policy": None} == {**other, "policy": None}
