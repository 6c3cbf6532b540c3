"""``python -m dashboards`` writes the dashboards and the recording rules; with ``--check`` it only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dashboards import agent, overview
from dashboards.recording import recording_rules

FOLDER = Path(__file__).parent


def main() -> int:
    """Write the generated files, or compare them with ``--check``; return 1 if a file differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, and write nothing")
    check = parser.parse_args().check
    differs = False
    for name, content in _files().items():
        file = FOLDER / name
        if not check:
            file.write_text(content)
        elif not file.exists() or file.read_text() != content:
            differs = True
            sys.stderr.write(
                f"dashboards/{name} differs from the generator's output; to write it, run: python -m dashboards\n"
            )
    return int(differs)


def _files() -> dict[str, str]:
    dashboards = {f"{dashboard.name}.json": dashboard.json() for dashboard in (overview.dashboard(), agent.dashboard())}
    return {**dashboards, "rules/recording.yaml": recording_rules()}


if __name__ == "__main__":
    sys.exit(main())
