"""What is uploaded and what stands around it: the archives, their links, the workflows, the words."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
HOME = "https://github.com/otel-assembly/otel-assembly"
RAW = "https://raw.githubusercontent.com/otel-assembly/otel-assembly/main"
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def prose(markdown):
    """A page without its programs."""
    return re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The sdist and the wheel that is built from it."""
    pytest.importorskip("build", reason="not installed: python -m pip install --group dev")
    pytest.importorskip("hatch_fancy_pypi_readme", reason="not installed: python -m pip install --group dev")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(archives):
    with tarfile.open(archives[0]) as archive:
        return {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}


@pytest.fixture(scope="module")
def metadata(archives):
    with zipfile.ZipFile(archives[1]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_sdist_has_all_that_the_readme_links(sdist):
    linked = {target for _, target in LINK.findall(prose((ROOT / "README.md").read_text(encoding="utf-8")))}
    local = {target for target in linked if not target.startswith("http")}
    assert {"SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "docs/pictures/page.png"} <= local
    for target in local:
        assert target in sdist or any(name.startswith(f"{target.rstrip('/')}/") for name in sdist), target


def test_the_links_of_pypi_s_page_are_whole_and_lead_to_what_is_there(metadata):
    page = prose(metadata.get_payload())
    links = LINK.findall(page)
    assert len(links) > 20
    for picture, target in links:
        base = f"{RAW}/" if picture else f"{HOME}/blob/main/"
        if target.startswith(HOME) or picture:
            assert (ROOT / target.removeprefix(base)).exists(), target
        else:
            assert target.startswith("https://"), target


def test_the_programs_of_the_readme_are_on_pypi_as_they_are(metadata):
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert programs
    assert all(program in metadata.get_payload() for program in programs)


def test_the_metadata_says_where_the_project_lives(metadata):
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    assert urls["Homepage"] == HOME
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog", "Security"}
    for url in urls.values():
        assert url.startswith(HOME)
        if "/main/" in url:
            assert (ROOT / url.split("/main/")[1]).exists(), url


def test_the_page_asks_for_no_other_package(metadata):
    assert "view" in metadata.get_all("Provides-Extra")
    assert not any("'view'" in line for line in metadata.get_all("Requires-Dist"))


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def test_the_workflows_run_the_targets_that_everybody_runs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    called = set()
    for name in ("ci.yml", "nightly.yml", "publish.yml"):
        for job in workflow(name)["jobs"].values():
            for step in job.get("steps", []):
                called |= set(re.findall(r"^make ([\w-]+)", step.get("run", ""), re.MULTILINE))
    called |= {target.split()[0] for target in workflow("ci.yml")["jobs"]["slow"]["strategy"]["matrix"]["target"]}
    slow = {"test-long", "test-stack", "test-upstream", "test-matrix", "test-all"}
    assert {"lint", "demo", "test", "test-frameworks", "dist", *slow} <= called
    for target in called:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_everything_is_run_each_night():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (of_all,) = re.findall(r"^test-all:\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    targets = set(re.findall(r"^(test[\w-]*):", makefile, re.MULTILINE)) - {"test-all"}
    assert {"lint", "demo", *targets} == set(re.findall(r"\$\(MAKE\) ([\w-]+)", of_all))
    assert "schedule" in workflow("nightly.yml")[True]  # YAML reads `on` as a boolean


def test_the_tests_run_on_every_python_that_is_named():
    named = workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    classified = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(classified) <= set(named)


def test_a_release_is_published_without_a_token():
    publish = workflow("publish.yml")
    assert publish[True] == {"push": {"tags": ["v*"]}}  # YAML reads "on" as a truth
    assert publish["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")
    assert publish["permissions"] == {"contents": "read"}


def test_pictures_are_small_and_load_nothing():
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert {picture.name for picture in pictures} == {"page.png", "tree.svg"}
    for picture in pictures:
        assert picture.stat().st_size < 200_000
    drawn = (ROOT / "docs" / "pictures" / "tree.svg").read_text(encoding="utf-8")
    assert "OVERFLOW" in drawn
    assert not re.search(r"(?:href|src|url)\s*[=(]\s*[\"']?(?:https?:|//|data:)", drawn)


WORKSHOP = re.compile(r"\b[Ss]eeds? 0\d|\b[Ii]ssue \d|\bDESIGN\b|§")


@pytest.mark.parametrize("folder", ["otel_assembly", "docs"])
def test_nobody_reads_the_words_of_the_workshop(folder):
    """A docstring or a page names a paper or a framework, and nothing that only its authors have."""
    for path in (*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not WORKSHOP.search(line), f"{path}:{number}: {line}"


def test_the_page_on_genai_names_what_is_exported():
    from otel_assembly.telemetry.conventions_registry import attributes

    page = (ROOT / "docs" / "genai-conventions.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(assembly\.[a-z_.]+)`", page))
    assert {"assembly.id", "assembly.model", "assembly.arrived.contents"} <= names
    assert names <= set(attributes())


def test_the_changelog_is_one_screen_until_the_first_release():
    """It describes 0.1.0 to a user; changes between states that were never released are not in it."""
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == ["[Unreleased]"]
    kinds = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert kinds[0] == "Added"
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    entries = re.findall(r"^- .+(?:\n  .+)*", page, re.MULTILINE)
    assert entries
    assert all(len(entry.splitlines()) <= 2 for entry in entries)
    assert len(page.splitlines()) <= 60


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
