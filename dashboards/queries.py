"""PromQL, as the panels need it: what happened in an interval, quantiles, means, model calls of both generations."""

from __future__ import annotations

from typing import Final

#: The services and processes that are chosen at the top of a dashboard.
PROCESSES: Final = 'job=~"$job", instance=~"$instance"'
#: The agents that are chosen on the overview; the value for all of them is `.*`, for an agent need not have a name.
ANY_AGENT: Final = 'gen_ai_agent_name=~"$agent"'
#: The one agent of *Agent detail*; an empty value finds assemblies without a name.
THE_AGENT: Final = 'gen_ai_agent_name="$agent"'

#: The framework that an agent runs on; without a value it runs on this library's own assembler.
FRAMEWORK: Final = "assembly_framework"

#: GenAI's histogram of model calls was renamed, and the instruments of a service may be of either generation.
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
    """The series of the chosen processes."""
    return f"{metric}{{{', '.join((PROCESSES, *filter(None, matchers)))}}}"


def risen(selector: str) -> str:
    """How much each counter rose in the interval before each point, as an integer.

    `increase` takes the slope between samples to the edges of its window: two events are shown as 2 or as 3.5, and the
    first one of a process as none, because its counter began at 1. This is the newest value less the one before the
    interval; a counter that was not there before began at 0, and one that fell was set back by a restart.
    """
    now = f"last_over_time({selector}[$__interval])"
    before = f"last_over_time({selector}[1h] offset $__interval)"
    return f"(({now} - ({before} or {now} * 0)) >= 0 or {now})"


def counted(selector: str, *by: str) -> str:
    """What happened in each interval, split by labels."""
    return _sum(risen(selector), *by)


def by_service(selector: str, *by: str) -> str:
    """What happened in each interval, split by service and by labels; `service` is what Jaeger calls it.

    That is `service.name`: the job without its namespace.
    """
    return f'label_replace({counted(selector, "job", *by)}, "service", "$1", "job", "(?:.*/)?(.*)")'


def with_framework(expression: str) -> str:
    """The same series, where those of no framework name this library instead."""
    return f'label_replace({expression}, "{FRAMEWORK}", "otel-assembly", "{FRAMEWORK}", "")'


def rate(selector: str) -> str:
    """What happens a second, by the window that Grafana thinks right."""
    return f"rate({selector}[$__rate_interval])"


def quantile(share: float, metric: str, *matchers: str, by: tuple[str, ...] = (), where: str = "") -> str:
    """A quantile of a histogram; `where` is a filter that is put behind each bucket."""
    buckets = rate(series(f"{metric}_bucket", *matchers)) + (f" {where}" if where else "")
    return f"histogram_quantile({share:g}, {_sum(buckets, 'le', *by)})"


def mean(metric: str, *matchers: str) -> str:
    """The mean of what a histogram was given."""
    total, count = (rate(series(f"{metric}_{part}", *matchers)) for part in ("sum", "count"))
    return f"sum({total}) / sum({count})"


def model_calls(where: str = "") -> str:
    """Model calls in each interval; each service by the generation of metrics that it has."""
    return _either(_CALLS, where)


def billed_tokens(where: str = "") -> str:
    """Input tokens that providers billed in each interval."""
    return _either(_BILLED, where)


def beside_the_agent() -> str:
    """A filter: only processes in which the chosen agent runs, for metrics that carry no agent."""
    return f"and on (job, instance) last_over_time({series('assembly_duration_seconds_count', THE_AGENT)}[1h])"


def _either(generations: tuple[tuple[str, str], ...], where: str) -> str:
    parts = (
        _sum(risen(series(metric, matcher)) + (f" {where}" if where else ""), "job") for metric, matcher in generations
    )
    return f"sum({' or '.join(parts)})"


def _sum(expression: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"
