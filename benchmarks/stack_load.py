"""A thousand turns a second through the Collector as it is shipped into a Jaeger that keeps all in memory.

    python -m benchmarks.stack_load [--turns 1000] [--seconds 60] [--senders 1] [--agents]

Nothing may be lost: what the senders were told is taken, Jaeger counts as stored, and of a sample of traces every span
is asked for by its trace id. Processor time and memory are those of `/proc`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table
from benchmarks.stack_senders import SPANS_A_TURN

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _peak_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class Sender:
    """A process that sends, and what it says: its last traces meanwhile, what it sent at the end."""

    def __init__(self, kind: str, endpoint: str, turns: float, seconds: float) -> None:
        command = [sys.executable, "-m", "benchmarks.stack_senders", kind, endpoint, str(turns), str(seconds)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.ended: list[dict] = []
        self.sent: dict = {}
        self.peak_mib = 0.0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "trace" in said:
                self.ended.append(said)
                self.peak_mib = _peak_mib(self.process.pid)
            else:
                self.sent = said

    def end(self, seconds: float) -> dict:
        status = self.process.wait(seconds)
        self._thread.join(10)
        if status:
            raise RuntimeError(f"a sender ended with {status}")
        return self.sent


def _spans_of(jaeger: Any, trace: str) -> int:
    try:
        return sum(len(item["spans"]) for item in jaeger.get(f"/api/traces/{trace}")["data"])
    except OSError:
        return 0


def _until_findable(jaeger: Any, senders: list[Sender], running: threading.Event) -> list[float]:
    """Seconds from the end of a trace until Jaeger has it; one trace at a time, the newest."""
    waits: list[float] = []
    while running.is_set():
        newest = max(
            (sender.ended[-1] for sender in senders if sender.ended), key=lambda value: value["ended"], default=None
        )
        if newest is None:
            time.sleep(0.05)
            continue
        while not _spans_of(jaeger, newest["trace"]) and time.time() < newest["ended"] + 30:
            time.sleep(0.02)
        waits.append(time.time() - newest["ended"])
        time.sleep(0.3)
    return waits


def measure(kind: str, turns: float, seconds: float, senders: int) -> dict:
    """Start the servers, let the senders send, and count what arrived."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from local_stack import COLLECTORS, Collector, Jaeger, programs, wait_until

    with tempfile.TemporaryDirectory(prefix="stack-load-") as temporary:
        found, folder = programs(("collector", "jaeger")), Path(temporary)
        jaeger = Jaeger(found, folder / "jaeger")
        collector = Collector(found, COLLECTORS / "local.yaml", folder / "collector", {"JAEGER_ENDPOINT": jaeger.otlp})
        try:
            jaeger.start()
            collector.start()
            servers = {"Collector": collector, "Jaeger": jaeger}
            before = {name: _processor_seconds(server.pid) for name, server in servers.items()}
            sending = [Sender(kind, collector.otlp_grpc, turns / senders, seconds) for _ in range(senders)]
            running, waits = threading.Event(), []
            running.set()
            asking = threading.Thread(target=lambda: waits.extend(_until_findable(jaeger, sending, running)))
            asking.start()
            sent = [sender.end(seconds + 120) for sender in sending]
            running.clear()
            asking.join(40)
            spans = sum(message["spans"] for message in sent)

            def stored() -> float:
                # Its one exporter is its storage.
                return jaeger.measured("otelcol_exporter_sent_spans")

            started = time.monotonic()
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: stored() >= spans, seconds=120, what=f"{spans} spans stored")
            sample = [outcome["trace"] for sender in sending for outcome in sender.ended]
            return {
                "kind": kind,
                "wanted": turns,
                "turns": sum(message["turns"] for message in sent),
                "seconds": max(message["seconds"] for message in sent),
                "spans": spans,
                "bytes": sum(message["bytes"] for message in sent),
                "not taken": sum(message["lost"] for message in sent),
                "refused": collector.measured("otelcol_receiver_refused_spans"),
                "given up": collector.measured("otelcol_exporter_send_failed_spans"),
                "stored": stored(),
                "seconds behind": time.monotonic() - started,
                "traces asked for": len(sample),
                "whole traces": sum(_spans_of(jaeger, item) == SPANS_A_TURN for item in sample),
                "waits": sorted(waits),
                "processor seconds": {
                    "senders": sum(message["processor seconds"] for message in sent),
                    **{name: _processor_seconds(server.pid) - before[name] for name, server in servers.items()},
                },
                "MiB": {
                    "senders": sum(sender.peak_mib for sender in sending),
                    **{name: _peak_mib(server.pid) for name, server in servers.items()},
                },
            }
        finally:
            collector.stop()
            jaeger.stop()


def described(numbers: dict) -> dict[str, str]:
    """What a person reads, by what it is about."""
    turns, seconds, spans, used = (numbers[name] for name in ("turns", "seconds", "spans", "processor seconds"))
    median, most = (_quantile(numbers["waits"], share) for share in (0.5, 0.9))
    what = "agents that assemble" if numbers["kind"] == "agent" else "recorded requests, sent again"
    return {
        "sent": what,
        "turns": f"{turns:,} in {seconds:.0f} s, {turns / seconds:,.0f} of {numbers['wanted']:,.0f} a second",
        "a second": f"{spans / seconds:,.0f} spans, {numbers['bytes'] / seconds / 1e6:.2f} MB",
        "spans": f"{spans:,} taken, {numbers['stored']:,.0f} stored; not taken {numbers['not taken']:,.0f}",
        "Collector": f"refused {numbers['refused']:,.0f}, gave up {numbers['given up']:,.0f}",
        "traces": f"{numbers['whole traces']} of {numbers['traces asked for']} asked for are whole",
        "found": f"{median:.2f} s after a trace's end (median), nine of ten within {most:.2f} s",
        "behind": f"the last stored {numbers['seconds behind']:.1f} s after all was sent",
        **{
            f"{name}, processor": f"{seconds_used:.1f} s, {seconds_used / seconds:.0%} of a core, "
            f"{spans / seconds_used:,.0f} spans a processor second, {numbers['MiB'][name]:,.0f} MiB at most"
            for name, seconds_used in used.items()
        },
    }


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def report(size: Size) -> list[Table]:
    """What is promised, what the servers take at most, and what two agents make that do nothing else."""
    table = Table("stack", "turns through the Collector into Jaeger, all of it on this machine", ["", "", "", ""])
    for kind, turns, seconds, senders in (("replay", 1_000, 60, 1), ("replay", 10_000, 15, 1), ("agent", 1_000, 30, 2)):
        if size != "full" and kind != "agent":
            continue
        for row, cell in described(measure(kind, turns, seconds, senders)).items():
            table.put(row, cell)
    return [table]


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=float, default=1_000, help="turns a second, of all senders together")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--senders", type=int, default=1)
    parser.add_argument("--agents", action="store_true", help="assemble, rather than send recorded requests again")
    chosen = parser.parse_args(arguments)
    numbers = measure("agent" if chosen.agents else "replay", chosen.turns, chosen.seconds, chosen.senders)
    print("\n".join(f"{name}: {value}" for name, value in described(numbers).items()))
    return 0 if numbers["stored"] >= numbers["spans"] and not numbers["not taken"] else 1


if __name__ == "__main__":
    sys.exit(main())
