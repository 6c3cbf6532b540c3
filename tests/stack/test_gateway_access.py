"""Who may send: to the balancer over TLS and with the token, to a sampler with a certificate of ours."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
import uuid

import grpc
import pytest
from fleet import TOKEN, Fleet, make_certificates
from local_stack import wait_until
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from spans import sending, trace_id, traces_in, with_token


@pytest.fixture(scope="module")
def fleet(programs, stack, tmp_path_factory):
    with Fleet(programs, tmp_path_factory.mktemp("fleet"), stack.jaeger, stack.prometheus) as running:
        yield running


def refusal(address, credentials, metadata=()):
    """The status of an export that is refused."""
    secure = credentials is not None
    with grpc.secure_channel(address, credentials) if secure else grpc.insecure_channel(address) as channel:
        export = trace_service_pb2_grpc.TraceServiceStub(channel).Export
        with pytest.raises(grpc.RpcError) as refused:
            export(trace_service_pb2.ExportTraceServiceRequest(), metadata=metadata, timeout=20)
    return refused.value.code()


def test_the_balancer_refuses_who_has_no_token(fleet):
    credentials = grpc.ssl_channel_credentials((fleet.certificates / "ca.crt").read_bytes())
    address = fleet.balancer.otlp_grpc
    assert refusal(address, credentials) is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(address, credentials, [("authorization", "Bearer other")]) is grpc.StatusCode.UNAUTHENTICATED


def test_the_balancer_takes_spans_over_http_with_a_token_only(fleet):
    trusted = ssl.create_default_context(cafile=str(fleet.certificates / "ca.crt"))
    url = fleet.balancer.otlp_http.replace("http://", "https://") + "/v1/traces"

    def post(**headers):
        headers["Content-Type"] = "application/x-protobuf"
        request = urllib.request.Request(url, data=b"", headers=headers)
        with urllib.request.urlopen(request, context=trusted, timeout=20) as answer:
            return answer.status

    with pytest.raises(urllib.error.HTTPError) as refused:
        post()
    with refused.value as answer:
        assert answer.code == 401
    assert post(Authorization=f"Bearer {TOKEN}") == 200


def test_the_balancer_speaks_to_nobody_without_tls(fleet):
    token = [("authorization", f"Bearer {TOKEN}")]
    assert refusal(fleet.balancer.otlp_grpc, None, token) is grpc.StatusCode.UNAVAILABLE


def test_a_sampler_refuses_who_shows_no_certificate_of_ours(fleet, tmp_path):
    sampler = fleet.samplers[0].otlp_grpc
    ours = (fleet.certificates / "ca.crt").read_bytes()
    assert refusal(sampler, grpc.ssl_channel_credentials(ours)) is grpc.StatusCode.UNAVAILABLE
    other = make_certificates(tmp_path / "others")
    shown = grpc.ssl_channel_credentials(ours, (other / "tls.key").read_bytes(), (other / "tls.crt").read_bytes())
    assert refusal(sampler, shown) is grpc.StatusCode.UNAVAILABLE


def test_with_the_token_a_trace_goes_through_the_balancer_to_jaeger(fleet, stack):
    service = f"with-token-{uuid.uuid4().hex[:6]}"
    how = with_token(TOKEN, fleet.certificates / "ca.crt")
    with sending(fleet.balancer.otlp_grpc, service, **how) as sender:
        sent = sender.assembly(assembly__halts__emitted=1)
        sender.flush()
        wait_until(lambda: trace_id(sent) in traces_in(stack.jaeger, service), seconds=60, what="the trace in Jaeger")
