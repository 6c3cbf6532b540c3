"""Jaeger is killed: what the Collector acknowledged meanwhile arrives when it is back."""

from __future__ import annotations

import pytest
from driving import SPANS_A_TURN, WITHOUT_LOSS, DrivenAgent, all_in
from local_stack import COLLECTORS, Collector, Jaeger, wait_until


@pytest.fixture
def new_pair(programs, tmp_path):
    """Starts a Jaeger with that configuration, and a Collector in front of it."""
    started = []

    def make(config):
        jaeger = Jaeger(programs, tmp_path / "jaeger", config=COLLECTORS / "jaeger" / config)
        settings = {"JAEGER_ENDPOINT": jaeger.otlp}
        collector = Collector(programs, COLLECTORS / "local.yaml", tmp_path / "collector", settings)
        started.extend((jaeger, collector))
        for server in started:
            server.start()
        return jaeger, collector

    yield make
    for server in reversed(started):
        server.kill()


def killed_under_load(jaeger, agent, turns=900):
    """What had been acknowledged when Jaeger was dead, and what was when the agent had done all of its turns."""
    agent.tell("turns", turns, 300)
    wait_until(lambda: len(agent.acknowledged()) > 300 * SPANS_A_TURN, seconds=30, what="some spans acknowledged")
    jaeger.kill()
    before = agent.acknowledged()
    agent.hear()
    wait_until(
        lambda: len(agent.acknowledged()) == turns * SPANS_A_TURN,
        seconds=60,
        what=lambda: f"all spans acknowledged while Jaeger is dead: {len(agent.acknowledged())}",
    )
    return before, agent.acknowledged()


def test_a_jaeger_that_kept_all_in_memory_gets_what_was_sent_while_it_was_dead(new_pair, tmp_path):
    jaeger, collector = new_pair("memory.yaml")
    with DrivenAgent("memory", tmp_path, collector.otlp_grpc, notes=True, settings=WITHOUT_LOSS) as agent:
        before, after = killed_under_load(jaeger, agent)
        assert len(after - before) > 300
        jaeger.start()
        all_in(jaeger, "memory", after - before)
        assert agent.end() == 0


def test_a_jaeger_on_disk_has_everything_after_it_was_killed(new_pair, tmp_path):
    jaeger, collector = new_pair("badger.yaml")
    with DrivenAgent("badger", tmp_path, collector.otlp_grpc, notes=True, settings=WITHOUT_LOSS) as agent:
        _, after = killed_under_load(jaeger, agent)
        jaeger.start()
        all_in(jaeger, "badger", after)
        assert agent.end() == 0


def test_a_backlog_of_large_spans_is_not_thrown_away_for_its_size(new_pair, tmp_path):
    jaeger, collector = new_pair("memory.yaml")
    jaeger.kill()
    # To redact 8 MB takes the Collector a second, and more on a busy machine.
    small_batches = WITHOUT_LOSS | {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50"}
    with DrivenAgent("large", tmp_path, collector.otlp_grpc, notes=True, settings=small_batches) as agent:
        # 20 MB together, and then one of 8 MB among small ones; a message to Jaeger holds 16 MiB.
        for spans, size in ((200, 100_000), (100, 0), (1, 8_000_000), (100, 0)):
            agent.ask("spans", spans, size)
        wait_until(lambda: len(agent.acknowledged()) == 401, seconds=60, what="all spans acknowledged")
        jaeger.start()
        all_in(jaeger, "large", agent.acknowledged())
        assert agent.end() == 0
