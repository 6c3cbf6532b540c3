"""Panels that both dashboards have, for the agents that a matcher lets through."""

from __future__ import annotations

from typing import Any, Final

from dashboards.panels import GREEN, RATIO, RED, SECONDS, TOKENS, YELLOW, Link, Query, jaeger_search, lines, stat, steps
from dashboards.queries import counted, mean, quantile

EXACT: Final = (
    "Whole numbers that add up to what happened: each counter's newest value less the one before the interval, and not "
    "`increase`, which shows 2 as 3.5 and the first of a process not at all."
)
MARKS: Final = "The marks are single assemblies; a click on one opens its trace."
NONE_OR_SOME: Final = steps((None, GREEN), (1, RED))
#: From where on the fixed share is yellow, and red.
NEAR: Final = steps((None, GREEN), (0.8, YELLOW), (0.95, RED))
CALIBRATED: Final = steps((None, RED), (0.9, GREEN), (1.1, RED))
OVERFLOWED: Final = jaeger_search("Traces that overflowed", '{"assembly.overflowed":"true"}')
HALTED: Final = jaeger_search("Traces that were halted", '{"assembly.halts.emitted":"1"}')


def overflow_count(overflows: str, traces: Link) -> Any:
    """How many assemblies overflowed."""
    return stat(
        "Overflows",
        f"Assemblies whose token limit could not hold, raised or not. Worry from the first one on. {EXACT}",
        Query(counted(overflows), "overflows"),
        thresholds=NONE_OR_SOME,
        links=[traces],
    )


def halt_count(halts: str, traces: Link) -> Any:
    """How many conversations were halted."""
    return stat(
        "Halts",
        f"Conversations that were halted by a fatal alert. Worry from the first one on: somebody waits. {EXACT}",
        Query(counted(halts), "halts"),
        thresholds=NONE_OR_SOME,
        links=[traces],
    )


def prompt_size(agent: str) -> Any:
    """How large the prompts are."""
    return lines(
        "Prompt size",
        "How large the prompts are that the model is sent. Worry when the larger ones grow from hour to hour: nothing "
        f"bounds them. Between the buckets, which are powers of 4, values are estimates. {MARKS}",
        quantiles("assembly_output_tokens", agent),
        unit=TOKENS,
        decimals=0,
    )


def utilisation(agent: str) -> Any:
    """How full the budgets are."""
    return lines(
        "Utilisation of the budget",
        "Tokens of the prompt ÷ its budget. Near 100 % is normal, for a reducer fills any budget; worry above it: the "
        "limit did not hold. Values above 200 % are shown as 200 %.",
        quantiles("assembly_budget_utilization", agent),
        unit=RATIO,
        decimals=0,
        soft_max=1,
        thresholds=steps((None, GREEN), (1, RED)),
    )


def fixed_share(agent: str) -> Any:
    """How full they are with what may not be dropped."""
    return lines(
        "Fixed share of the budget",
        "Tokens that may not be dropped (prompts, pinned items, the newest request) ÷ the budget. The one to watch: at "
        "100 % nothing can be dropped any more, and the turn overflows. Worry from 80 % on.",
        quantiles("assembly_budget_fixed_utilization", agent),
        unit=RATIO,
        decimals=0,
        soft_max=1,
        thresholds=NEAR,
    )


def prefix_reuse(agent: str) -> Any:
    """How much of a prompt a provider's cache can serve."""
    return lines(
        "Prefix reuse",
        "Which share of the previous prompt the next one begins with: what a provider's prompt cache can serve. *9 in "
        "10* means that nine in ten turns reuse at least this much. Worry when it falls: the same tokens are then paid "
        "in full again. First turns are not in it.",
        [
            Query(quantile(0.5, "assembly_prefix_reuse", agent), "half", exemplars=True),
            Query(quantile(0.1, "assembly_prefix_reuse", agent), "9 in 10"),
            Query(mean("assembly_prefix_reuse", agent), "mean"),
        ],
        unit=RATIO,
        decimals=0,
        maximum=1,
    )


def duration(agent: str) -> Any:
    """What assembly adds to a turn."""
    return lines(
        "Duration of assembly",
        f"What assembly adds before each model call. Worry above 50 ms where no model is asked to summarise. {MARKS}",
        quantiles("assembly_duration_seconds", agent),
        unit=SECONDS,
        logarithmic=True,
        thresholds=steps((None, GREEN), (0.05, YELLOW)),
    )


def policy_duration(description: str, where: str = "") -> Any:
    """Which policy takes the time."""
    expression = quantile(0.95, "assembly_policy_duration_seconds", by=("assembly_policy_name",), where=where)
    return lines(
        "Duration by policy (p95)",
        "Which policy takes the time: nineteen in twenty runs are at least as fast. One that asks a model to summarise "
        f"takes seconds; worry when another one does. {description}",
        [Query(expression, "{{assembly_policy_name}}", exemplars=True)],
        unit=SECONDS,
        logarithmic=True,
    )


def calibration(description: str, where: str = "") -> Any:
    """How right the counts of tokens are."""
    expressions = [
        quantile(share, "assembly_tokens_calibration", by=("assembly_model",), where=where) for share in (0.5, 0.95)
    ]
    return lines(
        "Counted ÷ billed tokens",
        "How right the counts are: input tokens as counted ÷ as billed by the provider, by model. Worry outside 0.9 to "
        f"1.1: budgets are then held in the wrong unit. Only where responses say their usage. {description}",
        [
            Query(expressions[0], "{{assembly_model}} median", exemplars=True),
            Query(expressions[1], "{{assembly_model}} p95"),
        ],
        unit="none",
        decimals=2,
        thresholds=CALIBRATED,
    )


def quantiles(metric: str, agent: str) -> list[Query]:
    """Half, 95 % and 99 %; one of them asks for exemplars, which are the same for all."""
    return [
        Query(quantile(share, metric, agent), f"p{share * 100:g}", exemplars=share == 0.95)
        for share in (0.5, 0.95, 0.99)
    ]


def dropped_legend() -> tuple[tuple[str, str], str]:
    """How drops are split, and called."""
    return (
        "assembly_policy_name",
        "assembly_decision_reason",
    ), "{{assembly_policy_name}}: {{assembly_decision_reason}}"


def agent_link(query: str) -> Link:
    """To *Agent detail*, with what is chosen here."""
    kept = "${datasource:queryparam}&${job:queryparam}&${instance:queryparam}&${__url_time_range}"
    return Link("This agent in detail", f"/d/otel-assembly-agent?{query}&{kept}")
