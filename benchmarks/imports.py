"""What it takes to import the package, beside what it depends on, in fresh processes that take turns."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness import Size, Table, Timing

ROUNDS: dict[Size, int] = {"full": 21, "quick": 7, "tiny": 2}

DEPENDENCIES = "its core dependencies"
PACKAGE = "import otel_assembly"
PROGRAMS = {
    DEPENDENCIES: (
        "import opentelemetry.trace, opentelemetry.metrics, opentelemetry._logs, "
        "opentelemetry.instrumentation.instrumentor, packaging.version, pydantic, tiktoken, wrapt, yaml; "
        "from pydantic import BaseModel"
    ),
    PACKAGE: "import otel_assembly",
    "from otel_assembly import Assembler, History": "from otel_assembly import Assembler, History",
    "all four instrumentors, as opentelemetry-instrument loads them": (
        "import otel_assembly.instrumentation.ag2, otel_assembly.instrumentation.autogen, "
        "otel_assembly.instrumentation.agentscope, otel_assembly.instrumentation.langchain"
    ),
}


def _seconds(program: str) -> float:
    code = f"import time; began = time.perf_counter(); {program}; print(time.perf_counter() - began)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


async def report(size: Size) -> list[Table]:
    """A row for each import."""
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for index in range(ROUNDS[size] + 1):
        for name, program in PROGRAMS.items():
            seconds = _seconds(program)
            if index:  # the first round reads the files from the disk
                taken[name].append(seconds)
    table = Table("imports", "an import in a fresh process: median (quartiles), and its ratio", ["what", "it takes"])
    for name, seconds in taken.items():
        table.rows[name] = [Timing(seconds, taken[DEPENDENCIES])]
    return [table]
