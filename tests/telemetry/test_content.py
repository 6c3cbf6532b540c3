"""Nothing of a conversation leaves unless it is asked for, and then only what the redaction hook let through."""

from __future__ import annotations

import json
import logging

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyError,
    Context,
    ConversationPolicy,
    EpisodicMemoryPolicy,
    HaltEvent,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
    WorkingMemoryPolicy,
    configure,
)
from otel_assembly.events import ToolErrorEvent
from otel_assembly.knowledge import DiskKnowledgeStore, KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.recorder import default_recorder, set_default_recorder
from otel_assembly.telemetry import TelemetrySettings
from otel_assembly.testing import RecordedTelemetry, conversation

pytestmark = pytest.mark.usefixtures("quiet_sdk")

CANARY = "canary"


class Careless:
    """A policy as a user might write it, with a conversation in all its settings and in what it raises."""

    name = "careless"

    def __init__(self, fails):
        self.fails = fails

    @property
    def config(self):
        return {"examples": f"{CANARY}-setting", "limit": 3, "nested": {"text": f"{CANARY}-setting"}}

    async def apply(self, prompts, events, context):
        if self.fails:
            try:
                raise KeyError(f"{CANARY}-inner")
            except KeyError as error:
                raise ValueError(f"cannot read {events[0]!r} {CANARY}-raised") from error
        return [*prompts, f"{CANARY}-injected-prompt"], [*events, ModelRequest(content=f"{CANARY}-injected-event")]


def talk():
    arguments = json.dumps({"q": f"{CANARY}-argument"})
    call = ToolCallEvent(id=f"{CANARY}-call-id", name=f"{CANARY}-tool", arguments=arguments)
    return [
        {"role": "system", "content": f"{CANARY}-system"},
        ModelRequest(id=f"{CANARY}-id", content=f"{CANARY}-request"),
        ModelResponse(content=f"{CANARY}-response", tool_calls=(call,)),
        ToolResultEvent(parent_id=f"{CANARY}-call-id", content=f"{CANARY}-result"),
        ToolErrorEvent(parent_id="nobody", error=f"{CANARY}-error"),
        ModelRequest(content=f"{CANARY}-newest"),
    ]


async def memory():
    store = MemoryKnowledgeStore()
    await store.write("/memory/working.md", f"{CANARY}-working")
    await store.write("/memory/conversations/1.md", f"{CANARY}-episode")
    return store


async def broken_store(folder):
    """A store in whose path, and in whose errors, a name of somebody stands."""
    root = folder / f"{CANARY}-home"
    store = DiskKnowledgeStore(root)
    await store.write("/memory/working.md", "x")
    for file in root.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\xff\xfe no text")
    return store


async def everything(telemetry, tmp_path):
    """Every way in which a conversation passes through an assembly, good and bad."""
    tools = [{"type": "function", "function": {"name": f"{CANARY}-schema", "description": f"{CANARY}-described"}}]
    context = Context(
        conversation_id="c-1",
        agent_name="desk",
        model="gpt-4o",
        tools=tools,
        dependencies={KnowledgeStore: await memory()},
        variables={"user": f"{CANARY}-variable"},
    )
    ours = [AlertPolicy(), WorkingMemoryPolicy(), EpisodicMemoryPolicy(), ConversationPolicy()]
    chains = [
        [*ours, Careless(fails=False), SlidingWindowPolicy(2, transparent=True)],
        [*ours, TokenBudgetPolicy(10_000, transparent=True)],
        [TokenBudgetPolicy(1)],
        [SlidingWindowPolicy(1), Careless(fails=True)],
    ]
    for skip in ("raise", "skip"):
        for chain in chains:
            assembler = Assembler(chain, name="support", on_policy_error=skip, recorder=telemetry.recorder)
            for events in (talk()[:3], talk(), talk()[1:]):
                try:
                    await assembler.assemble([f"{CANARY}-prompt"], events, context)
                except AssemblyError:
                    continue
    lost = Context(dependencies={KnowledgeStore: await broken_store(tmp_path)})
    with pytest.raises(AssemblyError):
        await Assembler([WorkingMemoryPolicy()], recorder=telemetry.recorder).assemble([], talk(), lost)
    with telemetry.tracer("otel_openai").start_as_current_span("turn"):
        await Assembler([SlidingWindowPolicy(1)], recorder=telemetry.recorder).assemble([], talk(), context)
        telemetry.tracer().start_span("chat gpt-4o", attributes={"gen_ai.operation.name": "chat"}).end()


def exported(telemetry):
    """All that left, as one text."""
    return "\n".join([*map(repr, telemetry.spans), *map(repr, telemetry.logs), repr(telemetry.metrics)])


@pytest.mark.parametrize("signal", ["span_event", "both"])
async def test_with_capture_off_not_one_byte_of_a_conversation_leaves(signal, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    telemetry = RecordedTelemetry(settings=TelemetrySettings.from_environment({"OTEL_ASSEMBLY_ALERT_SIGNAL": signal}))
    await everything(telemetry, tmp_path)
    assert len(telemetry.spans) > 50
    assert telemetry.violations() == []
    assert CANARY not in exported(telemetry)
    ours = [record for record in caplog.records if record.name.startswith("otel_assembly")]
    assert len(ours) > 0
    assert not any(CANARY in caplog.handler.format(record) for record in ours)


async def test_what_a_policy_raised_leaves_its_class_and_its_frames_but_no_message(recorder):
    with pytest.raises(AssemblyError):
        await Assembler([Careless(fails=True)]).assemble([], talk(), Context())
    for name, error in (("apply_policy careless", "ValueError"), ("assemble_context", "ValueError")):
        span = recorder.span(name)
        assert (span.attributes["error.type"], span.attributes["exception.type"]) == (error, error)
        assert ", in apply" in span.attributes["exception.stacktrace"]
        assert (span.status, span.status_message) == ("ERROR", "a policy failed")
    assert CANARY not in exported(recorder)


async def test_a_policys_settings_are_told_by_number(recorder):
    await Assembler([Careless(fails=False), SlidingWindowPolicy(4, stride=2)]).assemble([], talk(), Context())
    assert json.loads(recorder.span("apply_policy careless").attributes["assembly.policy.config"]) == {"limit": 3}
    assert json.loads(recorder.span("apply_policy sliding_window").attributes["assembly.policy.config"]) == {
        "max_events": 4,
        "transparent": False,
        "stride": 2,
    }


async def test_settings_that_are_no_json_cost_no_span(recorder):
    import enum

    class Mode(enum.Enum):
        DEEP = object()

    class Odd:
        name = "odd"

        @property
        def config(self):
            return {"mode": Mode.DEEP, "far": float("inf"), "level": Severity.INFO, "on": True, "one": 1}

        async def apply(self, prompts, events, context):
            return prompts, events[1:]

    await Assembler([Odd()]).assemble([], conversation("ask", "ask"), Context())
    span = recorder.span("apply_policy odd")
    assert span.dropped_reasons == {"0": "policy"}
    assert json.loads(span.attributes["assembly.policy.config"]) == {
        "mode": "DEEP",
        "far": "inf",
        "level": "info",
        "on": True,
        "one": 1,
    }


# Captured on request


@pytest.mark.parametrize("mode", ["SPAN_ONLY", "span_and_event", "true"])
async def test_with_capture_on_texts_are_there_after_the_hook_has_seen_each(mode, tmp_path):
    seen = []

    def redact(text):
        seen.append(text)
        return text.replace(CANARY, "[bird]")

    environment = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": mode}
    telemetry = RecordedTelemetry(settings=TelemetrySettings.from_environment(environment, redact=redact))
    context = Context(dependencies={KnowledgeStore: await memory()})
    assembler = Assembler([WorkingMemoryPolicy(), Careless(fails=False)], recorder=telemetry.recorder)
    await assembler.assemble([f"{CANARY}-prompt"], talk(), context)
    span = telemetry.span("assemble_context")
    instructions = json.loads(span.attributes["gen_ai.system_instructions"])
    assert [part["content"] for part in instructions] == [
        "[bird]-prompt",
        "## Working Memory\n\n[bird]-working",
        "[bird]-injected-prompt",
    ]
    assert {part["type"] for part in instructions} == {"text"}
    assert span.contents == {
        "0": "[bird]-system",
        "1": "[bird]-request",
        "2": '[bird]-response\n[bird]-tool\n{"q": "[bird]-argument"}',
        "3": "[bird]-result",
        "4": "[bird]-error",
        "5": "[bird]-newest",
        "m0": "[bird]-injected-event",
    }
    told = [*span.contents.values(), *(part["content"] for part in instructions)]
    assert sorted(seen) == sorted(text.replace("[bird]", CANARY) for text in told)
    assert CANARY not in exported(telemetry)
    assert telemetry.violations() == []


@pytest.mark.parametrize("mode", ["", "NO_CONTENT", "EVENT_ONLY", "false"])
async def test_spans_hold_no_content_where_it_is_not_asked_for_on_spans(mode):
    environment = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": mode}
    telemetry = RecordedTelemetry(settings=TelemetrySettings.from_environment(environment))
    await Assembler([], recorder=telemetry.recorder).assemble([f"{CANARY}-prompt"], talk())
    assert CANARY not in exported(telemetry)


async def test_an_unknown_mode_is_a_warning_and_nothing_is_captured(caplog):
    environment = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "everything"}
    settings = TelemetrySettings.from_environment(environment)
    assert not settings.content_on_spans
    assert (
        "must be one of no_content, span_only, event_only, span_and_event; the default no_content is used"
        in caplog.text
    )


@pytest.mark.parametrize("answer", [ZeroDivisionError(f"{CANARY} is in this"), None, 7])
async def test_where_the_hook_fails_nothing_leaves_unredacted_and_nothing_else_is_lost(answer, caplog):
    def redact(text):
        if isinstance(answer, Exception):
            raise answer
        return answer

    environment = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
    telemetry = RecordedTelemetry(settings=TelemetrySettings.from_environment(environment, redact=redact))
    assembler = Assembler([AlertPolicy(), SlidingWindowPolicy(1)], on_halt="return", recorder=telemetry.recorder)
    alert = ObserverAlert(source="watch", severity="fatal", message=f"{CANARY}-alert")
    assembly = await assembler.assemble([f"{CANARY}-prompt"], [*talk(), alert], Context())
    span = telemetry.span("assemble_context")
    assert set(span.contents.values()) == {"[redaction failed]"}
    assert (sorted(span.arrived), span.kept) == (list(map(str, range(7))), assembly.items)
    assert telemetry.span("apply_policy alert").events[0].attributes["assembly.alert.message"] == "[redaction failed]"
    assert span.events_named("assembly.halt")[0].attributes["assembly.halt.reason"] == "[redaction failed]"
    assert CANARY not in exported(telemetry)
    assert telemetry.metric("assembly.telemetry.errors", component="redaction") == len(talk()) + 1 + 4
    warnings = [record.getMessage() for record in caplog.records if "telemetry" in record.getMessage()]
    assert len(warnings) == 1
    assert CANARY not in caplog.text
    assert telemetry.violations() == []


async def test_configure_takes_the_hook_and_is_the_default_from_then_on():
    before = default_recorder()
    telemetry = RecordedTelemetry()
    try:
        made = configure(tracer_provider=telemetry.tracer_provider, redact=lambda text: "gone")
        assert default_recorder() is made
        await Assembler([AlertPolicy()]).assemble([], conversation("alert"), Context())
    finally:
        set_default_recorder(lambda: before)
    event = telemetry.span("apply_policy alert").events[0]
    assert event.attributes["assembly.alert.message"] == "gone"


# Alerts and halts


def settings(**environment):
    return TelemetrySettings.from_environment(environment)


@pytest.mark.parametrize(
    ("value", "there"), [("true", True), ("", True), ("false", False), ("OFF", False), ("0", False)]
)
async def test_alert_messages_and_the_reasons_that_quote_them_can_be_turned_off(value, there):
    telemetry = RecordedTelemetry(
        settings=settings(OTEL_ASSEMBLY_CAPTURE_ALERT_MESSAGE=value, OTEL_ASSEMBLY_ALERT_SIGNAL="both")
    )
    assembler = Assembler([AlertPolicy()], on_halt="return", recorder=telemetry.recorder)
    context = Context()
    await assembler.assemble([], conversation("ask", "alert: it loops", "fatal: it burns"), context)
    other = Context()
    with telemetry.as_default():
        await other.send(HaltEvent(reason="it burns too", source="watch"))
    text = exported(telemetry)
    for words in ("it loops", "it burns", "it burns too"):
        assert (words in text) == there
    events = telemetry.span("apply_policy alert").events + telemetry.span("assemble_context").events
    assert len(events) == 3
    texts = {"assembly.alert.message", "assembly.halt.reason"}
    assert all(bool(texts & event.attributes.keys()) == there for event in events)
    assert len(telemetry.logs) == 4
    assert telemetry.violations() == []


async def test_messages_are_cut_at_256_characters(recorder):
    await Assembler([AlertPolicy()], on_halt="return").assemble([], conversation("fatal: " + "ü" * 300), Context())
    assert recorder.span("apply_policy alert").events[0].attributes["assembly.alert.message"] == "ü" * 256
    reason = recorder.span("assemble_context").events[0].attributes["assembly.halt.reason"]
    assert (len(reason), reason.startswith("FATAL: ü")) == (256, True)


async def test_an_alert_of_an_unheard_of_severity_is_told_as_a_warning(recorder):
    class Alarm(ObserverAlert):
        severity: str

    alarm = Alarm(source="elsewhere", severity="catastrophic", message="help")
    await Assembler([AlertPolicy()]).assemble([], [alarm], Context())
    assert recorder.span("apply_policy alert").events[0].attributes["assembly.alert.severity"] == "warning"
    assert recorder.metric("assembly.alerts.delivered", alert_severity="warning", alert_source="elsewhere") == 1
    assert recorder.violations() == []
