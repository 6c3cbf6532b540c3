"""What one conversation exported and answered, as one text: random ids numbered as they appear, times left out."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re

from otel_assembly.testing import RecordedTelemetry

#: Random, so that only the order in which they first appear is compared.
IDS = {"assembly.id", "assembly.previous.id", "assembly.ledger.id"}
#: Seconds; and stacks, which name lines of our files.
VARYING = {"exception.stacktrace", "assembly.step.durations"}


class _Numbered(dict):
    def __missing__(self, name):
        self[name] = f"id{len(self)}"
        return self[name]


def exported(telemetry):
    """Spans, log records and metric points, as plain data."""
    ids = _Numbered()

    def plain(attributes):
        held = {name: ids[value] if name in IDS else value for name, value in attributes.items() if name not in VARYING}
        return dict(sorted(held.items()))

    def events(span):
        return [(event.name, plain(event.attributes)) for event in span.events]

    def links(span):
        return [(link.span_id, plain(link.attributes)) for link in span.links]

    spans = [
        (
            one.trace_id[-4:],
            one.span_id[-4:],
            (one.parent_id or "none")[-4:],
            one.name,
            one.scope,
            plain(one.attributes),
            events(one),
            links(one),
            one.status,
            one.status_message,
        )
        for one in sorted(telemetry.spans, key=lambda span: span.span_id)
    ]
    logs = [(log.name, plain(log.attributes), log.severity, log.body, log.span_id[-4:]) for log in telemetry.logs]
    points = []
    for name, series in sorted(telemetry.metrics.items()):
        for point in series:
            value = point.value.count if name.endswith("duration") else repr(point.value)
            points.append((name, plain(point.attributes), value))
    return {"spans": spans, "logs": logs, "points": sorted(points, key=repr)}


def payload(family, seed):
    """All that a seeded conversation exported and answered."""
    telemetry = RecordedTelemetry()
    try:
        answers = asyncio.run(family(seed, telemetry))
        held = {"answers": answers, **exported(telemetry)}
    finally:
        telemetry.shutdown()
    made = _Numbered()  # what a policy makes may have a random id
    text = json.dumps(held, ensure_ascii=False, indent=0, default=str)
    return re.sub(r'"[0-9a-f]{32}"', lambda found: made[found[0]], text)


def digest(texts):
    """One short name for many texts."""
    total = hashlib.blake2b(digest_size=8)
    for text in texts:
        total.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return total.hexdigest()
