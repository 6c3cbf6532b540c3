"""Whole programs: the examples, under ``opentelemetry-instrument``, and what is imported when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from otel_assembly.cli import main
from otel_assembly.instrumentation import AutoGenInstrumentor, HookState, instrument, uninstrument

ROOT = Path(__file__).parents[3]


def run(*command, **environment):
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(tmp_path, capsys):
    spans = tmp_path / "spans.jsonl"
    said = run(
        "-c",
        "from opentelemetry.instrumentation.auto_instrumentation import run; run()",
        sys.executable,
        str(ROOT / "examples" / "autogen_agent.py"),
        OTEL_TRACES_EXPORTER="otel_assembly_file",
        OTEL_ASSEMBLY_SPAN_FILE=str(spans),
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert said == run(str(ROOT / "examples" / "autogen_agent.py"))
    assert "I know of nothing that the kitchen has to know" in said
    explain = ["explain", "--traces", str(spans), "--item", "0", "--turn"]
    assert main([*explain, "1"]) == 0
    assert "is in the prompt of turn 1" in capsys.readouterr().out
    assert main([*explain, "5"]) == 0
    lost = " ".join(capsys.readouterr().out.split())
    assert "Item 0 (request" in lost
    assert "is not in the prompt of turn 5" in lost
    assert "buffered (policy 0), outside_window" in lost


def test_the_plug_in_s_example_halts_before_the_model_is_called():
    said = run(str(ROOT / "examples" / "autogen_budget_policy.py")).splitlines()
    assert "Is everything noted?" in said[-2]
    assert said[-1].startswith("halted before the model was called")


def test_a_team_s_example_holds_its_limit_and_parts_no_pair():
    said = run(str(ROOT / "examples" / "autogen_contexts.py")).splitlines()
    clerk = [line for line in said if line.startswith("clerk")]
    assert len(clerk) == 8
    for line in clerk:
        kinds = line.split(": ")[-1].split()
        assert int(line.split(":")[1].split()[0]) <= 40
        assert kinds[0] == "System"
        assert kinds[1] != "FunctionExecutionResult"
    assert len(clerk[-1].split()) < 20  # something left
    assert said[-1].endswith("System User User Assistant User")  # how it began, how many were skipped, the newest


def test_every_hook_takes():
    import autogen_agentchat.agents
    import autogen_agentchat.teams  # noqa: F401  # what the hooks wait for

    instrument("autogen")
    try:
        assert set(AutoGenInstrumentor().states.values()) == {HookState.TAKEN}
    finally:
        uninstrument("autogen")


def test_nothing_of_autogen_is_imported_for_it():
    program = (
        "import sys, otel_assembly.instrumentation as i; i.instrument('autogen');"
        "from otel_assembly.instrumentation.autogen import AutoGenInstrumentor;"
        "print([name for name in sys.modules if name.split('.')[0].startswith('autogen')])"
    )
    assert run("-c", program).strip() == "[]"
