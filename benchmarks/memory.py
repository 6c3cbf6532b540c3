"""Bytes of our own bookkeeping an event, for a history of a million events."""

from __future__ import annotations

import gc
import tracemalloc

from otel_assembly import Context, ConversationPolicy, History, TokenBudgetPolicy
from otel_assembly.tokens import CharacterCounter, TokenMeter


async def report(count: int = 1_000_000) -> list[str]:
    """Append, count every token, filter and cut; what that keeps is bookkeeping, for the events are made before."""
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
    return [
        f"bookkeeping for {count:,} events, bytes an event (the list of the events included)",
        f"  appended                          {(appended - before) / count:8.1f}",
        f"  every token counted               {(counted - before) / count:8.1f}   (at most 200 are promised)",
    ]
