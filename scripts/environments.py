"""Virtual environments for what has to be run against releases that are not the newest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def environment(folder: Path, requirements: tuple[str, ...], extras: str, base: str | Path = sys.executable) -> Path:
    """The interpreter of an environment with these requirements and us; made once, by another interpreter."""
    python = folder / "bin" / "python"
    done = folder / "ready"
    if not done.exists():
        subprocess.run([base, "-m", "venv", folder], check=True)
        # In one go: what we ask for and what the framework asks for have to be solved together.
        subprocess.run([python, *PIP, "install", *requirements, "-e", f"{ROOT}[{extras}]"], check=True)
        done.touch()
    return python
