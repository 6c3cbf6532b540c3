"""The panels about the Collectors and Jaeger, which show whether the data of the other panels is complete."""

from __future__ import annotations

from typing import Any, Final

from dashboards.panels import A_SECOND, COUNT, GREEN, RATIO, RED, YELLOW, Query, lines, steps
from dashboards.queries import rate

#: The scrape job of these servers in `collectors/prometheus`. The selection at the top filters agents only.
STACK: Final = 'job="assembly-stack"'
#: Jaeger is built on the Collector and has the same metrics.
A_COLLECTOR: Final = 'component!="jaeger"'


def pipeline() -> tuple[Any, ...]:
    """Return the panels about received, stored, lost and queued telemetry."""
    signals = {"spans": "spans", "metric_points": "metric points", "log_records": "log records"}
    received = [
        Query(_a_second(f"otelcol_receiver_accepted_{signal}", A_COLLECTOR), f"{legend} received")
        for signal, legend in signals.items()
    ]
    stored = _a_second("otelcol_exporter_sent_spans", 'exporter="jaeger_storage_exporter"')
    lost = "otelcol_(receiver_refused|receiver_failed|exporter_send_failed|exporter_enqueue_failed)"
    lost = f'{{__name__=~"{lost}_({"|".join(signals)})(_total)?", {STACK}}}'
    queue = f"otelcol_exporter_queue_size{{{STACK}}} / otelcol_exporter_queue_capacity{{{STACK}}}"
    return (
        lines(
            "Received and stored",
            "Data that the Collectors receive, and spans that Jaeger stores, per second. Worry if more spans are "
            "received than stored without tail sampling, or if all lines fall to 0 while agents work: this page "
            "then has no new data.",
            [*received, Query(stored, "spans stored by Jaeger")],
            unit=A_SECOND,
            decimals=1,
        ),
        lines(
            "Refused or failed",
            "Data that the Collectors and Jaeger refused or could not deliver since each of them started: the "
            "counters themselves. Worry if a line rises. Senders retry refused data; data that could not be queued "
            "is lost.",
            [Query(f"sum by (component, __name__) ({lost})", "{{component}}: {{__name__}}")],
            unit=COUNT,
            decimals=0,
        ),
        lines(
            "Sending queues",
            "Fill level of the Collectors' queues, which are on disk and survive a restart. Worry above 50 %: the "
            "server behind the queue is down or too slow. At 100 % data is refused.",
            [Query(f"max by (component, exporter, data_type) ({queue})", "{{component}}: {{exporter}} {{data_type}}")],
            unit=RATIO,
            decimals=0,
            maximum=1,
            thresholds=steps((None, GREEN), (0.5, YELLOW), (0.9, RED)),
        ),
    )


def _a_second(counter: str, matcher: str) -> str:
    """Return the rate of a Collector's counter, whose name ends in ``_total`` in some versions and configurations."""
    rates = (rate(f"{name}{{{STACK}, {matcher}}}") for name in (counter, f"{counter}_total"))
    return f"sum({' or '.join(rates)})"
