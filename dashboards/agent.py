"""The dashboard *Agent detail*: one agent, and the policies of the processes in which it runs."""

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
    by_service,
    counted,
    in_agent_processes,
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
    utilization,
)

TURNS: Final = series("assembly_duration_seconds_count", THE_AGENT)
OVERFLOWS: Final = series("assembly_budget_overflows_total", THE_AGENT)
HALTS: Final = series("assembly_halts_total", THE_AGENT)
ITS_PROCESSES: Final = (
    "This metric has no agent. The panel shows all processes in which the agent ran within the hour before each point, "
    "including their other agents."
)
ITS_TRACES: Final = jaeger_search("Its traces", '{"gen_ai.agent.name":"${agent:raw}"}')
OVERFLOWED: Final = (
    "Its traces that overflowed",
    '{"assembly.overflowed":"true","gen_ai.agent.name":"${agent:raw}"}',
)
HALTED: Final = "Its traces that were halted", '{"assembly.halts.emitted":"1","gen_ai.agent.name":"${agent:raw}"}'


def dashboard() -> Dashboard:
    """Return the dashboard *Agent detail*."""
    return Dashboard(
        name="assembly-agent",
        title="Agent detail",
        description="The context of one agent: the content of its prompts, dropped items, and cost.",
        sections=(
            Section("$agent in this time range", _at_a_glance(), width=4, height=4),
            Section("Prompt", _prompt()),
            Section("Overflows, halts and alerts", _interruptions()),
            Section("Dropped items", _dropped_items()),
            Section("Cost", _cost(), width=12),
            Section("Cache, time and model calls", _calls()),
        ),
        variables=(datasource(), job(), instance(), one_agent(), jaeger_service(), jaeger()),
        links=(
            other_dashboard(
                "Assembly overview", "assembly-overview", "All agents, with the same selection and time range"
            ),
            jaeger_page(),
        ),
        annotations=(firing_alerts("${agent:regex}"),),
    )


def _at_a_glance() -> tuple[Any, ...]:
    return (
        stat(
            "Turns",
            f"Prompts assembled for this agent. Worry if it is 0 while the agent should work. {EXACT}",
            Query(counted(TURNS), "turns"),
            links=[ITS_TRACES],
        ),
        overflow_count(OVERFLOWS, jaeger_search(*OVERFLOWED)),
        halt_count(HALTS, jaeger_search(*HALTED)),
        stat(
            "Tokens of a prompt now",
            "Mean of the newest minutes in which the agent worked. Worry if it is far above what the task needs.",
            Query(mean("assembly_output_tokens", THE_AGENT), "tokens"),
            unit=TOKENS,
            reduce="lastNotNull",
        ),
        stat(
            "Fixed share now",
            "Tokens that cannot be dropped ÷ the budget; 95 % of the newest turns are at most this high. Worry from "
            "80 %; at 100 % the turn overflows.",
            Query(quantile(0.95, "assembly_budget_fixed_utilization", THE_AGENT), "fixed share"),
            unit=RATIO,
            reduce="lastNotNull",
            thresholds=NEAR,
        ),
        stat(
            "Prefix reuse now",
            "Mean share of the previous prompt that the next one starts with, in the newest turns. Worry if it is "
            "low in long conversations: each turn is then billed in full.",
            Query(mean("assembly_prefix_reuse", THE_AGENT), "reuse"),
            unit=RATIO,
            reduce="lastNotNull",
        ),
    )


def _prompt() -> tuple[Any, ...]:
    return (
        lines(
            "Input and output tokens per turn",
            "Mean input and output of one assembly. Worry if the input grows without limit: the conversation does, "
            "and the output becomes an ever smaller part of it. Each trace shows the prompt by kind, in "
            "`assembly.kind.names` and `assembly.kind.tokens`.",
            [
                Query(mean("assembly_input_tokens", THE_AGENT), "input"),
                Query(mean("assembly_output_tokens", THE_AGENT), "output"),
            ],
            unit=TOKENS,
            decimals=0,
            links=[ITS_TRACES],
        ),
        prompt_size(THE_AGENT),
        cells(
            "Prompts by size",
            "Prompts of each size, in each interval. Two bands are two kinds of work; a rising band is a "
            "conversation that grows. Worry if it rises to the budget.",
            Query(counted(series("assembly_output_tokens_bucket", THE_AGENT), "le"), "{{le}}", exemplars=True),
            unit=TOKENS,
            links=[ITS_TRACES],
        ),
        utilization(THE_AGENT),
        fixed_share(THE_AGENT),
        calibration(ITS_PROCESSES, in_agent_processes()),
    )


def _interruptions() -> tuple[Any, ...]:
    severity = ("assembly_alert_severity", "assembly_alert_source")
    return (
        bars(
            "Overflows by process",
            "Assemblies that exceeded a limit. Worry from the first one: the model received too much, or nothing. "
            f"{EXACT}",
            [Query(by_service(OVERFLOWS, "instance"), "{{job}} {{instance}}")],
            series_links=[of_series(*OVERFLOWED)],
        ),
        bars(
            "Halts by process",
            "Conversations that a FATAL alert or a program halted. Worry from the first one: a user is waiting. "
            f"{EXACT}",
            [Query(by_service(HALTS, "instance"), "{{job}} {{instance}}")],
            series_links=[of_series(*HALTED)],
        ),
        bars(
            "Alerts shown to models",
            "Alerts of observers, by severity and observer. Worry about `critical`, and about `fatal`, which halts. "
            f"Most fatal alerts are not shown to a model, and appear only under halts. {EXACT}",
            [
                Query(
                    counted(series("assembly_alerts_delivered_total", THE_AGENT), *severity),
                    "{{assembly_alert_severity}}: {{assembly_alert_source}}",
                )
            ],
            empty="No observer sent an alert to it in this time range",
        ),
    )


def _dropped_items() -> tuple[Any, ...]:
    split, legend = dropped_legend()
    policy, failed = "assembly_policy_name", ("assembly_policy_name", "error_type")
    return (
        bars(
            "Items dropped",
            "Items removed from prompts, by policy and reason. An item counts once, when it is dropped. Worry about "
            f"`policy_error` and `orphaned_…`. {EXACT}",
            [Query(counted(series("assembly_items_dropped_total", THE_AGENT), *split), legend)],
            links=[ITS_TRACES],
            empty=NONE,
        ),
        bars(
            "Tokens dropped",
            f"Tokens removed from prompts, by policy and reason. Worry if they rise faster than turns. {EXACT}",
            [Query(counted(series("assembly_tokens_dropped_total", THE_AGENT), *split), legend)],
            unit=TOKENS,
            empty=NONE,
        ),
        bars(
            "Declined reductions",
            "Checks by which a reducer of the framework found nothing to do; they have no span. Worry if they stop "
            f"while turns continue. Only frameworks with such a reducer report them. {EXACT}",
            [Query(counted(series("assembly_policy_declined_total", THE_AGENT), policy), "{{assembly_policy_name}}")],
            empty="No reducer of its framework declined in this time range",
        ),
        policy_duration(ITS_PROCESSES, in_agent_processes()),
        bars(
            "Errors of policies",
            f"Policies that raised or broke their contract, by exception. Worry from the first one. {EXACT}",
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
            "Reasons why a prompt does not start with the whole previous prompt. `first` is the first turn of a "
            f"conversation. Worry about `prompt_changed`, and about `cut_moved` in every turn. {EXACT}",
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
            "Turns of the agent, and model calls of its processes. Worry if calls continue while turns stop: "
            "telemetry is lost, or models are called without an assembly. Calls come from GenAI's client metrics, "
            f"under their old or new name. {ITS_PROCESSES}",
            [Query(counted(TURNS), "turns"), Query(model_calls(in_agent_processes()), "model calls")],
            unit=COUNT,
            decimals=0,
        ),
    )
