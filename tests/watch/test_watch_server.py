"""The server of `watch`: real exporters send to it, and neither a web page nor a damaged request does any harm."""

from __future__ import annotations

import gzip
import http.client
import json
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_receiver import receiving_http
from page.page_runs import messages, play
from watch.watching import Watch

from otel_assembly import OpenTelemetryRecorder
from otel_assembly.watch import child_environment

PROTOBUF, JSON = "application/x-protobuf", "application/json"


async def record(exporter, turns=3, conversation="talk"):
    """Send the spans of some turns to an exporter of the SDK."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    await play(OpenTelemetryRecorder(tracer_provider=provider), messages(turns), conversation=conversation, budget=90)
    provider.shutdown()


@pytest.fixture
def talk(request):
    """The id of the test's own conversation, because tests share a server."""
    return request.node.name


@pytest.fixture
async def body(talk):
    """An export request of three turns, as protobuf."""
    memory = InMemorySpanExporter()
    await record(memory, conversation=talk)
    return encode_spans(memory.get_finished_spans())


def as_json(request):
    """An export request as OTLP/JSON, whose ids are hexadecimal."""
    from google.protobuf.json_format import MessageToDict

    spans = MessageToDict(request)
    for resource, message in zip(spans["resourceSpans"], request.resource_spans, strict=True):
        for scope, of_scope in zip(resource["scopeSpans"], message.scope_spans, strict=True):
            for span, raw in zip(scope["spans"], of_scope.spans, strict=True):
                span |= {"traceId": raw.trace_id.hex(), "spanId": raw.span_id.hex()}
                span["parentSpanId"] = raw.parent_span_id.hex()
    return json.dumps(spans).encode()


@pytest.fixture
def watch():
    with Watch("--port", 0) as running:
        running.line("waiting for OTLP")
        yield running


@pytest.fixture(scope="module")
def shared_watch():
    """A server for tests that read no other conversation than theirs; its start costs more than their requests."""
    with Watch("--port", 0) as running:
        running.line("waiting for OTLP")
        yield running


async def test_the_exporter_of_the_sdk_sends_turns(shared_watch, talk):
    await record(OTLPSpanExporter(f"{shared_watch.endpoint}/v1/traces"), conversation=talk)
    turns = shared_watch.turns(3, talk)
    assert [turn["n"] for turn in turns] == [0, 1, 2]
    assert any(turn.get("new") for turn in turns)
    assert not any(turn.get("partial") or turn.get("problems") for turn in turns)


async def test_the_json_and_the_protobuf_form_show_the_same(shared_watch, body, talk):
    assert shared_watch.post("/v1/traces", as_json(body), JSON) == (200, "{}")
    turns = shared_watch.turns(3, talk)
    with Watch("--port", 0) as other:
        assert other.post("/v1/traces", gzip.compress(body.SerializeToString()), content_encoding="gzip")[0] == 200
        assert other.turns(3) == turns


async def test_a_chunked_body_is_read(shared_watch, body, talk):
    connection = http.client.HTTPConnection(shared_watch.endpoint.removeprefix("http://"))
    content = gzip.compress(body.SerializeToString())
    chunks = (content[start : start + 100] for start in range(0, len(content), 100))
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip", "transfer-encoding": "chunked"}
    connection.request("POST", "/v1/traces", chunks, headers, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert len(shared_watch.turns(3, talk)) == 3


async def test_a_halt_is_marked_before_the_span_of_its_run_ends(shared_watch, body, talk):
    """The span of a run is exported at its end; the log record of a halt is exported when the halt happens."""
    shared_watch.post("/v1/traces", body.SerializeToString())
    newest = body.resource_spans[0].scope_spans[0].spans[-1]
    record = LogRecord(event_name="assembly.halt", trace_id=newest.trace_id, span_id=b"12345678")
    record.attributes.add(key="assembly.halt.source").value.string_value = "guard"
    logs = ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=[record])])],
    )
    assert shared_watch.post("/v1/logs", logs.SerializeToString())[0] == 200
    turns = shared_watch.turns(3, talk)
    assert [turn["n"] for turn in turns if any(each["what"] == "halt" for each in turn.get("signals", ()))] == [2]


async def test_a_turn_with_impossible_lists_is_skipped_in_one_line(shared_watch, body, talk):
    spans = body.resource_spans[0].scope_spans[0].spans
    huge = next(span for span in spans if span.name == "assemble_context")
    kept = next(attribute for attribute in huge.attributes if attribute.key == "assembly.kept.items")
    for _ in range(20_000):
        kept.value.array_value.values.add(string_value="0-999999")
    assert shared_watch.post("/v1/traces", body.SerializeToString())[0] == 200
    assert "turn 0 lists more than 1,000,000 items and is skipped" in shared_watch.line("turn 0")
    assert [turn["n"] for turn in shared_watch.turns(2, talk)] == [1, 2]


async def test_logs_and_metrics_are_accepted(shared_watch):
    for path in ("/v1/logs", "/v1/metrics"):
        assert shared_watch.post(path, b"")[0] == 200
        assert shared_watch.post(path, b"{}", JSON) == (200, "{}")


@pytest.mark.parametrize(
    ("content", "content_type", "headers", "status"),
    [
        (b"\xff\xff\xff", PROTOBUF, {}, 400),
        (b"{", JSON, {}, 400),
        (b"[]", JSON, {}, 400),
        (b"[" * 100_000, JSON, {}, 400),
        (b'{"resourceSpans":' + b'{"a":' * 100_000, JSON, {}, 400),
        (b"not gzip", PROTOBUF, {"content_encoding": "gzip"}, 400),
        (gzip.compress(b"cut", mtime=0)[:-4], PROTOBUF, {"content_encoding": "gzip"}, 400),
        (b"", PROTOBUF, {"content_encoding": "zstd"}, 415),
        (b"{}", "text/plain", {}, 415),
        (b"{}", "application/x-www-form-urlencoded", {}, 415),
        (b"{}", "multipart/form-data; boundary=x", {}, 415),
    ],
)
def test_a_damaged_request_is_refused(shared_watch, content, content_type, headers, status):
    assert shared_watch.post("/v1/traces", content, content_type, **headers)[0] == status
    assert shared_watch.get(f"/?token={shared_watch.token}")[0] == 200


def test_values_may_be_nested(shared_watch, body, talk):
    value = {"stringValue": "deep"}
    for _ in range(100):
        value = {"arrayValue": {"values": [value]}}
    request = json.loads(as_json(body))
    for scope in request["resourceSpans"][0]["scopeSpans"]:
        for span in scope["spans"]:
            span["attributes"].append({"key": "assembly.deep", "value": value})
    assert shared_watch.post("/v1/traces", json.dumps(request).encode(), JSON)[0] == 200
    assert len(shared_watch.turns(3, talk)) == 3


def test_a_body_is_limited_after_decompression(shared_watch):
    def bomb(mebibytes):
        packer = zlib.compressobj(wbits=31)
        return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(mebibytes)), packer.flush()])

    status, said = shared_watch.post("/v1/traces", bomb(200), content_encoding="gzip")
    assert (status, said) == (413, "the decompressed body has more than 192 MiB")
    # 130 MiB are read; zeros are not a request.
    assert shared_watch.post("/v1/traces", bomb(130), content_encoding="gzip")[0] == 400


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs"])
def test_a_small_body_cannot_fill_the_memory(shared_watch, path):
    """Millions of empty values take a hundred times their size when they are read."""
    lists = b"[" + b"[]," * 3_000_000 + b"[]]"
    resource = b"Logs" if path == "/v1/logs" else b"Spans"
    content = gzip.compress(b'{"resource' + resource + b'":' + lists + b"}")
    status, said = shared_watch.post(path, content, JSON, content_encoding="gzip")
    assert (status, said) == (400, "more than 4,000,000 values")
    content = gzip.compress(b"\x0a\x00" * 3_000_000)
    status, said = shared_watch.post(path, content, content_encoding="gzip")
    assert (status, said) == (400, "more than 1,000,000 fields")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"host": "evil.example"},
        {"host": "evil.example:4318"},
        {"host": "127.0.0.1.evil.example"},
    ],
)
def test_a_web_page_cannot_write(shared_watch, body, headers):
    assert shared_watch.post("/v1/traces", body.SerializeToString(), **headers)[0] == 403
    assert shared_watch.post("/v1/traces", as_json(body), JSON, **headers)[0] == 403


@pytest.mark.parametrize("path", ["/", "/events"])
@pytest.mark.parametrize(
    ("token", "headers"),
    [
        ("", {}),
        ("wrong", {}),
        ("é", {}),
        (None, {"host": "evil.example"}),
        (None, {"origin": "https://evil.example"}),
    ],
)
def test_a_web_page_cannot_read(shared_watch, path, token, headers):
    from urllib.parse import quote

    status, said = shared_watch.get(f"{path}?token={quote(shared_watch.token if token is None else token)}", **headers)
    assert status == 403
    assert shared_watch.token not in said


def test_the_page_allows_nothing_but_its_own_stream(shared_watch):
    import urllib.request

    with urllib.request.urlopen(shared_watch.url) as answer:
        text = answer.read().decode()
        headers = answer.headers
    assert "default-src 'none'; script-src 'sha256-" in text
    assert "connect-src 'self'" in text
    assert shared_watch.token not in text
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert "access-control-allow-origin" not in headers


def test_other_methods_and_paths_do_not_exist(shared_watch):
    assert shared_watch.get("/v1/traces")[0] == 405
    assert shared_watch.get("/../../etc/passwd")[0] == 404
    assert shared_watch.post("/", b"{}", JSON)[0] == 405


async def test_on_another_address_senders_need_the_token(body):
    with Watch("--port", 0, "--host", "0.0.0.0") as watch:
        said = watch.line("waiting for OTLP")
        assert f"OTEL_EXPORTER_OTLP_HEADERS=x-otel-assembly-token={watch.token}" in said
        content = body.SerializeToString()
        assert watch.post("/v1/traces", content)[0] == 403
        assert watch.post("/v1/traces", content, x_otel_assembly_token="wrong")[0] == 403
        assert watch.post("/v1/traces", content, x_otel_assembly_token=watch.token)[0] == 200
        assert len(watch.turns(3)) == 3


def test_a_sender_that_speaks_grpc_gets_one_line(watch):
    with grpc.insecure_channel(watch.endpoint.removeprefix("http://")) as channel:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for _ in range(2):
            with pytest.raises(grpc.RpcError):
                traces_grpc.TraceServiceStub(channel).Export(ExportTraceServiceRequest())
    said = watch.line("gRPC")
    assert "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in said
    watch.end_by_signal()
    assert sum("gRPC" in line for line in watch.said) == 1


async def test_everything_is_passed_on_unchanged():
    with receiving_http() as upstream, Watch("--port", 0, "--forward", f"http://127.0.0.1:{upstream.port}") as watch:
        await record(OTLPSpanExporter(f"{watch.endpoint}/v1/traces"))
        watch.turns(3)
        sent = {span.span_id for span in upstream.spans()}
        assert len(sent) >= 6
        assert watch.post("/v1/metrics", b"")[0] == 200
        assert len(upstream.metric_requests) == 1
        assert watch.post("/v1/traces", b"\xff", content_encoding="identity")[0] != 200, "the endpoint's own answer"


async def test_if_the_endpoint_is_down_the_sender_is_asked_to_try_again(body):
    with Watch("--port", 0, "--forward", "http://127.0.0.1:9") as watch:
        for _ in range(2):
            assert watch.post("/v1/traces", body.SerializeToString())[0] == 503
        assert "senders are asked to try again" in watch.line("does not answer")
        assert len(watch.turns(3)) == 3, "the page shows what was sent twice once"
        watch.end_by_signal()
        assert sum("does not answer" in line for line in watch.said) == 1


async def test_senders_at_the_same_time_lose_nothing(watch):
    async def one(number):
        await record(OTLPSpanExporter(f"{watch.endpoint}/v1/traces"), conversation=f"talk-{number}")

    import asyncio

    with ThreadPoolExecutor(8) as pool:
        await asyncio.gather(
            *(asyncio.get_running_loop().run_in_executor(pool, asyncio.run, one(number)) for number in range(8))
        )
    assert len(watch.turns(24)) == 24


def test_the_environment_of_a_command_has_no_limits_and_no_other_endpoints():
    user = {
        "PATH": "/bin",
        "OTEL_SDK_DISABLED": "true",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "10",
        "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "10",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://elsewhere",
        "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret",
        "OTEL_SERVICE_NAME": "mine",
    }
    child = child_environment(user, "http://127.0.0.1:5", content=True, forwards=False)
    assert (
        child.items()
        >= {
            "PATH": "/bin",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:5",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
            "OTEL_LOGS_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "none",
        }.items()
    )
    assert not child.keys() & (user.keys() - {"PATH", "OTEL_SERVICE_NAME"})
    forwarded = child_environment(user, "http://127.0.0.1:5", content=None, forwards=True)
    assert forwarded["OTEL_EXPORTER_OTLP_HEADERS"] == "api-key=secret"
    assert not {"OTEL_METRICS_EXPORTER", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"} & forwarded.keys()


async def test_hostile_texts_do_nothing_in_the_terminal():
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31mname\r\n"
    memory = InMemorySpanExporter()
    await record(memory, turns=1, conversation=hostile)
    with Watch("--port", 0, "--tree") as watch:
        assert watch.post("/v1/traces", encode_spans(memory.get_finished_spans()).SerializeToString())[0] == 200
        heading, turn = watch.process.stdout.readline(), watch.process.stdout.readline()
        assert heading == "agent support  conversation name\n"
        assert "turn 0" in turn
