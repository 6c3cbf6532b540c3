"""What users write is accepted by pyright too (`make lint` asks mypy); of the same file, each mistake is found."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

AS_WRITTEN = Path(__file__).parent / "typing" / "as_written.py"
PACKAGE = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_accepts_what_users_write_and_finds_their_mistakes(tmp_path):
    project = tmp_path / "pyrightconfig.json"
    settings = {
        "include": [str(AS_WRITTEN)],
        "extraPaths": [str(PACKAGE), *(path for path in sys.path if path.endswith("site-packages"))],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    project.write_text(json.dumps(settings))
    found = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--project", str(project), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
