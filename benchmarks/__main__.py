"""``python -m benchmarks [allocator] [memory] [observed] [prefix] [desk] [turns] [stack]``."""

from __future__ import annotations

import asyncio
import sys

from benchmarks import allocator, desk, memory, observed, prefix, stack_load, turns

REPORTS = {
    "turns": turns.report,
    "observed": observed.report,
    "allocator": allocator.report,
    "memory": memory.report,
    "prefix": prefix.report,
    "desk": desk.report,
    "stack": stack_load.report,
}
#: Needs Go, and two minutes in which nothing else runs.
ONLY_WHEN_CHOSEN = {"stack"}


async def main(chosen: list[str]) -> int:
    """Run what is chosen; without a choice, all that needs no servers."""
    unknown = [name for name in chosen if name not in REPORTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(REPORTS)}", file=sys.stderr)
        return 2
    for name in chosen or [name for name in REPORTS if name not in ONLY_WHEN_CHOSEN]:
        print("\n".join(await REPORTS[name]()), flush=True)
        print()
    return 0


sys.exit(asyncio.run(main(sys.argv[1:])))
