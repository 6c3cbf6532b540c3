"""*Agent detail*: one agent, to the same depth, and the policies of the processes in which it runs."""

from __future__ import annotations

from typing import Any, Final

from dashboards.frame import (
    Dashboard,
    Section,
    datasource,
    firing_alerts,
    instance,
    jaeger,
    jaeger_page,
    jaeger_service,
    job,
    one_agent,
    other_dashboard,
)
from dashboards.panels import COUNT, RATIO, TOKENS, Query, bars, cells, jaeger_search, lines, of_series, stat
from dashboards.queries import (
    THE_AGENT,
    beside_the_agent,
    by_service,
    counted,
    mean,
    model_calls,
    quantile,
    series,
)
from dashboards.shared import (
    EXACT,
    NEAR,
    NONE,
    calibration,
    cost,
    cost_avoided,
    dropped_legend,
    duration,
    fixed_share,
    halt_count,
    overflow_count,
    policy_duration,
    prefix_reuse,
    prompt_size,
    utilisation,
)

TURNS: Final = series("assembly_duration_seconds_count", THE_AGENT)
OVERFLOWS: Final = series("assembly_budget_overflows_total", THE_AGENT)
HALTS: Final = series("assembly_halts_total", THE_AGENT)
ITS_PROCESSES: Final = (
    "This metric does not say the agent: shown is every process in which the agent ran in the hour before each point, "
    "with the other agents of those."
)
ITS_TRACES: Final = jaeger_search("Its traces", '{"gen_ai.agent.name":"${agent:raw}"}')
OVERFLOWED: Final = (
    "Its traces that overflowed",
    '{"assembly.overflowed":"true","gen_ai.agent.name":"${agent:raw}"}',
)
HALTED: Final = "Its traces that were halted", '{"assembly.halts.emitted":"1","gen_ai.agent.name":"${agent:raw}"}'


def dashboard() -> Dashboard:
    """The dashboard."""
    return Dashboard(
        name="assembly-agent",
        title="Agent detail",
        description="What one agent puts before its model: what fills the prompt, what is left out, and what it costs.",
        sections=(
            Section("$agent in this time range", _at_a_glance(), width=4, height=4),
            Section("What fills its prompt", _prompt()),
            Section("When it does not fit", _stops()),
            Section("What is left out, and why", _policies()),
            Section("What it costs", _cost(), width=12),
            Section("Cache, time and model calls", _calls()),
        ),
        variables=(datasource(), job(), instance(), one_agent(), jaeger_service(), jaeger()),
        links=(
            other_dashboard(
                "Assembly overview", "assembly-overview", "All agents, with the same choice and time range"
            ),
            jaeger_page(),
        ),
        annotations=(firing_alerts("${agent:regex}"),),
    )


def _at_a_glance() -> tuple[Any, ...]:
    return (
        stat(
            "Turns",
            f"How many prompts were assembled for it. Worry when it is 0 while it should work. {EXACT}",
            Query(counted(TURNS), "turns"),
            links=[ITS_TRACES],
        ),
        overflow_count(OVERFLOWS, jaeger_search(*OVERFLOWED)),
        halt_count(HALTS, jaeger_search(*HALTED)),
        stat(
            "Tokens of a prompt now",
            "The mean of the newest minutes in which it worked. Worry when it is far above what the task needs.",
            Query(mean("assembly_output_tokens", THE_AGENT), "tokens"),
            unit=TOKENS,
            reduce="lastNotNull",
        ),
        stat(
            "Fixed share now",
            "Tokens that may not be dropped ÷ the budget, in all but the worst twentieth of the newest turns. Worry "
            "from 80 % on; at 100 % it overflows.",
            Query(quantile(0.95, "assembly_budget_fixed_utilization", THE_AGENT), "fixed share"),
            unit=RATIO,
            reduce="lastNotNull",
            thresholds=NEAR,
        ),
        stat(
            "Prefix reuse now",
            "Which share of the previous prompt the next one begins with, as a mean of the newest turns. Worry when it "
            "is low in long conversations: each turn is then paid in full.",
            Query(mean("assembly_prefix_reuse", THE_AGENT), "reuse"),
            unit=RATIO,
            reduce="lastNotNull",
        ),
    )


def _prompt() -> tuple[Any, ...]:
    return (
        lines(
            "Tokens of a turn, given and sent",
            "The mean of what one assembly is given, and of what it lets through. Worry when given grows without end: "
            "the conversation does, and what is sent is an ever smaller part of it. What the prompt is made of, by "
            "kind, stands on each trace, as `assembly.kind.names` and `assembly.kind.tokens`.",
            [
                Query(mean("assembly_input_tokens", THE_AGENT), "given"),
                Query(mean("assembly_output_tokens", THE_AGENT), "sent"),
            ],
            unit=TOKENS,
            decimals=0,
            links=[ITS_TRACES],
        ),
        prompt_size(THE_AGENT),
        cells(
            "Prompts by size",
            "How many prompts of each size, in each interval: two bands are two kinds of work, a band that climbs is a "
            "conversation that grows. Worry when it climbs to the budget.",
            Query(counted(series("assembly_output_tokens_bucket", THE_AGENT), "le"), "{{le}}", exemplars=True),
            unit=TOKENS,
            links=[ITS_TRACES],
        ),
        utilisation(THE_AGENT),
        fixed_share(THE_AGENT),
        calibration(ITS_PROCESSES, beside_the_agent()),
    )


def _stops() -> tuple[Any, ...]:
    severity = ("assembly_alert_severity", "assembly_alert_source")
    return (
        bars(
            "Overflows by process",
            "Assemblies whose limit could not hold. Worry from the first one on: the model was sent too much, or "
            f"nothing. {EXACT}",
            [Query(by_service(OVERFLOWS, "instance"), "{{job}} {{instance}}")],
            series_links=[of_series(*OVERFLOWED)],
        ),
        bars(
            "Halts by process",
            f"Conversations that were halted by a fatal alert. Worry from the first one on: somebody waits. {EXACT}",
            [Query(by_service(HALTS, "instance"), "{{job}} {{instance}}")],
            series_links=[of_series(*HALTED)],
        ),
        bars(
            "Alerts shown to models",
            "What observers had to say, by severity and by observer. Worry about `critical`, and about `fatal`, which "
            f"halts: most of those are shown to no model, and stand under halts alone. {EXACT}",
            [
                Query(
                    counted(series("assembly_alerts_delivered_total", THE_AGENT), *severity),
                    "{{assembly_alert_severity}}: {{assembly_alert_source}}",
                )
            ],
            empty="No observer had anything to say to it in this time range",
        ),
    )


def _policies() -> tuple[Any, ...]:
    split, legend = dropped_legend()
    policy, failed = "assembly_policy_name", ("assembly_policy_name", "error_type")
    return (
        bars(
            "Items dropped",
            "What was taken out of prompts, by the policy that did it and its reason; an item counts once, when it "
            f"leaves. Worry about `policy_error` and `orphaned_…`. {EXACT}",
            [Query(counted(series("assembly_items_dropped_total", THE_AGENT), *split), legend)],
            links=[ITS_TRACES],
            empty=NONE,
        ),
        bars(
            "Tokens dropped",
            f"How much was taken out, by policy and reason. Worry when it rises faster than turns. {EXACT}",
            [Query(counted(series("assembly_tokens_dropped_total", THE_AGENT), *split), legend)],
            unit=TOKENS,
            empty=NONE,
        ),
        bars(
            "Checks without work",
            "How often a reducer of its framework looked and found nothing to do; there is no span for it. Worry when "
            f"they stop while turns go on. Only frameworks with such a reducer report it. {EXACT}",
            [Query(counted(series("assembly_policy_declined_total", THE_AGENT), policy), "{{assembly_policy_name}}")],
            empty="No reducer of its framework looked in vain in this time range",
        ),
        policy_duration(ITS_PROCESSES, beside_the_agent()),
        bars(
            "Errors of policies",
            f"Policies that raised or broke their contract, by exception. Worry from the first one on. {EXACT}",
            [
                Query(
                    counted(series("assembly_policy_errors_total", THE_AGENT), *failed),
                    "{{assembly_policy_name}}: {{error_type}}",
                )
            ],
            empty=NONE,
        ),
        bars(
            "Prefix breaks",
            "Why prompts did not begin with the whole of the one before. `first` is each conversation's first. Worry "
            f"about `prompt_changed`, and about `cut_moved` on every turn. {EXACT}",
            [
                Query(
                    counted(series("assembly_prefix_breaks_total", THE_AGENT), "assembly_prefix_break"),
                    "{{assembly_prefix_break}}",
                )
            ],
            empty=NONE,
        ),
    )


def _cost() -> tuple[Any, ...]:
    split = "assembly_model", "assembly_cost_part"
    paid = counted(series("assembly_cost_total", THE_AGENT), *split)
    avoided = counted(series("assembly_cost_avoided_total", THE_AGENT), split[0])
    return cost(paid, "{{assembly_model}}: {{assembly_cost_part}}"), cost_avoided(avoided, "{{assembly_model}}")


def _calls() -> tuple[Any, ...]:
    return (
        prefix_reuse(THE_AGENT),
        duration(THE_AGENT),
        lines(
            "Turns and model calls",
            "Its turns, and the model calls of its processes. Worry when calls go on while turns stop: telemetry is "
            "lost, or models are called past the assembler. Calls are those of GenAI's client metrics, of either "
            f"generation. {ITS_PROCESSES}",
            [Query(counted(TURNS), "turns"), Query(model_calls(beside_the_agent()), "model calls")],
            unit=COUNT,
            decimals=0,
        ),
    )
