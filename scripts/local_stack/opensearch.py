"""An OpenSearch of one node, for the storage of a fleet's Jaeger; from Maven, without Docker."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Final

from local_stack.builds import MODULES, BuildError, cache
from local_stack.processes import LOOPBACK, Server, answers, free_port

NEEDED_JAVA: Final = 17
_POM: Final = MODULES / "opensearch" / "pom.xml"
_NODE: Final = MODULES / "opensearch" / "OpenSearchNode.java"
_SECONDS: Final = 1800


def jars() -> Path:
    """The folder with OpenSearch's jars, fetched with Maven where it is not there yet.

    Raises:
        BuildError: Java or Maven is missing, or Maven could not fetch them.
    """
    folder = cache() / f"opensearch-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:16]}"
    if folder.exists():
        return folder
    for program, package in (("javac", f"a JDK of Java {NEEDED_JAVA} or later"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise BuildError(f"OpenSearch needs {package}, and there is no {program} on the path")
    print("fetching OpenSearch with Maven (53 MB, then never again) ...", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="opensearch-", dir=folder.parent) as temporary:
        fetched = Path(temporary) / "jars"
        command = ["mvn", "-B", "-q", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if done.returncode:
            said = (done.stdout or done.stderr)[-2000:]
            raise BuildError(f"OpenSearch could not be fetched: {' '.join(command)}\n{said}")
        # In one step, so that what was broken off is never taken for whole.
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


class OpenSearch(Server):
    """One node without security, so that anybody on this machine may read and write it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        super().__init__(
            "opensearch",
            [
                "java",
                "-Xms512m",
                "-Xmx512m",
                "-cp",
                f"{jars()}/*",
                _NODE,
                folder / "opensearch-data",
                self.port,
                free_port(),
            ],
            folder=folder,
            ready=lambda: answers(f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=1s"),
            seconds=180,
        )

    @property
    def url(self) -> str:
        """Its API."""
        return f"http://{LOOPBACK}:{self.port}"

    def get(self, path: str) -> Any:
        """What its API answers, decoded."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)
