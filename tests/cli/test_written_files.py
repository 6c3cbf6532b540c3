"""What commands write is whole or not there; a device, a pipe and a link stay what they are."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading

import pytest

PAGE = "<!doctype html>"


@pytest.fixture
def page(otel_assembly, conversations):
    """Write a page of three conversations to a file, with either command that does."""

    replay = ("replay", conversations, "--budget", 400)
    assert otel_assembly(*replay, "--export", "spans.jsonl").status == 0
    commands = {"view": ("view", "spans.jsonl", "-o"), "replay": (*replay, "--html")}
    return lambda command, path: otel_assembly(*commands[command], path)


BOTH = pytest.mark.parametrize("command", ["view", "replay"])


@BOTH
def test_a_pipe_is_written_into(command, page, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    done = page(command, pipe)
    reader.join()
    assert done.status == 0
    assert read[0].startswith(PAGE)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["conversations.jsonl", "pipe", "spans.jsonl"]


@BOTH
def test_a_device_is_written_into(command, page, tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_text("")
    except OSError as error:
        pytest.skip(f"this machine lets nobody make a device: {error}")
    done = page(command, device)
    assert done.status == 0, done.err
    assert stat.S_ISCHR(device.stat().st_mode)


@BOTH
def test_a_link_stays_and_what_it_leads_to_is_replaced(command, page, tmp_path):
    (tmp_path / "pages").mkdir()
    target, link = tmp_path / "pages" / "mine.html", tmp_path / "link.html"
    target.write_text("the page before")
    target.chmod(0o600)
    link.symlink_to("pages/mine.html")
    before = target.stat().st_ino
    assert page(command, link).status == 0
    assert os.readlink(link) == "pages/mine.html"
    assert target.read_text(encoding="utf-8").startswith(PAGE)
    assert target.stat().st_ino != before
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [file.name for file in target.parent.iterdir()] == ["mine.html"]


def test_standard_output_by_its_name_gets_the_page_alone(page, tmp_path):
    with (tmp_path / "out.html").open("w") as out:
        done = _program("view", "spans.jsonl", "-o", "/dev/stdout", folder=tmp_path, stdout=out)
    assert done.returncode == 0
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert text.startswith(PAGE)
    assert text.rstrip().endswith("</html>")
    assert "3 conversations" in done.stderr


@pytest.mark.parametrize("before", [None, "the page before"])
def test_a_page_that_does_not_fit_on_the_disk_is_named_and_not_there(before, page, tmp_path):
    if before is not None:
        (tmp_path / "page.html").write_text(before)
    there = sorted(file.name for file in tmp_path.iterdir())
    done = _program("view", "spans.jsonl", "-o", "page.html", folder=tmp_path, largest=100_000)
    assert done.returncode == 2
    assert done.stderr == "otel-assembly: page.html: the page cannot be written: file too large; name another file\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == there
    assert before is None or (tmp_path / "page.html").read_text() == before


@pytest.mark.parametrize("there", [(), ("collectors/local.yaml",)])
def test_files_of_the_stack_that_do_not_fit_are_named_and_none_is_written(there, tmp_path):
    for file in there:
        (tmp_path / "stack" / file).parent.mkdir(parents=True)
        (tmp_path / "stack" / file).write_text("mine")
    done = _program("stack", "init", "stack", "--force", folder=tmp_path, largest=10_000)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "stack/collectors/" in line
    assert "file too large; nothing was written" in line
    assert [file.read_text() for file in tmp_path.rglob("*") if file.is_file()] == ["mine"] * len(there)
    assert (tmp_path / "stack").exists() == bool(there)


def _program(*arguments, folder, largest=None, stdout=subprocess.PIPE):
    def limit():
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    return subprocess.run(
        [sys.executable, "-m", "otel_assembly", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        preexec_fn=limit,
        check=False,
    )
