"""The examples, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(*command, **variables):
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {
        **os.environ,
        "PATH": path,
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        **variables,
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_agent_that_imports_nothing_of_ours_is_explained(tmp_path):
    example, spans = ROOT / "examples" / "langchain_agent.py", tmp_path / "spans.jsonl"
    assert "otel_assembly" not in example.read_text(encoding="utf-8").split('"""')[2]
    told = run(
        "opentelemetry-instrument",
        "python",
        str(example),
        OTEL_TRACES_EXPORTER="otel_assembly_file",
        OTEL_ASSEMBLY_SPAN_FILE=str(spans),
    )
    assert told.rstrip().endswith("What would you like me to do with them?")
    explained = run("otel-assembly", "explain", "--traces", str(spans), "--turn", "20", "--item", "0")
    assert explained.startswith("Item 0 (request, ")
    assert "is not in the prompt of turn 20." in explained
    assert "summarization (policy 0), over_budget" in explained


def test_the_budget_keeps_the_request():
    told = run("python", str(ROOT / "examples" / "langchain_budget_policy.py"), OTEL_TRACES_EXPORTER="none")
    assert told.count("the request: True") == 31
    assert "the request: False" not in told
