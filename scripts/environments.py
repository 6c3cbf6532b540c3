"""Virtual environments for tests that need other releases than those installed here.

An environment is identified by its lock: the exact versions that its requirements resolve to. It is kept in
`.environments` and made again only if the lock changes. With `CI` set it is deleted after use, because each one takes
half a gigabyte and more. uv makes them: it takes seconds where pip takes a minute.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
UV = (sys.executable, "-m", "uv", "--quiet")
KEPT = ROOT / ".environments"


def pyproject() -> dict[str, Any]:
    """Return the content of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def development_requirements() -> tuple[str, ...]:
    """Return the requirements of the dependency group `dev`."""
    return tuple(pyproject()["dependency-groups"]["dev"])


def frameworks_apart() -> frozenset[str]:
    """The frameworks that cannot be installed beside the others: the extra `all` leaves them out."""
    project = pyproject()["project"]
    instrumentors = project["entry-points"]["opentelemetry_instrumentor"]
    together = {
        extra for requirement in project["optional-dependencies"]["all"] for extra in Requirement(requirement).extras
    }
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
        make_environment(made, base, "--no-deps", *versions, "-e", ROOT)
        done.write_text("\n".join(versions) + "\n", encoding="utf-8")
    try:
        yield python
    finally:
        if os.environ.get("CI"):
            shutil.rmtree(made, ignore_errors=True)


def make_environment(folder: Path, base: str | Path, *arguments: str | Path) -> None:
    """Make a virtual environment with an interpreter, and install what the arguments of ``pip install`` name."""
    subprocess.run([*UV, "venv", "--clear", "--python", base, folder], check=True)
    subprocess.run([*UV, "pip", "install", "--python", folder / "bin" / "python", *arguments], check=True)


def locked(base: str | Path, wanted: tuple[str, ...]) -> list[str]:
    """Resolve requirements: every distribution but this package, with its version."""
    # An editable requirement takes two words on the command line and one line in a file.
    lines = "\n".join(wanted).replace("-e\n", "-e ")
    solve = ("pip", "compile", "--no-header", "--no-annotate", "--python", base, "-")
    found = subprocess.run([*UV, *solve], input=lines, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"no versions satisfy {' '.join(wanted)}:\n{found.stderr}")
    return sorted(line for line in found.stdout.split("\n") if "==" in line)
