"""Jars from Maven, cached by the hash of the pom that names them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from local_stack.builds import MODULES, BuildError, cache

_SECONDS: Final = 1800


def jars(name: str, *, program: str, package: str, megabytes: int) -> Path:
    """The folder with the jars of ``modules/<name>/pom.xml``, fetched where they are not there yet.

    Args:
        name: The folder of the pom.
        program: What of Java is needed to run them: ``java`` or ``javac``.
        package: What brings that program, for the message.
        megabytes: How much is fetched, for whoever waits.

    Raises:
        BuildError: Java or Maven is missing, or Maven could not fetch them.
    """
    pom = MODULES / name / "pom.xml"
    folder = cache() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if folder.exists():
        return folder
    for needed, brought_by in ((program, package), ("mvn", "Maven")):
        if shutil.which(needed) is None:
            raise BuildError(f"{name} needs {brought_by}, and there is no {needed} on the path")
    print(f"fetching {name} with Maven ({megabytes} MB, then never again) ...", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent) as temporary:
        fetched = Path(temporary) / "jars"
        command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if done.returncode:
            said = (done.stdout or done.stderr)[-2000:]
            raise BuildError(f"{name} could not be fetched: {' '.join(command)}\n{said}")
        # In one step, so that what was broken off is never taken for whole.
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder
