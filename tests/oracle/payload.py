"""What one conversation exported and answered, as one text: random ids numbered as they appear, times left out.

Of it, what was sent and decided is a text of its own: prompts, events, counts of what is sent, reasons and errors, but
neither the numbers of items nor how the ledger's arrays are written. It stays also where those change.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter

from otel_assembly.testing import RecordedTelemetry

#: Random, so that only the order in which they first appear is compared.
IDS = {"assembly.id", "assembly.previous.id", "assembly.ledger.id"}
#: Seconds; and stacks, which name lines of our files.
VARYING = {"exception.stacktrace", "assembly.step.durations"}
#: The names of attributes when the digests were written; a name that is not here has not changed since.
EARLIER_NAMES = {
    "assembly.budget.limit": "assembly.budget.tokens",
    "assembly.newly_dropped.count": "assembly.dropped.new",
    "assembly.dropped.unlisted_reasons": "assembly.dropped.rest",
    "assembly.dropped.reported_count": "assembly.dropped.reported",
    "assembly.input.unknown": "assembly.diff",
    "assembly.block.ranked_items": "assembly.block.order",
    "assembly.block.ranked_tokens": "assembly.block.charges",
    "assembly.block.atom_sizes": "assembly.block.atoms",
    "assembly.block.min_items": "assembly.block.enough",
    "assembly.block.superseded_items": "assembly.block.losers",
    "assembly.block.superseded_by": "assembly.block.winners",
    "assembly.block.total_tokens": "assembly.block.cost",
    "assembly.block.message_count": "assembly.block.events",
    "assembly.block.cut_strategy": "assembly.block.cut",
    "assembly.compaction.target_tokens": "assembly.compaction.target",
}
#: The words of errors when the digests were written.
EARLIER_TEXTS = {"content that must not be dropped": "content that may not be dropped"}
#: Attributes that did not exist then.
ADDED = {"assembly.format.version"}


class _Numbered(dict):
    def __missing__(self, name):
        self[name] = f"id{len(self)}"
        return self[name]


def exported(telemetry):
    """Spans, log records and metric points, as plain data."""
    ids = _Numbered()

    def plain(attributes):
        values = {
            EARLIER_NAMES.get(name, name): ids[value] if name in IDS else value
            for name, value in attributes.items()
            if name not in VARYING | ADDED
        }
        if values.get("assembly.diff") is True:
            values["assembly.diff"] = "unknown"
        return dict(sorted(values.items()))

    def events(span):
        return [(event.name, plain(event.attributes)) for event in span.events]

    def links(span):
        return [(link.span_id, plain(link.attributes)) for link in span.links]

    spans = [
        (
            fact.trace_id[-4:],
            fact.span_id[-4:],
            (fact.parent_id or "none")[-4:],
            fact.name,
            fact.scope,
            plain(fact.attributes),
            events(fact),
            links(fact),
            fact.status,
            fact.status_message,
        )
        for fact in sorted(telemetry.spans, key=lambda span: span.span_id)
    ]
    logs = [(log.name, plain(log.attributes), log.severity, log.body, log.span_id[-4:]) for log in telemetry.logs]
    points = []
    for name, series in sorted(telemetry.metrics.items()):
        for point in series:
            value = point.value.count if name.endswith("duration") else repr(point.value)
            points.append((name, plain(point.attributes), value))
    return {"spans": spans, "logs": logs, "points": sorted(points, key=repr)}


#: How the ledger is written, and counts of what is not sent or is told by the spans that are there.
WRITTEN = re.compile(
    r"assembly\.((arrived|counted|returned|withdrawn|offered|kept)\..*|(dropped|compacted|injected)\.(items|reasons|rest|new"
    r"|tokens)|tokens\.(in|in_estimated)|tokens\.estimated\.items|block\.(items|order|charges|atoms|losers|winners)"
    r"|compaction\.(provenance|result)|previous\.id|steps)"
)
UNSENT = {"assembly.input.tokens", "assembly.tokens.dropped"}
#: Where the buckets of a histogram lie, and what fell into each; not how often what was measured.
BUCKETS = re.compile(r", bounds=.*")
#: Counters of what is decided, whoever the agent is: their series are told as they add up over agents.
OVER_AGENTS = {
    "assembly.alerts.delivered",
    "assembly.items.dropped",
    "assembly.policy.errors",
    "assembly.prefix.breaks",
}


def decided(held):
    """What was sent and decided, of all that was exported and answered."""
    answers = [
        (answer[0], *answer[2:4], *answer[6:]) if isinstance(answer, tuple) and len(answer) == len(ANSWER) else answer
        for answer in held["answers"]
    ]

    def plain(attributes, span=""):
        unsent = "assembly.tokens.out" if span.startswith("apply_policy") else ""
        return {name: value for name, value in attributes.items() if name != unsent and not WRITTEN.fullmatch(name)}

    spans = [
        (name, plain(attributes, name), [(event, plain(more)) for event, more in events], status, message)
        for *_, name, _, attributes, events, _, status, message in held["spans"]
        if name != "list_items"
    ]
    logs = [(name, plain(attributes), *rest[:2]) for name, attributes, *rest in held["logs"]]
    return {"answers": answers, "spans": spans, "logs": logs, "points": _measured(held["points"])}


def _measured(points):
    """The metrics, but for what says nothing of what was sent: buckets, and which agent's series a count stands in."""
    counts, found = Counter(), []
    for name, attributes, value in points:
        if name in OVER_AGENTS:
            shared = tuple(item for item in attributes.items() if item[0] != "gen_ai.agent.name")
            counts[name, shared] += int(value)
        elif name not in UNSENT:
            found.append((name, attributes, value if isinstance(value, int) else BUCKETS.sub(")", value)))
    found += [(name, dict(shared), repr(count)) for (name, shared), count in counts.items()]
    return sorted(found, key=repr)


#: What the answer of an assembly is made of: see `seeded.answer_of`.
ANSWER = ("turn", "items", "events", "prompts", "decisions", "totals", "kinds", "prefix")


def payloads(family, seed):
    """What a seeded conversation sent and decided, and all that it exported and answered."""
    telemetry = RecordedTelemetry()
    try:
        answers = asyncio.run(family(seed, telemetry))
        held = {"answers": answers, **exported(telemetry)}
    finally:
        telemetry.shutdown()
    return as_text(decided(held)), as_text(held)


def as_text(held):
    made = _Numbered()  # what a policy makes may have a random id
    text = json.dumps(held, ensure_ascii=False, indent=0, default=str)
    for now, earlier in EARLIER_TEXTS.items():
        text = text.replace(now, earlier)
    return re.sub(r'"[0-9a-f]{32}"', lambda found: made[found[0]], text)


def digest(texts):
    """One short name for many texts."""
    total = hashlib.blake2b(digest_size=8)
    for text in texts:
        total.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return total.hexdigest()
