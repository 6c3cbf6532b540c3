"""The panels that both dashboards have. A PromQL matcher selects the agents of a panel."""

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

EXACT: Final = "Exact counts: unlike `increase`, they are whole numbers and include the first event of a process."
WITHIN: Final = "Values are read from buckets, and precise to 20 %."
#: The text of an empty panel of events that need not happen.
NONE: Final = "None in this time range, if Turns shows that telemetry arrives"
MARKS: Final = "The marks are single assemblies; a click on one opens its trace."
NONE_OR_SOME: Final = steps((None, GREEN), (1, RED))
#: The limits from which the fixed share is yellow and red.
NEAR: Final = steps((None, GREEN), (0.8, YELLOW), (0.95, RED))
CALIBRATED: Final = steps((None, RED), (0.9, GREEN), (1.1, RED))
NO_BUDGET: Final = "No selected agent has a budget, or none worked in this time range"
#: The label with the name of the agent.
AGENT: Final = "gen_ai_agent_name"
NO_PRICE: Final = (
    "No price is known: install otel-assembly[prices] in the agents' environment, and give the assembler its model; "
    "self-hosted models have no list price"
)


def overflow_count(overflows: str, *traces: Link) -> Any:
    """Return the panel with the number of assemblies that exceeded their token limit."""
    return stat(
        "Overflows",
        f"Assemblies whose token limit was exceeded, raised or not. Worry from the first one. {EXACT}",
        Query(counted(overflows), "overflows"),
        thresholds=NONE_OR_SOME,
        links=traces,
    )


def halt_count(halts: str, *traces: Link) -> Any:
    """Return the panel with the number of halted conversations."""
    return stat(
        "Halts",
        f"Conversations that a FATAL alert or a program halted. Worry from the first one: a user is waiting. {EXACT}",
        Query(counted(halts), "halts"),
        thresholds=NONE_OR_SOME,
        links=traces,
    )


def prompt_size(agent: str) -> Any:
    """Return the panel with the sizes of prompts, in tokens."""
    return lines(
        "Prompt size",
        "Tokens of the prompts that the model receives. Worry if the larger ones grow from hour to hour: nothing "
        f"limits them. {WITHIN} {MARKS}",
        quantiles("assembly_output_tokens", agent),
        unit=TOKENS,
        decimals=0,
    )


def utilization(agent: str) -> Any:
    """Return the panel with the utilization of token budgets."""
    return lines(
        "Utilization of the budget",
        "Tokens needed ÷ the limit: the budget, of the prompt or of its messages alone, or the model's window; the "
        "larger ratio of both. Turns that raised an overflow are included. Near 100 % of a budget is normal, "
        f"because a reducer fills any budget. Worry above 100 %: the limit was exceeded. {WITHIN}",
        quantiles("assembly_budget_utilization", agent),
        unit=RATIO,
        decimals=0,
        soft_max=1,
        thresholds=steps((None, GREEN), (1, RED)),
        empty=NO_BUDGET,
    )


def fixed_share(agent: str) -> Any:
    """Return the panel with the share of the budget that content takes which cannot be dropped."""
    return lines(
        "Fixed share of the budget",
        "Tokens that cannot be dropped (prompts, pinned items, the newest request) ÷ the budget. At 100 % nothing "
        f"can be dropped any more, and the turn overflows. Worry from 80 %. {WITHIN}",
        quantiles("assembly_budget_fixed_utilization", agent),
        unit=RATIO,
        decimals=0,
        soft_max=1,
        thresholds=NEAR,
        empty=NO_BUDGET,
    )


def prefix_reuse(agent: str) -> Any:
    """Return the panel with the share of the previous prompt that a provider's cache can serve."""
    return lines(
        "Prefix reuse",
        "The share of the previous prompt that the next one starts with, which a provider's cache can serve. *9 in "
        "10* means that nine in ten turns reuse at least this much. Worry if it falls: the same tokens are then "
        "billed in full again. First turns are excluded.",
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
    """Return the panel with the time that assembly adds before each model call."""
    return lines(
        "Duration of assembly",
        "Time that assembly adds before each model call. Worry above 50 ms if no model is asked to summarize. "
        f"Values are read from buckets whose boundaries are 2 to 3 times apart, and are as coarse. {MARKS}",
        quantiles("assembly_duration_seconds", agent),
        unit=SECONDS,
        logarithmic=True,
        thresholds=steps((None, GREEN), (0.05, YELLOW)),
    )


def policy_duration(description: str, where: str = "") -> Any:
    """Return the panel with the duration of each policy; `where` filters its processes."""
    expression = quantile(0.95, "assembly_policy_duration_seconds", by=("assembly_policy_name",), where=where)
    return lines(
        "Duration by policy (p95)",
        "Time of each policy: 95 % of its runs are at least as fast. A policy that asks a model to summarize takes "
        f"seconds. Worry if another one does. {description}",
        [Query(expression, "{{assembly_policy_name}}", exemplars=True)],
        unit=SECONDS,
        logarithmic=True,
    )


def calibration(description: str, where: str = "") -> Any:
    """Return the panel that compares counted tokens with billed tokens; `where` filters its processes."""
    expressions = [
        quantile(share, "assembly_tokens_calibration", by=("assembly_model",), where=where) for share in (0.5, 0.95)
    ]
    return lines(
        "Counted ÷ billed tokens",
        "Precision of the counts: counted input tokens ÷ input tokens that the provider billed, by model. Worry "
        "outside 0.9 to 1.1: budgets are then wrong by as much. Requires responses that report their usage. "
        f"{description}",
        [
            Query(expressions[0], "{{assembly_model}} median", exemplars=True),
            Query(expressions[1], "{{assembly_model}} p95"),
        ],
        unit="none",
        decimals=2,
        thresholds=CALIBRATED,
        empty="No response reported its usage in this time range, or no assembler knows its model",
    )


def cost(paid: str, legend: str) -> Any:
    """Return the panel with the estimated input cost of prompts; `paid` is its query."""
    return bars(
        "Input cost",
        "Cost of the prompts as input, in US dollars: their tokens at the model's list price. `reusable` is the "
        "part that equals the previous prompt, at the price of cached input; `uncached` is the rest. This is an "
        "estimate. The provider's bill also depends on its cache and on the answers. Worry if `uncached` grows "
        "faster than turns.",
        [Query(paid, legend)],
        unit=DOLLARS,
        decimals=4,
        empty=NO_PRICE,
    )


def cost_avoided(avoided: str, legend: str) -> Any:
    """Return the panel with the input cost that dropped items would have had; `avoided` is its query."""
    return bars(
        "Input cost avoided",
        "Cost that dropped items would have had as input in the turn in which they were dropped, in US dollars. "
        "Each item counts once, although it is saved in every later turn, too. Worry if it is far above the cost of "
        "the prompts: models then receive little of the conversation.",
        [Query(avoided, legend)],
        unit=DOLLARS,
        decimals=4,
        empty=NO_PRICE,
    )


def quantiles(metric: str, agent: str) -> list[Query]:
    """Return queries for the median, 95 % and 99 % of a histogram. One requests exemplars, which all have in common."""
    return [
        Query(quantile(share, metric, agent), f"p{share * 100:g}", exemplars=share == 0.95)
        for share in (0.5, 0.95, 0.99)
    ]


def dropped_legend() -> tuple[tuple[str, str], str]:
    """Return the labels that split counts of dropped items, and the legend for them."""
    return (
        "assembly_policy_name",
        "assembly_decision_reason",
    ), "{{assembly_policy_name}}: {{assembly_decision_reason}}"
