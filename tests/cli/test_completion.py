"""``otel-assembly completion``: the shells themselves complete with what it prints."""

from __future__ import annotations

import shutil
import subprocess

import pytest

BASH = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=()
function=$(complete -p otel-assembly | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function otel-assembly "${{COMP_WORDS[{last}]}}" "${{COMP_WORDS[{last}-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "source {script}; complete -C 'otel-assembly {line}'"


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script for a shell, in a folder with one transcript."""
    from command_line import runner

    pytest.importorskip("shtab", reason="not installed: python -m pip install -e '.[cli]'")
    folder = tmp_path_factory.mktemp("completion")
    (folder / "talks.jsonl").write_text("{}\n")

    def written(shell):
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed: apt-get install {shell}")
        ran = runner(folder)("completion", shell)
        assert ran.status == 0, ran.err
        path = folder / f"completion.{shell}"
        path.write_text(ran.out)
        return path

    return written


def completed(shell, script, line):
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in ("otel-assembly", *words))
    program = (BASH if shell == "bash" else FISH).format(script=script, words=quoted, last=len(words), line=line)
    switches = ["--norc"] if shell == "bash" else ["--no-config"]
    ran = subprocess.run(
        [shell, *switches, "-c", program], cwd=script.parent, capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    return {found.split("\t")[0] for found in ran.stdout.splitlines()} - {""}


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("re", {"replay"}),
        ("view --with-t", {"--with-text"}),
        ("completion z", {"zsh"}),
        ("view --with-text ta", {"talks.jsonl"}),
        ("replay ta", {"talks.jsonl"}),
        ("session ta", {"talks.jsonl"}),
        ("session talks.jsonl --v", {"--verify"}),
    ],
)
def test_a_shell_completes_commands_options_choices_and_files(script, shell, line, expected):
    assert completed(shell, script(shell), line) == expected


def test_zsh_takes_it_as_the_completion_of_the_program(script):
    path = script("zsh")
    path.with_name("_otel-assembly").write_text(path.read_text())
    program = f"fpath=({path.parent} $fpath); autoload -Uz compinit; compinit -D -u; print $_comps[otel-assembly]"
    ran = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    assert ran.stdout.strip() == "_otel-assembly"


def test_an_unknown_shell_is_wrong_usage(otel_assembly):
    ran = otel_assembly("completion", "tcsh")
    assert ran.status == 2
    assert "bash" in ran.err
