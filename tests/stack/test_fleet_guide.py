"""What docs/fleet.md and collectors/README.md say to run: the programs take what they are given there."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from fleet import for_tls, make_certificates
from local_stack import COLLECTORS

ROOT = COLLECTORS.parent
PAGES = {"docs/fleet.md": ROOT, "collectors/README.md": COLLECTORS}
LINES = [
    (page, line)
    for page in PAGES
    for block in re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guide")
    return {"PATH": "", "DATA_DIR": str(folder), **for_tls(make_certificates(folder / "tls"))}


@pytest.mark.parametrize(("page", "line"), LINES)
def test_the_program_takes_what_it_is_given(programs, environment, page, line):
    command, _, where = line.partition(" # ")
    program, *arguments = shlex.split(command)
    folder = PAGES[page] / where.strip().removeprefix("in ")
    checks = {
        "otelcol": ("otelcol", "validate", *arguments),
        "jaeger": ("jaeger", "validate", *arguments),
        "prometheus": ("promtool", "check", "config", "prometheus.yaml"),
        "alertmanager": ("amtool", "check-config", "alertmanager.yaml"),
    }
    if program in checks:
        checker, *given = checks[program]
        done = subprocess.run(
            [programs[checker], *given],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    elif program == "docker":
        assert (ROOT / arguments[arguments.index("-f") + 1]).is_file()
    else:
        # No cluster is here: what it would be given is built by test_kubernetes.py.
        assert program == "kubectl"
        if "apply" in arguments:
            assert (ROOT / arguments[-1] / "kustomization.yaml").is_file()


def test_a_start_by_hand_listens_where_the_table_of_ports_says():
    commands = "\n".join(line for page, line in LINES if page == "collectors/README.md")
    table = (COLLECTORS / "README.md").read_text()
    ports = re.findall(r"--web\.listen-address=127\.0\.0\.1:(\d+)", commands)
    assert len(ports) == 2
    for port in ports:
        assert re.search(rf"^\| {port} \|", table, re.MULTILINE)
