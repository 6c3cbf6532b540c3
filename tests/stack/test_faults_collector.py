"""The Collector is killed, or its queue is full: every span that it acknowledged arrives."""

from __future__ import annotations

import os
import random
import subprocess
import time

import pytest
from driving import SPANS_A_TURN, WITHOUT_LOSS, DrivenAgent, all_in, spans_in
from local_stack import COLLECTORS, Collector, Jaeger, wait_until

KILLS = 4


@pytest.fixture
def new_collector(programs, tmp_path):
    """Makes a Collector of the test's own, not started."""
    made = []

    def make(jaeger, **settings):
        settings["JAEGER_ENDPOINT"] = jaeger.otlp
        made.append(Collector(programs, COLLECTORS / "local.yaml", tmp_path / "collector", settings))
        return made[-1]

    yield make
    for item in made:
        item.kill()


@pytest.fixture
def jaeger(programs, tmp_path):
    """A Jaeger of the test's own, not started."""
    one = Jaeger(programs, tmp_path / "jaeger")
    yield one
    one.kill()


def test_what_a_collector_acknowledged_arrives_although_it_is_killed_under_load(
    new_collector, jaeger, tmp_path, record_property
):
    service, moments = "killed-under-load", random.Random()
    jaeger.start()
    collector = new_collector(jaeger)
    collector.start()
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, notes=True) as agent:
        agent.tell("turns", 2_400, 300)
        for _ in range(KILLS):
            before = len(agent.acknowledged())
            wait_until(lambda before=before: len(agent.acknowledged()) > before, seconds=30, what="spans acknowledged")
            time.sleep(moments.random())
            collector.kill()
            collector.start()
        agent.hear()
        assert agent.end() == 0
        arrived = all_in(jaeger, service, agent.acknowledged())
    assert len(agent.acknowledged()) > 2_400 * SPANS_A_TURN / 2
    repeated = jaeger.measured("otelcol_receiver_accepted_spans") - len(arrived)
    record_property("spans acknowledged", len(agent.acknowledged()))
    record_property("spans that arrived more than once", repeated)


def test_what_waits_for_jaeger_outlives_the_collector_that_took_it(new_collector, jaeger, tmp_path):
    service = "backlog"
    collector = new_collector(jaeger)
    collector.start()
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, notes=True, settings=WITHOUT_LOSS) as agent:
        for backlog in (1, 2, 3):
            agent.ask("turns", 300, 300)
            wait_until(
                lambda backlog=backlog: len(agent.acknowledged()) == backlog * 300 * SPANS_A_TURN,
                seconds=60,
                what=lambda: f"all spans acknowledged: {len(agent.acknowledged())}",
            )
            collector.kill()
            collector.start()
        jaeger.start()
        assert len(all_in(jaeger, service, agent.acknowledged())) == 900 * SPANS_A_TURN
        assert agent.end() == 0


def test_a_collector_that_is_killed_again_and_again_while_it_starts_keeps_its_queue(new_collector, jaeger, tmp_path):
    service, moments = "crash-loop", random.Random()
    collector = new_collector(jaeger)
    collector.start()
    small_batches = WITHOUT_LOSS | {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16", "OTEL_BSP_SCHEDULE_DELAY": "20"}
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, notes=True, settings=small_batches) as agent:
        agent.ask("turns", 500, 300)
        wait_until(
            lambda: len(agent.acknowledged()) == 500 * SPANS_A_TURN,
            seconds=60,
            what=lambda: f"all spans acknowledged: {len(agent.acknowledged())}",
        )
        assert agent.end() == 0
    collector.kill()
    for _ in range(6):
        starting = subprocess.Popen(
            collector.command,
            env={**os.environ, **collector.settings},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        time.sleep(0.1 + 0.5 * moments.random())
        starting.kill()
        starting.wait(10)
    collector.start()
    jaeger.start()
    # At its start the exporter takes what it was sending, at most ten requests of sixteen spans, out of its queue, and
    # puts it back at the end: where it is killed within those milliseconds, that is lost.
    wait_until(
        lambda: len(spans_in(jaeger, service)) >= 500 * SPANS_A_TURN - 10 * 16, seconds=60, every=0.5, what="the queue"
    )


def test_a_full_queue_refuses_and_loses_nothing_that_it_took(new_collector, jaeger, tmp_path):
    service = "full"
    collector = new_collector(jaeger, QUEUE_BYTES="1000000")
    collector.start()
    with DrivenAgent(service, tmp_path, collector.otlp_grpc, notes=True) as agent:
        agent.tell("turns", 1_500, 500)
        wait_until(lambda: collector.measured("otelcol_exporter_enqueue_failed_spans"), seconds=60, what="a full queue")
        agent.hear()
        jaeger.start()
        agent.ask("turns", 10)
        assert agent.end() == 0
        arrived = all_in(jaeger, service, agent.acknowledged())
    assert 0 < len(arrived) < 1_510 * SPANS_A_TURN
    # Whoever was refused tried again, gave up in the end, and said so.
    assert "StatusCode.UNAVAILABLE" in agent.complaints()
