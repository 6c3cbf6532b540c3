"""Kafka between the tiers: a real broker, with the shipped gateway before and behind it."""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import time
import urllib.error
import urllib.request
from uuid import uuid4

import pytest
from fleet import TOKEN, for_tls, make_certificates
from local_stack import COLLECTORS, Collector, stop_all, wait_until
from local_stack.kafka import Kafka

SECONDS = 60
#: No round of those that are sent.
NEVER = -1


def over(collector, file):
    """The same Collector with one more file laid over its configuration."""
    collector.command += ["--config", str(COLLECTORS / file)]
    return collector


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("no Java and Maven to run Kafka with")
    broker = Kafka(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.stop()


class Tiers:
    """One producer and two consumers; what comes out is in Jaeger, Prometheus and the consumers' files of logs."""

    def __init__(self, programs, folder, stack, kafka):
        certificates = make_certificates(folder / "tls")
        self.trusted = ssl.create_default_context(cafile=certificates / "ca.crt")
        self._jaeger = stack.jaeger
        shared = {"KAFKA_BROKERS": kafka.address}
        self.producer = over(
            Collector(
                programs,
                COLLECTORS / "gateway-balancer.yaml",
                folder / "producer",
                for_tls(certificates) | shared,
                name="producer",
            ),
            "gateway-kafka-producer.yaml",
        )
        self.consumers = [
            over(
                Collector(
                    programs,
                    COLLECTORS / "gateway-sampler.yaml",
                    folder / name,
                    {
                        # Only what matters passes, so that a trace arrives whole only where one consumer saw all of it.
                        "SAMPLING_PERCENTAGE": "0",
                        "JAEGER_ENDPOINT": stack.jaeger.otlp,
                        "PROMETHEUS_ENDPOINT": stack.prometheus.otlp,
                        **shared,
                    },
                    name=name,
                ),
                "gateway-kafka-consumer.yaml",
            )
            for name in ("consumer-1", "consumer-2")
        ]

    @property
    def servers(self):
        return [*self.consumers, self.producer]

    def send(self, signal, body):
        """Hand OTLP to the producer, as an agent's node does: over TLS, with the token."""
        request = urllib.request.Request(
            f"{self.producer.otlp_http.replace('http:', 'https:')}/v1/{signal}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=30, context=self.trusted) as answer:
            assert json.load(answer) in ({}, {"partialSuccess": {}})

    def in_jaeger(self, service):
        """The ids of the spans of each trace of a service."""
        found = self._jaeger.get(f"/api/traces?service={service}&limit=1000")["data"] or []
        return {trace["traceID"]: sorted(span["spanID"] for span in trace["spans"]) for trace in found}

    def taken(self):
        """How many spans each consumer has taken from Kafka."""
        return [consumer.measured("otelcol_receiver_accepted_spans") for consumer in self.consumers]

    def sent(self):
        """How many spans the consumers have handed to Jaeger, which shows one once however often it came."""
        return sum(consumer.measured("otelcol_exporter_sent_spans") for consumer in self.consumers)

    def logs(self):
        """Every body that a consumer wrote."""
        for consumer in self.consumers:
            with contextlib.suppress(FileNotFoundError), open(f"{consumer.settings['DATA_DIR']}/logs.jsonl") as lines:
                for line in lines:
                    for resource in json.loads(line)["resourceLogs"]:
                        for scope in resource["scopeLogs"]:
                            yield from (record["body"]["stringValue"] for record in scope["logRecords"])


@pytest.fixture(scope="module")
def tiers(programs, tmp_path_factory, stack, kafka):
    running = Tiers(programs, tmp_path_factory.mktemp("tiers"), stack, kafka)
    try:
        running.producer.start()
        # The topics are there before who reads them, as they should be; this broker makes one with its first message.
        running.send("traces", traces("first", [(uuid4().hex, uuid4().hex[:16])]))
        wait_until(lambda: any(kafka.stored("assembly_traces").values()), seconds=SECONDS, what="the topic of traces")
        for consumer in running.consumers:
            consumer.start()
        wait_until(lambda: dealt_out(running), seconds=2 * SECONDS, what="partitions for both consumers")
        yield running
    finally:
        stop_all(running.servers)


def dealt_out(tiers):
    """Whether both consumers take part; what is sent to find that out belongs to no test, and is not let through."""
    before = tiers.taken()
    send_in_rounds(tiers, "first", made(40, 1), critical=NEVER)
    time.sleep(0.5)
    return all(now > then for now, then in zip(tiers.taken(), before, strict=True))


def attribute(key, **value):
    return {"key": key, "value": value}


def resource(service):
    return {"attributes": [attribute("service.name", stringValue=service)]}


def traces(service, spans, **attributes):
    """One batch: a span for each (trace, span), each of which says that its context overflowed where that is given."""
    now = time.time_ns()
    written = [
        {
            "traceId": trace,
            "spanId": span,
            "name": "assemble_context",
            "kind": 1,
            "startTimeUnixNano": str(now),
            "endTimeUnixNano": str(now + 1_000_000),
            "attributes": [attribute(key, **value) for key, value in attributes.items()],
        }
        for trace, span in spans
    ]
    return {"resourceSpans": [{"resource": resource(service), "scopeSpans": [{"scope": {}, "spans": written}]}]}


OVERFLOW = {"assembly.overflowed": {"boolValue": True}}


def made(count, spans_each):
    """Traces with the ids of their spans."""
    return {uuid4().hex: sorted(uuid4().hex[:16] for _ in range(spans_each)) for _ in range(count)}


def send_in_rounds(tiers, service, wanted, *, critical=None):
    """Each round brings one span of every trace, so that none comes in one batch; `critical`: in which round alone."""
    for number in range(len(next(iter(wanted.values())))):
        batch = [(trace, spans[number]) for trace, spans in wanted.items()]
        tiers.send("traces", traces(service, batch, **(OVERFLOW if critical in (None, number) else {})))


def unique(name):
    return f"{name}-{uuid4().hex[:8]}"


def test_every_span_arrives_once_and_metrics_and_logs_arrive_too(tiers, stack, kafka):
    before = tiers.sent()
    service, wanted = unique("once"), made(50, 4)
    send_in_rounds(tiers, service, wanted)
    now = time.time_ns()
    point = {"startTimeUnixNano": str(now - 10**9), "timeUnixNano": str(now), "asDouble": 7.5}
    gauge = {"name": "kafka_between_tiers", "gauge": {"dataPoints": [point]}}
    of_service = {"resource": resource(service)}
    tiers.send("metrics", {"resourceMetrics": [{**of_service, "scopeMetrics": [{"metrics": [gauge]}]}]})
    record = {"timeUnixNano": str(now), "body": {"stringValue": f"a record of {service}"}}
    tiers.send("logs", {"resourceLogs": [{**of_service, "scopeLogs": [{"logRecords": [record]}]}]})
    wait_until(lambda: tiers.in_jaeger(service) == wanted, seconds=SECONDS, what="every span in Jaeger")
    wait_until(
        lambda: stack.prometheus.value(f'kafka_between_tiers{{job="{service}"}}') == 7.5,
        seconds=SECONDS,
        what="the metric in Prometheus",
    )
    wait_until(lambda: f"a record of {service}" in tiers.logs(), seconds=SECONDS, what="the log record")
    assert list(tiers.logs()).count(f"a record of {service}") == 1
    wait_until(lambda: tiers.sent() - before >= 200, seconds=SECONDS, what="the count of what was sent")
    assert tiers.sent() - before == 200
    assert len([size for size in kafka.stored("assembly_traces").values() if size]) > 1


def test_a_trace_whose_spans_come_in_many_batches_is_judged_whole_by_one_of_two_consumers(tiers):
    before = tiers.taken()
    service, wanted, plain = unique("whole"), made(40, 5), made(40, 5)
    send_in_rounds(tiers, service, wanted | plain, critical=NEVER)
    send_in_rounds(tiers, service, {trace: [uuid4().hex[:16]] for trace in wanted}, critical=0)
    wait_until(
        lambda: all(set(spans) <= set(tiers.in_jaeger(service).get(trace, ())) for trace, spans in wanted.items()),
        seconds=SECONDS,
        what="what came before the overflow, of every trace",
    )
    # What decides is tail sampling: of the traces in which nothing happened, none was let through.
    assert tiers.in_jaeger(service).keys() == wanted.keys()
    assert all(now > then for now, then in zip(tiers.taken(), before, strict=True)), "one consumer did all the work"


def test_what_was_published_while_no_consumer_ran_is_not_lost(tiers):
    service, wanted = unique("away"), made(20, 3)
    for consumer in tiers.consumers:
        consumer.stop()
    send_in_rounds(tiers, service, wanted)
    assert tiers.in_jaeger(service) == {}
    for consumer in tiers.consumers:
        consumer.start()
    wait_until(lambda: tiers.in_jaeger(service) == wanted, seconds=SECONDS, what="every span in Jaeger")
    # They go on where they were: nothing of before comes again.
    wait_until(lambda: tiers.sent() >= 60, seconds=SECONDS, what="the count of what was sent")
    assert tiers.sent() == 60


def test_what_was_sent_while_the_broker_was_dead_is_not_lost(tiers, kafka):
    service, wanted = unique("broker"), made(10, 2)
    kafka.kill()
    send_in_rounds(tiers, service, wanted)
    assert tiers.in_jaeger(service) == {}
    kafka.start()
    wait_until(lambda: tiers.in_jaeger(service) == wanted, seconds=2 * SECONDS, what="every span in Jaeger")


def test_a_span_above_the_default_size_of_a_message_passes(tiers):
    service, (trace, span) = unique("large"), (uuid4().hex, uuid4().hex[:16])
    large = {"assembly.kept.items": {"stringValue": "0-1," * 500_000}}
    tiers.send("traces", traces(service, [(trace, span)], **OVERFLOW, **large))
    wait_until(lambda: tiers.in_jaeger(service) == {trace: [span]}, seconds=SECONDS, what="the large span in Jaeger")


def test_whoever_does_not_show_the_token_cannot_publish(tiers):
    request = urllib.request.Request(
        f"{tiers.producer.otlp_http.replace('http:', 'https:')}/v1/traces",
        json.dumps(traces("unknown", [])).encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=30, context=tiers.trusted)
