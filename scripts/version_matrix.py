"""Run each framework's tests against the oldest and the newest releases that its hook tables speak of.

python scripts/version_matrix.py              # all
python scripts/version_matrix.py langchain
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import ROOT, environment

TOOLS = ("pytest>=8.3", "pytest-asyncio>=1.0", "pytest-timeout>=2.3", "hypothesis>=6.112")

RELEASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "ag2": (("ag2[openai]==0.12.2",), ("ag2[openai]==0.14.0",), ("ag2[openai]==1.0.0",), ("ag2[openai]<2",)),
    "autogen": (
        ("autogen-core==0.7.0", "autogen-agentchat==0.7.0", "autogen-ext==0.7.0"),
        ("autogen-core<0.8", "autogen-agentchat<0.8", "autogen-ext<0.8"),
    ),
    "agentscope": (("agentscope==2.0.4",), ("agentscope==2.0.10",)),
    "langchain": (
        ("langchain==1.0.0", "langchain-core==1.0.0", "langgraph==1.0.0", "langgraph-prebuilt==1.0.0"),
        ("langchain<2", "langchain-core<2", "langgraph<2"),
    ),
}


def main() -> int:
    """Run the matrix; 1 where a release does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", choices=[[], *RELEASES], metavar="FRAMEWORK", help=", ".join(RELEASES))
    parser.add_argument("--work", type=Path, help="keep the environments here (default: a temporary folder)")
    given = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        work = (given.work or Path(temporary)).absolute()
        for framework in given.frameworks or RELEASES:
            for number, release in enumerate(RELEASES[framework]):
                folder = work / f"{framework}-{number}"
                if not holds(framework, release, folder):
                    failed.append(" ".join(release))
                if given.work is None:
                    shutil.rmtree(folder)  # each takes half a gigabyte and more
    if failed:
        print("does not hold:", "; ".join(failed))
    return 1 if failed else 0


def holds(framework: str, release: tuple[str, ...], folder: Path) -> bool:
    """Whether every hook that the release should have takes, and the framework's tests pass on it."""
    python = environment(folder, (*release, *TOOLS), "otlp,cli")
    # Where CI is set, a test that is skipped fails the run; what an old release lacks is skipped here for good reason.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_") and name != "CI"}
    doctor = [python, "-m", "otel_assembly.cli", "doctor"]
    looked = subprocess.run(doctor, env=variables, capture_output=True, text=True, timeout=300, check=False)
    found = next((line.strip() for line in looked.stdout.splitlines() if f" {framework} " in line), looked.stderr)
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "frameworks" / framework)]
    # The examples are written for the newest releases.
    tests += ["--ignore-glob=*_examples.py", "--ignore-glob=*_program.py"]
    ran = subprocess.run(tests, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=1_800, check=False)
    lines = ran.stdout.strip().splitlines() or [ran.stderr.strip()]
    print(f"{' '.join(release)}: {found}; {lines[-1].strip('= ')}", flush=True)
    if looked.returncode or ran.returncode:
        print("\n".join(lines[-60:]) if ran.returncode else looked.stdout)
    return not looked.returncode and not ran.returncode


if __name__ == "__main__":
    sys.exit(main())
