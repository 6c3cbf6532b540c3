"""The public names: at most 60 in the root, the others in the modules that own them, none by accident."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from environments import frameworks_apart

import otel_assembly
from otel_assembly.instrumentation import instrumentor_of


def test_all_is_what_the_package_has():
    public = {
        name
        for name, value in vars(otel_assembly).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public - {"import_module", "TYPE_CHECKING", "Any", "Final"} <= set(otel_assembly.__all__)


#: The public names of each module, one module per line; a change of this file is a change of the public API.
NAMES = Path(__file__).parent / "public_names.txt"
#: The modules, other than packages, from which programs import names.
MODULES = ["otel_assembly.assembly", "otel_assembly.decision", "otel_assembly.errors", "otel_assembly.recorder"]


def public_names():
    for name in sorted({*(package for package in FACES if package not in ELSEWHERE), *MODULES}):
        module = importlib.import_module(name)
        defined = [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        names = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
        yield f"{module.__name__}: {' '.join(sorted(names))}".strip()


def test_the_public_names_are_the_listed_ones():
    listed = NAMES.read_text(encoding="utf-8").splitlines()
    elsewhere = tuple(f"{name}:" for name in ELSEWHERE)
    assert list(public_names()) == [line for line in listed if not line.startswith(elsewhere)]


def test_the_root_has_at_most_60_names():
    assert len(otel_assembly.__all__) <= 60


def test_no_module_has_the_name_of_a_function_of_the_root():
    functions = {name for name in otel_assembly.__all__ if inspect.isroutine(getattr(otel_assembly, name))}
    modules = {
        found.name.rsplit(".", 1)[1] for found in pkgutil.walk_packages(otel_assembly.__path__, "otel_assembly.")
    }
    assert functions & modules == set()


def test_a_name_comes_from_the_module_that_type_checkers_are_told():
    tree = ast.parse(Path(otel_assembly.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in checked.body for alias in node.names}
    assert told.keys() | {"__version__"} == set(otel_assembly.__all__)
    for name, module in told.items():
        assert getattr(otel_assembly, name) is getattr(importlib.import_module(module), name), name


def imported_by(program):
    """The modules that a fresh process has imported once it has run a program."""
    code = f"{program}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def ours(modules):
    return {name for name in modules if name.startswith("otel_assembly.")}


#: What somebody has asked for who uses it, and nobody else.
HEAVY = {"pydantic", "yaml", "sqlite3", "opentelemetry.sdk", "secrets"}


def test_importing_the_package_imports_next_to_nothing():
    loaded = imported_by("import otel_assembly")
    assert not loaded & (HEAVY | {"tiktoken", "asyncio", "opentelemetry"})
    assert len(ours(loaded)) <= 4
    imported_by("import otel_assembly; otel_assembly.Assembler; otel_assembly.telemetry")


def test_an_assembler_imports_what_a_turn_needs():
    loaded = imported_by("from otel_assembly import Assembler, History")
    assert not loaded & (HEAVY | {"opentelemetry"})
    assert not {
        name for name in ours(loaded) if name.split(".")[1] in {"budget", "events", "knowledge", "telemetry"}
    } - {
        "otel_assembly.budget",
        "otel_assembly.budget.recording",
    }
    assert len(ours(loaded)) <= 66


def test_a_turn_of_messages_that_are_dicts_imports_no_pydantic():
    program = """
import asyncio
from otel_assembly import Assembler, BudgetPolicy, ConversationPolicy, History
from otel_assembly.recorder import NullRecorder
assembler = Assembler([ConversationPolicy(), BudgetPolicy(1_000, 100)], recorder=NullRecorder())
print(asyncio.run(assembler.assemble(["Be brief."], History([{"role": "user", "content": "Hi"}]))).totals.tokens_out)
"""
    assert not imported_by(program) & (HEAVY | {"opentelemetry"})


def test_what_instruments_a_framework_is_imported_with_the_framework():
    program = "from otel_assembly.instrumentation import instrument; instrument()"
    loaded = imported_by(program)
    frameworks = {"ag2", "autogen_core", "agentscope", "langchain_core", "pydantic_ai", "agent_framework", "agents"}
    frameworks |= {"google.adk", "strands", "llama_index", "haystack", "semantic_kernel"}
    assert not loaded & (HEAVY | frameworks | {"tiktoken"})
    assert {name.split(".")[1] for name in ours(loaded)} == {"_internal", "_version", "errors", "instrumentation"}
    of_one = {name.rsplit(".", 1)[1] for name in loaded if name.startswith("otel_assembly.instrumentation.ag2.")}
    assert of_one == {"hooks"}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Asembler'"):
        otel_assembly.Asembler  # noqa: B018
    assert "Assembler" in dir(otel_assembly)


def test_all_is_sorted_and_has_no_name_twice():
    names = [name for name in otel_assembly.__all__ if name != "__version__"]
    assert len(names) == len(set(names))


def test_every_public_name_says_what_it_is():
    silent = [
        name
        for name in otel_assembly.__all__
        if callable(value := getattr(otel_assembly, name)) and not (value.__doc__ or "").strip()
    ]
    assert silent == []


#: Made by us alone; what they are made of is nobody else's.
MADE_BY_US = {"Allocation", "AssembledContext", "Assembly", "OrderedPrompt", "View"}


def _methods(value: type) -> dict[str, object]:
    found = {name: member for name, member in vars(value).items() if not name.startswith("_")}
    read = {
        name: getattr(member, "fget", None) or getattr(member, "__func__", member) for name, member in found.items()
    }
    return {name: function for name, function in read.items() if inspect.isfunction(function)}


def test_every_public_method_says_what_it_does():
    classes = [value for name in otel_assembly.__all__ if isinstance(value := getattr(otel_assembly, name), type)]
    silent = [
        f"{value.__name__}.{name}"
        for value in classes
        for name, function in _methods(value).items()
        if not (function.__doc__ or "").strip()
    ]
    assert silent == []


def test_every_parameter_of_a_public_name_is_documented():
    missing = {}
    for name in set(otel_assembly.__all__) - MADE_BY_US:
        value = getattr(otel_assembly, name)
        of_a_class = isinstance(value, type)
        if not callable(value) or getattr(value, "_is_protocol", False):
            continue
        if of_a_class and issubclass(value, Exception | enum.Enum):
            continue
        said = " ".join(base.__doc__ or "" for base in value.__mro__) if of_a_class else value.__doc__ or ""
        if said.startswith(("As `", "Return the same as `")):  # its sibling that does not wait has them
            continue
        names = {parameter for parameter in inspect.signature(value).parameters if not parameter.startswith("_")}
        if unsaid := {name for name in names if not re.search(rf"\b{name}\b", said)}:
            missing[name] = unsaid
    assert missing == {}


def test_importing_brings_no_sdk_and_no_terminal_library():
    program = (
        "import sys, otel_assembly\n"
        "heavy = [m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'rich', 'grpc'))]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Faces ------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
FACES = [
    "otel_assembly",
    *(
        found.name
        for found in pkgutil.walk_packages(otel_assembly.__path__, "otel_assembly.")
        if found.ispkg and "._" not in found.name
    ),
]
#: The faces of what we have for frameworks that cannot be installed beside the others, and are not here.
ELSEWHERE = {
    f"otel_assembly.instrumentation.{name}" for name in frameworks_apart() if instrumentor_of(name).version is None
}
#: Modules behind a face that may be imported all the same, and why.
BEHIND = {
    "otel_assembly._internal.registry": "what every bounded memory rests on",
    "otel_assembly.budget.compact_workers": "how many threads hang is nowhere else to be seen",
    "otel_assembly.budget.measure": "the memory of a process is replaced for a test",
    "otel_assembly.cli.bars": "a test of the tree goes through every kind that has a bar",
    "otel_assembly.cli.conventions": "where the registry lies in an installed package is replaced for a test",
    "otel_assembly.cli.followed_log": "the calls of an update of the page are counted",
    "otel_assembly.cli.probes": "the stack's tests ask for the doctor's own traces by its name",
    "otel_assembly.transcripts.records": "the size from which a document is refused is lowered for a test",
    "otel_assembly.transcripts.transcript_format": "the installed entry points are replaced for a test",
    "otel_assembly.cli.tree_facts": "the registry's closed lists are compared with what the tree can say",
    "otel_assembly.context_assembler.compaction_cache": "whether one outlives its conversation is to be seen",
    "otel_assembly.messages.provider_rules": "the table of providers' rules is compared with what their clients send",
    "otel_assembly.history.history": "what reads an event is replaced by one that counts",
    "otel_assembly.history.view": "arithmetic that every folder rests on: properties hold it against sets",
    "otel_assembly.instrumentation.agentscope.conversation": "what reads an agent is replaced by one that fails",
    "otel_assembly.instrumentation.agentscope.messages": "what reads a message is replaced by one that counts",
    "otel_assembly.instrumentation.autogen.messages": "importing it registers how the messages are read",
    "otel_assembly.instrumentation.google_adk.calls": "what reads a request is replaced by one that fails",
    "otel_assembly.instrumentation.google_adk.messages": "importing it registers how the messages are read",
    "otel_assembly.instrumentation.haystack.calls": "what reads messages is replaced by what fails",
    "otel_assembly.instrumentation.haystack.generators": "what reads messages is replaced by what fails",
    "otel_assembly.instrumentation.haystack.messages": "importing it registers how the messages are read",
    "otel_assembly.instrumentation.langchain.messages": "importing it registers how the messages are read",
    "otel_assembly.instrumentation.openai_agents.messages": "importing it registers how the items are read",
    "otel_assembly.instrumentation.openai_agents.reducers": "what reads a run's items is replaced by one that fails",
    "otel_assembly.instrumentation.openai_agents.runs": "what reads a call is replaced by one that fails",
    "otel_assembly.instrumentation.llama_index.calls": "what reads a call is replaced by one that fails",
    "otel_assembly.instrumentation.llama_index.messages": "importing it registers how the messages are read",
    "otel_assembly.instrumentation.llama_index.reducers": "what names a memory is replaced by one that fails",
    "otel_assembly.instrumentation.plugin": "who has the turn is the same for all plug-ins, and tried once",
    "otel_assembly.instrumentation.pydantic_ai.calls": "what reads a request is replaced by one that fails",
    "otel_assembly.instrumentation.pydantic_ai.messages": "importing it registers how the messages are read",
    "otel_assembly.instrumentation.reductions": "the frameworks' own tests are counted by whether a reducer runs",
    "otel_assembly.instrumentation.strands.calls": "what reads a call is replaced by one that fails",
    "otel_assembly.instrumentation.strands.messages": "how messages, prompts and tools are read is tried by itself",
    "otel_assembly.instrumentation.strands.reducers": "what reads what an agent holds is replaced by one that fails",
    "otel_assembly.instrumentation.semantic_kernel.calls": "what reads a history is replaced by one that fails",
    "otel_assembly.instrumentation.semantic_kernel.messages": "importing it registers how the messages are read",
    "otel_assembly.instrumentation.message_alignment": "where lists of messages stand in one another is arithmetic",
    "otel_assembly.knowledge._descriptors": "what a system without them does is tried",
    "otel_assembly.messages.content_snapshot": "a type of the test's own says what of it may be written later",
    "otel_assembly.observe.conversations": "how many events are remembered is lowered for a test",
    "otel_assembly.page.document": "what the page is made of is taken away for a test",
    "otel_assembly.runtime.aggregation": "how many conversations are remembered is lowered for a test",
    "otel_assembly.runtime.monitors": "how many conversations are remembered is lowered for a test",
    "otel_assembly.sessions.log_rows": "a damaged row is read by itself",
    "otel_assembly.sessions.postgres_reader": "a damaged row is read by itself",
    "otel_assembly.telemetry.attributes": "the registry is compared with what the code writes",
    "otel_assembly.telemetry.conventions": "the registry's names",
    "otel_assembly.telemetry.conventions_environment": "the registry, which the documents are made of",
    "otel_assembly.telemetry.conventions_metrics": "the registry, which the dashboards are made of",
    "otel_assembly.telemetry.conventions_registry": "the registry, which documents and tests are made of",
    "otel_assembly.telemetry.document": "a program: python -m otel_assembly.telemetry.document",
    "otel_assembly.telemetry.emitter": "an array of a span is made small for a test",
    "otel_assembly.telemetry.instruments": "what is generated from the registry is compared with it",
    "otel_assembly.telemetry.recording": "what works attributes out is replaced by what counts how often",
    "otel_assembly.testing.plugin": "the plugin that tests ask pytest for",
    "otel_assembly.tokens.long_runs": "a private limit is lowered for a test",
    "otel_assembly.tokens.meter": "a private limit is lowered for a test",
    "otel_assembly.tokens.models": "the memory of a process is replaced for a test",
    "otel_assembly.tokens.prices": "what a list says of a model is replaced for a test",
    "otel_assembly.tokens.vocabulary": "the memory of a process is replaced for a test",
}


def module_of(path):
    """The module of ours that a dotted path names or lies in; None where it lies in no folder, or in a face alone."""
    parts = path.split(".")
    while len(parts) > 2 and parts[0] == "otel_assembly":
        file = ROOT.joinpath(*parts)
        if file.is_dir():
            return None
        if file.with_suffix(".py").is_file():
            return ".".join(parts)
        parts.pop()
    return None


#: Parsing the programs takes ten times as long.
IMPORT = re.compile(r"^[ >.]*from (otel_assembly[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


def paths_in(source):
    """Return the dotted paths of the package that a program imports, or names in a string."""
    for module, names in IMPORT.findall(source):
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names)))
    yield from re.findall(r"\botel_assembly(?:\.\w+)+", source)


def behind_faces():
    """Modules behind a face, by who speaks of them."""
    found = {}
    for folder in ("tests", "benchmarks", "examples", "scripts"):
        for file in ROOT.joinpath(folder).rglob("*.py"):
            if file != Path(__file__):
                for path in paths_in(file.read_text(encoding="utf-8")):
                    found.setdefault(module_of(path), set()).add(str(file.relative_to(ROOT)))
    for file in (ROOT / "README.md", *ROOT.joinpath("docs").glob("**/*.md")):
        if "decisions" not in file.parts:
            for path in re.findall(r"\botel_assembly(?:\.\w+)+", file.read_text(encoding="utf-8")):
                found.setdefault(module_of(path), set()).add(str(file.relative_to(ROOT)))
    found.pop(None, None)
    return {module: names for module, names in found.items() if module.count(".") > 1}


def test_tests_benchmarks_examples_and_documents_speak_through_faces():
    found = behind_faces()
    assert {module: names for module, names in found.items() if module not in BEHIND} == {}
    assert set(BEHIND) <= set(found), "nobody imports it any more"


@pytest.mark.parametrize("name", [package for package in FACES if package not in ELSEWHERE])
def test_a_package_lists_its_public_names_and_documents_each(name):
    package = importlib.import_module(name)
    assert len(set(package.__all__)) == len(package.__all__)
    silent = []
    for public in package.__all__:
        value = getattr(package, public)
        if isinstance(value, type) or inspect.isroutine(value):
            silent += [] if (value.__doc__ or "").strip() else [public]
    assert silent == []


@pytest.mark.parametrize("folder", ["scripts", "benchmarks", "examples"])
def test_names_that_programs_beside_the_package_import_exist(folder):
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("otel_assembly"):
                missing += [
                    f"{path.name}: {node.module}.{alias.name}"
                    for alias in node.names
                    if not _exists(node.module, alias.name)
                ]
    assert missing == []


def _exists(module, name):
    """Whether a module of ours has a name, or cannot be imported because a framework is not installed."""
    try:
        return hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}") is not None
    except ModuleNotFoundError as error:
        return not (error.name or "").startswith("otel_assembly")
