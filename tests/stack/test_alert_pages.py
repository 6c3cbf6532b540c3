"""What the guide and the runbook of alerts say works: every command in them runs, and every query."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from local_stack import RULES, wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECONDS = 60


def _blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


PAGES = ("alerts.md", "runbook.md")
COMMANDS = sorted({line for page in PAGES for block in _blocks(page, "console") for line in block.splitlines()})
QUERIES = sorted({line for block in _blocks("runbook.md", "promql") for line in block.splitlines()})


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_runbook_is_one(stack, query):
    assert isinstance(stack.prometheus.query(query), list)


def test_every_section_of_the_runbook_is_that_of_an_alert():
    sections = re.findall(r"^## (.+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    groups = yaml.safe_load((RULES / "alerts.yaml").read_text())["groups"]
    assert set(sections) == {rule["alert"] for group in groups for rule in group["rules"]}
    for text in re.split(r"^## .+$", (DOCS / "runbook.md").read_text(), flags=re.MULTILINE)[1:]:
        assert re.findall(r"^\*\*(\w+):\*\*", text, re.MULTILINE) == ["Meaning", "Check", "Do", "Silence"]


@pytest.fixture(scope="module")
def overflowed(stack):
    """A service of one turn that overflowed, whose spans Jaeger has."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    environment |= {
        "OTEL_SERVICE_NAME": "desk-of-the-runbook",
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.collector.otlp_http,
    }
    agent = [sys.executable, Path(__file__).with_name("brief_agent.py"), "overflow"]
    subprocess.run(agent, env=environment, check=True, timeout=SECONDS, capture_output=True)
    path = "/api/traces?service=desk-of-the-runbook"
    wait_until(lambda: stack.jaeger.get(path)["data"], seconds=SECONDS, what="its trace in Jaeger")
    return "desk-of-the-runbook"


@pytest.fixture(scope="module")
def evaluated(stack):
    """Prometheus answers queries before it evaluates its rules for the first time: until then there is no Watchdog."""
    watchdog = 'ALERTS{alertname="Watchdog"}'
    wait_until(lambda: stack.prometheus.query(watchdog), seconds=SECONDS, what="the rules' first evaluation")


#: Commands that tests of their own run, the first one in `test_alerts.py`.
ELSEWHERE = {
    "python examples/alert_receiver.py --host 127.0.0.1 --port 9095",
    "otel-assembly doctor",
    "promtool test rules dashboards/rules/tests/events.yaml",
}


def test_commands_that_are_run_elsewhere_are_in_the_pages():
    assert set(COMMANDS) >= ELSEWHERE


@pytest.mark.usefixtures("evaluated")
@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in ELSEWHERE])
def test_a_command_of_the_pages_runs(stack, programs, overflowed, tmp_path, command):
    for shown, real in {
        "http://127.0.0.1:16686": stack.jaeger.url,
        "http://127.0.0.1:9090": stack.prometheus.url,
        "http://127.0.0.1:9093": f"http://{stack.alertmanager.address}",
        "--service desk": f"--service {overflowed}",
        "-o turns.html": f"-o {tmp_path / 'turns.html'}",
    }.items():
        command = command.replace(shown, real)
    program, *arguments = shlex.split(command)
    if program == "otel-assembly":
        words = [sys.executable, "-m", "otel_assembly.cli", *arguments]
    else:
        words = [programs[program], *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).strip()
