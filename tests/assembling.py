"""Doubles and short words for tests of assemblies."""

from __future__ import annotations

from itertools import count

from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import get_current_span

from otel_assembly import ModelRequest, ObserverAlert, Severity
from otel_assembly.testing import RecordedTelemetry


class SpyCounter:
    """Counts words, and remembers what it was asked."""

    name, method, generation = "words", "exact", 0

    def __init__(self):
        self.asked = []

    def count(self, text):
        self.asked.append(text)
        return len(text.split())


class Coin(Sampler):
    """Samples assemblies as it is told, one after the other, and the rest as its parent was."""

    def __init__(self, sampled):
        self._sampled = iter(sampled)

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        if name == "assemble_context":
            yes = next(self._sampled)
        else:
            yes = get_current_span(parent_context).get_span_context().trace_flags.sampled
        return SamplingResult(Decision.RECORD_AND_SAMPLE if yes else Decision.DROP, attributes)

    def get_description(self):
        return "coin"


class Turn:
    """What the exported spans of one assembly tell of its ledger."""

    def __init__(self, span):
        self.span = span
        self.id, self.number = span.attributes["assembly.id"], span.attributes["assembly.turn"]
        self.previous = span.attributes.get("assembly.previous.id")
        self.steps = [child for child in span.children if child.name.startswith("apply_policy")]
        self.arrived = {item: value.tokens for item, value in span.arrived.items()}
        self.kept = span.kept
        self.exits = [(item, reason) for step in self.steps for item, reason in step.dropped_reasons.items()]
        self.compacted = [item for step in self.steps for item in step.compacted]
        self.injected = [item for step in self.steps for item in step.injected]


def turns(telemetry):
    """The recorded assemblies, in the order in which they ended."""
    return [Turn(span) for span in telemetry.spans_named("assemble_context")]


def recording(*numbers):
    """Telemetry in which only the assemblies with these numbers are sampled."""
    return RecordedTelemetry(sampler=Coin(number in numbers for number in count()))


class Stream:
    def __init__(self, fail=None):
        self.sent, self.fail = [], fail

    async def send(self, event):
        if self.fail is not None:
            raise self.fail
        self.sent.append(event)


class Custom:
    """A policy that does what a function says."""

    def __init__(self, apply, name="custom"):
        self.name, self.function = name, apply

    async def apply(self, prompts, events, context):
        return self.function(list(prompts), list(events))


def requests(*texts):
    return [ModelRequest(content=text) for text in texts]


def user(text):
    return {"role": "user", "content": text}


def said(assembly):
    return [event["content"] if isinstance(event, dict) else event.content for event in assembly.events]


def told(assembly):
    return [(d.item, d.outcome.value, d.reason.value) for d in assembly.decisions]


def warning(message="slow"):
    return ObserverAlert(source="monitor", severity=Severity.WARNING, message=message)
