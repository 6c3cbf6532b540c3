"""What the docs say works: every command in them runs, in the order in which it stands, and every Python example.

`make test` runs what needs nothing but this environment. The slow test does what a newcomer does: in an empty
environment, with what the page tells to install and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli.command_line import runner
from environments import UV, make_environment

from otel_assembly.cli import parser
from otel_assembly.telemetry import conventions_registry as registry

ROOT = Path(__file__).parents[1]
#: Tutorials, how-to guides, reference and explanation.
GUIDES = sorted(
    page for kind in ("tutorials", "how-to", "reference", "explanation") for page in (ROOT / "docs" / kind).glob("*.md")
)
#: Pages whose commands a newcomer types.
NEWCOMERS = [
    ROOT / "README.md",
    *GUIDES,
    ROOT / "docs" / "explain.md",
    ROOT / "docs" / "view.md",
    ROOT / "docs" / "write-an-agent.md",
    ROOT / "docs" / "write-a-middleware.md",
    ROOT / "docs" / "sessions.md",
    ROOT / "docs" / "instrumentation.md",
    *sorted((ROOT / "docs" / "instrumentation").glob("*.md")),
]
PAGES = [*NEWCOMERS, ROOT / "docs" / "tool-loop.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
PROGRAMS = {"opentelemetry-instrument", "python", "cat"}
#: What looks at servers has tests of its own.
AT_A_STACK = "--jaeger"
A_COMMAND_OF_OURS = re.compile(r"(?<!install )\botel-assembly( .*)?$")


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def _commands(*pages: Path) -> list[str]:
    lines = [line for page in pages or PAGES for block in _blocks(page, "console") for line in block.splitlines()]
    return [line for line in (line.split(" #")[0].strip() for line in lines) if line and not line.startswith("#")]


def _program(command: str) -> str:
    """What a line runs, behind the variables that it sets."""
    return next(word for word in command.split() if "=" not in word)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _clone(page: Path, folder: Path) -> Path:
    """Copy the files of a clone that the commands of a page read, and write the files that the page shows."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name, block in _files(page).items():
        (folder / name).write_text(block, encoding="utf-8")
    return folder


def _files(page: Path) -> dict[str, str]:
    """Return the blocks that begin with the name of a file, by that name."""
    blocks = [*_blocks(page, "yaml"), *_blocks(page, "python")]
    return {named[1]: block for block in blocks if (named := re.match(r"# (\w+\.(?:yaml|py))\n", block))}


def _run(command, folder, programs, **variables):
    """Run a line as a shell does that has these programs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHONPATH"))}
    path = os.pathsep.join((str(programs), "/usr/bin", "/bin"))
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={**clean, "PATH": path, "TMPDIR": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


# In this environment


def _in_this_environment(command, folder):
    """The exit status of a command of ours and what it complains of; a shell runs it where it takes one."""
    program, *arguments = shlex.split(command)
    if program == "otel-assembly":
        # The command that it starts is a program of this environment.
        path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
        ran = runner(folder)(*arguments, **({"PATH": path} if arguments[0] == "watch" else {}))
        return ran.status, ran.err
    done = _run(command, folder, Path(sys.executable).parent, PYTHONPATH=str(ROOT))
    return done.returncode, done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [
        # Those of `watch` run a program three times; the tests of the command run it with the same options.
        pytest.param(page, marks=pytest.mark.slow if page.name == "watch-a-program.md" else ())
        for page in NEWCOMERS
    ],
    ids=_name,
)
def test_the_commands_of_a_page_run_in_order(page, tmp_path):
    folder = _clone(page, tmp_path)
    for command in _commands(page):
        ours = A_COMMAND_OF_OURS.search(command)
        # Those import frameworks, or read what a program wrote that does.
        elsewhere = (
            "otel-assembly demo",
            "otel-assembly doctor",
            "otel-assembly-spans.jsonl",
            "loop.jsonl",
            AT_A_STACK,
        )
        if ours and not any(word in command for word in elsewhere):
            status, said = _in_this_environment(command, folder)
            assert status == 0, f"{command}\n{said}"


def test_the_answer_that_the_docs_show_is_the_one_that_is_given(tmp_path):
    page = ROOT / "docs" / "explain.md"
    folder = _clone(page, tmp_path)
    asked = [shlex.split(command)[1:] for command in _commands(page) if command.startswith("otel-assembly")]
    run = runner(folder)
    run(*asked[0], COLUMNS="80")
    assert run(*asked[2], COLUMNS="80").out == _blocks(page, "text")[0]


@pytest.mark.parametrize("command", sorted({command for command in _commands() if A_COMMAND_OF_OURS.search(command)}))
def test_a_command_of_the_docs_is_one(command):
    parser().parse_args(shlex.split(A_COMMAND_OF_OURS.search(command)[1] or ""))


@pytest.mark.parametrize(
    "command", sorted({command for command in _commands() if _program(command) in PROGRAMS - {"cat"}})
)
def test_a_program_of_the_docs_exists(command):
    words = shlex.split(command)
    script = words[words.index("python") + 1]
    assert script == "-m" or (ROOT / script).is_file() or any(script in _files(page) for page in PAGES)


@pytest.mark.parametrize("command", sorted({command for command in _commands() if _program(command) == "pip"}))
def test_the_docs_install_existing_extras_from_the_clone(command):
    """No release is on PyPI yet: `pip install otel-assembly` fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.match(r"pip install (?:\.|'\.\[(.*?)\]')(?: |$)", command)
    assert found, "it installs from the clone, and brackets are quoted"
    assert not found[1] or set(found[1].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("command", sorted({command for command in _commands() if command.startswith("make")}))
def test_a_make_target_of_the_docs_exists(command):
    target = command.split()[1]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


def test_no_command_of_the_docs_has_a_sign_that_a_shell_would_read():
    for command in _commands():
        assert not set("[]*?()<>!") & set(re.sub(r"'[^']*'|\"[^\"]*\"", "", command)), command


def test_there_is_no_other_kind_of_command_in_the_docs():
    assert {_program(line) for line in _commands()} <= {"make", "otel-assembly", "pip", *PROGRAMS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [command for command in _commands(ROOT / "benchmarks" / "README.md") if _program(command) != "make"]
)
def test_a_benchmark_of_the_docs_runs(command, tmp_path):
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    # The stack's needs servers that are built with Go.
    done = _run(
        f"{command} {'--help' if 'stack' in command else '--tiny'}",
        tmp_path,
        Path(sys.executable).parent,
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stdout + done.stderr


# In empty environments


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The programs of an environment that has these requirements alone; each is made once, whichever process asks."""
    fcntl = pytest.importorskip("fcntl")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "environments"
    shared.mkdir(exist_ok=True)

    def made(requirements):
        with (shared / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not [*shared.glob("*.whl")]:
                subprocess.run([*UV, "build", "--wheel", "--out-dir", shared, ROOT], check=True)
            (wheel,) = shared.glob("*.whl")
            folder = shared / re.sub(r"\W+", "-", "-".join(requirements) or "empty")
            if not (folder / "whole").exists():
                wanted = [
                    re.sub(r"^(?:otel-assembly|\.)(?=\[|$)", str(wheel), requirement) for requirement in requirements
                ]
                make_environment(folder, sys.executable, *wanted)
                (folder / "whole").touch()
            return folder / "bin"

    return made


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page", [item for item in NEWCOMERS if {*map(_program, _commands(item))} - {"make"}], ids=_name
)
def test_the_commands_of_a_page_run_in_an_empty_environment(page, tmp_path, environment):
    folder = _clone(page, tmp_path)
    with socket.socket() as probe:
        somebody = probe.connect_ex(("127.0.0.1", 4317)) == 0
    installed = []
    for command in _commands(page):
        if _program(command) == "make" or AT_A_STACK in command:
            continue
        if _program(command) == "pip":
            installed += [word for word in shlex.split(command)[2:] if word not in installed]
            continue
        done = _run(command, folder, environment(tuple(installed)))
        said = f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, said
        assert "Traceback" not in said
        assert done.stdout.strip(), said
        if command.startswith("opentelemetry-instrument") and not somebody:
            assert "otel_assembly_file" in done.stderr, "where no Collector is, the file exporter is named"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", ["demo", "replay examples/conversations.jsonl --export otlp"])
def test_all_that_is_missing_is_named_at_once_and_is_all(command, tmp_path, environment):
    folder = _clone(ROOT / "README.md", tmp_path)
    before = _run(f"otel-assembly {command}", folder, environment(("otel-assembly",)))
    assert before.returncode == 2
    (line,) = before.stderr.splitlines()
    named = re.search(r"pip install '(otel-assembly\[.*?\])'", line)[1]
    after = _run(f"otel-assembly {command}", folder, environment((named,)))
    assert "not installed" not in after.stderr


def test_the_program_of_the_readme_runs(tmp_path):
    (program,) = _blocks(ROOT / "README.md", "python")
    done = _run_program(program, tmp_path)
    assert "tokens" in done.stdout
    assert done.stderr == ""


def _run_program(program, folder):
    (folder / "page.py").write_text(program, encoding="utf-8")
    done = _run(f"{sys.executable} page.py", folder, Path(sys.executable).parent, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("page", [page for page in GUIDES if _blocks(page, "python")], ids=_name)
def test_the_programs_of_a_guide_run(page, tmp_path):
    folder = _clone(page, tmp_path)
    assert _run_program("\n\n".join(_blocks(page, "python")), folder).stderr == ""


def test_the_tutorial_shows_what_its_commands_print(tmp_path):
    page = ROOT / "docs" / "tutorials" / "first-assembly.md"
    folder = _clone(page, tmp_path)
    printed = []
    for command in _commands(page)[1:]:
        if command.startswith("otel-assembly "):
            ran = runner(folder)(*shlex.split(command)[1:], COLUMNS="80")
            status, out, err = ran.status, ran.out, ran.err
        else:
            done = _run(command, folder, Path(sys.executable).parent, PYTHONPATH=str(ROOT))
            status, out, err = done.returncode, done.stdout, done.stderr
        assert (status, err) == (0, ""), command
        printed.append(out)
    (shown,) = _blocks(page, "text")
    assert printed[:2] == [shown, shown]
    assert "window=162" in printed[3]
    for window, result in {162: "142 -> 142 of 142 tokens, 9 -> 9 events", 40: "ContextOverflowError"}.items():
        program = _files(page)["first_assembly.py"].replace("window=120", f"window={window}")
        (folder / "other.py").write_text(program, encoding="utf-8")
        done = _run("python other.py", folder, Path(sys.executable).parent, PYTHONPATH=str(ROOT))
        assert result in done.stdout + done.stderr


def test_the_test_of_the_guide_passes(tmp_path):
    folder = _clone(ROOT / "docs" / "how-to" / "test-your-agent.md", tmp_path)
    options = "-p pytest_asyncio.plugin -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function"
    # pytest would import each plug-in that is installed here.
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = _run(f"python -m pytest -q {options} test_agent.py", folder, Path(sys.executable).parent, **variables)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_instrumentor_that_the_docs_write_tells_what_they_show(tmp_path):
    """Write and extend the files, and run the commands, in the order of the page."""
    page = (ROOT / "docs" / "instrumentation" / "writing-one.md").read_text(encoding="utf-8")
    printed, shown = [], []
    for language, block in re.findall(r"^```(python|console|text)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if language == "python":
            name, appended = re.match(r"# (\w+\.py)( \(append\))?\n", block).groups()
            with (tmp_path / name).open("a" if appended else "x", encoding="utf-8") as file:
                file.write(block)
        elif language == "text":
            shown.append(block)
        elif _program(block) != "pip":
            done = _run(block, tmp_path, Path(sys.executable).parent, PYTHONPATH=str(ROOT))
            assert (done.returncode, done.stderr) == (0, "")
            printed.append(done.stdout)
    assert printed == shown
    assert len(printed) == 3


#: Calls what the how-to sections of the page on sessions define.
CALL_THE_HOW_TOS = """
from otel_assembly.sessions import MemorySessionLog


async def call_the_how_tos():
    async with Hub(MemorySessionLog(), [strict]) as hub:
        session_id = (await hub.create("discussion", "ann", ["ann", "bob"])).session_id
        await hub.join(session_id, "bob")
        await hub.post(Envelope(session_id, "ann", EV_TEXT, {"text": "Shall we ship on Friday?"}))
        await read_inbox(hub, session_id)
    async with Hub(MemorySessionLog(), [strict]) as hub:
        session_id = (await hub.create("discussion", "ann", ["ann", "cid"])).session_id
        await hub.join(session_id, "cid")
        await hub.post(Envelope(session_id, "ann", EV_TEXT, {"text": "Shall we ship on Friday?"}))
        await show_view(hub, session_id)
        view = await ParticipantView.open(hub, session_id, "cid", view=LastWord())
        await view.read()
        view.go_on()
        (event,) = (await Assembler(view.policies).assemble([], view.history)).events
        assert event.content == "The last word was: Shall we ship on Friday?"


asyncio.run(call_the_how_tos())
"""


def test_the_page_about_sessions_shows_what_its_code_prints(tmp_path):
    page = ROOT / "docs" / "sessions.md"
    (tmp_path / "page.py").write_text("\n\n".join([*_blocks(page, "python"), CALL_THE_HOW_TOS]), encoding="utf-8")
    done = _run(f"{sys.executable} page.py", tmp_path, Path(sys.executable).parent, PYTHONPATH=str(ROOT))
    assert (done.stdout, done.stderr) == ("".join(_blocks(page, "text")[:3]), "")


def test_the_example_of_a_session_tells_who_said_what(tmp_path):
    program = ROOT / "examples" / "session.py"
    done = _run(f"{sys.executable} {program}", tmp_path, Path(sys.executable).parent, PYTHONPATH=str(ROOT))
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "5. planner: Where do we go on Sunday?",
        "6. treasurer: The boat is 40 each. Can we afford it?",
        "7. guide: The museum is free on Sundays.",
        "8. planner: Then leave at nine, and have lunch at the harbour.",
        "9. treasurer: Fine: the boat it is.",
        "10. guide: I shall book four seats.",
        "the session is closed",
        "",
        "What the guide's model was sent for its second turn:",
        "  CompactionSummary: Earlier in this session: 2 messages from planner, treasurer.",
        "  ModelResponse: The museum is free on Sundays.",
        "  ModelRequest: [planner]: Then leave at nine, and have lunch at the harbour.",
        "  ModelRequest: [treasurer]: Fine: the boat it is.",
    ]


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    for page in {*PAGES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}:
        text = page.read_text(encoding="utf-8")
        inline = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text)
        for target, anchor in [*inline, *re.findall(r"^\[[^\]]+\]: ([^\s#:]+)()$", text, re.MULTILINE)]:
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            if anchor and linked.suffix == ".md":
                assert anchor in _anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_the_index_lists_every_page_once():
    index = ROOT / "docs" / "README.md"
    targets = re.findall(r"^\* \[[^\]]*\]\(([^)#]+)\)", index.read_text(encoding="utf-8"), re.MULTILINE)
    linked = [index.parent / target for target in targets]
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"} - {index}
    assert len(linked) == len(set(linked))
    assert pages <= set(linked)


DECISIONS = ROOT / "docs" / "decisions"


def test_the_index_of_decisions_lists_every_record_with_its_title():
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\* \[([^\]]*)\]\(([^)]*)\)$", index, re.MULTILINE)
    records = sorted(DECISIONS.glob("[0-9]*.md"))
    titles = [record.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ") for record in records]
    assert sorted(listed) == sorted(zip(titles, (record.name for record in records), strict=True))


@pytest.mark.parametrize("record", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda record: record.stem)
def test_the_file_name_of_a_decision_is_its_title(record):
    title = record.read_text(encoding="utf-8").split("\n", 1)[0]
    assert record.stem == re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda record: record.stem)
def test_a_decision_has_at_most_300_words(record):
    assert len(re.findall(r"\S*\w\S*", record.read_text(encoding="utf-8"))) <= 300


def test_every_attribute_and_metric_of_the_glossary_is_registered():
    shown = set(re.findall(r"`(assembly\.[a-z_.]*[a-z])`", GLOSSARY))
    known = {*registry.attributes(), *(metric.name for metric in registry.metrics())}
    assert len(shown) >= 50
    assert shown - known - {event.name for event in registry.events()} == set()


def test_every_class_of_the_glossary_exists():
    sources = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "otel_assembly").rglob("*.py"))
    shown = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", GLOSSARY))
    assert {name for name in shown if not re.search(rf"^class {name}\b", sources, re.MULTILINE)} == set()
