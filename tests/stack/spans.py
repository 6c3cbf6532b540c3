"""Telemetry of a test's own, sent over OTLP with the SDK, and what of it is in Jaeger."""

from __future__ import annotations

import json
import urllib.parse
from contextlib import contextmanager

import grpc
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode, set_span_in_context

#: What every recorded assembly carries, as the library itself writes it.
QUIET = {"assembly.halts.emitted": 0, "assembly.alerts.delivered": 0, "assembly.overflowed": False}


class Sender:
    """A service that sends spans, metrics and log records to one address; nothing leaves before `flush`."""

    def __init__(self, endpoint, service, *, credentials=None, headers=None):
        how = {"endpoint": endpoint, "credentials": credentials, "headers": headers, "timeout": 30}
        how["insecure"] = credentials is None
        resource = Resource.create({"service.name": service})
        self.service = service
        self.tracer_provider = TracerProvider(resource=resource)
        # A minute: what a test sends together leaves together, when it says so.
        spans = BatchSpanProcessor(OTLPSpanExporter(**how), max_queue_size=100_000, schedule_delay_millis=60_000)
        self.tracer_provider.add_span_processor(spans)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(**how), export_interval_millis=600_000)
        self.meter_provider = MeterProvider([reader], resource=resource)
        self.logger_provider = LoggerProvider(resource=resource)
        self.logger_provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(**how)))
        self.tracer = self.tracer_provider.get_tracer("tests")
        self.logger = self.logger_provider.get_logger("tests")

    def span(self, name, parent=None, *, failed=None, **attributes):
        """A span that has ended; a keyword `assembly__turn` is the attribute `assembly.turn`."""
        span = self.begin(name, parent, **attributes)
        if failed is not None:
            span.set_status(Status(StatusCode.ERROR, failed))
        span.end()
        return span

    def begin(self, name, parent=None, **attributes):
        """A span that has yet to end."""
        context = None if parent is None else set_span_in_context(parent)
        dotted = {key.replace("__", "."): value for key, value in attributes.items()}
        return self.tracer.start_span(name, context, attributes=dotted)

    def assembly(self, parent=None, *, failed=None, **attributes):
        """An `assemble_context` with what each carries, and its policy's span."""
        quiet = {name.replace(".", "__"): value for name, value in QUIET.items()}
        span = self.begin("assemble_context", parent, **(quiet | attributes))
        self.span("apply_policy sliding_window", span, **quiet)
        if failed is not None:
            span.set_status(Status(StatusCode.ERROR, failed))
        span.end()
        return span

    def flush(self):
        """Send what is there; asserts that all of it left in time."""
        for provider in (self.tracer_provider, self.meter_provider, self.logger_provider):
            assert provider.force_flush(60_000)

    def close(self):
        for provider in (self.tracer_provider, self.meter_provider, self.logger_provider):
            provider.shutdown()


@contextmanager
def sending(endpoint, service, **how):
    """A `Sender` that is closed at the end."""
    sender = Sender(endpoint, service, **how)
    try:
        yield sender
    finally:
        sender.close()


def with_token(token, ca):
    """How to send to a gateway: over TLS, with a token."""
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    return {"credentials": credentials, "headers": (("authorization", f"Bearer {token}"),)}


def with_certificate(folder):
    """How to send to a sampler: over TLS, with a certificate of one's own."""
    files = (folder / "ca.crt", folder / "tls.key", folder / "tls.crt")
    return {"credentials": grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))}


def trace_id(span):
    """The trace of a span, as Jaeger writes it."""
    return f"{span.get_span_context().trace_id:032x}"


def span_id(span):
    """A span, as Jaeger writes it."""
    return f"{span.get_span_context().span_id:016x}"


def traces_in(jaeger, service, **tags):
    """Traces of a service that Jaeger has, by their id; `tags` as in its search field, written as for `Sender.span`."""
    query = {"service": service, "limit": 50_000}
    if tags:
        query["tags"] = json.dumps({key.replace("__", "."): value for key, value in tags.items()})
    found = jaeger.get(f"/api/traces?{urllib.parse.urlencode(query)}")["data"]
    return {trace["traceID"].rjust(32, "0"): trace["spans"] for trace in found}


def tags_of(span):
    """What Jaeger shows of a span: attributes, and the status as tags."""
    return {tag["key"]: tag["value"] for tag in span["tags"]}
