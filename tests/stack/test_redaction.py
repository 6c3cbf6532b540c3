"""The second line of defence: what looks like a secret does not reach Jaeger, and what is ours reaches it unharmed."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest
from local_stack import COLLECTORS, Collector, wait_until
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode
from spans import sending, span_id, tags_of, trace_id, traces_in

from otel_assembly import AlertPolicy, Assembler, Context, ConversationPolicy, SlidingWindowPolicy
from otel_assembly.telemetry import ContentCapture, OpenTelemetryRecorder, TelemetrySettings
from otel_assembly.testing import conversation

SECRETS = {
    "an e-mail address": "jo.smith+lamps@mail.example.com",
    "a card": "4111 1111 1111 1111",
    "a card without gaps": "5500005555555559",
    "an American Express card": "3782-822463-10005",
    "a key of OpenAI": "sk-proj-abcdEFGH1234567890_-abcd",
    "an older key of OpenAI": "sk-abcdefghijklmnopqrstuvwxyz0123456789",
    "a key of Anthropic": "sk-ant-api03-abcdEFGH12345678-90",
    "a key of AWS": "AKIAIOSFODNN7EXAMPLE",
    "a token of GitHub": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "a key of Google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "a token of Slack": "xoxb-123456789012-abcdefghijkl",
    "a JSON Web Token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJ",
    "a bearer token": "Bearer abcdefghijklmnop0123456789",
    "a private key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
    "a password in an address": "password=hunter2hunter2",
}
INNOCENT = {
    "gen_ai.conversation.id": "41111111-4111-4111-8111-111111111111",
    "gen_ai.response.id": "chatcmpl-4111111111111111",
    "gen_ai.agent.name": "task-management-for-customers",
    "assembly.prefix.hash": "4111111111111111",
    "assembly.kept.items": ("0", "12-2048", "41111111-41111111"),
    "assembly.arrived.tokens": (12, 4111111111111111),
    "assembly.budget.utilization": 0.4111111111111111,
    "ratio.of.another": 0.4111111111111111,
    "numbers.of.another": (1, 2, 3),
    "names.of.another": ("a", "b"),
    "gen_ai.usage.input_tokens": 4096,
    "url.full": "https://api.example.com/v1/chat?version=2026-11-22",
    "started": "2026-11-22T02:13:10.610000Z",
}


@pytest.fixture
def service(request):
    return f"{request.node.name[5:45]}-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def sender(stack, service):
    with sending(stack.collector.otlp_grpc, service) as one:
        yield one


def error_status(description):
    return Status(StatusCode.ERROR, description)


def shown(stack, sender, span):
    """The span as Jaeger shows it."""
    sender.flush()

    def find():
        spans = traces_in(stack.jaeger, sender.service).get(trace_id(span), [])
        return next((item for item in spans if item["spanID"] == span_id(span)), None)

    return wait_until(find, seconds=60, what="the span in Jaeger", every=0.2)


@pytest.mark.parametrize("what", SECRETS)
def test_secrets_are_masked_wherever_they_stand_on_a_span(stack, sender, what):
    secret = SECRETS[what]
    span = sender.begin("chat model")
    span.set_attribute("note", f"before {secret} after")
    span.set_attribute("alone", secret)
    span.set_attribute("gen_ai.input.messages", json.dumps([{"role": "user", "content": f"I am\n{secret}\nsee"}]))
    span.set_attribute("list.of.another", ["clean", f"I am\n{secret}\nsee"])
    span.set_attribute("assembly.arrived.contents", ["clean", f"I am <{secret}>", f"\\\n{secret}"])
    span.add_event("exception", {"exception.message": f"no {secret} here"})
    span.add_event(
        "assembly.alert", {"assembly.alert.message": f"saw {secret} now", "assembly.alert.severity": "fatal"}
    )
    span.add_event("assembly.halt", {"assembly.halt.reason": f"saw {secret} now"})
    span.set_status(error_status(f"failed for {secret} twice"))
    span.end()
    found = shown(stack, sender, span)
    assert secret not in json.dumps(found)
    assert secret not in json.dumps(found).encode().decode("unicode_escape")
    tags = tags_of(found)
    assert tags["note"] == "before **** after"
    assert tags["alone"] == "****"
    assert tags["otel.status_description"] == "failed for **** twice"
    events = [{field["key"]: field["value"] for field in log["fields"]} for log in found["logs"]]
    assert events[0]["exception.message"] == "no **** here"
    assert events[1]["assembly.alert.message"] == events[2]["assembly.halt.reason"] == "saw **** now"
    assert events[1]["assembly.alert.severity"] == "fatal"
    # Still JSON, each text in its place.
    assert json.loads(tags["gen_ai.input.messages"])[0]["content"].endswith("****\nsee")
    assert json.loads(tags["list.of.another"])[0] == "clean"
    contents = json.loads(tags["assembly.arrived.contents"])
    assert (contents[0], len(contents)) == ("clean", 3)
    assert contents[1] == "I am <****>"
    assert not [tag for tag in tags if tag.startswith("redaction")]


def test_numbers_ids_and_ordinals_are_left_as_they_are(stack, sender):
    span = sender.begin("assemble_context")
    span.set_attributes(INNOCENT)
    span.set_status(error_status("the conversation was halted"))
    span.end()
    found = tags_of(shown(stack, sender, span))
    arrays = {name: list(value) for name, value in INNOCENT.items() if isinstance(value, tuple)}
    assert {name: json.loads(found[name]) for name in arrays} == arrays
    assert {name: found[name] for name in INNOCENT if name not in arrays} == {
        name: value for name, value in INNOCENT.items() if name not in arrays
    }
    assert found["otel.status_description"] == "the conversation was halted"


def test_a_real_assembly_arrives_as_it_was_recorded_but_for_secrets_in_its_contents(stack, sender):
    kept = InMemorySpanExporter()
    sender.tracer_provider.add_span_processor(SimpleSpanProcessor(kept))
    recorder = OpenTelemetryRecorder(
        tracer_provider=sender.tracer_provider,
        meter_provider=sender.meter_provider,
        logger_provider=sender.logger_provider,
        settings=TelemetrySettings(content=ContentCapture.SPAN_ONLY),
    )
    secret = SECRETS["an e-mail address"]
    words = ["ask", "call a", "result a", "answer", f"ask: mine is\n{secret}", "call b", "result b", f"fatal: {secret}"]
    policies = [ConversationPolicy(), SlidingWindowPolicy(3), AlertPolicy()]
    assembler = Assembler(policies, on_halt="return", recorder=recorder)
    asyncio.run(assembler.assemble(["Be brief."], conversation(*words), Context(agent_name="desk")))
    recorded = {f"{span.context.span_id:016x}": span for span in kept.get_finished_spans()}
    assert len(recorded) == 4
    root = next(span for span in recorded.values() if span.name == "assemble_context")
    sender.flush()

    def whole():
        spans = traces_in(stack.jaeger, sender.service).get(f"{root.context.trace_id:032x}", [])
        return spans if len(spans) == len(recorded) else None

    found = wait_until(whole, seconds=60, what="the assembly in Jaeger", every=0.2)
    assert secret not in json.dumps(found)
    for span in found:
        original = recorded[span["spanID"]]
        tags = tags_of(span)
        for name, value in original.attributes.items():
            expected = json.dumps(list(value)) if isinstance(value, tuple) else value
            actual = json.dumps(json.loads(tags[name])) if isinstance(value, tuple) else tags[name]
            # A mask after a line's end takes the "n" of "\n" along, and the check of the rest is in its own test.
            if name != "assembly.arrived.contents":
                assert actual == expected, name
        if "assembly.arrived.contents" in original.attributes:
            sent, shown_ = (
                original.attributes["assembly.arrived.contents"],
                json.loads(tags["assembly.arrived.contents"]),
            )
            assert len(sent) == len(shown_)
            assert [text for text in sent if secret not in text] == [text for text in shown_ if "****" not in text]
            assert any("****" in text for text in shown_)


def test_log_records_are_masked_in_body_attributes_and_messages_of_ours(stack, sender):
    secret = SECRETS["an e-mail address"]
    mark = uuid.uuid4().hex
    attributes = {
        "mark": mark,
        "note": f"of {secret}",
        "list": ["clean", secret],
        "assembly.alert.message": f"saw {secret} now",
        "assembly.alert.fingerprint": "4111111111111111",
    }
    sender.logger.emit(event_name="assembly.alert", body=f"body {secret}", attributes=attributes)
    sender.logger.emit(body={"mark": mark, "deep": [{"mail": secret}]})
    sender.flush()
    file = stack.collector.folder / "data" / "logs.jsonl"

    def written():
        lines = file.read_text().splitlines() if file.exists() else []
        text = "\n".join(line for line in lines if mark in line)
        return text if text.count(mark) == 2 else None

    text = wait_until(written, seconds=60, what="both records in the file")
    assert secret not in text
    assert "body ****" in text
    assert "saw **** now" in text
    assert "of ****" in text
    assert "4111111111111111" in text
    assert "redaction." not in text


def test_what_holds_messages_by_its_name_is_dropped_unless_content_is_kept(programs, stack, tmp_path, service):
    settings = {"KEEP_CONTENT": "false", "JAEGER_ENDPOINT": stack.jaeger.otlp}
    collector = Collector(programs, COLLECTORS / "local.yaml", tmp_path / "collector", settings)
    collector.start()
    dropped = [
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.prompt.0.content",
        "gen_ai.completion.0.content",
        "llm.input_messages.0.message.content",
        "input.value",
        "output.value",
        "traceloop.entity.input",
    ]
    left = {"gen_ai.prompt.name": "greeting", "gen_ai.tool.name": "search", "assembly.arrived.items": ["0", "1"]}
    try:
        with sending(collector.otlp_grpc, service) as sender:
            span = sender.begin("chat model")
            span.set_attributes(dict.fromkeys(dropped, "canary") | left)
            span.set_attribute("assembly.arrived.contents", ["canary", "canary"])
            span.add_event("gen_ai.content.prompt", {"gen_ai.prompt": "canary"})
            span.end()
            sender.logger.emit(event_name="gen_ai.user.message", body={"content": "canary"})
            sender.logger.emit(event_name="gen_ai.client", attributes={"gen_ai.input.messages": "canary"})
            found = shown(stack, sender, span)
        logs = tmp_path / "collector" / "data" / "logs.jsonl"
        wait_until(lambda: logs.exists() and "gen_ai.client" in logs.read_text(), seconds=60, what="the log records")
    finally:
        collector.stop()
    assert "canary" not in json.dumps(found)
    assert "canary" not in logs.read_text()
    tags = tags_of(found)
    assert {name: tags[name] for name in left} == left | {"assembly.arrived.items": '["0","1"]'}
