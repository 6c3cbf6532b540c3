"""``python -m benchmarks.peers N``: what peer N takes for the same turn in this process, beside the floor, as JSON."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Timing, race
from benchmarks.peers import PEERS
from benchmarks.peers.table import PATIENCE, SIZES, SLOW
from benchmarks.turns import Engine
from benchmarks.workload import Floor, messages, pairs
from otel_assembly import History
from otel_assembly.recorder import NullRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Message, Peer

WARM_UP = 4
FLOOR = "floor: tokenize two, scan back"
OURS = "otel-assembly, TokenBudgetPolicy"


async def measure(peer: Peer, size: Size) -> dict[str, list[Any]]:
    """One peer at every length: its first turn, its steady ones beside the floor, and how many of ours they take."""
    convert, start = peer.driver()
    lengths, rounds = SIZES[size]
    await race({peer.name: start(convert(messages(8)))}, 1, before=lambda name, value: convert(messages(2)))  # imports
    found: dict[str, list[Any]] = {"first": [], "steady": [], "ours": []}
    for length in lengths:
        first, steady, ours = await _at(peer, convert, start(convert(messages(length, seed=8))), length, rounds)
        found["first"].append(_plain_timing(first))
        found["steady"].append(_plain_timing(steady))
        both = min(len(steady.taken), len(ours.taken)) if steady else 0
        found["ours"].append(steady and Timing(steady.taken[-both:], ours.taken[-both:]).ratio)
        if steady is None or steady.median > SLOW or first.median > 2 * SLOW:
            break
    return found


async def _at(
    peer: Peer,
    convert: Callable[[list[Message]], list[Any]],
    turn: Callable[[list[Any]], Any],
    length: int,
    rounds: int,
) -> tuple[Timing, Timing | None, Timing]:
    events = messages(length)
    runners = {FLOOR: Floor(events).turn, OURS: Engine(History(events), NullRecorder()).turn, peer.name: turn}
    new: dict[str, list[Any]] = {name: pairs(name, 1 + WARM_UP + rounds) for name in runners}
    new[peer.name] = list(map(convert, new[peer.name]))
    gc.collect()
    gc.freeze()
    first = await race(runners, 1, before=lambda name, value: new[name][0])
    steady = await race(
        runners,
        rounds,
        floor=FLOOR,
        before=lambda name, value: new[name][1 + value],
        warm_up=WARM_UP,
        patience=PATIENCE,
    )
    gc.unfreeze()
    return first[peer.name], steady.get(peer.name), steady[OURS]


def _plain_timing(timing: Timing | None) -> dict[str, Any] | None:
    return timing and {"taken": list(timing.taken), "beside": list(timing.beside)}


def main() -> int:
    """One peer, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", type=int)
    parser.add_argument("--size", default="full")
    chosen = parser.parse_args()
    peer = PEERS[chosen.peer]
    warnings.simplefilter("ignore")
    try:
        found: dict[str, Any] = {"version": version(peer.package)}
    except PackageNotFoundError:
        print(json.dumps({"missing": f"{peer.package} is not installed here"}))
        return 0
    found |= asyncio.run(measure(peer, chosen.size))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
