"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import Agent
from google.adk.flows.llm_flows import base_llm_flow
from google.adk.models.base_llm import BaseLlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.runners import Runner
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google_adk_models import ScriptedLlm, Stage, Talk

from otel_assembly.cli import main
from otel_assembly.instrumentation import GoogleADKInstrumentor, HookState, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

ROOT = Path(__file__).parents[3]


def run(*command: Any, **environment: Any) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_hook_takes_that_this_release_has():
    instrument("google_adk")
    try:
        instrumentor = GoogleADKInstrumentor()
        expected = {hook.name: hook for hook in instrumentor.hooks if hook.expected(instrumentor.version)}
        for hook in expected.values():
            import_module(hook.module)
        assert {instrumentor.states[name] for name in expected} == {HookState.TAKEN}
        assert len(expected) == 20
    finally:
        uninstrument("google_adk")


async def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    class Own(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
            llm_request.contents = llm_request.contents[-1:]

    owners: list[Any] = [
        BaseLlm, ScriptedLlm, BasePlugin, ContextFilterPlugin, Own, BaseTool, PreloadMemoryTool, Runner,
        base_llm_flow.BaseLlmFlow, *(sys.modules[hook.module] for hook in GoogleADKInstrumentor.hooks
                                     if hook.module in sys.modules),
    ]  # fmt: skip
    before = [dict(vars(owner)) for owner in owners]
    stage = Stage()
    with assembly_telemetry.as_default():
        instrument("google_adk")
        try:

            class Later(ScriptedLlm):
                async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                    async for answer in super().generate_content_async(llm_request, stream):
                        yield answer

            talk = Talk(Agent(name="bob", model=Later(stage, "Done.")), plugins=[Own("own")])
            await talk.say("Go")
            assert [dict(vars(owner)) for owner in owners] != before
        finally:
            uninstrument("google_adk")
    assert [dict(vars(owner)) for owner in owners] == before
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    await talk.say("Go again")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    model = ScriptedLlm(Stage(), "Done.")
    talk = Talk(Agent(name="bob", model=model), plugins=[ContextFilterPlugin(num_invocations_to_keep=1)])
    await talk.say("One")
    with assembly_telemetry.as_default():
        instrument("google_adk")
        try:
            await talk.say("Two")
        finally:
            uninstrument("google_adk")
    assert assembly_telemetry.span("assemble_context").attributes["assembly.dropped.count"] == 2


@pytest.mark.parametrize("breaks", ["schemas_of", "prompts_of", "AgentCall"])
async def test_what_fails_of_ours_is_not_felt(monkeypatch, breaks):
    import otel_assembly.instrumentation.google_adk.calls as calls

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(calls, breaks, broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("google_adk")
        try:
            talk = Talk(
                Agent(name="bob", model=ScriptedLlm(Stage(), "Done."), tools=[PreloadMemoryTool()]),
                plugins=[ContextFilterPlugin(num_invocations_to_keep=1)],
            )
            assert await talk.say("Go") == ["bob: Done."]
            assert await talk.say("Go") == ["bob: Done."]
        finally:
            uninstrument("google_adk")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def test_nothing_of_adk_is_imported_for_it():
    program = (
        "import sys, otel_assembly.instrumentation as i; i.instrument('google_adk');"
        "from otel_assembly.instrumentation.google_adk import GoogleADKInstrumentor;"
        "print([name for name in sys.modules if name.startswith(('google.adk', 'google.genai'))])"
    )
    assert run("-c", program).strip() == "[]"


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(tmp_path, capsys):
    spans = tmp_path / "spans.jsonl"
    example = ROOT / "examples" / "google_adk_agent.py"
    program = (
        "import runpy, sys, otel_assembly; from opentelemetry.instrumentation.auto_instrumentation import initialize;"
        f"initialize(); otel_assembly.instrument('google_adk'); runpy.run_path({str(example)!r}, run_name='__main__')"
    )
    said = run(
        "-c",
        program,
        OTEL_TRACES_EXPORTER="otel_assembly_file",
        OTEL_ASSEMBLY_SPAN_FILE=spans,
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert said == run(example)
    assert said.splitlines()[1] == "guide: Take the lift behind the desk."
    assert said.splitlines()[5] == "guide: Take the stairs on the left."
    assert main(["explain", "--traces", str(spans), "--item", "0", "--turn", "5"]) == 0
    lost = " ".join(capsys.readouterr().out.split())
    assert "Item 0 (request" in lost
    assert "is not in the prompt of turn 5" in lost
    assert "context_filter" in lost
    assert "outside_window" in lost


def test_the_plug_in_s_example_keeps_the_request():
    said = run(ROOT / "examples" / "google_adk_budget_policy.py").splitlines()
    assert all(line.endswith("True") for line in said[:-1])
    assert said[-1].startswith("All ten.")
