"""``python -m benchmarks [allocator] [memory] [observed] [prefix] [turns]``."""

from __future__ import annotations

import asyncio
import sys

from benchmarks import allocator, memory, observed, prefix, turns

REPORTS = {
    "turns": turns.report,
    "observed": observed.report,
    "allocator": allocator.report,
    "memory": memory.report,
    "prefix": prefix.report,
}


async def main(chosen: list[str]) -> int:
    """Run what is chosen; all without a choice."""
    unknown = [name for name in chosen if name not in REPORTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(REPORTS)}", file=sys.stderr)
        return 2
    for name in chosen or REPORTS:
        print("\n".join(await REPORTS[name]()), flush=True)
        print()
    return 0


sys.exit(asyncio.run(main(sys.argv[1:])))
