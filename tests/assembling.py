"""Doubles and short words for tests of assemblies."""

from __future__ import annotations

from contextlib import nullcontext

from otel_assembly import ModelRequest, ObserverAlert, Severity


class SpyCounter:
    """Counts words, and remembers what it was asked."""

    name, method, generation = "words", "exact", 0

    def __init__(self):
        self.asked = []

    def count(self, text):
        self.asked.append(text)
        return len(text.split())


class Recorder:
    """Keeps the records; `sampled` says whether a turn's span records."""

    def __init__(self, sampled=lambda turn: True):
        self.sampled = sampled
        self.records = []
        self.observed = []

    def begin(self, name, model, context, started_ns):
        return Recording(self)

    def calibrated(self, model, counted, billed):
        self.observed.append((model, counted, billed))


class Recording:
    recorded = True
    measured = True

    def __init__(self, recorder):
        self.recorder = recorder

    def watch(self, kind):
        return lambda attempt: nullcontext()

    def policy(self, name, index):
        return nullcontext()

    def finish(self, record):
        self.recorded = record.error is None and self.recorder.sampled(record.turn)
        self.recorder.records.append(record)


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
