"""The example runs as it stands, in a process that has no AutoGen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "model_context.py"


def test_the_example_goes_on_with_what_autogen_saved_and_without_autogen():
    program = f"""
import runpy, sys
sys.modules["autogen_core"] = None  # an import of it fails
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    for name in ("the last two", "both ends", "sixty tokens"):
        kinds = lines[name].split(" | ")
        assert kinds[-3:] == ["AssistantMessage", *["FunctionExecutionResultMessage"] * 2]
        assert "Bonn and Ulm." in kinds
    assert "Skipped 1 messages." in lines["both ends"]
    assert lines["as AutoGen does"] == "FunctionExecutionResultMessage"  # a result without its call
