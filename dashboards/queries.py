"""Build the PromQL expressions of the panels: counts per interval, quantiles, means, and model calls."""

from __future__ import annotations

from typing import Final

#: The services and processes that are selected at the top of a dashboard.
PROCESSES: Final = 'job=~"$job", instance=~"$instance"'
#: The agents that are selected on the overview. The value for all is `.*`, because an agent can have no name.
ANY_AGENT: Final = 'gen_ai_agent_name=~"$agent"'
#: The agent of *Agent detail*. An empty value selects assemblies without an agent name.
THE_AGENT: Final = 'gen_ai_agent_name="$agent"'

#: The framework of an agent; empty for this library's own assembler.
FRAMEWORK: Final = "assembly_framework"

#: GenAI's metrics of model calls were renamed. A service can send the old or the new name.
_CALLS: Final = (
    (
        "gen_ai_client_operation_duration_seconds_count",
        'gen_ai_operation_name=~"chat|generate_content|text_completion"',
    ),
    ("gen_ai_client_inference_duration_seconds_count", ""),
)
_BILLED: Final = (
    ("gen_ai_client_token_usage_sum", 'gen_ai_token_type="input"'),
    ("gen_ai_client_inference_usage_input_tokens_total", ""),
)


def series(metric: str, *matchers: str) -> str:
    """Return a selector for a metric's series of the services and processes that are selected at the top."""
    return f"{metric}{{{', '.join((PROCESSES, *filter(None, matchers)))}}}"


def increase_of(selector: str) -> str:
    """Return an expression for the exact increase of each counter within the interval of a graph.

    PromQL's `increase` extrapolates to the edges of its window: it shows two events as 2 or as 3.5, and misses the
    first event of a process, whose counter starts at 1. This expression is the newest value minus the last value before
    the interval. A counter without an earlier value is assumed to start at 0, and a lower value means a restart.
    """
    now = f"last_over_time({selector}[$__interval])"
    before = f"last_over_time({selector}[1h] offset $__interval)"
    return f"(({now} - ({before} or {now} * 0)) >= 0 or {now})"


def counted(selector: str, *by: str) -> str:
    """Return an expression for the number of events in each interval of a graph, split by labels."""
    return _sum(increase_of(selector), *by)


def by_service(selector: str, *by: str) -> str:
    """Return an expression for the number of events in each interval, split by job, by labels and by `service`.

    The label `service` is the service's name in Jaeger: the job without its namespace.
    """
    return f'label_replace({counted(selector, "job", *by)}, "service", "$1", "job", "(?:.*/)?(.*)")'


def with_framework(expression: str) -> str:
    """Return the expression with the framework label set to ``otel-assembly`` on series that do not have it."""
    return f'label_replace({expression}, "{FRAMEWORK}", "otel-assembly", "{FRAMEWORK}", "")'


def rate(selector: str) -> str:
    """Return an expression for the rate per second, over the window that Grafana selects."""
    return f"rate({selector}[$__rate_interval])"


def quantile(share: float, metric: str, *matchers: str, by: tuple[str, ...] = (), where: str = "") -> str:
    """Return an expression for a quantile of a histogram; `where` is a filter that is appended to the buckets."""
    buckets = rate(series(f"{metric}_bucket", *matchers)) + (f" {where}" if where else "")
    return f"histogram_quantile({share:g}, {_sum(buckets, 'le', *by)})"


def mean(metric: str, *matchers: str) -> str:
    """Return an expression for the mean of the values in a histogram."""
    total, count = (rate(series(f"{metric}_{part}", *matchers)) for part in ("sum", "count"))
    return f"sum({total}) / sum({count})"


def model_calls(where: str = "") -> str:
    """Return an expression for the model calls in each interval, by the old or the new metric of each service."""
    return _either(_CALLS, where)


def billed_tokens(where: str = "") -> str:
    """Return an expression for the input tokens that providers billed in each interval."""
    return _either(_BILLED, where)


def in_agent_processes() -> str:
    """Return a filter for metrics without an agent label: only processes in which the selected agent runs."""
    return f"and on (job, instance) last_over_time({series('assembly_duration_seconds_count', THE_AGENT)}[1h])"


def _either(generations: tuple[tuple[str, str], ...], where: str) -> str:
    parts = (
        _sum(increase_of(series(metric, matcher)) + (f" {where}" if where else ""), "job")
        for metric, matcher in generations
    )
    return f"sum({' or '.join(parts)})"


def _sum(expression: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"
