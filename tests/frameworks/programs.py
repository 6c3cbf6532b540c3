"""Where the examples are, and the environment of a fresh terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from environments import frameworks_apart

from otel_assembly.instrumentation import instrumentor_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
#: An agent of each framework that knows nothing of us.
AGENTS = {
    "ag2": "ag2_support_agent.py",
    "autogen": "autogen_agent.py",
    "agentscope": "agentscope_agent.py",
    "langchain": "langchain_agent.py",
    "pydantic_ai": "pydantic_ai_agent.py",
    "agent_framework": "agent_framework_agent.py",
    "openai_agents": "openai_agents_agent.py",
    "google_adk": "google_adk_agent.py",
    "strands": "strands_agent.py",
    "llama_index": "llama_index_agent.py",
    "haystack": "haystack_agent.py",
    "semantic_kernel": "semantic_kernel_agent.py",
}
#: A tool loop with a provider's client, which knows nothing of us.
LOOPS = {"openai": "openai_loop.py", "anthropic": "anthropic_loop.py", "google_genai": "google_genai_loop.py"}
#: Those that cannot be installed beside the others, and are not here: `make test-matrix` tests each by itself.
ELSEWHERE = sorted(name for name in frameworks_apart() if instrumentor_of(name).version is None)
#: The frameworks whose agents can be run here. Of the others one that is missing is a failure.
HERE = [framework for framework in AGENTS if framework not in ELSEWHERE]

#: Warnings that a framework, or a package that it needs, causes itself.
OWN_WARNINGS = {
    "google_adk": (
        "ignore:.*EXPERIMENTAL.*:UserWarning",
        "ignore::FutureWarning",
        "ignore::DeprecationWarning",
        "ignore::ResourceWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
    "llama_index": (
        "ignore::DeprecationWarning",
        "ignore::ResourceWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "ignore:Skipping serialization",
    ),
    "semantic_kernel": (
        "ignore::pydantic.warnings.PydanticDeprecatedSince20",
        "ignore::pydantic.warnings.PydanticDeprecatedSince211",
    ),
}


def own_warnings_ignored(framework):
    """Return the marks of a test that ignores the warnings that a framework causes itself."""
    return [pytest.mark.filterwarnings(warning) for warning in OWN_WARNINGS.get(framework, ())]


def clean_environment(folder, **more):
    """Nothing of OpenTelemetry in it, and the programs beside this interpreter are found first."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", "")))
    return env | {"PATH": path, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", **more}
