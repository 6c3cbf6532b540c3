"""All benchmarks from a clean clone: environments of their own, a table in Markdown and JSON, and a plot.

The environments lie in `.bench/` and are kept. Nothing is needed but Python, and a package index for the first time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table
from benchmarks.promises import promises

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".bench"
RESULTS = ROOT / "benchmarks"

#: What is measured beside ours, newest releases.
PEERS = (
    "langchain-core",
    "ag2",
    "autogen-core",
    "autogen-agentchat",
    "llama-index-core",
    "pydantic-ai-harness",
    "agent-framework-core",
    "haystack-ai",
    "agentscope",
    "cendor-contextkit",
    "promptbudget",
    "strands-agents",
)
OURS = ("-e", f"{ROOT}[cli,postgres]", "matplotlib")
TABLES = (
    "turns",
    "peers",
    "observed",
    "conversations",
    "stalls",
    "imports",
    "allocator",
    "memory",
    "lines",
    "prefix",
    "desk",
    "contexts",
    "agent",
    "sessions",
    "frameworks",
)


def _environment(name: str, packages: Sequence[str]) -> tuple[str, str | None]:
    """The interpreter of an environment that has these packages; and why it has not, where they do not install."""
    folder = HOME / name
    python = str(folder / "bin" / "python")
    wanted = hashlib.sha256("\n".join((*packages, (ROOT / "pyproject.toml").read_text())).encode()).hexdigest()
    stamp = folder / "installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python, None
    venv.create(folder, with_pip=True, clear=True)
    print(f"installing {' '.join(packages)} in {folder.relative_to(ROOT)}", flush=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return python, (said or ["pip failed"])[0].removeprefix("ERROR: ")
    stamp.write_text(wanted)
    return python, None


def environments() -> str:
    """Ours, with all peers where they can live together, each in its own where they cannot; its interpreter."""
    python, refused = _environment("together", [*OURS, *PEERS])
    found: dict[str, dict[str, str]] = {}
    if refused:
        python, reason = _environment("ours", OURS)
        if reason:
            raise SystemExit(f"this package does not install: {reason}")
        for peer in PEERS:
            with_core = ("autogen-core",) if peer == "autogen-agentchat" else ()
            own, reason = _environment(peer, ["-e", f"{ROOT}[cli]", peer, *with_core])
            found[peer] = {"reason": reason} if reason else {"python": own}
    else:
        found = {peer: {"python": python} for peer in PEERS}
    (HOME / "environments.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return python


def _machine(python: str) -> dict[str, Any]:
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True)
    named = {"otel-assembly", "opentelemetry-api", "opentelemetry-sdk", "pydantic", "tiktoken", *PEERS}
    versions = {item["name"]: item["version"] for item in json.loads(listed.stdout) if item["name"].lower() in named}
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1],
        "versions": versions,
    }


def everything(size: Size) -> int:
    """Install, measure, write, draw."""
    HOME.mkdir(exist_ok=True)
    began = time.monotonic()
    python = environments()
    machine = _machine(python)
    tables: list[dict[str, Any]] = []
    failed = []
    for name in TABLES:
        print(f"measuring {name}, {time.monotonic() - began:.0f} s since the start", flush=True)
        file = HOME / f"{name}.json"
        file.unlink(missing_ok=True)
        command = [python, "-m", "benchmarks", name, f"--json={file}", *([] if size == "full" else [f"--{size}"])]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        else:
            tables += json.loads(file.read_text(encoding="utf-8"))
    write(size, machine, tables, python)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def write(size: Size, machine: dict[str, Any], tables: list[dict[str, Any]], python: str) -> None:
    """Write what was measured, and print what was promised; all of it beside the benchmarks, less of it to `.bench`."""
    command = " ".join(["python -m benchmarks", *([] if size == "full" else [f"--{size}"])])
    results = {"command": command, "size": size, **machine, "tables": [promises(tables), *tables]}
    folder = RESULTS if size == "full" else HOME
    file = folder / "results.json"
    file.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(results), encoding="utf-8")
    subprocess.run([python, "-m", "benchmarks.plot", file, folder / "results.svg"], cwd=ROOT, check=True)
    print(Table(**results["tables"][0]).markdown())
    print(f"\nwritten to {folder.relative_to(ROOT)}: results.md, results.json, results.svg")


def page(results: dict[str, Any]) -> str:
    """The results as a page."""
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    machine = f"{results['processors']} × {results['processor']}, {results['system']}, Python {results['python']}"
    lines = [
        "# Benchmark results",
        "",
        f"Measured with `{results['command']}` on {machine}; initial load {results['load']}.",
        f"{versions}.",
        "",
        "[What each table means](README.md). Compare ratios, not times: if the machine slows down, all rows slow down.",
        *(f"\n{Table(**table).markdown()}" for table in results["tables"]),
        "",
    ]
    return "\n".join(lines)
