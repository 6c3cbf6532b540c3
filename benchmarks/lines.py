"""The lines of the engine's modules: the code that every turn of every assembly runs through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import otel_assembly
from benchmarks.harness import Size, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = Path(otel_assembly.__file__).parent
FOLDERS = ("history", "matching", "chain", "observe", "ledger", "policies")
MODULES = ("assembler.py", "assembly.py", "context.py", "decision.py", "recorder.py")
TOTAL = "all"


async def report(size: Size) -> list[Table]:
    """A row for each folder, one for the single modules, and their sum."""
    table = Table("lines", "lines of the engine's modules", ["modules", "lines"])
    rows: dict[str, Sequence[Path]] = {
        **{folder: sorted((PACKAGE / folder).rglob("*.py")) for folder in FOLDERS if (PACKAGE / folder).is_dir()},
        " ".join(MODULES): [PACKAGE / module for module in MODULES if (PACKAGE / module).is_file()],
    }
    counts = {row: sum(len(file.read_text(encoding="utf-8").splitlines()) for file in rows[row]) for row in rows}
    for row, lines in {**counts, TOTAL: sum(counts.values())}.items():
        table.put(row, lines)
    return [table]
