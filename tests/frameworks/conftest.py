"""Running examples as a user does: in a process of their own, with nothing of OpenTelemetry in the environment."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import warnings

import pytest
from chat_provider import ChatProvider
from programs import AGENTS, ELSEWHERE, EXAMPLES, clean_environment
from telemetry.turn_checks import adds_up, turns_of

from otel_assembly.cli import main
from otel_assembly.instrumentation import instrument, instrumentor_of, uninstrument

#: `make test-matrix` runs them in environments of their own.
collect_ignore = [*ELSEWHERE, *([] if importlib.util.find_spec("openinference") else ["beside"])]


@pytest.fixture
def run_program(tmp_path):
    """Run a program in an empty folder; its output, once it has ended well."""

    def run(*command, status=0, **environment):
        done = subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path,
            env=clean_environment(tmp_path, **environment),
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


#: A program that knows nothing of us, with an SDK and one framework instrumented.
_TRACED = """import runpy, otel_assembly
from opentelemetry.instrumentation.auto_instrumentation import initialize
initialize()
otel_assembly.instrument({framework!r})
runpy.run_path({example!r}, run_name="__main__")"""
#: Which of these packages a framework's instrumentor imports.
_IMPORTED = """import json, sys, otel_assembly.instrumentation as i
i.instrument({framework!r})
from {module} import {name}
print(json.dumps([one for one in sys.modules if f"{{one}}.".startswith({packages!r})]))"""


@pytest.fixture
def imported(run_program):
    """Which modules of these packages a program has that instruments a framework, and imports nothing of it."""

    def modules(framework, *packages):
        made = type(instrumentor_of(framework))
        known = {"framework": framework, "module": made.__module__.rpartition(".")[0], "name": made.__name__}
        inside = tuple(f"{package}." for package in packages)
        return json.loads(run_program(sys.executable, "-c", _IMPORTED.format(packages=inside, **known)).stdout)

    return modules


@pytest.fixture
def explained(run_program, tmp_path, capsys):
    """What an unmodified agent of the examples says, traced or not, and what `explain` says of its lost request."""

    def lost(framework, *, turn):
        spans, example = tmp_path / "spans.jsonl", str(EXAMPLES / AGENTS[framework])
        traced = run_program(
            sys.executable,
            "-c",
            _TRACED.format(framework=framework, example=example),
            OTEL_TRACES_EXPORTER="otel_assembly_file",
            OTEL_ASSEMBLY_SPAN_FILE=str(spans),
            OTEL_METRICS_EXPORTER="none",
            OTEL_LOGS_EXPORTER="none",
        )
        assert traced.stdout == run_program(sys.executable, example).stdout
        assert main(["explain", "--traces", str(spans), "--item", "0", "--turn", str(turn)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "Item 0 (request" in told
        assert f"is not in the prompt of turn {turn}" in told
        return traced.stdout.splitlines(), told

    return lost


@pytest.fixture
def kept(run_program):
    """The last line of a plug-in's example, of which every other one says that the request is kept."""

    def said(framework):
        *turns, last = run_program(sys.executable, EXAMPLES / f"{framework}_budget_policy.py").stdout.splitlines()
        assert turns
        assert all(line.endswith("True") for line in turns)
        return last

    return said


@pytest.fixture
def provider():
    """A server of OpenAI's Chat Completions."""
    provider = ChatProvider()
    yield provider
    provider.close()
    with warnings.catch_warnings():  # some frameworks do not close their clients
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def instrumented(assembly_telemetry):
    """Instrument the named frameworks and clients until the test ends; what is told keeps to the contract."""
    yield instrument
    uninstrument()
    assert assembly_telemetry.violations() == []
    assert not assembly_telemetry.metrics.get("assembly.telemetry.errors")


@pytest.fixture(autouse=True)
def every_turn_adds_up(request):
    """Whatever a framework does: what is told of each turn adds up, for a reader of that turn alone."""
    telemetry = request.getfixturevalue("assembly_telemetry") if "assembly_telemetry" in request.fixturenames else None
    yield
    for turn in turns_of(telemetry) if telemetry is not None else ():
        adds_up(turn)
