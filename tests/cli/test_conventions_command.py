"""``otel-assembly conventions`` prints the one folder that OpenTelemetry's Weaver is to read."""

from __future__ import annotations

from pathlib import Path

from otel_assembly.cli import conventions, main


def test_the_folder_is_printed_alone_so_that_a_command_can_take_it(otel_assembly):
    ran = otel_assembly("conventions")
    assert (ran.status, ran.err) == (0, "")
    (line,) = ran.out.splitlines()
    folder = Path(line)
    assert folder.is_absolute()
    assert (folder / "manifest.yaml").is_file()
    assert "schema_url: https://" in (folder / "manifest.yaml").read_text(encoding="utf-8")


def test_help_says_what_it_is_for(otel_assembly):
    ran = otel_assembly("conventions", "--help")
    assert ran.status == 0
    assert "weaver registry live-check -r $(otel-assembly conventions)" in " ".join(ran.out.split())


def test_it_takes_no_arguments(otel_assembly):
    ran = otel_assembly("conventions", "somewhere")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1


def test_where_the_files_were_not_installed_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(conventions, "FOLDER", tmp_path)
    assert main(["conventions"]) == 1
    assert capsys.readouterr().err == (
        "otel-assembly: the registry is missing from the installed package; reinstall otel-assembly\n"
    )
