"""What a call of a framework's own agent takes with us beside the same alone, the model's time aside.

Each framework has two processes, with one agent each that answers at once: one is instrumented, with spans, metrics and
an exporter that keeps none. They are asked in turn, in conversations that grow alike.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.framework_agents import AGENTS, Role
from benchmarks.harness import Size, Table, Timing
from benchmarks.telemetry import providers
from otel_assembly.instrumentation import instrument, instrumentor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
#: Messages of the conversations, and how often each agent is then asked.
SIZES: dict[Size, tuple[tuple[int, ...], int]] = {
    "full": ((100, 1_000), 100),
    "quick": ((100, 500), 30),
    "tiny": ((4, 8), 2),
}
WARM_UP = 3
SIDES = ("alone", "with us")
WORDS = " ".join(["The kettle of order 4711 does not turn on, whichever socket in the house it is in."] * 3)


class Clerk:
    """An agent in a process of its own, which says how long each answer took."""

    def __init__(self, framework: str, side: str) -> None:
        self._name = f"{framework} {side}"
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.frameworks", framework, side]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def asked(self, times: int) -> list[float]:
        """Ask it so many times; the seconds that each answer took.

        Raises:
            RuntimeError: It failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{times}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the agent of {self._name} ended by itself")
        return [float(item) for item in line.split()]

    def close(self) -> None:
        """It has nothing more to answer."""
        self._process.kill()
        self._process.communicate()


async def report(size: Size) -> list[Table]:
    """A row for each framework that is installed here."""
    lengths, rounds = SIZES[size]
    table = Table(
        "frameworks",
        "a call of a framework's agent in a conversation of so many messages: the framework alone, and with us, with "
        "the ratio",
        ["framework", *(f"{length:,}, {side}" for length in lengths for side in SIDES)],
    )
    there = [name for name in AGENTS if instrumentor_of(name).version is not None]
    for name in there:
        with ExitStack() as stack:
            clerks = [Clerk(name, side) for side in SIDES]
            for clerk in clerks:
                stack.callback(clerk.close)
            asked = 0
            for length in lengths:
                for clerk in clerks:
                    clerk.asked(max(0, length // 2 - asked))
                alone, ours = _raced(clerks, rounds)
                asked = length // 2 + rounds + WARM_UP
                table.put(name, Timing(alone))
                table.put(name, Timing(ours, alone))
    if missing := [name for name in AGENTS if name not in there]:
        table.notes.append(f"Not installed here: {', '.join(missing)}.")
    return [table]


def _raced(clerks: Sequence[Clerk], rounds: int) -> tuple[list[float], list[float]]:
    for clerk in clerks:
        clerk.asked(WARM_UP)
    alone, ours = zip(*([clerk.asked(1)[0] for clerk in clerks] for _ in range(rounds)), strict=True)
    return list(alone), list(ours)


async def _answer(framework: str, side: str) -> None:
    """Be one of them: each line of the input is how often to ask."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints is no answer
    if side == SIDES[1]:
        instrument(framework, **providers())
    ask, number = AGENTS[framework](Role()), 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        taken = []
        for _ in range(int(line)):
            number += 1
            text = f"Note {number}. {WORDS}"
            started = time.perf_counter()
            await ask(text)
            taken.append(time.perf_counter() - started)
        print(*taken, file=answers, flush=True)


if __name__ == "__main__":  # python -m benchmarks.frameworks haystack alone: one of the processes
    asyncio.run(_answer(*sys.argv[1:]))
