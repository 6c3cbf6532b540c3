"""Virtual environments for what has to be run against other releases than those that are installed here.

An environment is known by its lock: what its requirements come to now, to the last version. It is kept in
`.environments`, and made anew only when that changes; in CI, where nothing is kept, it is thrown away after use, for
each takes half a gigabyte and more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
KEPT = ROOT / ".environments"


def project() -> dict[str, Any]:
    """What `pyproject.toml` says of the project."""
    read: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read


def frameworks_apart() -> frozenset[str]:
    """The frameworks that cannot be installed beside the others: the extra `all` leaves them out."""
    said = project()
    instrumentors = said["entry-points"]["opentelemetry_instrumentor"]
    together = {extra for one in said["optional-dependencies"]["all"] for extra in Requirement(one).extras}
    names = (name.removeprefix("otel_assembly_") for name in instrumentors)
    return frozenset(name for name in names if name.replace("_", "-") not in together)


@contextmanager
def environment(
    name: str,
    requirements: tuple[str, ...],
    extras: str,
    base: str | Path = sys.executable,
    *,
    folder: Path = KEPT,
) -> Iterator[Path]:
    """The interpreter of an environment with these requirements and us, made by another interpreter.

    Args:
        name: What it is for; an earlier one for the same, whose lock was another, is thrown away.
        requirements: What is needed beside us.
        extras: Ours, separated by commas.
        base: The interpreter that makes it.
        folder: Where environments are kept.
    """
    # In one go: what we ask for and what the framework asks for have to be solved together.
    wanted = (*requirements, "-e", f"{ROOT}[{extras}]")
    versions = locked(base, wanted)
    ours = (ROOT / "pyproject.toml").read_bytes()
    key = hashlib.sha256("\n".join((str(base), *versions)).encode() + ours).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    made = folder / f"{slug}@{key}"
    python, done = made / "bin" / "python", made / "lock.txt"
    if not done.exists():
        for earlier in folder.glob(f"{slug}@*"):
            shutil.rmtree(earlier, ignore_errors=True)
        subprocess.run([base, "-m", "venv", made], check=True)
        subprocess.run([python, *PIP, "install", "--no-deps", *versions, "-e", ROOT], check=True)
        done.write_text("\n".join(versions) + "\n", encoding="utf-8")
    try:
        yield python
    finally:
        if os.environ.get("CI"):
            shutil.rmtree(made, ignore_errors=True)


def locked(base: str | Path, wanted: tuple[str, ...]) -> list[str]:
    """What requirements come to now: every distribution but ours, with its version."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.json"
        solve = ("install", "--dry-run", "--ignore-installed", "--report", report)
        subprocess.run([base, *PIP, *solve, *wanted], check=True, stdout=subprocess.DEVNULL)
        found = [one["metadata"] for one in json.loads(report.read_text(encoding="utf-8"))["install"]]
    return sorted(f"{one['name']}=={one['version']}" for one in found if one["name"] != "otel-assembly")
