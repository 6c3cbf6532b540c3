"""An agent that a test drives by lines on its standard input; it answers each with a line of JSON.

    driven_agent.py [--acknowledged FILE]

`turns N [RATE]` makes so many assemblies, so many a second; `overflow` makes one that its budget cannot hold; `spans N
[SIZE]` makes spans of the application's own, with an attribute of that size. The end of its input ends it. With
`--acknowledged` it sets up OpenTelemetry itself, and writes the ids of the spans that were taken into that file;
without, it is whatever `opentelemetry-instrument` made of it, or nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from otel_assembly import (
    Assembler,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)

PROMPT = "You are a support agent of a shop for lamps."


class NotingExporter(OTLPSpanExporter):
    """Notes which spans the Collector said it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._noted = file.open("a")

    def export(self, spans):
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self._noted.writelines(f"{span.context.span_id:016x}\n" for span in spans)
            self._noted.flush()
        return result


class Agent:
    """Its conversations are of twelve messages; the digest is over everything that a model would have been sent."""

    def __init__(self) -> None:
        self._assembler = Assembler([ConversationPolicy(), SlidingWindowPolicy(8), TokenBudgetPolicy(2_000)])
        self._tight = Assembler([TokenBudgetPolicy(5)])
        self._digest = hashlib.sha256()
        self._begin()
        self._turns = 0

    def _begin(self) -> None:
        self._history, self._context = History(), Context(agent_name="driven")

    def said(self) -> dict:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"turns": self._turns, "sha256": self._digest.hexdigest(), "rss": pages * os.sysconf("SC_PAGESIZE")}

    async def turns(self, number: int, rate: int = 0) -> None:
        started = time.monotonic()
        for made in range(number):
            if rate:
                await asyncio.sleep(max(0.0, started + made / rate - time.monotonic()))
            if len(self._history) >= 12:
                self._begin()
            self._history.append({"role": "user", "content": f"Where is parcel {self._turns}?"})
            await self._assemble()
            self._history.append({"role": "assistant", "content": f"Parcel {self._turns} is on its way to you."})

    async def _assemble(self) -> None:
        assembly = await self._assembler.assemble([PROMPT], self._history, self._context)
        self._digest.update(json.dumps([assembly.prompts, assembly.events]).encode())
        self._turns += 1

    async def overflow(self) -> None:
        try:
            await self._tight.assemble([PROMPT], [{"role": "user", "content": "Hello?"}], Context(agent_name="driven"))
        except ContextOverflowError:
            self._turns += 1

    async def spans(self, number: int, size: int = 0) -> None:
        tracer, attributes = trace.get_tracer("application"), {"document": "x" * size} if size else None
        for _ in range(number):
            tracer.start_span("look up parcel", attributes=attributes).end()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acknowledged", type=Path)
    noted = parser.parse_args().acknowledged
    if noted is not None:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(NotingExporter(noted)))
        trace.set_tracer_provider(provider)
    agent = Agent()
    for line in sys.stdin:
        command, *numbers = line.split()
        await getattr(agent, command)(*map(int, numbers))
        print(json.dumps(agent.said()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
