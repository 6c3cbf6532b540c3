"""`otel-assembly demo --framework NAME`: an unmodified agent, its spans, and an answer to what it says to ask."""

from __future__ import annotations

import shlex

import pytest
from programs import AGENTS, EXAMPLES, HERE, LOOPS

from otel_assembly.cli import main


@pytest.mark.parametrize(
    "framework", [*(framework for framework in HERE if framework != "ag2"), *LOOPS]
)  # the command's own tests run ag2's
def test_the_demonstration_of_a_framework_shows_its_reducer_and_where_the_first_request_went(
    run_program, framework, capsys
):
    ran = run_program("otel-assembly", "demo", "--framework", framework, OTEL_TRACES_EXPORTER="none").stdout
    example = {**AGENTS, **LOOPS}[framework]
    agent = run_program("python", EXAMPLES / example).stdout.strip()
    first, rest = ran.split("\n", 1)
    assert first == f"$ opentelemetry-instrument python {example}"
    assert rest.strip().startswith(agent)
    tree = rest.split("Spans:")[1].split("\nwrote ")[0]
    assert "assemble_context" in tree
    assert "apply_policy" in tree
    assert max(map(len, tree.splitlines())) <= 100
    (asked,) = (line for line in ran.splitlines() if line.startswith("Where is the first request?"))
    assert main(shlex.split(asked.split("otel-assembly ", 1)[1])) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Item 0 (request" in said
    assert "is not in the prompt of turn" in said
    assert " rule " in said


@pytest.mark.parametrize("client", ["litellm", "botocore"])
def test_a_client_without_a_demonstration_is_named_with_the_clients_that_have_one(client, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--framework", client])
    assert ended.value.code == 2
    assert f"{client} is instrumented, but has no demo" in (said := capsys.readouterr().err)
    assert "clients with a demo: openai, anthropic, google_genai" in said


def test_a_framework_that_nobody_instruments_has_no_demonstration(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--framework", "clippy"])
    assert ended.value.code == 2
    assert "clippy" in capsys.readouterr().err
