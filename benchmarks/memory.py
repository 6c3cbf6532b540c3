"""Bytes of our own bookkeeping an event, for a history of a million events."""

from __future__ import annotations

import gc
import tracemalloc

from benchmarks.harness import Size, Table
from otel_assembly import Context, ConversationPolicy, History, TokenBudgetPolicy
from otel_assembly.tokens import CharacterCounter, TokenMeter

SIZES: dict[Size, int] = {"full": 1_000_000, "quick": 100_000, "tiny": 1_000}


async def report(size: Size) -> list[Table]:
    """Append, count every token, filter and cut; what that keeps is bookkeeping, for the events are made before."""
    count = SIZES[size]
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
    table = Table(
        "memory", "bookkeeping for an event, bytes (the list of the events included)", ["events", f"{count:,}"]
    )
    table.put("appended", round((appended - before) / count, 1))
    table.put("every token counted (at most 200 are promised)", round((counted - before) / count, 1))
    table.notes += [
        "This includes the cache of counts by text: at most 65,536 entries, which weigh more for fewer events."
    ]
    return [table]
