"""`make stack` itself: a server that dies is named, and what the servers have is kept."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from local_stack import wait_until

ROOT = Path(__file__).parents[2]


class MakeStack:
    """The program of `make stack`; a context manager."""

    def __init__(self, folder, *arguments):
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "TMPDIR": str(folder)}
        self.said = folder / "said"
        with self.said.open("ab") as said:
            command = [sys.executable, "-m", "local_stack", *map(str, arguments)]
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=said, stderr=said)

    def running(self):
        """Wait until it runs: the folder of its logs and data."""

        def told():
            return re.search(r"logs and data are in (.*)\):", self.said.read_text())

        return Path(wait_until(told, seconds=120, what="the stack")[1])

    def pid_of(self, program):
        """The id of one of the servers that it started."""
        of_process = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for child in map(int, of_process.read_text().split()):
            if Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0].decode().endswith(f"/{program}"):
                return child
        raise AssertionError(f"no {program} among the children")

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            finally:
                self.process.kill()  # its servers end with it


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for the servers in /proc")
@pytest.mark.timeout(300)
def test_a_server_that_dies_is_named_and_the_data_goes_on_where_it_was(programs, tmp_path):
    with MakeStack(tmp_path) as stack:
        folder = stack.running()
        os.kill(stack.pid_of("prometheus"), signal.SIGKILL)
        assert stack.process.wait(60) == 1
        said = stack.said.read_text()
    log = folder / "prometheus" / "prometheus.log"
    assert f"prometheus was killed by SIGKILL. The end of {log}:" in said
    assert log.read_text().splitlines()[-1] in said
    assert f"Logs and data are kept in {folder}" in said
    assert f"make stack STACK='--folder {folder}'" in said
    assert (folder / "prometheus" / "prometheus-data" / "wal").is_dir()
    stack.said.unlink()
    with MakeStack(tmp_path, "--folder", folder) as again:
        assert again.running() == folder
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(60) == 0
    assert log.is_file()


@pytest.mark.timeout(300)
def test_a_stack_that_is_stopped_by_hand_leaves_nothing(programs, tmp_path):
    with MakeStack(tmp_path) as stack:
        folder = stack.running()
        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(60) == 0
    assert not folder.exists()
