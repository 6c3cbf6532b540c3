"""What the instrumentors of all frameworks share, on a small framework of our own making, imported from a folder."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from typing import ClassVar

import pytest

from otel_assembly import DecisionReason, UnknownNameError, instrument, uninstrument
from otel_assembly.instrumentation import FRAMEWORKS, AssemblyInstrumentor, Hook, HookState, instrumentor_of

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
        if not instrumentation.listening():
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
        assert [one["content"] for one in buffer.reduce(messages(4))] == ["message 2", "message 3"]
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


def test_a_version_that_is_not_taken_on_is_left_alone_with_a_warning(framework, monkeypatch, pretend, caplog):
    monkeypatch.setattr(PretendInstrumentor, "requires", ("pydantic >= 1000",))
    pretend.instrument(skip_dep_check=True)  # as `opentelemetry-instrument` does
    assert not hasattr(framework().trim, "__wrapped__")
    assert "pretend is not instrumented" in caplog.text


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
    for framework in FRAMEWORKS:
        assert isinstance(instrumentor_of(framework), ours[f"otel_assembly_{framework}"].load())
        assert instrumentor_of(framework).framework == framework


def test_instrument_takes_all_that_are_installed_and_can_be_called_again():
    try:
        done = instrument()
        assert set(done) == {name for name in FRAMEWORKS if instrumentor_of(name).version is not None}
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
