"""A fleet's gateway: nothing that matters is sampled away, traces stay whole, metrics count what is dropped too."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress

import pytest
from fleet import Fleet, for_tls, make_certificates
from local_stack import COLLECTORS, Collector, wait_until
from opentelemetry.trace import use_span
from spans import sending, span_id, tags_of, trace_id, traces_in, with_certificate

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyError,
    Context,
    ConversationPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.cli.probes import SERVICE
from otel_assembly.telemetry import OpenTelemetryRecorder
from otel_assembly.testing import conversation

SECONDS = 90


@pytest.fixture(scope="module")
def fleet(programs, stack, tmp_path_factory):
    """Both tiers, with 1 % of what does not matter."""
    folder = tmp_path_factory.mktemp("fleet")
    with Fleet(programs, folder, stack.jaeger, stack.prometheus, SAMPLING_PERCENTAGE="1") as running:
        yield running


@pytest.fixture
def service(request):
    """A name that no other test's telemetry has."""
    return f"{request.node.name[5:45]}-{uuid.uuid4().hex[:6]}"


def wait_for(condition, what):
    return wait_until(condition, seconds=SECONDS, what=what, every=0.3)


def arrived(collectors):
    """The spans that these Collectors have taken."""
    return sum(collector.measured("otelcol_receiver_accepted_spans") for collector in collectors)


def sent_on(samplers):
    """The spans that these have handed to Jaeger, which shows a span once however often it came."""
    return sum(sampler.measured("otelcol_exporter_sent_spans") for sampler in samplers)


# Whole traces, and the other signals


def test_traces_that_come_in_several_batches_are_whole_behind_two_samplers(fleet, stack, service):
    before = [arrived([sampler]) for sampler in fleet.samplers]
    with sending(fleet.agent.otlp_grpc, service) as sender:
        runs = [sender.begin("invoke_agent desk") for _ in range(40)]
        sent = {trace_id(run): {span_id(run)} for run in runs}
        for batch in range(3):
            for run in runs:
                # Only the last batch says that the trace matters: what came before it waits in the same sampler.
                turn = sender.assembly(run, assembly__halts__emitted=int(batch == 2))
                sent[trace_id(run)] |= {span_id(turn), span_id(sender.span("chat model", run))}
            sender.flush()
            time.sleep(0.3)  # Batches of their own, also behind the queues, which send five times a second.
        for run in runs:
            run.end()
        sender.flush()

        def whole():
            found = traces_in(stack.jaeger, service)
            return len(found) == 40 and all(len(spans) == 10 for spans in found.values()) and found

        found = wait_for(whole, "40 traces of 10 spans")
    for trace, spans in found.items():
        assert sent[trace] <= {span["spanID"] for span in spans}
        assert len({span["spanID"] for span in spans}) == len(spans)
        assert not [span for span in spans if span.get("warnings")]
    shares = [arrived([sampler]) - count for sampler, count in zip(fleet.samplers, before, strict=True)]
    assert sum(shares) == 400
    assert min(shares) >= 10


def test_a_sampler_that_was_away_gets_its_traces_when_it_is_back_and_none_comes_twice(fleet, stack, service):
    other, away = fleet.samplers
    before, taken = sent_on([other]), arrived([fleet.balancer])
    away.stop()
    try:
        with sending(fleet.agent.otlp_grpc, service) as sender:
            sent = {trace_id(sender.assembly(assembly__halts__emitted=1)) for _ in range(40)}
            sender.flush()
        wait_for(lambda: arrived([fleet.balancer]) - taken == 80, "the spans in the balancer")
        time.sleep(1)
        # Whether the other one has its part depends on which of the two was tried first.
        assert len(traces_in(stack.jaeger, service)) < 40
    finally:
        away.start()
    wait_for(lambda: sorted(map(len, traces_in(stack.jaeger, service).values())) == [2] * 40, "40 traces of 2 spans")
    assert traces_in(stack.jaeger, service).keys() == sent
    assert sent_on(fleet.samplers) - before == 80


def test_metrics_and_log_records_go_through_the_whole_gateway(fleet, stack, service):
    with sending(fleet.agent.otlp_grpc, service) as sender:
        sender.meter_provider.get_meter("tests").create_counter("gateway.probe").add(7)
        sender.logger.emit(event_name="assembly.halt", body=f"of {service}", attributes={"assembly.halt.source": "me"})
        sender.flush()
        wait_for(lambda: stack.prometheus.value(f'gateway_probe_total{{job="{service}"}}') == 7, "the counter")
    logs = fleet.balancer.folder / "data" / "logs.jsonl"
    wait_for(lambda: logs.exists() and service in logs.read_text(), "the log record in the balancer's file")


def test_log_records_go_to_a_store_where_one_is_named(programs, stack, tmp_path, service):
    store = Collector(programs, COLLECTORS / "local.yaml", tmp_path / "store", {"JAEGER_ENDPOINT": stack.jaeger.otlp})
    settings = {
        "JAEGER_ENDPOINT": stack.jaeger.otlp,
        "LOGS_EXPORTER": "otlp_http/logs",
        "LOGS_ENDPOINT": store.otlp_http,
    }
    collector = Collector(programs, COLLECTORS / "local.yaml", tmp_path / "collector", settings)
    store.start()
    collector.start()
    try:
        with sending(collector.otlp_grpc, service) as sender:
            sender.logger.emit(body=f"of {service}")
            sender.flush()
        kept = tmp_path / "store" / "data" / "logs.jsonl"
        wait_for(lambda: kept.exists() and service in kept.read_text(), "the log record in the store")
        assert not (tmp_path / "collector" / "data" / "logs.jsonl").exists()
    finally:
        collector.stop()
        store.stop()


# Sampling


def test_what_doctor_sends_is_kept_so_that_it_can_be_found(fleet, stack):
    with sending(fleet.agent.otlp_grpc, SERVICE) as sender:
        sent = {trace_id(sender.span("doctor_probe")) for _ in range(20)}
        sender.flush()
    wait_for(lambda: sent <= traces_in(stack.jaeger, SERVICE).keys(), "20 probes")


class Failing:
    name = "failing"

    async def apply(self, prompts, events, context):
        raise ValueError("out of order")


def assemble(sender, policies, *words, **settings):
    """A real assembly inside a run of its own: its trace."""
    recorder = OpenTelemetryRecorder(
        tracer_provider=sender.tracer_provider,
        meter_provider=sender.meter_provider,
        logger_provider=sender.logger_provider,
    )
    assembler = Assembler(policies, recorder=recorder, **settings)
    run = sender.begin("invoke_agent desk")
    with use_span(run, end_on_exit=True), suppress(AssemblyError):
        asyncio.run(assembler.assemble(["Be brief."], conversation(*words), Context(agent_name="desk")))
    return trace_id(run)


def alert(sender):
    """An assembly that showed a fatal alert, in a framework that does not halt upon it."""
    span = sender.begin("assemble_context")
    span.add_event("assembly.alert", {"assembly.alert.severity": "fatal"})
    span.end()
    return trace_id(span)


REAL = {
    "halt": lambda sender: assemble(sender, [AlertPolicy()], "ask", "fatal: fire"),
    "overflow": lambda sender: assemble(sender, [TokenBudgetPolicy(3)], "ask"),
    "failure": lambda sender: assemble(sender, [ConversationPolicy(), Failing()], "ask"),
    "skipped failure": lambda sender: assemble(
        sender, [ConversationPolicy(), Failing()], "ask", on_policy_error="skip"
    ),
}


def test_what_matters_survives_1_percent_and_metrics_count_what_does_not(fleet, stack, service):
    before = sent_on(fleet.samplers)
    with sending(fleet.agent.otlp_grpc, service) as sender:
        kept = {what: [make(sender) for _ in range(5)] for what, make in REAL.items()}
        shapes = {
            "halted": {"assembly__halts__emitted": 1, "failed": "the conversation was halted"},
            "halted, without a status": {"assembly__halts__emitted": 1},
            # As a proxy may rewrite it: numeric_attribute would match neither.
            "halted, as a double": {"assembly__halts__emitted": 1.0},
            "halted, as a string": {"assembly__halts__emitted": "1"},
            "overflowed": {"assembly__overflowed": True},
            "failed": {"failed": "a policy failed"},
            "with a type of error": {"error__type": "ValueError"},
        }
        for what, attributes in shapes.items():
            turns = 80 if what == "halted" else 10
            kept[what] = [trace_id(sender.assembly(**attributes)) for _ in range(turns)]
        kept["with a fatal alert"] = [alert(sender) for _ in range(10)]
        matter = {trace for traces in kept.values() for trace in traces}
        rest = {trace_id(sender.assembly()) for _ in range(1_000 - len(matter))}
        sender.flush()

        def calls():
            labels = f'service_name="{service}", span_name="assemble_context"'
            return stack.prometheus.value(f"sum(traces_span_metrics_calls_total{{{labels}}})")

        wait_for(lambda: calls() == 1_000, "1,000 assemblies in the metrics")
        wait_for(lambda: matter <= traces_in(stack.jaeger, service).keys(), "all traces that matter in Jaeger")
    query = f'count(count by (collector_instance_id) (traces_span_metrics_calls_total{{service_name="{service}"}}))'
    assert stack.prometheus.value(query) == 2
    found = traces_in(stack.jaeger, service)
    sampled = found.keys() & rest
    # One in a hundred of 830: 8.3 on average; more than 25 comes by chance once in a million runs.
    assert len(sampled) <= 25
    assert found.keys() == matter | sampled
    for what, traces in kept.items():
        spans = {"halt": 3, "overflow": 3, "failure": 4, "skipped failure": 4, "with a fatal alert": 1}.get(what, 2)
        assert [len({span["spanID"] for span in found[trace]}) for trace in traces] == [spans] * len(traces), what
    assert sent_on(fleet.samplers) - before == sum(map(len, found.values()))


def test_a_halt_long_after_the_wait_is_found_by_its_tag_with_the_turns_around_it(programs, stack, tmp_path, service):
    certificates = make_certificates(tmp_path / "tls")
    settings = for_tls(certificates) | {
        "JAEGER_ENDPOINT": stack.jaeger.otlp,
        "PROMETHEUS_ENDPOINT": stack.prometheus.otlp,
        "DECISION_WAIT": "1s",
        "SAMPLING_PERCENTAGE": "0",
    }
    sampler = Collector(programs, COLLECTORS / "gateway-sampler.yaml", tmp_path / "sampler", settings)
    sampler.start()
    try:
        with sending(sampler.otlp_grpc, service, **with_certificate(certificates)) as sender:
            run = sender.begin("invoke_agent desk")
            early = sender.assembly(run, assembly__turn=0)
            sender.flush()
            refused = "otelcol_processor_tail_sampling_global_count_traces_sampled"
            wait_for(lambda: sampler.measured(refused) >= 1, "the decision not to keep the trace")
            time.sleep(2)
            before = sender.assembly(run, assembly__turn=1)
            halted = sender.assembly(run, assembly__turn=2, assembly__halts__emitted=1)
            sender.flush()
            wait_for(lambda: traces_in(stack.jaeger, service, assembly__halts__emitted="1"), "the halt in Jaeger")
            time.sleep(2)
            after = sender.assembly(run, assembly__turn=3)
            run.end()
            sender.flush()

            def ids():
                return {span["spanID"] for span in traces_in(stack.jaeger, service).get(trace_id(run), [])}

            wanted = {span_id(span) for span in (before, halted, after, run)}
            wait_for(lambda: wanted <= ids(), "the turn before the halt, and all after it")
            assert span_id(early) not in ids()
    finally:
        sampler.stop()
    (spans,) = traces_in(stack.jaeger, service, assembly__halts__emitted="1").values()
    assert [tags_of(span)["assembly.turn"] for span in spans if tags_of(span).get("assembly.halts.emitted") == 1] == [2]
    assert len({span["spanID"] for span in spans}) == len(spans)
