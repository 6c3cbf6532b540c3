"""A real OTLP receiver over gRPC, on loopback, for what is exported."""

from __future__ import annotations

from concurrent import futures
from contextlib import contextmanager

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

FOUR_MIB = 4 * 1024 * 1024


class Receiver(TraceServiceServicer):
    """A gRPC receiver as strict as the Collector's: it refuses a message over 4 MiB."""

    def __init__(self):
        self.requests = []

    def Export(self, request, context):  # noqa: N802  # the name of the method in the protocol
        self.requests.append(request)
        return ExportTraceServiceResponse()

    def spans(self):
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans


@contextmanager
def receiving():
    """A receiver on a free port, as long as the block lasts."""
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", FOUR_MIB)])
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait(10)
