"""One unmodified agent of each framework, all at once, in one Jaeger and one Prometheus: each overflows, and pages."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from environments import environment, frameworks_apart
from local_stack import wait_until
from panels_seen import OVERVIEW, Seen
from version_matrix import RELEASES, clean_environment

from otel_assembly.instrumentation import FRAMEWORKS

DESKS = Path(__file__).with_name("desks.py")
SECONDS = 60
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


def service(framework):
    return f"desk-on-{framework}"


@pytest.fixture(scope="module")
def fleet(stack):
    """Each has been asked twice, in an environment of its own where it cannot be installed beside the others."""
    variables = clean_environment() | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.collector.otlp_http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_LOGS_EXPORTER": "none",
    }

    def at_work(framework, python):
        launched = [python, "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()"]
        done = subprocess.run(
            [*launched, python, DESKS, framework],
            env=variables | {"OTEL_SERVICE_NAME": service(framework)},
            capture_output=True,
            text=True,
            timeout=SECONDS * 2,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    with ExitStack() as kept, ThreadPoolExecutor(2) as pool:

        def interpreter(framework):
            if framework not in frameworks_apart():
                return sys.executable
            return kept.enter_context(environment(f"desk {framework}", RELEASES[framework][-1], "otlp,prices"))

        pythons = list(pool.map(interpreter, FRAMEWORKS))
        list(pool.map(at_work, FRAMEWORKS, pythons))


def test_the_overview_tells_them_apart(stack, fleet):
    jobs = "|".join(map(service, FRAMEWORKS))
    overview = Seen(stack.prometheus, OVERVIEW, job=f"({jobs})", instance=".*", agent=".*")
    wait_until(
        lambda: overview.total("Turns") == 2 * len(FRAMEWORKS), seconds=SECONDS, what="two turns of each of them"
    )
    for framework in FRAMEWORKS:
        its_own = {"gen_ai_agent_name": framework, "service": service(framework)}
        assert overview.total("Turns by agent", assembly_framework=framework, **its_own) == 2
        assert overview.total("Overflows by agent", **its_own) == 1


@each_framework
def test_each_overflow_pages_with_a_link_that_finds_its_trace(stack, webhook, fleet, framework):
    def sent():
        alerts = webhook.alerts("AssemblyBudgetOverflow", "pager")
        return next((alert for alert in alerts if alert["labels"].get("job") == service(framework)), None)

    alert = wait_until(sent, seconds=SECONDS, what=f"the page for {framework}")
    assert alert["labels"]["gen_ai_agent_name"] == framework
    asked = urlsplit(alert["annotations"]["trace_search"])

    def found():
        return stack.jaeger.get(f"/api/traces?{asked.query}")["data"]

    (trace,) = wait_until(found, seconds=SECONDS, what=f"the trace of {framework}")
    told = [
        {tag["key"]: tag["value"] for tag in span["tags"]}
        for span in trace["spans"]
        if span["operationName"] == "assemble_context"
    ]
    assert {item["assembly.framework"] for item in told} == {framework}
    (overflowed,) = (item for item in told if item["assembly.overflowed"] in {True, "true"})
    assert overflowed["assembly.overflow.cause"] == "window"
    assert overflowed["assembly.model.window"] == 8_192
    assert overflowed["assembly.overflow.tokens"] == overflowed["assembly.tokens.out"] - 8_192
    roots = [span for span in trace["spans"] if not span["references"]]
    assert len(roots) == 1, "one run is one trace"
