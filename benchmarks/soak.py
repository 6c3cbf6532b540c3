"""A long life of one process: ``python -m benchmarks.soak [--turns 200000]``.

Conversations come, move their windows, are forked, are halted and go; one turn in ten is recorded, as a head sampler
says. The process's memory and a turn's time beside the floor are printed as they come, and it fails where memory grows
by more than a twentieth and 8 MiB after the first three tenths, in which the memories of counts fill, or where a turn
takes a quarter longer in the last tenths than in these.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.telemetry import recording
from benchmarks.workload import BUDGET, MODEL, SYSTEM, Floor, messages
from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ConversationPolicy,
    HaltedError,
    HaltEvent,
    History,
    SlidingWindowPolicy,
    Task,
    TokenBudgetPolicy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TURNS = 200_000
#: How many conversations are open at once, and how long one lasts.
OPEN = 8
LONGEST = 300
#: A forked child takes some turns of a conversation and ends, once in so many turns.
FORK_EVERY = 1_000
_GROWTH, _SLACK = 1.05, 8.0
_DRIFT = 1.25
_PARTS = 10


class Talk:
    """One conversation: so many turns, then it is over; one in four ends in a halt."""

    def __init__(self, number: int, assembler: Any) -> None:
        rng = random.Random(number)
        self._assembler = assembler
        built = isinstance(assembler, ContextAssembler)
        turns = rng.randrange(10, 40 if built else LONGEST)
        self._new = messages(2 * turns, seed=number)
        self._at = 0
        self._halts = rng.random() < 0.25
        #: As their users hold them: a `History`, or a list that is appended to.
        self._held: Any = [] if built or rng.random() < 0.3 else History()
        #: Most are kept by their users; some are known by an id, and remembered for a while after they have gone.
        name = None if number % 10 else f"conversation-{number}"
        self.context = Context(agent_name=f"agent-{number % 5}", conversation_id=name)
        self.halted = False

    @property
    def over(self) -> bool:
        """Whether it has no more turns."""
        return self.halted or self._at >= len(self._new)

    async def turn(self) -> None:
        """One turn; the last one of a conversation that is halted raises, as it must."""
        self._held.extend(self._new[self._at : self._at + 2])
        self._at += 2
        if self._halts and self._at >= len(self._new):
            await self.context.send(HaltEvent(reason="enough", source="soak"))
            try:
                await self._assemble()
            except HaltedError:
                self.halted = True
                return
            raise AssertionError("a halted conversation was assembled")
        await self._assemble()

    async def _assemble(self) -> None:
        if isinstance(self._assembler, ContextAssembler):
            await self._assembler.assemble(Task("What now?", recent=self._held), user="ada", context=self.context)
        else:
            assembly = await self._assembler.assemble([SYSTEM], self._held, self.context)
            assert assembly.events


def _assemblers() -> list[Any]:
    """Every way to assemble; all of them record one turn in ten."""
    recorder = recording(0.1)
    chains: list[list[Any]] = [
        [AlertPolicy(), ConversationPolicy(), TokenBudgetPolicy(BUDGET)],
        [ConversationPolicy(), SlidingWindowPolicy(150), BudgetPolicy(BUDGET, 0)],
    ]
    built = ContextAssembler(
        system=SYSTEM,
        window=2_500,
        output_reserve=500,
        scopes=lambda user, task: {"all"},
        order="cache",
        model=MODEL,
        recorder=recorder,
    )
    ours = [Assembler(chain, model=MODEL, recorder=recorder) for chain in chains]
    return [*ours * 4, built]


def _talks(assemblers: list[Any]) -> Iterator[Talk]:
    return (Talk(number, assemblers[number % len(assemblers)]) for number in count())


def _fork(talk: Talk) -> None:
    """A child of this process takes three turns of a conversation and ends; it has to end well.

    Raises:
        AssertionError: It did not.
    """
    sys.stdout.flush()
    child = os.fork()
    if not child:
        ended = 1
        try:
            loop = asyncio.new_event_loop()
            asyncio._set_running_loop(None)
            for _ in range(3):
                if not talk.over:
                    loop.run_until_complete(talk.turn())
            ended = 0
        finally:
            os._exit(ended)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"a forked child ended with {status}"


def resident_mib() -> float:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def soak(turns: int) -> bool:
    """Run it; True where memory and time have stayed what they were."""
    talks = _talks(_assemblers())
    open_ = [next(talks) for _ in range(OPEN)]
    rng = random.Random(3)
    floor = Floor(messages(400))
    fresh = messages(2_000, seed=5)
    gone = halted = forked = 0
    memory: list[float] = []
    ratios: list[float] = []
    part = max(1, turns // _PARTS)
    print(f"{'turns':>9} {'MiB':>7} {'a turn, µs':>11} {'÷ floor':>8} {'came':>6} {'halted':>6} {'forks':>5}")
    ours: list[float] = []
    plain: list[float] = []
    for turn in range(1, turns + 1):
        at = rng.randrange(OPEN)
        talk = open_[at]
        began = time.thread_time()
        await talk.turn()
        ours.append(time.thread_time() - began)
        if turn % 10 == 0:
            at_fresh = 2 * (turn // 10 % 1_000)
            began = time.thread_time()
            floor.turn(fresh[at_fresh : at_fresh + 2])
            plain.append(time.thread_time() - began)
        if turn % 10_000 == 0:
            floor = Floor(messages(400))
        if talk.over:
            halted += talk.halted
            gone += 1
            open_[at] = next(talks)
        elif turn % FORK_EVERY == 0 or turn == turns // 2:
            _fork(talk)
            forked += 1
        if turn % part == 0:
            gc.collect()
            memory.append(resident_mib())
            ratios.append(statistics.median(ours) / statistics.median(plain or [1e-4]))
            micros = statistics.median(ours) * 1e6
            figures = f"{memory[-1]:>7.1f} {micros:>11.0f} {ratios[-1]:>8.2f} {gone:>6,} {halted:>6,} {forked:>5,}"
            print(f"{turn:>9,} {figures}", flush=True)
            ours, plain = [], []
    return _held(memory, ratios, judged=turns >= TURNS // 2)


def _held(memory: list[float], ratios: list[float], *, judged: bool) -> bool:
    """Whether both stayed within their bounds; a short run is told, and not judged."""
    tenths = 3 * len(memory) // 10
    if not tenths or not judged:
        print("too short a run to judge by")
        return True
    most, limit = max(memory[tenths:]), memory[tenths - 1] * _GROWTH + _SLACK
    early, late = statistics.median(ratios[:tenths]), statistics.median(ratios[-tenths:])
    print(f"memory: at most {most:.1f} MiB after the first three tenths; the bound is {limit:.1f}")
    print(
        f"a turn ÷ the floor: {early:.2f} in the first three, {late:.2f} in the last; the bound is {early * _DRIFT:.2f}"
    )
    return most <= limit and late <= early * _DRIFT


def main(arguments: list[str] | None = None) -> int:
    """0 where it held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args(arguments)
    held = asyncio.run(soak(chosen.turns))
    print("held" if held else "did not hold", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
