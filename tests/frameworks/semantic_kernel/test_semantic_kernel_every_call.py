"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

from functools import wraps

import pytest
import semantic_kernel_programs as programs
from semantic_kernel.contents import ChatHistory
from semantic_kernel.utils.telemetry.model_diagnostics.decorators import (
    trace_chat_completion,
    trace_streaming_chat_completion,
)
from semantic_kernel.utils.telemetry.model_diagnostics.model_diagnostics_settings import ModelDiagnosticSettings
from semantic_kernel_models import ScriptedService, Settings, Stage, assert_told, talk

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

every_program = pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda program: program.__name__)


@every_program
async def test_every_call_has_its_assembly(told, program):
    stage = Stage()
    await program(stage)
    assert stage.received
    assert_told(told, stage.received)
    assert len({span.trace_id for span in told.spans}) == stage.runs


class Traced(ScriptedService):
    """A service that is decorated as those of the providers are."""

    _inner_get_chat_message_contents = trace_chat_completion("scripted")(
        ScriptedService._inner_get_chat_message_contents
    )
    _inner_get_streaming_chat_message_contents = trace_streaming_chat_completion("scripted")(
        ScriptedService._inner_get_streaming_chat_message_contents
    )


@pytest.mark.parametrize("sensitive", [False, True])
@every_program
async def test_beside_its_own_telemetry_every_model_call_span_names_its_assembly(told, program, sensitive, monkeypatch):
    on = ModelDiagnosticSettings(enable_otel_diagnostics=True, enable_otel_diagnostics_sensitive=sensitive)
    for module in ("agent_diagnostics", "model_diagnostics"):
        monkeypatch.setattr(f"semantic_kernel.utils.telemetry.{module}.decorators.MODEL_DIAGNOSTICS_SETTINGS", on)
    monkeypatch.setattr(programs, "ScriptedService", Traced)
    stage = Stage()
    await program(stage)
    assemblies = assert_told(told, stage.received)
    for assembly in assemblies:
        if assembly.parent is not None and assembly.parent.name.startswith("chat "):
            ids = [child.attributes["assembly.id"] for child in assembly.parent.children if child.name == assembly.name]
            assert assembly.parent.attributes["assembly.id"] in ids
    chats = [span for span in told.spans if span.name.startswith("chat ")]
    if not stage.summaries and program.__name__ not in {"abandoned", "subclassed", "texts_completed"}:
        assert all("assembly.id" in span.attributes for span in chats)
        assert chats
    ours = [span for span in told.spans if span.name.startswith("invoke_agent") and span.scope == "otel_assembly"]
    assert {span.name.split()[1] for span in ours} <= {
        "AgentGroupChat", "SequentialOrchestration", "both", "GroupChatOrchestration", "HandoffOrchestration",
        "MagenticOrchestration",
    }  # fmt: skip
    assert len({span.trace_id for span in told.spans}) == stage.runs + len(stage.summaries)


@every_program
async def test_a_program_says_and_sends_the_same_with_and_without_us(program, capsys):
    alone = Stage()
    answers = await program(alone)
    printed = capsys.readouterr()
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("semantic_kernel")
        try:
            observed = Stage()
            assert await program(observed) == answers
        finally:
            uninstrument("semantic_kernel")
    assert capsys.readouterr() == printed
    assert [request.said for request in observed.received] == [request.said for request in alone.received]
    assert [summary.said for summary in observed.summaries] == [summary.said for summary in alone.summaries]
    telemetry.shutdown()


async def test_what_somebody_has_put_around_a_service_s_own_span_stays_there(assembly_telemetry):
    seen = []
    original = Traced._inner_get_chat_message_contents

    class Watched(Traced):
        @wraps(original)
        async def _inner_get_chat_message_contents(self, chat_history, settings):
            seen.append(len(chat_history))
            return await original(self, chat_history, settings)

    stage = Stage()
    service = Watched(stage, "Done.")
    with assembly_telemetry.as_default():
        instrument("semantic_kernel")
        try:
            await service.get_chat_message_content(talk(ChatHistory(), 2), Settings())
        finally:
            uninstrument("semantic_kernel")
    assert seen == [4]
    assert_told(assembly_telemetry, stage.received)
