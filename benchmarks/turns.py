"""What a turn costs that added two messages, against the floor and against a peer, at growing lengths.

The floor is what no exact engine can be without: tokenising the two new messages, and a backward scan over remembered
integers until the budget is full. Each engine and the floor run in turn, turn by turn, in one process, so that a
machine that slows down slows all of them; the ratio is the median over turns.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from benchmarks.workload import messages
from otel_assembly import Assembler, Context, ConversationPolicy, History, TokenBudgetPolicy, describe
from otel_assembly.recorder import NullRecorder
from otel_assembly.telemetry import OpenTelemetryRecorder
from otel_assembly.tokens import TokenMeter, counter_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

BUDGET = 8_000
TURNS = 60
WARM_UP = 10


class _Discard(SpanExporter):
    def export(self, spans: Sequence) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


class Floor:
    """Exact counts, remembered; a backward scan."""

    def __init__(self, events: list[dict]) -> None:
        self._meter = TokenMeter(counter_for(None))
        self._tokens = [0] * (len(events) - 100) + [self._count(event) for event in events[-100:]]

    def _count(self, event: dict) -> int:
        return self._meter.event(describe(event), remember=False)

    async def turn(self, new: list[dict]) -> None:
        self._tokens += map(self._count, new)
        room = BUDGET
        for tokens in reversed(self._tokens):
            room -= tokens
            if room < 0:
                break


class Engine:
    """Ours: a filter and a token budget over a `History`."""

    def __init__(self, events: list[dict], recorder: object) -> None:
        self._history = History(events)
        policies = [ConversationPolicy(), TokenBudgetPolicy(BUDGET)]
        self._assembler = Assembler(policies, recorder=recorder)  # type: ignore[arg-type]
        self._context = Context(agent_name="bench")

    async def turn(self, new: list[dict]) -> None:
        for event in new:
            self._history.append(event)
        assembly = await self._assembler.assemble(["You are helpful."], self._history, self._context)
        assert assembly.events


class LangChain:
    """LangChain's ``trim_messages`` with its own approximate counter, as its documentation has it."""

    def __init__(self, events: list[dict]) -> None:
        from langchain_core.messages import convert_to_messages, trim_messages
        from langchain_core.messages.utils import count_tokens_approximately

        self._convert, self._trim, self._counter = convert_to_messages, trim_messages, count_tokens_approximately
        self._messages = convert_to_messages(events)

    async def turn(self, new: list[dict]) -> None:
        self._messages += self._convert(new)
        assert self._trim(
            self._messages, max_tokens=BUDGET, token_counter=self._counter, strategy="last", start_on="human"
        )


def _recording() -> OpenTelemetryRecorder:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Discard()))
    return OpenTelemetryRecorder(tracer_provider=provider, meter_provider=MeterProvider([InMemoryMetricReader()]))


def _sampled_out() -> OpenTelemetryRecorder:
    return OpenTelemetryRecorder(tracer_provider=TracerProvider(sampler=ALWAYS_OFF))


async def _race(runners: dict[str, Callable[[list[dict]], Awaitable[None]]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runners}
    fresh = messages(2 * (TURNS + WARM_UP), seed=11)
    for turn in range(TURNS + WARM_UP):
        new = fresh[2 * turn : 2 * turn + 2]
        for name, run in runners.items():
            started = time.perf_counter()
            await run(list(new))
            if turn >= WARM_UP:
                times[name].append(time.perf_counter() - started)
    return times


async def report() -> list[str]:
    """A row for each engine and length."""
    lines = [
        f"a turn that added two messages, budget {BUDGET:,} tokens: median µs, and the median ratio to the floor",
        f"  {'':38}{'1,000':>16}{'10,000':>16}{'100,000':>16}",
    ]
    rows: dict[str, list[str]] = {}
    for length in (1_000, 10_000, 100_000):
        events = messages(length)
        runners = {
            "floor: tokenise two, scan back": Floor(list(events)).turn,
            "ours, nobody listens": Engine(list(events), NullRecorder()).turn,
            "ours, OpenTelemetry not configured": Engine(list(events), OpenTelemetryRecorder()).turn,
            "ours, SDK, sampled out": Engine(list(events), _sampled_out()).turn,
            "ours, SDK, recording, with metrics": Engine(list(events), _recording()).turn,
        }
        try:
            if length <= 10_000:
                runners["LangChain trim_messages, approximate"] = LangChain(list(events)).turn
        except ImportError:
            pass
        times = await _race(runners)
        floor = times["floor: tokenise two, scan back"]
        for name, taken in times.items():
            ratio = statistics.median(a / b for a, b in zip(taken, floor, strict=True))
            rows.setdefault(name, []).append(f"{statistics.median(taken) * 1e6:9.0f} {ratio:5.1f}×")
    lines += (f"  {name:38}" + "".join(f"{cell:>16}" for cell in cells) for name, cells in rows.items())
    return lines
