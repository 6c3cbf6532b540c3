"""Beside the instrumentors of OpenInference and OpenLLMetry, whoever comes first: a program runs as it does alone.

Where they are not installed, this folder is not collected: they would instrument every other program that is tested.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from programs import AGENTS, EXAMPLES, ROOT
from programs import HERE as INSTALLED

from otel_assembly.telemetry import read_spans

HERE = Path(__file__).parent
PROGRAMS = {
    **{name: EXAMPLES / AGENTS[name] for name in INSTALLED},
    "openai": HERE / "autogen_openai_agent.py",
    "openai_agents": HERE / "openai_agents_traced.py",
    "haystack_pipeline": HERE / "haystack_pipeline.py",
    "openai_clients": HERE / "openai_clients.py",
    "anthropic_clients": HERE / "anthropic_clients.py",
}
OURS = "otel_assembly"
OPENINFERENCE = "openinference.instrumentation"
OPENLLMETRY = "opentelemetry.instrumentation"

#: From inside: whose instrumentor is beside ours, on what program, and whose spans the model calls are.
BESIDE = {
    "openinference autogen": ("openai", f"{OPENINFERENCE}.autogen_agentchat:AutogenAgentChatInstrumentor", ""),
    "openinference openai": ("openai", f"{OPENINFERENCE}.openai:OpenAIInstrumentor", ""),
    "openllmetry openai": ("openai", f"{OPENLLMETRY}.openai:OpenAIInstrumentor", ""),
    "openinference langchain": ("langchain", f"{OPENINFERENCE}.langchain:LangChainInstrumentor", ""),
    "openllmetry langchain": ("langchain", f"{OPENLLMETRY}.langchain:LangchainInstrumentor", ""),
    "loongsuite agentscope": (
        "agentscope",
        f"{OPENLLMETRY}.agentscope:AgentScopeInstrumentor",
        "opentelemetry.util.genai",
    ),
    "openinference pydantic_ai": ("pydantic_ai", "theirs:OpenInferencePydanticAI", "pydantic-ai"),
    "logfire pydantic_ai": ("pydantic_ai", "theirs:Logfire", "pydantic-ai"),
    "openinference haystack": ("haystack_pipeline", f"{OPENINFERENCE}.haystack:HaystackInstrumentor", ""),
    "openinference agent_framework": ("agent_framework", "theirs:OpenInferenceAgentFramework", "agent_framework"),
    "openinference openai_agents": ("openai_agents", f"{OPENINFERENCE}.openai_agents:OpenAIAgentsInstrumentor", ""),
}
#: Programs of which the others tell each model call.
EACH_CALL = {"openai", "agentscope", "pydantic_ai", "agent_framework", "openai_agents", "haystack_pipeline"}


def is_model_call(attributes):
    operation = attributes.get("gen_ai.operation.name")
    return operation == "chat" if operation else attributes.get("openinference.span.kind") == "LLM"


@pytest.fixture(scope="module")
def alone():
    """What each program prints alone, once it was asked for."""
    return {}


def prints(run_program, alone, name):
    if name not in alone:
        alone[name] = run_program("python", PROGRAMS[name]).stdout
    return alone[name]


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("name", BESIDE)
def test_from_inside_it_runs_as_alone_and_each_model_call_knows_its_assembly(run_program, alone, tmp_path, name, first):
    program, other, scope = BESIDE[name]
    told = tmp_path / "spans.jsonl"
    done = run_program(
        "python", HERE / "instrumented_twice.py", first, first, other, PROGRAMS[program], told, PYTHONPATH=str(ROOT)
    )
    assert done.stdout == prints(run_program, alone, program) * 3
    *spans, _, heard_after = map(json.loads, told.read_text(encoding="utf-8").splitlines())
    assert heard_after == 0
    assemblies = {span["id"]: span["attributes"]["assembly.id"] for span in spans if span["name"] == "assemble_context"}
    assert assemblies
    calls = [span for span in spans if is_model_call(span["attributes"])]
    assert {span["scope"].startswith(scope or other.partition(":")[0]) for span in calls} == {True}
    stamped = [span for span in calls if "assembly.id" in span["attributes"]]
    assert stamped
    assert [assemblies[link] for span in stamped for link in span["links"]] == [
        span["attributes"]["assembly.id"] for span in stamped
    ]
    assert {span["id"] for span in spans if "assembly.id" in span["attributes"]} == {
        *assemblies,
        *(span["id"] for span in stamped),
    }
    if program in EACH_CALL:
        assert len(stamped) == len(calls) == len(assemblies)
    if program == "openai":
        compacted = [span["attributes"].get("gen_ai.conversation.compacted") for span in stamped]
        assert compacted == [None, "True", "True"]


def loads_first(folder, who):
    """A distribution that is found before all others, and names whose instrumentors are loaded first."""
    from importlib.metadata import entry_points

    entries = entry_points(group="opentelemetry_instrumentor")
    chosen = [entry for entry in entries if entry.value.startswith(OURS) is (who == "ours")]
    told = folder / "loads_first-0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: loads-first\nVersion: 0\n", encoding="utf-8")
    lines = [f"{number}_{message.name} = {message.value}" for number, message in enumerate(chosen)]
    (told / "entry_points.txt").write_text("[opentelemetry_instrumentor]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return os.pathsep.join((str(folder), str(ROOT)))


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_under_opentelemetry_instrument_it_runs_as_alone_and_is_told_of(run_program, alone, tmp_path, name, first):
    path = tmp_path / "spans.jsonl"
    done = run_program(
        "opentelemetry-instrument",
        "python",
        PROGRAMS[name],
        PYTHONPATH=loads_first(tmp_path, first),
        OTEL_TRACES_EXPORTER="otel_assembly_file",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
        OTEL_ASSEMBLY_SPAN_FILE=path,
    )
    assert done.stdout == prints(run_program, alone, name)
    assert "Traceback" not in done.stderr
    spans = list(read_spans(path))
    names = {span.name for span in spans}
    assert "assemble_context" in names
    if name in {"autogen", "openai", "langchain"}:  # what theirs take on
        assert {span.attributes.get("openinference.span.kind") for span in spans} - {None}
    if name in {"openai", "langchain"}:
        assert [span for span in spans if is_model_call(span.attributes) and "assembly.id" in span.attributes]


#: The instrumentors of the providers' clients, by the client.
OF_CLIENTS = {
    "openai": {
        "opentelemetry": f"{OPENLLMETRY}.genai.openai:OpenAIInstrumentor",
        "openinference": f"{OPENINFERENCE}.openai:OpenAIInstrumentor",
        "openllmetry": f"{OPENLLMETRY}.openai:OpenAIInstrumentor",
    },
    "anthropic": {
        "opentelemetry": f"{OPENLLMETRY}.genai.anthropic:AnthropicInstrumentor",
        "openinference": f"{OPENINFERENCE}.anthropic:AnthropicInstrumentor",
        "openllmetry": f"{OPENLLMETRY}.anthropic:AnthropicInstrumentor",
    },
}


@pytest.mark.parametrize("leaves", ["ours", "theirs"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("vendor", ["opentelemetry", "openinference", "openllmetry"])
@pytest.mark.parametrize("client", OF_CLIENTS)
def test_each_request_of_a_client_has_one_assembly_that_all_its_model_spans_name(
    run_program, alone, tmp_path, client, vendor, first, leaves
):
    other, path = OF_CLIENTS[client][vendor], tmp_path / "spans.jsonl"
    program = PROGRAMS[f"{client}_clients"]
    done = run_program(
        "python", HERE / "instrumented_twice.py", first, leaves, other, program, path, PYTHONPATH=str(ROOT)
    )
    printed = prints(run_program, alone, f"{client}_clients")
    assert done.stdout == printed * 3
    assert "Traceback" not in done.stderr
    *spans, between, after = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assemblies = {span["id"]: span["attributes"]["assembly.id"] for span in spans if span["name"] == "assemble_context"}
    assert len(assemblies) == len(printed.splitlines())
    calls = [span for span in spans if is_model_call(span["attributes"])]
    assert [[assemblies[link] for link in span["links"]] for span in calls] == [
        [span["attributes"]["assembly.id"]] for span in calls
    ]
    # OpenLLMetry records no call of `messages.stream`; Anthropic's client has spans of its own.
    by_vendor = [span for span in calls if span["scope"].startswith(other.partition(":")[0])]
    by_client = [span for span in calls if span["scope"] == "com.anthropic.sdk.python"]
    for recorded in filter(None, (by_vendor, by_client)):
        named = [span["attributes"]["assembly.id"] for span in recorded]
        assert len(named) == len(set(named))
    assert {span["attributes"]["assembly.id"] for span in calls} == {*assemblies.values()}
    ours = len([span for span in spans if span["scope"] == OURS])
    assert (between, after) == (0 if leaves == "ours" else ours, 0)
