"""What docs/jaeger.md says works: its commands run on the stack, its searches and attributes are tested ones."""

from __future__ import annotations

import json
import re
import subprocess

import jaeger_api
import pytest
from jaeger_api import ROOT, SEARCHES, STORAGE_SEARCHES, Trace, search, tags
from local_stack import wait_until

from otel_assembly.telemetry import conventions_registry as registry

GUIDE = (ROOT / "docs" / "jaeger.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```console\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
SERVICE = "support-agent"


@pytest.fixture(scope="module")
def shell(stack, tmp_path_factory):
    """Run a line of the guide with the addresses of this stack."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "examples").symlink_to(ROOT / "examples")
    addresses = {
        "127.0.0.1:4317": stack.collector.otlp_grpc,
        "127.0.0.1:16686": stack.jaeger.url.removeprefix("http://"),
        "127.0.0.1:9090": stack.prometheus.url.removeprefix("http://"),
        "127.0.0.1:9093": stack.alertmanager.address,
    }

    def run(line):
        for shown, here in addresses.items():
            line = line.replace(shown, here)
        assert not re.search(r"127\.0\.0\.1:(4317|4318|16686|9090|9093)\b", line)
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=folder,
            env=jaeger_api.environment(folder, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=""),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def command(beginning):
    (found,) = [line for line in COMMANDS if re.search(rf"(^| ){beginning}", line)]
    return found


@pytest.fixture(scope="module")
def ran(stack, shell):
    """The guide's agent has run, and is in Jaeger."""
    said = shell(command("opentelemetry-instrument"))
    assert "HALTED" in said
    wait_until(lambda: len(search(stack.jaeger, SERVICE)) >= 5, seconds=60, what="the agent's five traces in Jaeger")
    wait_until(lambda: _last(stack).named("invoke_agent support"), seconds=60, what="the last run's own span")


def _last(stack):
    return max((Trace(data) for data in search(stack.jaeger, SERVICE)), key=lambda trace: trace.spans[0]["startTime"])


def test_every_command_of_the_guide_is_one_that_these_tests_run():
    programs = (
        "make stack",
        "docker compose",
        "OTEL_SERVICE_NAME",
        "OTEL_EXPORTER",
        "curl",
        "otel-assembly explain",
        "otel-assembly view",
    )
    assert len(COMMANDS) == len(programs)
    for line, program in zip(COMMANDS, programs, strict=True):
        assert line.startswith(program)
    assert re.search(r"^stack:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert (ROOT / "collectors" / "compose.yaml").is_file()


def test_the_doctor_of_the_guide_finds_everything(shell):
    said = shell(command("otel-assembly doctor"))
    assert "✖" not in said
    assert "in Jaeger " in said
    assert "in Prometheus " in said


def test_the_tree_of_the_guide_is_that_of_the_agent_s_last_trace(stack, ran):
    (drawn,) = re.findall(r"^```text\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    shown = [re.match(r"[│├└─ ]*(\w+(?: \w+)?)\s*(ERROR)?", line).groups() for line in drawn.splitlines()]
    trace = _last(stack)
    spans = _in_order(trace.tree())
    assert [name for name, _ in shown] == spans
    red = {name: sum("otel.status_code" in tags(span) for span in trace.named(name)) for name in set(spans)}
    assert {name: [s for n, s in shown if n == name].count("ERROR") for name in red} == red
    window = tags(trace.named("apply_policy sliding_window")[0])
    assert window["assembly.dropped.count"] == ("int64", 20)
    budget = tags(trace.named("apply_policy token_budget")[0])
    assert json.loads(budget["assembly.policy.config"][1])["max_tokens"] == 600
    assert budget["assembly.overflow.tokens"] == ("int64", 1023)


def _in_order(tree):
    return [name for span, under in tree for name in (span, *_in_order(under))]


def test_the_search_by_curl_finds_the_overflows(shell, ran):
    found = json.loads(shell(command("curl")))["data"]
    assert len(found) == 2
    assert {span["operationName"].split()[0] for trace in found for span in trace["spans"]} >= {"assemble_context"}


def test_explain_and_view_of_the_guide_answer(shell, ran):
    assert "Item 0 (request" in shell(command("otel-assembly explain"))
    assert "support.html" in shell(command("otel-assembly view"))


def test_every_search_of_the_guide_is_tested_on_every_storage():
    chapter = GUIDE.split("## 5. Searches")[1].split("## 6.")[0]
    shown = set(re.findall(r"`([a-z_.]+=[^`\s]+)`", chapter)) - {"gen_ai.conversation.id=…"}
    tested = {
        f"{name}={value}"
        for query, _ in [*SEARCHES.values(), *STORAGE_SEARCHES.values()]
        for name, value in query.get("tags", {}).items()
    }
    assert len(shown) >= 10
    assert shown <= tested


def test_every_attribute_of_the_guide_is_one_of_the_conventions():
    shown = set(re.findall(r"`((?:assembly|gen_ai)\.[a-z_.]*[a-z])(?:=[^`]*)?`", GUIDE))
    events = {"assembly.alert", "assembly.overflow", "assembly.halt"}
    assert len(shown) >= 30
    assert shown - events <= set(registry.attributes())
