"""What `allocate` costs against the floor: sorting the blocks and summing their remembered counts in plain Python.

Floor and allocator run in turn in one process, on the same blocks and the same memory of counts, so that a machine that
slows down slows both; the ratio is the median over rounds. The first call is measured apart, against the floor with
tokenising: what is new has to be tokenised by anybody.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.turns import _Discard
from benchmarks.workload import WORDS
from otel_assembly import Block, BlockItem, allocate
from otel_assembly.budget import measure_for
from otel_assembly.recorder import NullRecorder, using_recorder
from otel_assembly.telemetry import OpenTelemetryRecorder
from otel_assembly.tokens import TokenMeter, counter_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.recorder import Recorder

SIZES = (100, 1_000, 10_000)
WINDOW_OF_ALL = 10**9


def blocks_of(number: int, *, seed: int = 7, as_items: bool = False) -> list[Block]:
    """Blocks as they come: in no order, one in nine of each priority, a third of the cuttable ones with a floor."""
    rng = random.Random(seed)
    made = []
    for at in range(number):
        priority = 1 + at % 9
        text = f"{seed} {at} " + " ".join(rng.choice(WORDS) for _ in range(rng.randrange(10, 60)))
        content = [BlockItem(text[:90], rank=1), BlockItem(text[90:] or "and", rank=2)] if as_items else text
        floor = 12 if priority > 4 and not at % 3 else 0
        made.append(Block(f"block-{at:05}", priority, content, priority > 4, floor, cut="whole"))
    rng.shuffle(made)
    return made


def floor(blocks: list[Block], count: Callable[[str], int]) -> int:
    """Sort and sum."""
    return sum(count(block.content) for block in sorted(blocks, key=lambda block: (block.priority, block.name)))


def _recording() -> OpenTelemetryRecorder:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Discard()))
    return OpenTelemetryRecorder(tracer_provider=provider, meter_provider=MeterProvider([InMemoryMetricReader()]))


def _race(runners: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runners}
    for one in range(rounds + 2):
        for name, run in runners.items():
            started = time.perf_counter()
            run()
            if one >= 2:
                times[name].append(time.perf_counter() - started)
    return times


def _allocating(blocks: list[Block], window: int, recorder: Recorder) -> Callable[[], object]:
    def run() -> object:
        with using_recorder(recorder):
            return allocate(blocks, window, 1)

    return run


def _promptbudget(blocks: list[Block], count: Callable[[str], int]) -> dict[str, Callable[[], object]]:
    """The peer whose terms are nearest, where it is installed: priorities, floors, a reason for each item."""
    try:
        from importlib.metadata import version

        from promptbudget import Section, pack
    except ImportError:
        return {}
    sections = [
        Section(block.name, block.content, priority=-block.priority, strategy="all_or_nothing") for block in blocks
    ]
    return {
        f"promptbudget {version('promptbudget')}, everything fits": lambda: pack(
            sections, budget=WINDOW_OF_ALL, tokenizer=count, reserved_output=1
        )
    }


def _first_call(number: int) -> tuple[float, float]:
    """Seconds that the allocator takes for texts that nobody has counted, and the median ratio to the floor."""
    ours, ratios = [], []
    for seed in range(number, number + 5):
        blocks = blocks_of(number, seed=seed)
        started = time.perf_counter()
        floor(blocks, TokenMeter(counter_for(None)).text)
        plain = time.perf_counter() - started
        started = time.perf_counter()
        with using_recorder(NullRecorder()):
            allocate(blocks, WINDOW_OF_ALL, 1)
        ours.append(time.perf_counter() - started)
        ratios.append(ours[-1] / plain)
    return statistics.median(ours), statistics.median(ratios)


async def report() -> list[str]:
    """A row for each way to call it, a column for each number of blocks."""
    count = measure_for(None).text
    rows: dict[str, list[str]] = {}
    for number in SIZES:
        blocks = blocks_of(number)
        pairs = blocks_of(number, as_items=True)
        total = floor(blocks, count)
        fixed = sum(count(block.content) + 4 for block in blocks if not block.cuttable)
        half = fixed + (total - fixed) // 2
        runners = {
            "floor: sort and sum": lambda blocks=blocks: floor(blocks, count),
            "ours, everything fits": _allocating(blocks, WINDOW_OF_ALL, NullRecorder()),
            "ours, half of what may be cut is dropped": _allocating(blocks, half, NullRecorder()),
            "ours, blocks of two items": _allocating(pairs, WINDOW_OF_ALL, NullRecorder()),
            "ours, SDK, recording, with metrics": _allocating(blocks, half, _recording()),
            **_promptbudget(blocks, count),
        }
        times = _race(runners, max(7, 20_000 // number if number > 100 else 100))
        plain = times["floor: sort and sum"]
        for name, taken in times.items():
            ratio = statistics.median(a / b for a, b in zip(taken, plain, strict=True))
            rows.setdefault(name, []).append(f"{statistics.median(taken) * 1e6:9.0f} {ratio:5.1f}×")
        taken_first, ratio = _first_call(number)
        rows.setdefault("ours, first call (floor: with tokenising)", []).append(
            f"{taken_first * 1e6:9.0f} {ratio:5.1f}×"
        )
    return [
        "one allocation of blocks that were counted before: median µs, and the median ratio to the floor",
        f"  {'blocks':42}" + "".join(f"{number:>16,}" for number in SIZES),
        *(f"  {name:42}" + "".join(f"{cell:>16}" for cell in cells) for name, cells in rows.items()),
    ]
