"""Whole programs: the examples, traced or not, and what is imported when."""

from __future__ import annotations

import sys

from programs import EXAMPLES

from otel_assembly.cli import main
from otel_assembly.instrumentation import AutoGenInstrumentor, HookState, instrument, uninstrument


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained, tmp_path, capsys):
    said, lost = explained("autogen", turn=5)
    assert any("I know of nothing that the kitchen has to know" in line for line in said)
    assert "buffered (policy 0), outside_window" in lost
    assert main(["explain", "--traces", str(tmp_path / "spans.jsonl"), "--item", "0", "--turn", "1"]) == 0
    assert "is in the prompt of turn 1" in capsys.readouterr().out


def test_the_plug_in_s_example_halts_before_the_model_is_called(run_program):
    said = run_program(sys.executable, EXAMPLES / "autogen_budget_policy.py").stdout.splitlines()
    assert "Is everything noted?" in said[-2]
    assert said[-1].startswith("halted before the model was called")


def test_a_team_s_example_holds_its_limit_and_parts_no_pair(run_program):
    said = run_program(sys.executable, EXAMPLES / "autogen_contexts.py").stdout.splitlines()
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


def test_nothing_of_autogen_is_imported_for_it(imported):
    assert imported("autogen", "autogen_core", "autogen_agentchat", "autogen_ext") == []
