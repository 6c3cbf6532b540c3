"""Run the frameworks' own tests without us and with us, and compare their outcomes, test by test.

The tests come from the frameworks' source distributions, or from a checkout that is named. Each suite runs in a virtual
environment of its own, twice; in the second run a pytest plugin instruments everything, with an SDK that records, and
counts the model calls: each must have had its assembly.

    python scripts/upstream_suites.py                    # all whose source distribution carries tests
    python scripts/upstream_suites.py --sample           # one test in four of each, the same ones each time
    python scripts/upstream_suites.py langchain
    python scripts/upstream_suites.py agentscope --checkout path/to/agentscope
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environments import PIP, environment
from upstream_table import NETWORK_PLUGIN, SUITES, Suite

#: Of a suite, `--sample` runs one test in so many.
SAMPLE = 4
#: An object's address, in the name of a test that is given one.
ADDRESS = re.compile("0x[0-9a-f]+")


def main() -> int:
    """Run what was asked for; 1 where an outcome differs, or where we saw nothing of a suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(suite.name for suite in SUITES))
    parser.add_argument("--checkout", type=Path, help="where a suite's sources are that its release does not carry")
    parser.add_argument("--sample", action="store_true", help="run a fixed sample of each suite's tests")
    parser.add_argument("--work", type=Path, help="keep sources and reports here (default: a temporary folder)")
    given = parser.parse_args()
    unknown = set(given.suites) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [suite for suite in SUITES if suite.name in given.suites or (not given.suites and not suite.checkout)]
    with tempfile.TemporaryDirectory() as temporary:
        work = (given.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        # The tests of a suite run one after the other, so that there are as many suites at once as processors.
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            alike = list(workers.map(lambda suite: compare(suite, work, given.checkout, sample=given.sample), chosen))
    failed = [suite.name for suite, same in zip(chosen, alike, strict=True) if not same]
    if failed:
        print(f"differing: {', '.join(failed)}")
    return 1 if failed else 0


def compare(suite: Suite, work: Path, checkout: Path | None, *, sample: bool) -> bool:
    """Run a suite twice, and print what came of it."""
    sources = checkout.absolute() if suite.checkout and checkout is not None else unpacked(suite, work)
    written = work / f"{suite.name}-seen.json"
    with environment(f"suite {suite.name}", (suite.distribution, *suite.needs), suite.extras) as python:

        def once() -> tuple[dict[str, str], dict[str, str]]:
            report = work / f"{suite.name}-without.xml"
            without = outcomes(suite, python, sources, report, instrumented=False, sample=sample)
            report = work / f"{suite.name}-with.xml"
            return without, outcomes(suite, python, sources, report, instrumented=True, seen=written, sample=sample)

        without, with_us = once()
        changed = differing(without, with_us)
        if changed:  # some of them are a matter of timing: what differs because of us differs again
            changed &= differing(*once())
    seen = json.loads(written.read_text(encoding="utf-8"))
    counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(Counter(without.values()).items()))
    if suite.plugin is NETWORK_PLUGIN:
        return compared_on_ours(suite, counts, seen, changed, without, with_us)
    missing = sum(seen["untold"].values())
    print(
        f"{suite.distribution}: {counts or 'no tests'}; with us {seen['calls']} model calls, "
        f"{seen['calls'] - missing} of them with an assembly, and {seen['summaries']} of summarisers",
        flush=True,
    )
    print_changed(changed, without, with_us)
    for test, number in seen["untold"].items():
        print(f"  {test}: {number} model calls without an assembly")
    for reason, number in seen["reasons"].items():
        print(f"  {reason}: {number} times, which is no model call")
    if seen["failures"]:
        print(f"  {seen['failures']} failures of our own telemetry")
    # Few tests of some suites call a model, and a sample may have none of these.
    is_observed = seen["assemblies"] > 0 or (sample and not seen["calls"])
    return not changed and not missing and not seen["failures"] and bool(without) and is_observed


def compared_on_ours(
    suite: Suite, counts: str, seen: dict[str, int], changed: set[str], without: dict[str, str], with_us: dict[str, str]
) -> bool:
    """Print what came of tests that ran on our protocols instead of the framework's."""
    folds, decisions = seen.get("folds", 0), seen.get("decisions", 0)
    print(
        f"{suite.distribution}, its network: {counts or 'no tests'}; on our protocols {folds} envelopes folded and "
        f"{decisions} decisions made",
        flush=True,
    )
    print_changed(changed, without, with_us)
    return not changed and bool(without) and folds > 0 and decisions > 0


def print_changed(changed: set[str], without: dict[str, str], with_us: dict[str, str]) -> None:
    """The tests that ended otherwise, one a line."""
    for test in sorted(changed):
        print(f"  {test}: {without.get(test, 'not run')} without us, {with_us.get(test, 'not run')} with us")


def differing(without: dict[str, str], with_us: dict[str, str]) -> set[str]:
    """The tests that ended otherwise."""
    return {test for test in {*without, *with_us} if without.get(test) != with_us.get(test)}


def unpacked(suite: Suite, work: Path) -> Path:
    """The release's source distribution, unpacked."""
    name, version = suite.release
    folder = work / f"{name.replace('-', '_')}-{version}"
    if not folder.exists():
        subprocess.run(
            [sys.executable, *PIP, "download", "--no-deps", "--no-binary", name, "--dest", work, suite.distribution],
            check=True,
        )
        with tarfile.open(next(work.glob(f"{folder.name}.tar.gz"))) as archive:
            archive.extractall(work, filter="data")
    return folder


def outcomes(
    suite: Suite,
    python: Path,
    sources: Path,
    report: Path,
    *,
    instrumented: bool,
    sample: bool,
    seen: Path | None = None,
) -> dict[str, str]:
    """Run a suite, and return the outcome of each test by its name."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *suite.options]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", **dict(suite.variables)}
    variables["PYTHONPATH"] = str(sources / suite.helpers)
    if sample:
        command += ["-p", "upstream_sample"]
        variables |= {"UPSTREAM_SAMPLE": str(SAMPLE)}
        variables["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parent}"
    if instrumented:
        for plugin in (suite.plugin.stem, *suite.plugins):
            command += ["-p", plugin]
        variables |= {
            "PYTHONPATH": os.pathsep.join((str(suite.plugin.parent), variables["PYTHONPATH"])),
            "UPSTREAM_FRAMEWORK": suite.framework,
            "UPSTREAM_SEEN": str(seen),
        }
    existing = [test for test in suite.tests if (sources / test).exists()]
    if not existing:
        raise SystemExit(f"{suite.name}: {sources} has none of its tests; name sources that have them with --checkout")
    done = subprocess.run(
        [*command, *existing], cwd=sources, env=variables, capture_output=True, text=True, timeout=1_800, check=False
    )
    if not report.exists():
        raise SystemExit(f"{suite.name}: pytest could not run\n{done.stdout[-3_000:]}{done.stderr[-3_000:]}")
    return {
        ADDRESS.sub("0x", f"{case.get('classname')}::{case.get('name')}"): next(
            (child.tag for child in case if child.tag in {"failure", "error", "skipped"}), "passed"
        )
        for case in ET.parse(report).iter("testcase")
    }


if __name__ == "__main__":
    sys.exit(main())
