"""A real OTLP receiver on loopback, over gRPC or HTTP, for what is exported."""

from __future__ import annotations

import gzip
import threading
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

FOUR_MIB = 4 * 1024 * 1024


class Receiver:
    """What arrived, whichever way it came."""

    def __init__(self):
        self.requests = []
        self.metric_requests = []
        self.port = 0

    def spans(self):
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans

    def metrics(self):
        """The newest points of each metric, by its name."""
        return {
            metric.name: metric
            for request in self.metric_requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


class _Traces(traces_grpc.TraceServiceServicer):
    def __init__(self, receiver):
        self.receiver = receiver

    def Export(self, request, context):  # noqa: N802  # the name of the method in the protocol
        self.receiver.requests.append(request)
        return traces.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver):
        self.receiver = receiver

    def Export(self, request, context):  # noqa: N802
        self.receiver.metric_requests.append(request)
        return metrics.ExportMetricsServiceResponse()


class _Logs(logs_grpc.LogsServiceServicer):
    def Export(self, request, context):  # noqa: N802
        return logs.ExportLogsServiceResponse()


@contextmanager
def receiving():
    """A gRPC receiver on a free port, as strict as the Collector's: it refuses a message over 4 MiB."""
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", FOUR_MIB)])
    traces_grpc.add_TraceServiceServicer_to_server(_Traces(receiver), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(receiver), server)
    logs_grpc.add_LogsServiceServicer_to_server(_Logs(), server)
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@contextmanager
def receiving_http():
    """An HTTP receiver on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):  # the name that the server calls
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                receiver.requests.append(traces.ExportTraceServiceRequest.FromString(body))
            elif self.path == "/v1/metrics":
                receiver.metric_requests.append(metrics.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *given):
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
