"""Where the examples are, and the environment of a fresh terminal."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

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
}
# It has an environment of its own; what is found without it is the folder of its tests.
if getattr(find_spec("semantic_kernel"), "origin", None) is not None:
    AGENTS["semantic_kernel"] = "semantic_kernel_agent.py"


def clean_environment(folder, **more):
    """Nothing of OpenTelemetry in it, and the programs beside this interpreter are found first."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", "")))
    return env | {"PATH": path, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", **more}
