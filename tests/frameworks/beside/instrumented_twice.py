"""Runs a program instrumented by us and by others, again after one of them was uninstrumented, and after both were.

python instrumented_twice.py FIRST LEAVES OTHER,... PROGRAM SPANS

FIRST and LEAVES are `ours` or `theirs`: who instruments first, and who uninstruments first. OTHER is ``module:class``.
SPANS becomes a file of JSON lines: the spans of the first run, then how many spans of ours the second and the third run
had.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_assembly.instrumentation import instrument, uninstrument


def told(span):
    return {
        "name": span.name,
        "scope": span.instrumentation_scope.name,
        "id": span.context.span_id,
        "parent": span.parent.span_id if span.parent else None,
        "attributes": {name: str(value) for name, value in span.attributes.items()},
        "links": [link.context.span_id for link in span.links],
    }


def provide(processor):
    provider = TracerProvider()
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)


def main(first, leaves, others, program, spans):
    exporter = InMemorySpanExporter()
    theirs = [
        getattr(importlib.import_module(message.partition(":")[0]), message.partition(":")[2])()
        for message in others.split(",")
    ]
    provides = next((message.provide for message in theirs if hasattr(message, "provide")), provide)
    provides(SimpleSpanProcessor(exporter))

    def they_come():
        for message in theirs:
            message.instrument()

    def they_leave():
        for message in theirs:
            message.uninstrument()

    def run():
        exporter.clear()
        runpy.run_path(program, run_name="__main__")
        return exporter.get_finished_spans()

    for comes in (instrument, they_come) if first == "ours" else (they_come, instrument):
        comes()
    lines = [told(span) for span in run()]
    for leave in (uninstrument, they_leave) if leaves == "ours" else (they_leave, uninstrument):
        leave()
        lines.append(len([span for span in run() if span.instrumentation_scope.name == "otel_assembly"]))
    Path(spans).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
