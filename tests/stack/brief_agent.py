"""An agent whose life is written on its command line, such as `turn sleep:3 overflow turn`.

`turn` assembles a prompt that fits, `overflow` one that does not, `halt` one that a FATAL alert stops; `call:N` notes
so many model calls, as an instrumentation of a client would; `broken` assembles with a policy that raises. Traces and
metrics go by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT. At its end it prints the trace of each step, as a JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    HaltedError,
    ModelRequest,
    ObserverAlert,
)
from otel_assembly.errors import PolicyFailedError

QUESTION = ModelRequest(content="Where is my parcel? It was to come on Monday.")


class Broken:
    name = "broken"

    async def apply(self, prompts, events, context):
        raise RuntimeError("out of order")


async def turn(policies, *more):
    assembler = Assembler(policies, model="gpt-4o")
    with contextlib.suppress(ContextOverflowError, HaltedError, PolicyFailedError):
        await assembler.assemble(["You sell lamps."], [QUESTION, *more], Context(agent_name="desk"))


async def live(steps):
    calls = metrics.get_meter("client").create_histogram("gen_ai.client.operation.duration", "s")
    traces = {}
    for step in steps:
        name, _, number = step.partition(":")
        with trace.get_tracer("desk").start_as_current_span(name) as span:
            traces[name] = f"{span.get_span_context().trace_id:032x}"
            match name:
                case "turn":
                    await turn([ConversationPolicy(), BudgetPolicy(2_000, 200)])
                case "overflow":
                    await turn([ConversationPolicy(), BudgetPolicy(20, 5)])
                case "broken":
                    await turn([Broken()])
                case "halt":
                    alert = ObserverAlert(source="watch", severity="fatal", message="it turns in circles")
                    await turn([AlertPolicy(), ConversationPolicy()], alert)
                case "call":
                    for _ in range(int(number)):
                        calls.record(0.5, {"gen_ai.operation.name": "chat"})
                case "sleep":
                    await asyncio.sleep(float(number))
                case _:
                    raise SystemExit(f"no such step: {step}")
    return traces


def main() -> None:
    # Metrics first: what the SDK counts of its spans goes to the meter provider that is there by then.
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    metrics.set_meter_provider(meters)
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracers)
    traces = asyncio.run(live(sys.argv[1:]))
    tracers.shutdown()
    meters.shutdown()
    print(json.dumps(traces))


if __name__ == "__main__":
    main()
