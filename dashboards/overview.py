"""*Assembly overview*: every agent of every service, from what they were given to what their models were sent."""

from __future__ import annotations

from typing import Any, Final

from dashboards.frame import (
    Dashboard,
    Section,
    agents,
    datasource,
    instance,
    jaeger,
    jaeger_page,
    jaeger_service,
    job,
    other_dashboard,
)
from dashboards.panels import COUNT, TOKENS, Query, bars, jaeger_search, lines, stat
from dashboards.pipeline import pipeline
from dashboards.queries import ANY_AGENT, billed_tokens, counted, model_calls, risen, series
from dashboards.shared import (
    EXACT,
    HALTED,
    NONE_OR_SOME,
    OVERFLOWED,
    agent_link,
    calibration,
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
POLICY_ERRORS: Final = series("assembly_policy_errors_total")
TELEMETRY_ERRORS: Final = series("assembly_telemetry_errors_total")
AGENT: Final = "gen_ai_agent_name"
NO_AGENT: Final = "This metric does not say the agent: the choice at the top does not narrow it."
THIS_AGENT: Final = agent_link("var-agent=${__field.labels.gen_ai_agent_name}")


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
            Section("Prompt cache and token counts", _cache()),
            Section("Latency and errors", _latency()),
            Section("The pipeline itself", pipeline()),
        ),
        variables=(datasource(), job(), instance(), agents(), jaeger_service(), jaeger()),
        links=(
            other_dashboard("Agent detail", "assembly-agent", "One agent, with the same choice and time range"),
            jaeger_page(),
        ),
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
        overflow_count(OVERFLOWS, OVERFLOWED),
        halt_count(HALTS, HALTED),
        stat(
            "Errors",
            "Policies that failed, and failures of this library's own telemetry, of all agents. Worry from the first "
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
            "Which agents work, and how much. A click on one opens it in detail. Worry about an agent whose turns rise "
            f"without more users: it goes in circles. {EXACT}",
            [Query(counted(TURNS, AGENT), "agent {{gen_ai_agent_name}}")],
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
    split, legend = dropped_legend()
    return (
        bars(
            "Items dropped",
            "What was taken out of prompts, by the policy that did it and its reason; an item counts once, when it "
            f"leaves. Worry about `policy_error` and `orphaned_…`, and about a sudden rise. {NO_AGENT} {EXACT}",
            [Query(counted(series("assembly_items_dropped_total"), *split), legend)],
        ),
        bars(
            "Tokens dropped",
            "How much was taken out, by policy and reason. Worry when it rises faster than turns: what agents are told "
            f"does not reach their models. {NO_AGENT} {EXACT}",
            [Query(counted(series("assembly_tokens_dropped_total"), *split), legend)],
            unit=TOKENS,
        ),
        bars(
            "Checks without work",
            "How often a framework's own reducer looked and found nothing to do; there is no span for it. Many are "
            "healthy. Worry when they stop while turns go on: it then reduces on every turn, or does not run. Only "
            f"frameworks with such a reducer report it. {EXACT}",
            [Query(counted(series("assembly_policy_declined_total", ANY_AGENT), split[0]), "{{assembly_policy_name}}")],
        ),
    )


def _stops() -> tuple[Any, ...]:
    return (
        bars(
            "Overflows by agent",
            "Assemblies whose limit could not hold. Worry from the first one on: the model was sent too much, or "
            f"nothing. {EXACT}",
            [Query(counted(OVERFLOWS, AGENT), "agent {{gen_ai_agent_name}}")],
            links=[OVERFLOWED],
            series_links=[
                jaeger_search(
                    "Its traces that overflowed",
                    '{"assembly.overflowed":"true","gen_ai.agent.name":"${__field.labels.gen_ai_agent_name}"}',
                ),
                THIS_AGENT,
            ],
        ),
        bars(
            "Halts by agent",
            f"Conversations that were halted by a fatal alert. Worry from the first one on: somebody waits. {EXACT}",
            [Query(counted(HALTS, AGENT), "agent {{gen_ai_agent_name}}")],
            links=[HALTED],
            series_links=[THIS_AGENT],
        ),
        bars(
            "Alerts shown to models",
            "What observers had to say, by severity. Worry about `critical`, and about `fatal`, which halts: most of "
            f"those are shown to no model, and stand under halts alone. {NO_AGENT} {EXACT}",
            [
                Query(
                    counted(series("assembly_alerts_delivered_total"), "assembly_alert_severity"),
                    "{{assembly_alert_severity}}",
                )
            ],
            series_links=[
                jaeger_search(
                    "Traces with such an alert",
                    '{"assembly.alert.severity":"${__field.labels.assembly_alert_severity}"}',
                )
            ],
        ),
    )


def _cache() -> tuple[Any, ...]:
    return (
        prefix_reuse(ANY_AGENT),
        bars(
            "Prefix breaks",
            "Why prompts did not begin with the whole of the one before. `first` is each conversation's first. Worry "
            "about `prompt_changed` (a clock or a random order in the prompt) and about `cut_moved` on every turn "
            f"(give the policy a step). {NO_AGENT} {EXACT}",
            [
                Query(
                    counted(series("assembly_prefix_breaks_total"), "assembly_prefix_break"),
                    "{{assembly_prefix_break}}",
                )
            ],
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
            f"part; those never reach the agent. Worry from the first one on. {NO_AGENT} {EXACT}",
            [
                Query(
                    counted(POLICY_ERRORS, "assembly_policy_name", "error_type"),
                    "{{assembly_policy_name}}: {{error_type}}",
                ),
                Query(counted(TELEMETRY_ERRORS, "assembly_component"), "telemetry: {{assembly_component}}"),
            ],
        ),
    )
