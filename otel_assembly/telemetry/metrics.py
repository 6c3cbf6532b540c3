"""The instruments, and the bounds on what they are split by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly._internal.forks import new_lock
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.utf8 import sendable

if TYPE_CHECKING:
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import Counter, Histogram, Meter

    from otel_assembly.telemetry.conventions_model import Metric
    from otel_assembly.telemetry.failures import Failures


class Bounded:
    """Lets the first so many values of an open attribute through; later ones are ``_OTHER``."""

    def __init__(self, limit: int = names.MAX_METRIC_NAMES) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        self._lock = new_lock()

    def __call__(self, value: str) -> str:
        value = sendable(value)
        if value in self._seen:
            return value
        with self._lock:
            if len(self._seen) < self._limit:
                self._seen.add(value)
                return value
        return names.OTHER


class Metrics:
    """Every metric of the contract; recorded in a span's context, so that exemplars lead to it."""

    def __init__(self, meter: Meter, failures: Failures) -> None:
        self._failures = failures
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in catalogue.METRICS:
            if metric.instrument == "counter":
                self._counters[metric.name] = meter.create_counter(metric.name, metric.unit, metric.brief)
            else:
                self._histograms[metric.name] = meter.create_histogram(
                    metric.name,
                    metric.unit,
                    metric.brief,
                    explicit_bucket_boundaries_advisory=list(metric.buckets),
                )
        self._agents: set[tuple[str | None, str | None]] = set()
        self.policy_name = Bounded()
        self.agent_name = Bounded()
        self.framework = Bounded()
        self.model_name = Bounded()
        self.alert_source = Bounded()
        self.error_type = Bounded()

    def add(self, metric: Metric, amount: int, attributes: dict[str, Any], context: OtelContext | None = None) -> None:
        """Count."""
        try:
            self._counters[metric.name].add(amount, attributes, context)
        except Exception as error:  # noqa: BLE001  # one broken instrument costs no other
            self._failures.take("metrics", error)

    def record(
        self, metric: Metric, value: float, attributes: dict[str, Any], context: OtelContext | None = None
    ) -> None:
        """Record a value of a distribution."""
        try:
            self._histograms[metric.name].record(value, attributes, context)
        except Exception as error:  # noqa: BLE001
            self._failures.take("metrics", error)

    def failed(self, component: str) -> None:
        """Count a failure of telemetry; where even that fails, it raises."""
        self._counters[catalogue.TELEMETRY_ERRORS.name].add(1, {names.COMPONENT: component})

    def agent(self, agent_name: str | None, framework: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The attributes of an agent: without and with its framework.

        A counter that first appears at 1 has no increase, so the counters that alerts watch start at 0 when an agent is
        first seen.
        """
        agent: dict[str, Any] = {} if agent_name is None else {names.GEN_AI_AGENT_NAME: self.agent_name(agent_name)}
        both = agent if framework is None else {**agent, names.FRAMEWORK: self.framework(framework)}
        key = (agent.get(names.GEN_AI_AGENT_NAME), both.get(names.FRAMEWORK))
        if key not in self._agents:
            self._agents.add(key)
            self.add(catalogue.BUDGET_OVERFLOWS, 0, both)
            self.add(catalogue.HALTS, 0, both)
        return agent, both
