"""*Assembly overview*: every agent of every service, from what they were given to what their models were sent."""

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
    model_calls,
    risen,
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
    utilisation,
)

TURNS: Final = series("assembly_duration_seconds_count", ANY_AGENT)
OVERFLOWS: Final = series("assembly_budget_overflows_total", ANY_AGENT)
HALTS: Final = series("assembly_halts_total", ANY_AGENT)
POLICY_ERRORS: Final = series("assembly_policy_errors_total", ANY_AGENT)
TELEMETRY_ERRORS: Final = series("assembly_telemetry_errors_total")
NO_AGENT: Final = "This metric does not say the agent: the choice at the top does not narrow it."
#: The agent of the series that is clicked, in its service; two services may have agents of one name.
THIS_AGENT: Final = Link(
    "This agent in detail",
    "/d/otel-assembly-agent?var-agent=${__field.labels.gen_ai_agent_name}&var-job=${__field.labels.job}"
    "&${datasource:queryparam}&${instance:queryparam}&${__url_time_range}",
)
WHOSE: Final = "agent {{gen_ai_agent_name}} of {{service}}"


def dashboard() -> Dashboard:
    """The dashboard."""
    return Dashboard(
        name="assembly-overview",
        title="Assembly overview",
        description="What agents put before their models: how much, how near to the limit, what was left out and why.",
        sections=(
            Section("In this time range", _at_a_glance(), width=6, height=4),
            Section("Turns and tokens", _turns()),
            Section("Budget", _budget()),
            Section("What is left out, and why", _left_out()),
            Section("Overflows, halts and alerts", _stops()),
            Section("Sessions between agents", sessions(), width=12),
            Section("What it costs", _cost(), width=12),
            Section("Prompt cache and token counts", _cache()),
            Section("Latency and errors", _latency()),
            Section("The pipeline itself", pipeline()),
        ),
        variables=(datasource(), job(), instance(), agents(), jaeger()),
        links=(
            other_dashboard("Agent detail", "assembly-agent", "One agent, with the same choice and time range"),
            jaeger_page(),
        ),
        annotations=(firing_alerts("$agent"),),
    )


def _at_a_glance() -> tuple[Any, ...]:
    errors = f"sum({risen(POLICY_ERRORS)} or {risen(TELEMETRY_ERRORS)} or 0 * {risen(TURNS)})"
    return (
        stat(
            "Turns",
            "How many prompts were assembled, one before each model call. Worry when it is 0 while agents work. "
            f"{EXACT}",
            Query(counted(TURNS), "turns"),
        ),
        overflow_count(OVERFLOWS),
        halt_count(HALTS),
        stat(
            "Errors",
            "Policies that failed, and failures of this library's own telemetry, of any agent. Worry from the first "
            f"one on; the row *Latency and errors* says which. 0 only where turns are reported. {EXACT}",
            Query(errors, "errors"),
            thresholds=NONE_OR_SOME,
        ),
    )


def _turns() -> tuple[Any, ...]:
    given = series("assembly_input_tokens_sum", ANY_AGENT)
    sent = series("assembly_output_tokens_sum", ANY_AGENT)
    return (
        bars(
            "Turns by agent",
            "Which agents work, on which framework (or this library's own assembler), and how much. A click on one "
            "opens it in detail. Worry about an agent whose turns rise without more users: it goes in circles; and "
            "about one at work that is not here: after an update of its framework, `otel-assembly doctor` says more. "
            f"{EXACT}",
            [Query(with_framework(by_service(TURNS, AGENT, FRAMEWORK)), f"{WHOSE} on {{{{{FRAMEWORK}}}}}")],
            series_links=[THIS_AGENT],
        ),
        lines(
            "Turns and model calls",
            "Whether each model call has its assembly. Worry when calls go on while turns stop (telemetry is lost), or "
            "when there are many more calls than turns (something calls models past the assembler). Calls are those of "
            "GenAI's client metrics, of either generation, and are not narrowed by agent.",
            [Query(counted(TURNS), "turns"), Query(model_calls(), "model calls")],
            unit=COUNT,
            decimals=0,
        ),
        lines(
            "Tokens given, sent and billed",
            "What the assemblies were given, what they let through, and the input tokens that providers billed, in "
            "each interval. Worry when billed is far above sent: calls are made past the assembler, or tokens counted "
            "wrongly. Billed tokens come from GenAI's client metrics, and are not narrowed by agent.",
            [
                Query(counted(given), "given"),
                Query(counted(sent), "sent"),
                Query(billed_tokens(), "billed"),
            ],
            unit=TOKENS,
            decimals=0,
        ),
    )


def _budget() -> tuple[Any, ...]:
    return (prompt_size(ANY_AGENT), utilisation(ANY_AGENT), fixed_share(ANY_AGENT))


def _left_out() -> tuple[Any, ...]:
    (policy, reason), legend = dropped_legend()
    split, legend = (AGENT, policy, reason), f"{WHOSE}: {legend}"
    return (
        bars(
            "Items dropped",
            "What was taken out of prompts, by agent, by the policy that did it and its reason; an item counts once, "
            f"when it leaves. Worry about `policy_error` and `orphaned_…`, and about a sudden rise. {EXACT}",
            [Query(by_service(series("assembly_items_dropped_total", ANY_AGENT), *split), legend)],
            series_links=[THIS_AGENT],
            empty=NONE,
        ),
        bars(
            "Tokens dropped",
            "How much was taken out, by agent, policy and reason. Worry when it rises faster than turns: what agents "
            f"are told does not reach their models. {EXACT}",
            [Query(by_service(series("assembly_tokens_dropped_total", ANY_AGENT), *split), legend)],
            unit=TOKENS,
            series_links=[THIS_AGENT],
            empty=NONE,
        ),
        bars(
            "Checks without work",
            "How often a framework's own reducer looked and found nothing to do; there is no span for it. Many are "
            "healthy. Worry when they stop while turns go on: it then reduces on every turn, or does not run. Only "
            f"frameworks with such a reducer report it. {EXACT}",
            [Query(counted(series("assembly_policy_declined_total", ANY_AGENT), policy), "{{assembly_policy_name}}")],
            empty="No reducer of a framework looked in vain in this time range",
        ),
    )


def _stops() -> tuple[Any, ...]:
    return (
        bars(
            "Overflows by agent",
            "Assemblies whose limit could not hold. Worry from the first one on: the model was sent too much, or "
            f"nothing. {EXACT}",
            [Query(by_service(OVERFLOWS, AGENT), WHOSE)],
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
            f"Conversations that were halted by a fatal alert. Worry from the first one on: somebody waits. {EXACT}",
            [Query(by_service(HALTS, AGENT), WHOSE)],
            series_links=[of_series("Traces that were halted", '{"assembly.halts.emitted":"1"}'), THIS_AGENT],
        ),
        bars(
            "Alerts shown to models",
            "What observers had to say, by agent and severity. Worry about `critical`, and about `fatal`, which halts: "
            f"most of those are shown to no model, and stand under halts alone. {EXACT}",
            [
                Query(
                    by_service(series("assembly_alerts_delivered_total", ANY_AGENT), AGENT, "assembly_alert_severity"),
                    f"{WHOSE}: {{{{assembly_alert_severity}}}}",
                )
            ],
            series_links=[
                of_series(
                    "Traces with such an alert",
                    '{"assembly.alert.severity":"${__field.labels.assembly_alert_severity}"}',
                ),
                THIS_AGENT,
            ],
            empty="No observer had anything to say in this time range",
        ),
    )


def _cost() -> tuple[Any, ...]:
    paid = by_service(series("assembly_cost_total", ANY_AGENT), AGENT, "assembly_cost_part")
    avoided = by_service(series("assembly_cost_avoided_total", ANY_AGENT), AGENT)
    return cost(paid, f"{WHOSE}: {{{{assembly_cost_part}}}}"), cost_avoided(avoided, WHOSE)


def _cache() -> tuple[Any, ...]:
    return (
        prefix_reuse(ANY_AGENT),
        bars(
            "Prefix breaks",
            "Why prompts did not begin with the whole of the one before. `first` is each conversation's first. Worry "
            "about `prompt_changed` (a clock or a random order in the prompt) and about `cut_moved` on every turn "
            f"(give the policy a step). {EXACT}",
            [
                Query(
                    by_service(series("assembly_prefix_breaks_total", ANY_AGENT), AGENT, "assembly_prefix_break"),
                    f"{WHOSE}: {{{{assembly_prefix_break}}}}",
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
            "Policies that raised or broke their contract, by exception, and failures of this library's telemetry, by "
            f"part; those never reach the agent, and name none. Worry from the first one on. {EXACT}",
            [
                Query(
                    by_service(POLICY_ERRORS, AGENT, "assembly_policy_name", "error_type"),
                    f"{WHOSE}: {{{{assembly_policy_name}}}}: {{{{error_type}}}}",
                ),
                Query(by_service(TELEMETRY_ERRORS, "assembly_component"), "{{service}}: {{assembly_component}}"),
            ],
            series_links=[THIS_AGENT],
            empty=NONE,
        ),
    )
