"""The dashboard *Assembly overview*: all agents of all services."""

from __future__ import annotations

from typing import Any, Final

from dashboards.frame import (
    Dashboard,
    Section,
    agents,
    datasource,
    firing_alerts,
    instance,
    jaeger,
    jaeger_page,
    job,
    other_dashboard,
)
from dashboards.panels import COUNT, TOKENS, Link, Query, bars, lines, of_series, stat
from dashboards.pipeline import pipeline
from dashboards.queries import (
    ANY_AGENT,
    FRAMEWORK,
    billed_tokens,
    by_service,
    counted,
    increase_of,
    model_calls,
    series,
    with_framework,
)
from dashboards.sessions import sessions
from dashboards.shared import (
    AGENT,
    EXACT,
    NONE,
    NONE_OR_SOME,
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

TURNS: Final = series("assembly_duration_seconds_count", ANY_AGENT)
OVERFLOWS: Final = series("assembly_budget_overflows_total", ANY_AGENT)
HALTS: Final = series("assembly_halts_total", ANY_AGENT)
POLICY_ERRORS: Final = series("assembly_policy_errors_total", ANY_AGENT)
TELEMETRY_ERRORS: Final = series("assembly_telemetry_errors_total")
NO_AGENT: Final = "This metric has no agent, so the selection at the top does not filter it."
#: The agent of the clicked series, in its service, because two services can have agents of one name.
THIS_AGENT: Final = Link(
    "This agent in detail",
    "/d/otel-assembly-agent?var-agent=${__field.labels.gen_ai_agent_name}&var-job=${__field.labels.job}"
    "&${datasource:queryparam}&${instance:queryparam}&${__url_time_range}",
)
AGENT_OF_SERVICE: Final = "agent {{gen_ai_agent_name}} of {{service}}"


def dashboard() -> Dashboard:
    """Return the dashboard *Assembly overview*."""
    return Dashboard(
        name="assembly-overview",
        title="Assembly overview",
        description="The context of all agents: size, distance to the limit, dropped items and the reasons.",
        sections=(
            Section("Totals of this time range", _at_a_glance(), width=6, height=4),
            Section("Turns and tokens", _turns()),
            Section("Budget", _budget()),
            Section("Dropped items", _dropped_items()),
            Section("Overflows, halts and alerts", _interruptions()),
            Section("Sessions between agents", sessions(), width=12),
            Section("Cost", _cost(), width=12),
            Section("Prompt cache and token counts", _cache()),
            Section("Latency and errors", _latency()),
            Section("Telemetry pipeline", pipeline()),
        ),
        variables=(datasource(), job(), instance(), agents(), jaeger()),
        links=(
            other_dashboard("Agent detail", "assembly-agent", "One agent, with the same selection and time range"),
            jaeger_page(),
        ),
        annotations=(firing_alerts("$agent"),),
    )


def _at_a_glance() -> tuple[Any, ...]:
    errors = f"sum({increase_of(POLICY_ERRORS)} or {increase_of(TELEMETRY_ERRORS)} or 0 * {increase_of(TURNS)})"
    return (
        stat(
            "Turns",
            f"Assembled prompts, one before each model call. Worry if it is 0 while agents work. {EXACT}",
            Query(counted(TURNS), "turns"),
        ),
        overflow_count(OVERFLOWS),
        halt_count(HALTS),
        stat(
            "Errors",
            "Policies that failed, and failures of this library's own telemetry, of any agent. Worry from the first "
            f"one; the row *Latency and errors* has details. It is 0 only if turns are reported. {EXACT}",
            Query(errors, "errors"),
            thresholds=NONE_OR_SOME,
        ),
    )


def _turns() -> tuple[Any, ...]:
    received = series("assembly_input_tokens_sum", ANY_AGENT)
    sent = series("assembly_output_tokens_sum", ANY_AGENT)
    return (
        bars(
            "Turns by agent",
            "Turns of each agent, with its framework (or this library's own assembler). Click on an agent for its "
            "details. Worry about an agent whose turns rise without more users: it may run in a loop. Worry about a "
            "working agent that is missing here: run `otel-assembly doctor`, its framework may have been updated. "
            f"{EXACT}",
            [Query(with_framework(by_service(TURNS, AGENT, FRAMEWORK)), f"{AGENT_OF_SERVICE} on {{{{{FRAMEWORK}}}}}")],
            series_links=[THIS_AGENT],
        ),
        lines(
            "Turns and model calls",
            "Compares assemblies with model calls. Worry if calls continue while turns stop: telemetry is lost. "
            "Worry if there are many more calls than turns: a program calls models without an assembly. Calls come "
            "from GenAI's client metrics, under their old or new name, and are not filtered by agent.",
            [Query(counted(TURNS), "turns"), Query(model_calls(), "model calls")],
            unit=COUNT,
            decimals=0,
        ),
        lines(
            "Input, output and billed tokens",
            "Tokens of the input and the output of assemblies, and input tokens that providers billed, in each "
            "interval. Worry if billed is far above output: calls are made without an assembly, or tokens are "
            "counted wrongly. Billed tokens come from GenAI's client metrics, under their old or new name, and are "
            "not filtered by agent.",
            [
                Query(counted(received), "input"),
                Query(counted(sent), "output"),
                Query(billed_tokens(), "billed"),
            ],
            unit=TOKENS,
            decimals=0,
        ),
    )


def _budget() -> tuple[Any, ...]:
    return (prompt_size(ANY_AGENT), utilization(ANY_AGENT), fixed_share(ANY_AGENT))


def _dropped_items() -> tuple[Any, ...]:
    (policy, reason), legend = dropped_legend()
    split, legend = (AGENT, policy, reason), f"{AGENT_OF_SERVICE}: {legend}"
    return (
        bars(
            "Items dropped",
            "Items removed from prompts, by agent, policy and reason. An item counts once, when it is dropped. "
            f"Worry about `policy_error` and `orphaned_…`, and about a sudden rise. {EXACT}",
            [Query(by_service(series("assembly_items_dropped_total", ANY_AGENT), *split), legend)],
            series_links=[THIS_AGENT],
            empty=NONE,
        ),
        bars(
            "Tokens dropped",
            "Tokens removed from prompts, by agent, policy and reason. Worry if they rise faster than turns: the "
            f"input does not reach the model. {EXACT}",
            [Query(by_service(series("assembly_tokens_dropped_total", ANY_AGENT), *split), legend)],
            unit=TOKENS,
            series_links=[THIS_AGENT],
            empty=NONE,
        ),
        bars(
            "Declined reductions",
            "Checks by which a framework's own reducer found nothing to do; they have no span. Many are healthy. "
            "Worry if they stop while turns continue: the reducer then reduces in every turn, or does not run. Only "
            f"frameworks with such a reducer report them. {EXACT}",
            [Query(counted(series("assembly_policy_declined_total", ANY_AGENT), policy), "{{assembly_policy_name}}")],
            empty="No reducer of a framework declined in this time range",
        ),
    )


def _interruptions() -> tuple[Any, ...]:
    return (
        bars(
            "Overflows by agent",
            "Assemblies that exceeded a limit. Worry from the first one: the model received too much, or nothing. "
            f"{EXACT}",
            [Query(by_service(OVERFLOWS, AGENT), AGENT_OF_SERVICE)],
            series_links=[
                of_series(
                    "Its traces that overflowed",
                    '{"assembly.overflowed":"true","gen_ai.agent.name":"${__field.labels.gen_ai_agent_name}"}',
                ),
                THIS_AGENT,
            ],
        ),
        bars(
            "Halts by agent",
            "Conversations that a FATAL alert or a program halted. Worry from the first one: a user is waiting. "
            f"{EXACT}",
            [Query(by_service(HALTS, AGENT), AGENT_OF_SERVICE)],
            series_links=[of_series("Traces that were halted", '{"assembly.halts.emitted":"1"}'), THIS_AGENT],
        ),
        bars(
            "Alerts shown to models",
            "Alerts of observers, by agent and severity. Worry about `critical`, and about `fatal`, which halts. "
            f"Most fatal alerts are not shown to a model, and appear only under halts. {EXACT}",
            [
                Query(
                    by_service(series("assembly_alerts_delivered_total", ANY_AGENT), AGENT, "assembly_alert_severity"),
                    f"{AGENT_OF_SERVICE}: {{{{assembly_alert_severity}}}}",
                )
            ],
            series_links=[
                of_series(
                    "Traces with such an alert",
                    '{"assembly.alert.severity":"${__field.labels.assembly_alert_severity}"}',
                ),
                THIS_AGENT,
            ],
            empty="No observer sent an alert in this time range",
        ),
    )


def _cost() -> tuple[Any, ...]:
    paid = by_service(series("assembly_cost_total", ANY_AGENT), AGENT, "assembly_cost_part")
    avoided = by_service(series("assembly_cost_avoided_total", ANY_AGENT), AGENT)
    return cost(paid, f"{AGENT_OF_SERVICE}: {{{{assembly_cost_part}}}}"), cost_avoided(avoided, AGENT_OF_SERVICE)


def _cache() -> tuple[Any, ...]:
    return (
        prefix_reuse(ANY_AGENT),
        bars(
            "Prefix breaks",
            "Reasons why a prompt does not start with the whole previous prompt. `first` is the first turn of a "
            "conversation. Worry about `prompt_changed` (a clock or a random order in the prompt), and about "
            f"`cut_moved` in every turn (give the policy a step). {EXACT}",
            [
                Query(
                    by_service(series("assembly_prefix_breaks_total", ANY_AGENT), AGENT, "assembly_prefix_break"),
                    f"{AGENT_OF_SERVICE}: {{{{assembly_prefix_break}}}}",
                )
            ],
            series_links=[THIS_AGENT],
            empty=NONE,
        ),
        calibration(NO_AGENT),
    )


def _latency() -> tuple[Any, ...]:
    return (
        duration(ANY_AGENT),
        policy_duration(NO_AGENT),
        bars(
            "Errors of policies and telemetry",
            "Policies that raised or broke their contract, by exception; failures of this library's telemetry, by "
            f"component, which do not affect the agent and have no agent name. Worry from the first one. {EXACT}",
            [
                Query(
                    by_service(POLICY_ERRORS, AGENT, "assembly_policy_name", "error_type"),
                    f"{AGENT_OF_SERVICE}: {{{{assembly_policy_name}}}}: {{{{error_type}}}}",
                ),
                Query(by_service(TELEMETRY_ERRORS, "assembly_component"), "{{service}}: {{assembly_component}}"),
            ],
            series_links=[THIS_AGENT],
            empty=NONE,
        ),
    )
