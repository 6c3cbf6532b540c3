"""``python -m dashboards`` writes the JSON; with ``--check`` it only says whether the committed JSON is that."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dashboards import agent, overview

FOLDER = Path(__file__).parent


def main() -> int:
    """1 where ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, and write nothing")
    check = parser.parse_args().check
    differs = False
    for dashboard in (overview.dashboard(), agent.dashboard()):
        file = FOLDER / f"{dashboard.name}.json"
        if not check:
            file.write_text(dashboard.json())
        elif not file.exists() or file.read_text() != dashboard.json():
            differs = True
            sys.stderr.write(f"{file.name} is not what the generator writes: run `python -m dashboards`\n")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
