"""Bytes of bookkeeping per event of a long history."""

from __future__ import annotations

import gc
import tracemalloc

from benchmarks.harness import Size, Table
from otel_assembly import Context, ConversationPolicy, History, TokenBudgetPolicy
from otel_assembly.tokens import CharacterCounter, TokenMeter

SIZES: dict[Size, tuple[int, ...]] = {"full": (100_000, 1_000_000), "quick": (100_000,), "tiny": (1_000,)}
APPENDED = "appended"
COUNTED = "every token counted"


async def report(size: Size) -> list[Table]:
    """Append, count every token, filter and cut; the events are created before, and do not count."""
    lengths = SIZES[size]
    table = Table(
        "memory",
        "bookkeeping per event, bytes (the list of the events included)",
        ["events", *(f"{length:,}" for length in lengths)],
    )
    for length in lengths:
        appended, counted = await _bytes_per_event(length)
        table.put(APPENDED, appended)
        table.put(COUNTED, counted)
    table.notes += [
        "This includes the cache of counts by text: at most 65,536 entries, which weigh more for fewer events."
    ]
    return [table]


async def _bytes_per_event(count: int) -> tuple[float, float]:
    events = [{"role": "user" if n % 2 else "assistant", "content": f"message {n}"} for n in range(count)]
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    history = History()
    for event in events:
        history.append(event)
    appended, _ = tracemalloc.get_traced_memory()
    table = history.table(TokenMeter(CharacterCounter(4)))
    for position in range(count):
        table.tokens(position)
    await ConversationPolicy().decide([], history.view(), Context())
    await TokenBudgetPolicy(8_000).decide([], history.view(), Context())
    gc.collect()
    counted, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round((appended - before) / count, 1), round((counted - before) / count, 1)
