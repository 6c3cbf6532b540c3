"""Runs a program instrumented by us and by others, from inside, and again when both have left.

python instrumented_twice.py FIRST OTHER,... PROGRAM SPANS

FIRST is `ours` or `theirs`: who instruments first, and leaves first. OTHER is ``module:class``. What was told in the
first run is written to SPANS, as JSON; how many spans of ours were told in the second is its last line.
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


def main(first, others, program, spans):
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

    for comes in (instrument, they_come) if first == "ours" else (they_come, instrument):
        comes()
    runpy.run_path(program, run_name="__main__")
    heard = [told(span) for span in exporter.get_finished_spans()]
    exporter.clear()
    for leaves in (uninstrument, they_leave) if first == "ours" else (they_leave, uninstrument):
        leaves()
    runpy.run_path(program, run_name="__main__")
    ours = [span for span in exporter.get_finished_spans() if span.instrumentation_scope.name == "otel_assembly"]
    Path(spans).write_text("\n".join(json.dumps(text) for text in [*heard, len(ours)]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
