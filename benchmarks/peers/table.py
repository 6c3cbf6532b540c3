"""The tables of peers: each is asked in a process of its own, with the interpreter in whose environment it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.everything import HOME
from benchmarks.harness import Cell, Size, Table, Timing
from benchmarks.peers import PEERS
from benchmarks.workload import BUDGET

ROOT = Path(__file__).parents[2]

#: Lengths, and rounds at most.
SIZES: dict[Size, tuple[tuple[int, ...], int]] = {
    "full": ((1_000, 10_000, 100_000), 20),
    "quick": ((1_000, 10_000), 10),
    "tiny": ((60,), 2),
}
PATIENCE = 3.0
#: Whoever needs more seconds than this for a turn, or twice as many for a first one, is not asked for ten times as long
#: a conversation.
SLOW = 0.3


def _cell(plain: dict[str, Any] | None) -> Timing | None:
    return plain and Timing(plain["taken"], plain["beside"])


def vocabulary_cache(folder: Path) -> Path:
    """A folder in which tiktoken finds the bundled vocabularies, for the peers that ask it themselves."""
    import hashlib
    import lzma

    import otel_assembly.tokens

    bundled = Path(otel_assembly.tokens.__file__).parent / "vocabularies"
    for file in bundled.glob("*.tiktoken.xz"):
        address = f"https://openaipublic.blob.core.windows.net/encodings/{file.name.removesuffix('.xz')}"
        (folder / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()).write_bytes(
            lzma.decompress(file.read_bytes())
        )
    return folder


def _asked(at: int, size: Size, python: str, folder: str) -> dict[str, Any]:
    """What the process of one peer says: its numbers, or why there are none."""
    quiet = {"OTEL_SDK_DISABLED": "true", "HAYSTACK_TELEMETRY_ENABLED": "false", "PYTHONWARNINGS": "ignore"}
    command = [python, "-m", "benchmarks.peers", str(at), f"--size={size}"]
    environment = {**os.environ, **quiet, "TIKTOKEN_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return {"missing": said[-1][:120] if said else f"ended with {done.returncode}"}


def _environments() -> dict[str, dict[str, str]]:
    """Where each package is, or why it is nowhere, as `python -m benchmarks` left it; else all that is here."""
    file = HOME / "environments.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


async def report(size: Size) -> list[Table]:
    """A row for each peer."""
    lengths, _ = SIZES[size]
    columns = [f"{length:,}" for length in lengths]
    steady = Table(
        "peers",
        f"peers: a turn that added two messages, budget {BUDGET:,} tokens: median (quartiles), its ratio to the floor; "
        "and its ratio to otel-assembly, measured together",
        ["peer", "counts", "history", *columns, *(f"÷ ours, {column}" for column in columns)],
    )
    first = Table("peers-first", "peers: the first turn", ["peer", *columns])
    places = _environments()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary_cache(Path(folder))
        for at, peer in enumerate(PEERS):
            place = places.get(peer.package, {})
            reason = place.get("reason")
            said = {"missing": reason} if reason else _asked(at, size, place.get("python", sys.executable), folder)
            name = f"{peer.name} ({peer.package} {said['version']})" if "version" in said else peer.name
            if "missing" in said:
                steady.rows[name] = [peer.counts, peer.keeps, f"not measured: {said['missing']}"]
                continue
            cells: list[Cell] = [*map(_cell, said["steady"])]
            over: list[Cell] = [None if message is None else round(message, 1) for message in said["ours"]]
            padding: list[Cell] = [None] * (len(lengths) - len(cells))
            steady.rows[name] = [peer.counts, peer.keeps, *cells, *padding, *over, *padding]
            first.rows[name] = [*map(_cell, said["first"]), *padding]
    steady.notes += [
        "`exact`: as tiktoken counts; `characters`: estimated from their number.",
        "`replaced`: dropped messages are deleted, so a turn reads the rest, not the whole conversation.",
        f"`–`: more than {PATIENCE:.0f} s a turn; or, with a tenth of the messages, {SLOW} s (a first one {2 * SLOW}).",
        "AgentScope is measured without anything to compress, because it compresses with a model call.",
    ]
    return [steady, first]
