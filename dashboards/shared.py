"""Panels that both dashboards have, for the agents that a matcher lets through."""

from __future__ import annotations

from typing import Any, Final

from dashboards.panels import (
    DOLLARS,
    GREEN,
    RATIO,
    RED,
    SECONDS,
    TOKENS,
    YELLOW,
    Link,
    Query,
    bars,
    lines,
    stat,
    steps,
)
from dashboards.queries import counted, mean, quantile

EXACT: Final = (
    "Whole numbers that add up to what happened: each counter's newest value less the one before the interval, and not "
    "`increase`, which shows 2 as 3.5 and the first of a process not at all."
)
WITHIN: Final = "Values are read off buckets, and right within a fifth."
#: What a panel of something that need not happen says, where it has not.
NONE: Final = "None in this time range, as far as is reported: see Turns"
MARKS: Final = "The marks are single assemblies; a click on one opens its trace."
NONE_OR_SOME: Final = steps((None, GREEN), (1, RED))
#: From where on the fixed share is yellow, and red.
NEAR: Final = steps((None, GREEN), (0.8, YELLOW), (0.95, RED))
CALIBRATED: Final = steps((None, RED), (0.9, GREEN), (1.1, RED))
NO_BUDGET: Final = "No agent that is chosen has a budget, or none worked in this time range"
#: A label that a query has beside its agent.
AGENT: Final = "gen_ai_agent_name"
NO_PRICE: Final = (
    "No price is known: install otel-assembly[prices] where the agents run, and tell the assembler its model; what "
    "runs on one's own servers has no list price"
)


def overflow_count(overflows: str, *traces: Link) -> Any:
    """How many assemblies overflowed."""
    return stat(
        "Overflows",
        f"Assemblies whose token limit could not hold, raised or not. Worry from the first one on. {EXACT}",
        Query(counted(overflows), "overflows"),
        thresholds=NONE_OR_SOME,
        links=traces,
    )


def halt_count(halts: str, *traces: Link) -> Any:
    """How many conversations were halted."""
    return stat(
        "Halts",
        f"Conversations that were halted by a fatal alert. Worry from the first one on: somebody waits. {EXACT}",
        Query(counted(halts), "halts"),
        thresholds=NONE_OR_SOME,
        links=traces,
    )


def prompt_size(agent: str) -> Any:
    """How large the prompts are."""
    return lines(
        "Prompt size",
        "How large the prompts are that the model is sent. Worry when the larger ones grow from hour to hour: nothing "
        f"bounds them. {WITHIN} {MARKS}",
        quantiles("assembly_output_tokens", agent),
        unit=TOKENS,
        decimals=0,
    )


def utilisation(agent: str) -> Any:
    """How full the budgets are."""
    return lines(
        "Utilisation of the budget",
        "Tokens needed ÷ the limit: the budget, of the prompt or of its messages alone, or the model's window; the "
        "larger ratio of both. Turns that raised an overflow are included. Near 100 % of a budget is normal, because a "
        f"reducer fills any budget; worry above it: the limit was exceeded. {WITHIN}",
        quantiles("assembly_budget_utilization", agent),
        unit=RATIO,
        decimals=0,
        soft_max=1,
        thresholds=steps((None, GREEN), (1, RED)),
        empty=NO_BUDGET,
    )


def fixed_share(agent: str) -> Any:
    """How full they are with what may not be dropped."""
    return lines(
        "Fixed share of the budget",
        "Tokens that may not be dropped (prompts, pinned items, the newest request) ÷ the budget. The one to watch: at "
        f"100 % nothing can be dropped any more, and the turn overflows. Worry from 80 % on. {WITHIN}",
        quantiles("assembly_budget_fixed_utilization", agent),
        unit=RATIO,
        decimals=0,
        soft_max=1,
        thresholds=NEAR,
        empty=NO_BUDGET,
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
        empty="No conversation had a second turn in this time range",
    )


def duration(agent: str) -> Any:
    """What assembly adds to a turn."""
    return lines(
        "Duration of assembly",
        "What assembly adds before each model call. Worry above 50 ms where no model is asked to summarise. Values are "
        f"read off buckets whose boundaries are 2 to 3 times apart, and as coarse. {MARKS}",
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
        empty="No response said its usage in this time range, or no assembler was told its model",
    )


def cost(paid: str, legend: str) -> Any:
    """What prompts cost as input."""
    return bars(
        "Input cost",
        "What prompts cost as input, in US dollars: their tokens at the list price of the model. `reusable` is the "
        "beginning that equals the previous prompt, at the price of cached input, `uncached` the rest. It is an "
        "estimate: what a provider's cache really served, and what was answered, only its bill says. Worry when "
        "`uncached` grows faster than turns.",
        [Query(paid, legend)],
        unit=DOLLARS,
        decimals=4,
        empty=NO_PRICE,
    )


def cost_avoided(avoided: str, legend: str) -> Any:
    """What more they would have cost."""
    return bars(
        "Input cost avoided",
        "What the items that left prompts would have cost as input on the turn on which they left, in US dollars: each "
        "counts once, and is saved anew on every later turn. Worry when it is far above what the prompts cost: models "
        "are told little of what there is.",
        [Query(avoided, legend)],
        unit=DOLLARS,
        decimals=4,
        empty=NO_PRICE,
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
