"""Run each framework's tests against its newest release, or against the earlier ones that its hook tables speak of.

A newest release that is installed here is left out where no framework is named: `make test-frameworks` has run on it.
What cannot be installed beside the other frameworks has all of its tests here, the long ones too.
Beside the newest ones, each in an environment of its own: the tests with other vendors' instrumentors, and the whole
suite on the newest other Python that this machine has; with the earlier ones, on the Pythons before it, and the tests
of each extra with the oldest release that it takes (the newest is what `make test` has).

python scripts/version_matrix.py              # the newest of each, and all of that
python scripts/version_matrix.py --sample     # the same, and of the suite what may differ on another Python
python scripts/version_matrix.py --earlier    # the oldest of each, and what lies between
python scripts/version_matrix.py langchain
python scripts/version_matrix.py beside
python scripts/version_matrix.py --earlier mcp
python scripts/version_matrix.py python3.12
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

from environments import ROOT, development_requirements, environment, frameworks_apart, locked, pyproject
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOOLS = ("blockbuster>=1.5", "pytest>=8.3", "pytest-asyncio>=1.0", "pytest-timeout>=2.3", "hypothesis>=6.112")

FRAMEWORKS = ROOT / "tests" / "frameworks"

#: Of each framework from the oldest to the newest.
RELEASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "ag2": (
        ("ag2[openai]==0.12.2",),
        ("ag2[openai]==0.13.0",),
        ("ag2[openai]==0.14.0",),
        ("ag2[openai]==1.0.0",),
        ("ag2[openai]<2",),
    ),
    "autogen": (
        ("autogen-core==0.7.0", "autogen-agentchat==0.7.0", "autogen-ext[openai]==0.7.0"),
        ("autogen-core<0.8", "autogen-agentchat<0.8", "autogen-ext[openai]<0.8"),
    ),
    "agentscope": (("agentscope==2.0.4",), ("agentscope==2.0.10",)),
    "langchain": (
        ("langchain==1.0.0", "langchain-core==1.0.0", "langgraph==1.0.0", "langgraph-prebuilt==1.0.0"),
        ("langchain<2", "langchain-core<2", "langgraph<2", "langchain-classic<2", "langmem"),
    ),
    # Each release of the harness is for one release of the framework.
    "pydantic_ai": (("pydantic-ai-slim==2.0.0",), ("pydantic-ai-slim<3", "pydantic-ai-harness")),
    "agent_framework": (("agent-framework-core==1.11.0",), ("agent-framework-core<2",)),
    # Compaction came with 3.1.
    "haystack": (
        ("haystack-ai==3.0.0",),
        ("haystack-ai==3.1.0",),
        ("haystack-ai<4",),
    ),
    "strands": (
        ("strands-agents==1.30.0",),
        ("strands-agents==1.51.0",),
        ("strands-agents==1.56.0",),
        ("strands-agents<2",),
    ),
    # The earlier ones break with later releases of OpenAI's client than they were made with.
    "openai_agents": (
        ("openai-agents==0.12.0", "openai==2.26.0"),
        ("openai-agents==0.17.0", "openai==2.36.0"),
        ("openai-agents<1",),
    ),
    "google_adk": (("google-adk==2.0.0", "aiosqlite", "rich", "shtab"), ("google-adk<3", "aiosqlite")),
    "semantic_kernel": (
        ("semantic-kernel==1.38.0", "httpx", "protobuf"),  # which it imports, and does not ask for
        ("semantic-kernel<2",),
    ),
    # These call models through OpenAI's client, which they do not ask for, or through LiteLLM.
    "crewai": (("crewai==1.15.25",), ("crewai<2",)),
    "smolagents": (("smolagents[openai]==1.20.0",), ("smolagents[openai]<2",)),
    "dspy": (("dspy==3.0.0",), ("dspy<4",)),
    "agno": (("agno==2.5.0", "openai"), ("agno<4", "openai")),
    "llama_index": (("llama-index-core==0.14.5",), ("llama-index-core<0.15", "llama-index-observability-otel")),
}
#: Releases that keep OpenTelemetry's SDK below what the span file's exporter takes, which our extras ask for.
WITHOUT_SPAN_FILE = frozenset({"google-adk==2.0.0"})

#: The tests of our own model clients, and those of instrumented clients.
MODEL_CLIENTS = ("runtime/test_model_clients.py", "runtime/test_thinking.py", "runtime/test_structured_answers.py")
_CLIENT_TESTS = ("answers", "conversation", "litellm_forms", "provider_apis", "provider_clients", "requests")
INSTRUMENTED_CLIENTS = tuple(f"instrumentation/provider_clients/test_{test}.py" for test in _CLIENT_TESTS)
#: The tests of each extra that stands for packages of others; what it takes at least is read from `pyproject.toml`.
FLOORS: dict[str, tuple[str, ...]] = {
    "openai": (*MODEL_CLIENTS, *INSTRUMENTED_CLIENTS),
    "anthropic": (*MODEL_CLIENTS, *INSTRUMENTED_CLIENTS),
    "google-genai": INSTRUMENTED_CLIENTS,
    "litellm": INSTRUMENTED_CLIENTS,
    "botocore": INSTRUMENTED_CLIENTS,
    "mcp": ("runtime/test_mcp_tools.py",),
    "redis": ("knowledge/test_redis.py", "knowledge/test_stores.py"),
    "genai": ("runtime/test_tracing_middleware.py",),
}
#: Extras that these tests need beside their own.
BESIDE_FLOORS = "otlp,cli,openai,anthropic,google-genai,botocore,genai,mcp,redis"
#: Releases of an extra's package between its oldest and its newest one, on which these tests run, too.
BETWEEN: dict[str, tuple[str, ...]] = {"openai": ("openai==2.0.0",), "anthropic": ("anthropic==1.0.0",)}

#: It brings a module `opentelemetry.util.genai` of its own, so it has an environment without OpenTelemetry's.
LOONGSUITE = "loongsuite-instrumentation-agentscope"
#: They are installed for no other tests, for they would instrument every program that is run there.
INSTRUMENTORS = (
    "logfire",
    "openinference-instrumentation-agent-framework",
    "openinference-instrumentation-anthropic",
    "openinference-instrumentation-autogen-agentchat",
    "openinference-instrumentation-haystack",
    "openinference-instrumentation-langchain",
    "openinference-instrumentation-openai",
    "openinference-instrumentation-openai-agents",
    "openinference-instrumentation-pydantic-ai",
    "opentelemetry-instrumentation-anthropic",
    "opentelemetry-instrumentation-genai-anthropic",
    "opentelemetry-instrumentation-genai-openai",
    "opentelemetry-instrumentation-langchain",
    "opentelemetry-instrumentation-openai",
)
BESIDE = "beside"

#: Tests whose outcome may depend on the Python: event loops, threads, forks, wrapped functions, JSON and
#: annotations. The other tests compute; with `--sample` they run on one Python only.
DIFFERING_BY_PYTHON = (
    "forks",
    "frameworks/test_auto_instrumentation.py",
    "frameworks/test_beside_others.py",
    "frameworks/test_demonstrations.py",
    "instrumentation",
    "messages",
    "runtime",
    "sessions",
    "test_halts.py",
    "test_many_at_once.py",
    "test_public_names.py",
    "test_typing.py",
)
#: Those that are promised; the newest needs not be everywhere yet.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: `make test` has run the suite on it.
THIS_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    """Run the matrix; 1 where a release does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pythons = {f"python{version}": version for version in PYTHONS}
    known = (*RELEASES, *FLOORS, BESIDE, *pythons)
    parser.add_argument("names", nargs="*", choices=[[], *known], metavar="NAME", help=", ".join(known))
    parser.add_argument("--sample", action="store_true", help="on another Python only the tests that may differ there")
    parser.add_argument("--earlier", action="store_true", help="all releases of the frameworks but the newest")
    given = parser.parse_args()
    names = given.names or [*RELEASES, *FLOORS, BESIDE, *pythons_here(earlier=given.earlier)]
    cells = [cell for name in names for cell in cells_of(name, earlier=given.earlier, sample=given.sample)]
    if not (given.names or given.earlier):
        there = newest_here()
        cells = [cell for cell in cells if cell[0] not in there]
    # Of a cell's tests one runs after the other, so that there are as many cells at once as processors.
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        passed = list(workers.map(lambda cell: cell[1](), cells))
    failed = [what for (what, _), holding in zip(cells, passed, strict=True) if not holding]
    tests = DIFFERING_BY_PYTHON if given.sample else ("",)
    failed += [name for name in names if name in pythons and not suite_passes(name, pythons[name], tests)]
    if failed:
        print("does not hold:", "; ".join(failed))
    return 1 if failed else 0


def cells_of(name: str, *, earlier: bool, sample: bool = False) -> Iterator[tuple[str, Callable[[], bool]]]:
    """The releases of a framework or an extra, or what runs beside other instrumentors: what it is, and its tests."""
    *before, newest = RELEASES.get(name, ((),))
    apart = name in frameworks_apart()
    if name in FLOORS and earlier:
        for release in (" ".join(floors_of(name)), *BETWEEN.get(name, ())):
            yield release, partial(floor_holds, name, release)
    if name == BESIDE and not earlier:
        yield name, runs_beside
    for release in before if earlier else filter(None, (newest,)):
        whole = apart and not earlier
        yield " ".join(release), partial(holds, name, release, whole=whole, exhaustive=whole and not sample)


def newest_here() -> set[str]:
    """The newest releases, as requirements, that `make test-frameworks` runs on."""
    newest = [releases[-1] for releases in RELEASES.values()]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        here = workers.map(is_here, newest)
        return {" ".join(release) for release, there in zip(newest, here, strict=True) if there}


def is_here(release: tuple[str, ...]) -> bool:
    """Whether what these requirements come to now is installed in this very environment."""
    found = dict(line.split("==", 1) for line in locked(sys.executable, release))
    named = [Requirement(item).name for item in release]
    try:
        here = {name: installed_version(name) for name in named}
    except PackageNotFoundError:
        return False
    newest = {canonicalize_name(name): at for name, at in found.items()}
    same = all(newest[canonicalize_name(name)] == at for name, at in here.items())
    if same:
        print(f"{' '.join(f'{name} {at}' for name, at in here.items())}: installed here", flush=True)
    return same


def interpreter(version: str) -> Path | None:
    """A Python of this version that runs: by its name on the path, or among pyenv's, whose names there may run none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    for found in (*([named] if named else []), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)):
        say = "import sys; print('%d.%d' % sys.version_info[:2])"
        ran = subprocess.run([found, "-c", say], capture_output=True, text=True, timeout=60, check=False)
        if not ran.returncode and ran.stdout.strip() == version:
            return Path(found)
    return None


def pythons_here(*, earlier: bool) -> list[str]:
    """The newest of the other Pythons that this machine has, or those before it."""
    here = [f"python{version}" for version in PYTHONS if interpreter(version) is not None]
    others = [name for name in here if name != THIS_PYTHON]
    return others[:-1] if earlier else others[-1:]


def suite_passes(name: str, version: str, tests: tuple[str, ...]) -> bool:
    """Whether these tests pass on a Python, without the slow ones; one that is not here does not."""
    base = interpreter(version)
    if base is None:
        print(f"{name}: not on this machine", flush=True)
        return False
    options = ("--ignore=tests/stack", "-m", "not slow", "-n", "auto", "--dist", "worksteal")
    with environment(name, development_requirements(), "all", base) as python:
        first, *others = (ROOT / "tests" / test for test in tests)
        return tests_pass(python, first, name, *map(str, others), *options)


def holds(framework: str, release: tuple[str, ...], *, whole: bool, exhaustive: bool) -> bool:
    """Whether every hook that the release should have takes, and the framework's tests pass on it.

    Args:
        framework: Whose release it is.
        release: Its requirements.
        whole: Whether to run all tests of the framework, because no other command runs them: also the slow ones, its
            examples, and the tests that have each framework as a parameter. The plug-ins' tests always run.
        exhaustive: Whether the tests marked so run, too.
    """
    # The examples are written for the newest releases.
    options: tuple[str, ...] = ("--ignore-glob=*_examples.py", "--ignore-glob=*_program.py")
    of_all = [FRAMEWORKS / "plugins"]
    if whole:
        of_all += [*sorted(FRAMEWORKS.glob("test_*.py")), ROOT / "tests" / "test_public_names.py"]
        options = ()
    options = (*map(str, of_all), "-k", framework, *options)
    if not exhaustive:
        options = (*options, "-m", "not exhaustive")
    variables = clean_environment()
    extras = framework.replace("_", "-") if WITHOUT_SPAN_FILE & set(release) else "otlp,cli"
    with environment(" ".join(release), (*release, *TOOLS), extras) as python:
        doctor = [python, "-m", "otel_assembly.cli", "doctor"]
        looked = subprocess.run(doctor, env=variables, capture_output=True, text=True, timeout=300, check=False)
        found = next((line.strip() for line in looked.stdout.splitlines() if f" {framework} " in line), looked.stderr)
        passed = tests_pass(python, FRAMEWORKS / framework, f"{' '.join(release)}: {found}", *options)
    if looked.returncode and passed:
        print(looked.stdout)
    return not looked.returncode and passed


def floors_of(extra: str) -> tuple[str, ...]:
    """The oldest releases that an extra takes, as requirements."""
    wanted = map(Requirement, pyproject()["project"]["optional-dependencies"][extra])
    return tuple(f"{item.name}=={at.version}" for item in wanted for at in item.specifier if at.operator == ">=")


def floor_holds(extra: str, release: str) -> bool:
    """Whether the tests of an extra pass with this release, its oldest one or one between that and the newest."""
    with environment(f"{release} floor", (*release.split(), *TOOLS), BESIDE_FLOORS) as python:
        first, *others = (ROOT / "tests" / requirement for requirement in FLOORS[extra])
        return tests_pass(python, first, release, *map(str, others))


def runs_beside() -> bool:
    """Return whether programs run as they do alone if other vendors instrument them, too, and we record them."""
    requirements = (*INSTRUMENTORS, *TOOLS, "autogen-ext[openai]>=0.7,<0.8")
    folder, limit = FRAMEWORKS / BESIDE, ("--timeout", "300")
    with environment(BESIDE, requirements, "all") as python:
        passed = tests_pass(python, folder, "beside other instrumentors", *limit, "-k", "not loongsuite")
    with environment(f"{BESIDE} loongsuite", (LOONGSUITE, *TOOLS), "otlp,cli,agentscope") as python:
        return tests_pass(python, folder, "beside LoongSuite", *limit, "-k", "loongsuite") and passed


def clean_environment() -> dict[str, str]:
    """Nothing of OpenTelemetry in it, and no CI.

    Where CI is set, a test that is skipped fails the run; what an old release lacks is skipped here for good reason.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("OTEL_") and name != "CI"}


def tests_pass(python: Path, folder: Path, title: str, *options: str) -> bool:
    """Whether a folder of tests passes; a line says so, and what failed."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder), *options]
    environ = clean_environment()
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=3_600, check=False)
    lines = ran.stdout.strip().splitlines() or [ran.stderr.strip()]
    print(f"{title}; {lines[-1].strip('= ')}", flush=True)
    if ran.returncode:
        print("\n".join(lines[-60:]))
    return not ran.returncode


if __name__ == "__main__":
    sys.exit(main())
