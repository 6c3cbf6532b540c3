"""The row that says whether the other rows can be believed: the Collectors and Jaeger, about themselves."""

from __future__ import annotations

from typing import Any, Final

from dashboards.panels import A_SECOND, COUNT, GREEN, RATIO, RED, YELLOW, Query, lines, steps
from dashboards.queries import rate

#: The scrape job of `collectors/prometheus`, in which these servers are; the choice at the top is about agents.
STACK: Final = 'job="assembly-stack"'
#: Jaeger is made of a Collector too, and says the same of itself.
A_COLLECTOR: Final = 'component!="jaeger"'


def pipeline() -> tuple[Any, ...]:
    """Its panels."""
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
            "What the Collectors take in a second, and the spans that Jaeger stores. Worry when spans received stay "
            "above spans stored without tail sampling, or all fall to 0 while agents work: nothing on this page is "
            "then new.",
            [*received, Query(stored, "spans stored by Jaeger")],
            unit=A_SECOND,
            decimals=1,
        ),
        lines(
            "Refused or failed",
            "What the Collectors and Jaeger refused or could not deliver since each of them started: the counters "
            "themselves. Worry when a line rises: senders try refused things again; what could not be put into the "
            "queue is lost.",
            [Query(f"sum by (component, __name__) ({lost})", "{{component}}: {{__name__}}")],
            unit=COUNT,
            decimals=0,
        ),
        lines(
            "Sending queues",
            "How full the queues of the Collectors are. They are on disk and outlast a restart. Worry above 50 %: what "
            "is behind them is down or too slow, and at 100 % data is lost.",
            [Query(f"max by (component, exporter, data_type) ({queue})", "{{component}}: {{exporter}} {{data_type}}")],
            unit=RATIO,
            decimals=0,
            maximum=1,
            thresholds=steps((None, GREEN), (0.5, YELLOW), (0.9, RED)),
        ),
    )


def _a_second(counter: str, matcher: str) -> str:
    """A Collector's counter, which Collectors name with `_total` or without, by their version and configuration."""
    spelled = (rate(f"{name}{{{STACK}, {matcher}}}") for name in (counter, f"{counter}_total"))
    return f"sum({' or '.join(spelled)})"
