"""What the instrumentors of all frameworks share, on a small framework of our own making, imported from a folder."""

from __future__ import annotations

import functools
import importlib
import logging
import subprocess
import sys
from typing import ClassVar
from zipfile import ZipFile

import pytest

from otel_assembly import DecisionReason, instrument, uninstrument
from otel_assembly.errors import ConfigurationError, UnknownNameError
from otel_assembly.instrumentation import (
    FRAMEWORKS,
    INSTRUMENTORS,
    AssemblyInstrumentor,
    Hook,
    HookState,
    in_module,
    instrumentor_of,
)

SOURCE = """
class Buffer:
    size = 2

    def reduce(self, messages):
        return messages[-self.size:]

    @staticmethod
    def first(messages):
        return messages[:1]


class Wide(Buffer):
    pass


def trim(messages):
    return messages[1:]
"""


def watched(original, instrumentation):
    @functools.wraps(original)
    def reduce(self, messages):
        if not instrumentation.is_enabled():
            return original(self, messages)
        assembly = instrumentation.observed.begin(self, messages, agent_name="clerk")
        if assembly is None:
            return original(self, messages)
        with assembly.step("buffer", kind="reduction") as step:
            result = original(self, messages)
            step.out(result, reason=DecisionReason.OUTSIDE_WINDOW)
        assembly.end()
        return result

    return reduce


def passed_on(original, _):
    @functools.wraps(original)
    def wrapper(*given):
        return original(*given)

    return wrapper


class PretendInstrumentor(AssemblyInstrumentor):
    framework = "pretend"
    requires = ("pydantic >= 2",)
    hooks: ClassVar[tuple[Hook, ...]] = (
        Hook("pretend_framework", "Buffer.reduce", watched, "what a buffer drops"),
        Hook("pretend_framework", "Buffer.first", passed_on, "the first of a buffer"),
        Hook("pretend_framework", "trim", passed_on, "what is trimmed"),
        Hook("pretend_framework", "Gone.reduce", passed_on, "what was there once", versions="< 1"),
    )


@pytest.fixture
def framework(tmp_path, monkeypatch):
    """The folder of a framework that has not been imported yet."""
    (tmp_path / "pretend_framework.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield functools.partial(importlib.import_module, "pretend_framework")
    sys.modules.pop("pretend_framework", None)


@pytest.fixture
def pretend():
    instrumentor = PretendInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def messages(count):
    return [{"role": "user", "content": f"message {number}"} for number in range(count)]


def test_a_framework_is_not_imported_for_it(framework, pretend):
    pretend.instrument()
    assert "pretend_framework" not in sys.modules
    assert set(pretend.states.values()) == {HookState.WAITING}
    framework()
    assert [state.value for state in pretend.states.values()] == ["taken", "taken", "taken", "not_expected"]


@pytest.mark.parametrize("first", ["framework", "instrumentor"])
def test_before_or_after_import_and_agents_built_before_or_after(framework, pretend, assembly_telemetry, first):
    early = framework().Buffer() if first == "framework" else None
    pretend.instrument()
    for buffer in filter(None, (early, framework().Buffer(), framework().Wide())):
        assert [message["content"] for message in buffer.reduce(messages(4))] == ["message 2", "message 3"]
    spans = [span for span in assembly_telemetry.spans if span.name == "apply_policy buffer"]
    assert len(spans) == (3 if early else 2)
    for span in spans:
        assert span.dropped_reasons == {"0": "outside_window", "1": "outside_window"}
        assert span.parent.attributes["assembly.framework"] == "pretend"
        assert span.parent.attributes["gen_ai.agent.name"] == "clerk"


def test_uninstrument_puts_the_identical_objects_back_and_what_was_taken_along_goes_quiet(
    framework, pretend, assembly_telemetry
):
    module = framework()
    before = vars(module.Buffer)["reduce"], vars(module.Buffer)["first"], module.trim
    pretend.instrument()
    taken_along = module.Buffer().reduce
    assert vars(module.Buffer)["reduce"] is not before[0]
    pretend.uninstrument()
    assert (vars(module.Buffer)["reduce"], vars(module.Buffer)["first"], module.trim) == before
    assert isinstance(vars(module.Buffer)["first"], staticmethod)
    taken_along(messages(4))
    assert assembly_telemetry.spans == []
    assert pretend.states == {}


def test_it_can_be_instrumented_again(framework, pretend, assembly_telemetry):
    buffer = framework().Buffer()
    for _ in range(3):
        pretend.instrument()
        pretend.uninstrument()
    pretend.instrument()
    buffer.reduce(messages(3))
    assert [span.name for span in assembly_telemetry.spans].count("assemble_context") == 1


def test_a_module_that_is_imported_after_uninstrument_stays_as_it_is(framework, pretend):
    pretend.instrument()
    pretend.uninstrument()
    module = framework()
    assert not hasattr(module.trim, "__wrapped__")


def test_what_somebody_wrapped_over_ours_stays_wrapped_and_is_inert(framework, pretend, assembly_telemetry):
    module = framework()
    pretend.instrument()
    ours = vars(module.Buffer)["reduce"]

    def theirs(self, given):
        return ours(self, given)

    module.Buffer.reduce = theirs
    pretend.uninstrument()
    assert vars(module.Buffer)["reduce"] is theirs
    assert len(module.Buffer().reduce(messages(4))) == 2
    assert assembly_telemetry.spans == []


def test_a_hook_that_a_release_renamed_is_one_warning_that_names_it_and_the_rest_works(
    framework, pretend, tmp_path, caplog, assembly_telemetry
):
    renamed = SOURCE.replace("def trim", "def cut").replace("def first", "def head")
    (tmp_path / "pretend_framework.py").write_text(renamed, encoding="utf-8")
    pretend.instrument()
    with caplog.at_level(logging.WARNING, "otel_assembly"):
        module = framework()
        module.Buffer().reduce(messages(3))
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2
    assert any("pretend_framework.trim" in text and "what is trimmed" in text for text in warned)
    assert pretend.states["pretend_framework.trim"] is HookState.MISSING
    assert pretend.states["pretend_framework.Gone.reduce"] is HookState.NOT_EXPECTED
    assert [span.name for span in assembly_telemetry.spans].count("assemble_context") == 1


@pytest.fixture
def client_package(tmp_path, framework):
    """A provider's client, which programs import with the framework or without it."""
    (tmp_path / "pretend_client.py").write_text("def request():\n    return 'answer'\n", encoding="utf-8")
    (tmp_path / "pretend_framework.py").write_text("import pretend_client\n" + SOURCE, encoding="utf-8")
    yield functools.partial(importlib.import_module, "pretend_client")
    sys.modules.pop("pretend_client", None)


class ClientInstrumentor(AssemblyInstrumentor):
    framework = "pretend_with_client"
    requires = ("pydantic >= 2",)
    rows: ClassVar[dict[str, str]] = {}
    hooks: ClassVar[tuple[Hook, ...]] = tuple(
        in_module("pretend_client", ("request", passed_on, "requests"), after="pretend_framework")
    )


@pytest.fixture
def client_instrumentor():
    instrumentor = ClientInstrumentor()
    yield instrumentor
    instrumentor.uninstrument()


def test_a_hook_in_another_package_waits_for_the_framework(framework, client_package, client_instrumentor):
    client_instrumentor.instrument()
    client = client_package()
    assert not hasattr(client.request, "__wrapped__")
    framework()
    assert hasattr(client.request, "__wrapped__")
    client_instrumentor.uninstrument()
    assert not hasattr(client.request, "__wrapped__")


@pytest.mark.parametrize("first", ["client", "framework", "instrumentor"])
def test_a_hook_in_another_package_takes_in_each_order_of_imports(
    framework, client_package, client_instrumentor, first
):
    {"client": client_package, "framework": framework, "instrumentor": client_instrumentor.instrument}[first]()
    framework()
    client_instrumentor.instrument()
    assert hasattr(client_package().request, "__wrapped__")
    assert list(client_instrumentor.states.values()) == [HookState.TAKEN]


def test_nothing_is_replaced_for_a_framework_that_is_not_installed(framework, pretend, monkeypatch, caplog):
    monkeypatch.setattr(PretendInstrumentor, "requires", ("no-such-framework >= 2",))
    monkeypatch.setattr(PretendInstrumentor, "rows", {"pretend_framework": "otel_assembly.no_such_module"})
    pretend.instrument(skip_dep_check=True)  # as `opentelemetry-instrument` does
    assert not hasattr(framework().trim, "__wrapped__")
    assert not caplog.records


def test_a_package_of_the_program_with_the_name_of_the_framework_is_no_warning(
    framework, pretend, monkeypatch, caplog, tmp_path
):
    site = tmp_path / "site-packages"
    (site / "pretend_distribution-2.0.dist-info").mkdir(parents=True)
    (site / "pretend_distribution-2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: pretend-distribution\nVersion: 2.0\n", encoding="utf-8"
    )
    (site / "pretend_framework.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    monkeypatch.setattr(PretendInstrumentor, "requires", ("pretend-distribution >= 2",))
    monkeypatch.setattr(PretendInstrumentor, "rows", {"pretend_framework": "otel_assembly.no_such_module"})
    (tmp_path / "pretend_framework.py").write_text("agents = ['mine']\n", encoding="utf-8")
    pretend.instrument()
    assert framework().agents == ["mine"]
    assert not caplog.records


def test_hooks_in_packages_of_others_wait_for_the_framework():
    for name in FRAMEWORKS:
        instrumentor = instrumentor_of(name)
        if instrumentor.version is None:
            continue
        own = {module.partition(".")[0] for module in (*instrumentor.rows, *instrumentor.on_import)}
        own |= {"autogen_agentchat", "autogen_core"} if name == "autogen" else set(instrumentor.apart)
        for hook in instrumentor.hooks:
            assert hook.after or hook.module.partition(".")[0] in own, hook.name
            assert not hook.after or hook.after.partition(".")[0] in own, hook.name


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("from openai.resources.responses import responses", marks=pytest.mark.slow),
        "import agents",
        pytest.param("from openai.resources.responses import responses; import agents", marks=pytest.mark.slow),
        pytest.param("import pydantic_ai.models.openai", marks=pytest.mark.slow),
        pytest.param("import haystack.components.generators.chat.openai", marks=pytest.mark.slow),
    ],
)
def test_the_responses_client_is_imported_without_a_warning(imports):
    program = (
        "import otel_assembly; otel_assembly.instrument()\n"
        f"{imports}\nimport openai, sys\n"
        "client = openai.AsyncOpenAI(api_key='none', base_url='http://127.0.0.1:9')\n"
        "print(hasattr(type(client.responses).compact, '__wrapped__'), 'agents' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""
    hooked, imported = done.stdout.split()
    assert hooked == imported == str("agents" in imports)


def test_a_version_that_is_not_taken_on_is_left_alone_with_a_warning(framework, monkeypatch, pretend, caplog):
    monkeypatch.setattr(PretendInstrumentor, "requires", ("pydantic >= 1000",))
    pretend.instrument(skip_dep_check=True)  # as `opentelemetry-instrument` does
    assert not hasattr(framework().trim, "__wrapped__")
    assert "pretend is not instrumented" in caplog.text


def test_instrumenting_again_parses_no_metadata_of_a_distribution(framework, monkeypatch, pretend):
    """A parse takes milliseconds, and programs instrument and uninstrument in each of their tests."""
    monkeypatch.setattr(PretendInstrumentor, "requires", ("pydantic >= 2",))
    pretend.instrument()
    assert hasattr(framework().trim, "__wrapped__")
    pretend.uninstrument()
    parsed = []
    monkeypatch.setattr("email.message_from_string", parsed.append)
    pretend.instrument()
    assert hasattr(framework().trim, "__wrapped__")
    assert not parsed


def test_nobody_listens_nothing_is_opened(framework, pretend):
    pretend.instrument()
    buffer = framework().Buffer()
    assert buffer.reduce(messages(4)) == messages(4)[-2:]


def test_providers_of_ones_own_are_heard(framework, pretend, assembly_telemetry):
    from otel_assembly.testing import RecordedTelemetry

    own = RecordedTelemetry()
    pretend.instrument(tracer_provider=own.tracer_provider, meter_provider=own.meter_provider)
    framework().Buffer().reduce(messages(3))
    assert [span.name for span in own.spans] == ["apply_policy buffer", "assemble_context"]
    assert assembly_telemetry.spans == []
    own.shutdown()


def test_a_failure_of_ours_never_reaches_the_agent_and_is_counted(framework, pretend, assembly_telemetry):
    pretend.instrument()
    buffer = framework().Buffer()
    unreadable = [object(), object(), object()]
    assert buffer.reduce(unreadable) == unreadable[-2:]
    assert assembly_telemetry.metric("assembly.telemetry.errors", component="instrumentation.pretend")


def test_there_is_one_instrumentor_for_each_framework_and_its_names_are_those_of_the_entry_points():
    from importlib.metadata import entry_points

    ours = {entry.name: entry for entry in entry_points(group="opentelemetry_instrumentor")}
    for framework in INSTRUMENTORS:
        assert isinstance(instrumentor_of(framework), ours[f"otel_assembly_{framework}"].load())
        assert instrumentor_of(framework).framework == framework


def test_instrument_takes_all_that_are_installed_and_can_be_called_again():
    try:
        done = instrument()
        known = INSTRUMENTORS
        assert set(done) == {name for name in known if instrumentor_of(name).version is not None}
        assert instrument() == done
    finally:
        uninstrument()
    assert not any(instrumentor_of(name).is_instrumented_by_opentelemetry for name in FRAMEWORKS)


@pytest.mark.parametrize("disabled", ["otel_assembly_ag2, requests", "*"])
def test_the_standard_variable_disables_it(monkeypatch, disabled):
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", disabled)
    try:
        assert "ag2" not in instrument()
    finally:
        uninstrument()


def test_an_unknown_framework_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'langchain'"):
        instrument("langchains")


def test_two_hooks_of_one_target_are_an_error_that_says_how_to_combine_them():
    hooks = [Hook("parrot", "Parrot.talk", passed_on, "a run"), Hook("parrot", "Parrot.talk", watched, "a call")]
    with pytest.raises(ConfigurationError, match=r"two hooks of parrot\.Parrot\.talk, .* combine their wrappers"):
        type("Twice", (AssemblyInstrumentor,), {"hooks": hooks})
    added = type("Added", (AssemblyInstrumentor,), {"framework": "parrot", "requires": (), "hooks": hooks[:1]})
    added.hooks = hooks
    with pytest.raises(ConfigurationError, match=r"two hooks of parrot\.Parrot\.talk"):
        added().instrument()


class ZippedInstrumentor(AssemblyInstrumentor):
    framework = "zipped"
    requires = ("zipped-clerks",)
    hooks: ClassVar = (Hook("zipped_clerks", "trim", passed_on, "what is trimmed"),)


def test_the_hooks_of_a_distribution_in_a_zip_file_are_applied(tmp_path, monkeypatch):
    with ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("zipped_clerks.py", "def trim(messages): ...")
        archive.writestr("zipped_clerks-1.0.dist-info/METADATA", "Name: zipped-clerks\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path / "zipped.zip")
    instrumentor = ZippedInstrumentor()
    instrumentor.instrument()
    importlib.import_module("zipped_clerks")
    assert instrumentor.states == {"zipped_clerks.trim": HookState.TAKEN}
    instrumentor.uninstrument()
