"""What `allocate` costs against the floor: sorting the blocks and summing their remembered counts in plain Python.

Floor and allocator run in turn in one process, on the same blocks and the same memory of counts, so that a machine that
slows down slows both; the ratio is the median over rounds. The first call is measured apart, against the floor with
tokenizing: what is new has to be tokenized by anybody.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table, Timing, race
from benchmarks.telemetry import recording
from benchmarks.workload import WORDS
from otel_assembly import Block, BlockItem, allocate
from otel_assembly.budget import measure_for
from otel_assembly.recorder import NullRecorder, using_recorder
from otel_assembly.tokens import TokenMeter, counter_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.recorder import Recorder

SIZES: dict[Size, tuple[tuple[int, ...], int]] = {
    "full": ((100, 1_000, 10_000), 20_000),
    "quick": ((100, 1_000), 5_000),
    "tiny": ((20, 40), 100),
}
FLOOR = "floor: sort and sum"
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


def _allocating(blocks: list[Block], window: int, recorder: Recorder) -> Callable[[Any], object]:
    def run(_: Any) -> object:
        with using_recorder(recorder):
            return allocate(blocks, window, 1)

    return run


def _promptbudget(blocks: list[Block], count: Callable[[str], int]) -> dict[str, Callable[[Any], object]]:
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
        f"promptbudget {version('promptbudget')}, everything fits": lambda _: pack(
            sections, budget=WINDOW_OF_ALL, tokenizer=count, reserved_output=1
        )
    }


def _first_call(number: int) -> Timing:
    """What the allocator takes for texts that nobody has counted, beside the floor that tokenizes them."""
    ours, plain = [], []
    for seed in range(number, number + 5):
        blocks = blocks_of(number, seed=seed)
        started = time.perf_counter()
        floor(blocks, TokenMeter(counter_for(None)).text)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        with using_recorder(NullRecorder()):
            allocate(blocks, WINDOW_OF_ALL, 1)
        ours.append(time.perf_counter() - started)
    return Timing(ours, plain)


async def report(size: Size) -> list[Table]:
    """A row for each way to call it, a column for each number of blocks."""
    numbers, work = SIZES[size]
    table = Table(
        "allocator",
        "one allocation of blocks with cached counts: median (quartiles), and the median ratio to the floor",
        ["blocks", *(f"{number:,}" for number in numbers)],
    )
    count = measure_for(None).text
    for number in numbers:
        blocks = blocks_of(number)
        pairs = blocks_of(number, as_items=True)
        total = floor(blocks, count)
        fixed = sum(count(block.content) + 4 for block in blocks if not block.cuttable)
        half = fixed + (total - fixed) // 2
        runners = {
            FLOOR: lambda _, blocks=blocks: floor(blocks, count),
            "ours, everything fits": _allocating(blocks, WINDOW_OF_ALL, NullRecorder()),
            "ours, half of what may be cut is dropped": _allocating(blocks, half, NullRecorder()),
            "ours, blocks of two items": _allocating(pairs, WINDOW_OF_ALL, NullRecorder()),
            "ours, SDK, recording, with metrics": _allocating(blocks, half, recording()),
            **_promptbudget(blocks, count),
        }
        taken = await race(runners, max(7, min(100, work // number)), floor=FLOOR, warm_up=2)
        for name, timing in taken.items():
            table.put(name, timing)
        table.put("ours, first call (floor: with tokenizing)", _first_call(number))
    return [table]
