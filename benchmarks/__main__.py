"""``python -m benchmarks``: everything, in environments of its own; with names, those tables in this environment."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from pathlib import Path

from benchmarks.everything import everything
from benchmarks.harness import dumped

REPORTS = {
    "turns": "benchmarks.turns",
    "peers": "benchmarks.peers.table",
    "observed": "benchmarks.observed",
    "conversations": "benchmarks.conversations",
    "stalls": "benchmarks.stalls",
    "imports": "benchmarks.imports",
    "allocator": "benchmarks.allocator",
    "memory": "benchmarks.memory",
    "lines": "benchmarks.lines",
    "prefix": "benchmarks.prefix",
    "desk": "benchmarks.desk",
    "contexts": "benchmarks.contexts",
    "agent": "benchmarks.agent",
    "sessions": "benchmarks.sessions",
    "frameworks": "benchmarks.frameworks",
    #: Needs Go, and two minutes in which nothing else runs.
    "stack": "benchmarks.stack_load",
}


def main(arguments: list[str]) -> int:
    """Run what is chosen, or everything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[*REPORTS, []], metavar="TABLE", help=", ".join(REPORTS))
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", dest="size", action="store_const", const="quick", help="enough to compare two states")
    sizes.add_argument("--tiny", dest="size", action="store_const", const="tiny", help="enough to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables there as well")
    chosen = parser.parse_args(arguments)
    size = chosen.size or "full"
    if not chosen.tables:
        return everything(size)
    tables = []
    for name in chosen.tables:
        for table in asyncio.run(importlib.import_module(REPORTS[name]).report(size)):
            print(table.markdown(), end="\n\n", flush=True)
            tables.append(table)
    if chosen.json:
        chosen.json.write_text(dumped(tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
