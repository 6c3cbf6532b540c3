"""Run each framework's tests against the oldest and the newest releases that its hook tables speak of.

Beside that, in an environment of their own, the tests with other vendors' instrumentors.

python scripts/version_matrix.py              # all
python scripts/version_matrix.py langchain
python scripts/version_matrix.py beside
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
        ("autogen-core==0.7.0", "autogen-agentchat==0.7.0", "autogen-ext[openai]==0.7.0"),
        ("autogen-core<0.8", "autogen-agentchat<0.8", "autogen-ext[openai]<0.8"),
    ),
    "agentscope": (("agentscope==2.0.4",), ("agentscope==2.0.10",)),
    "langchain": (
        ("langchain==1.0.0", "langchain-core==1.0.0", "langgraph==1.0.0", "langgraph-prebuilt==1.0.0"),
        ("langchain<2", "langchain-core<2", "langgraph<2"),
    ),
}

#: They are installed for no other tests, for they would instrument every program that is run there.
INSTRUMENTORS = (
    "openinference-instrumentation-autogen-agentchat",
    "openinference-instrumentation-langchain",
    "openinference-instrumentation-openai",
    "opentelemetry-instrumentation-langchain",
    "opentelemetry-instrumentation-openai",
)
BESIDE = "beside"


def main() -> int:
    """Run the matrix; 1 where a release does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = (*RELEASES, BESIDE)
    parser.add_argument("frameworks", nargs="*", choices=[[], *known], metavar="FRAMEWORK", help=", ".join(known))
    parser.add_argument("--work", type=Path, help="keep the environments here (default: a temporary folder)")
    given = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        work = (given.work or Path(temporary)).absolute()
        for framework in given.frameworks or known:
            for number, release in enumerate(RELEASES.get(framework, (INSTRUMENTORS,))):
                folder = work / f"{framework}-{number}"
                holding = runs_beside(folder) if framework == BESIDE else holds(framework, release, folder)
                if not holding:
                    failed.append(" ".join(release))
                if given.work is None:
                    shutil.rmtree(folder)  # each takes half a gigabyte and more
    if failed:
        print("does not hold:", "; ".join(failed))
    return 1 if failed else 0


def holds(framework: str, release: tuple[str, ...], folder: Path) -> bool:
    """Whether every hook that the release should have takes, and the framework's tests pass on it."""
    python = environment(folder, (*release, *TOOLS), "otlp,cli")
    variables = clean_environment()
    doctor = [python, "-m", "otel_assembly.cli", "doctor"]
    looked = subprocess.run(doctor, env=variables, capture_output=True, text=True, timeout=300, check=False)
    found = next((line.strip() for line in looked.stdout.splitlines() if f" {framework} " in line), looked.stderr)
    # The examples are written for the newest releases.
    passed = tests_pass(
        python, framework, f"{' '.join(release)}: {found}", "--ignore-glob=*_examples.py", "--ignore-glob=*_program.py"
    )
    if looked.returncode and passed:
        print(looked.stdout)
    return not looked.returncode and passed


def runs_beside(folder: Path) -> bool:
    """Whether programs run as they do alone where other vendors instrument them too, and we tell of them."""
    python = environment(folder, (*INSTRUMENTORS, *TOOLS, "autogen-ext[openai]>=0.7,<0.8"), "all")
    return tests_pass(python, BESIDE, "beside other instrumentors", "--timeout", "300")


def clean_environment() -> dict[str, str]:
    """Nothing of OpenTelemetry in it, and no CI.

    Where CI is set, a test that is skipped fails the run; what an old release lacks is skipped here for good reason.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("OTEL_") and name != "CI"}


def tests_pass(python: Path, tests: str, title: str, *options: str) -> bool:
    """Whether a folder of the frameworks' tests passes; a line says so, and what failed."""
    folder = str(ROOT / "tests" / "frameworks" / tests)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder, *options]
    environ = clean_environment()
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=1_800, check=False)
    lines = ran.stdout.strip().splitlines() or [ran.stderr.strip()]
    print(f"{title}; {lines[-1].strip('= ')}", flush=True)
    if ran.returncode:
        print("\n".join(lines[-60:]))
    return not ran.returncode


if __name__ == "__main__":
    sys.exit(main())
