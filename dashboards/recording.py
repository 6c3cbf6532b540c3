"""The recording rules: what is new within a window, in one shape for every counter, and the ratios of that."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final

_HEAD: Final = """\
# What the alerts and dashboards count: events that are new within a window, without `instance`.
#
# Written by `python -m dashboards` from recording.py: change that. Loaded by prometheus.yaml. Underscore names, so that
# the rules also hold where metrics come into a Prometheus 2.
#
# Every `…:new15m` and `…:new1h` has one shape, because increase() alone misses what matters most here: a counter that
# first appears at 1, and a process that lives for one sample, have no increase. With X a counter and W the window:
#
#     max_over_time(X[W]) - (last_over_time(X[1d] offset W) or max_over_time(X[W]) * 0) > 0
#       what it reached beyond what it last had before the window; a series without a past began at 0. A gap is no
#       rise: the past reaches back a day, over the gap.
#     last_over_time(X[W]) < last_over_time(X[1d] offset W) > 0
#       it stands lower than before: it began anew, and all that it has is new.
#     increase(X[W])
#       it began anew and came back to where it stood, which only the samples in between show.
#     max_over_time(X[W]) * 0
#       nothing is new, and that is a number too: a mean of nothing but zeros needs it.
#
# The first that holds is taken, series by series: never more than there was, but for the third, which extrapolates;
# less where a process under one instance id began anew within W. Never the bare counter: a process that is gone, or
# whose samples waited in a queue, counts for W as well.
#
# The past is a day for counters of single events and two hours for those that only feed a ratio.
#
# Series: per service, not per process. See docs/alerts.md, "How many series".

groups:
"""
_ENVIRONMENT: Final = "deployment_environment_name"
_SERVICE: Final = (_ENVIRONMENT, "job")
_AGENT: Final = (*_SERVICE, "gen_ai_agent_name")
_AGENT_OF_FRAMEWORK: Final = (*_AGENT, "assembly_framework")
_POLICY: Final = (*_SERVICE, "assembly_policy_name")
_MODEL: Final = (*_SERVICE, "assembly_model")

#: An alert on a ratio wants both: that it matters, and that it is still so.
_LONG_AND_SHORT: Final = ("15m", "1h")
_SHORT: Final = ("15m",)
_LONG: Final = ("1h",)
#: How far back the past of a counter reaches: of single events, and of what only feeds a ratio.
_A_DAY: Final = "1d"
_TWO_HOURS: Final = "2h"
_MODEL_CALLS: Final = (
    'gen_ai_client_operation_duration_seconds_count{gen_ai_operation_name=~"chat|generate_content|text_completion"}',
    "gen_ai_client_inference_duration_seconds_count",
)
#: No span is in both: what the exporter gives up had left the processor's queue.
_SPANS_LOST: Final = (
    'otel_sdk_processor_span_processed_total{error_type!=""}',
    'otel_sdk_exporter_span_exported_total{error_type!=""}',
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One recording rule."""

    record: str
    expression: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other, and what they have in common."""

    name: str
    about: str
    rules: tuple[Rule, ...]


def recording_rules() -> str:
    """The file ``rules/recording.yaml``."""
    return _HEAD + "".join(
        f"{textwrap.indent(group.about, '  # ')}\n  - name: {group.name}\n    rules:\n"
        + "".join(
            f"      - record: {rule.record}\n        expr: |\n{textwrap.indent(rule.expression, ' ' * 10)}\n"
            for rule in group.rules
        )
        for group in _groups()
    )


def _groups() -> tuple[Group, ...]:
    return (
        Group("assembly-events", "Single events, of which one is enough.", _events()),
        Group("assembly-volume", "How much is done: what ratios are of.", _volume()),
        Group(
            "assembly-ratios",
            "Ratios and means over a short and a long window: an alert wants both, so that it neither starts on one "
            "event nor\noutlasts its cause.",
            _ratios(),
        ),
    )


def _events() -> tuple[Rule, ...]:
    no_room, given_up = (_risen(counter, (*_SERVICE, "error_type"), "15m", _A_DAY) for counter in _SPANS_LOST)
    return (
        *_new("budget_overflows", "assembly_budget_overflows_total", _AGENT_OF_FRAMEWORK, _SHORT, _A_DAY),
        *_new("halts", "assembly_halts_total", _AGENT_OF_FRAMEWORK, _SHORT, _A_DAY),
        *_new(
            "session_violations",
            "assembly_session_violations_total",
            (*_SERVICE, "assembly_session_type", "assembly_violation_kind"),
            _SHORT,
            _A_DAY,
        ),
        *_new(
            "telemetry_errors",
            "assembly_telemetry_errors_total",
            (*_SERVICE, "assembly_component"),
            _SHORT,
            _A_DAY,
        ),
        Rule(
            "assembly:sdk_spans_lost:new15m",
            f"# The processor had no room for them, or the exporter gave up sending them.\n{no_room}\nor\n{given_up}",
        ),
    )


def _volume() -> tuple[Rule, ...]:
    today, next_generation = (_risen(counter, _SERVICE, "15m", _TWO_HOURS) for counter in _MODEL_CALLS)
    return (
        *_new("assemblies", "assembly_duration_seconds_count", _AGENT_OF_FRAMEWORK),
        Rule(
            "assembly:model_calls:new15m",
            f"# Those of the conventions of today, or of the next generation.\n{today}\nor\n{next_generation}",
        ),
    )


def _ratios() -> tuple[Rule, ...]:
    service, policy = ", ".join(_SERVICE), ", ".join(_POLICY)
    reasons = (*_AGENT, "assembly_policy_name", "assembly_decision_reason")
    return (
        *_new("policy_errors", "assembly_policy_errors_total", (*_POLICY, "error_type"), past=_A_DAY),
        *_new("policy_runs", "assembly_policy_duration_seconds_count", _POLICY),
        *_over(
            "policy_errors:ratio",
            f"""\
sum by ({policy}) (assembly:policy_errors:new$W)
/
(
    sum by ({policy}) (assembly:policy_runs:new$W) > 0
  or
    # The sources of a ContextAssembler fail as policies do, but are not timed as such: of all assemblies, then.
    sum by ({policy}) (assembly:policy_errors:new$W) * 0
    + on ({service}) group_left ()
    (sum by ({service}) (assembly:assemblies:new$W) > 0)
)""",
        ),
        *_new("fixed_measured", "assembly_budget_fixed_utilization_count", _AGENT),
        *_new("fixed_below_ceiling", 'assembly_budget_fixed_utilization_bucket{le="0.9"}', _AGENT),
        *_over(
            "fixed_near_ceiling:ratio",
            "1 - assembly:fixed_below_ceiling:new$W / (assembly:fixed_measured:new$W > 0)",
        ),
        *_new("prefix_compared", "assembly_prefix_reuse_count", _AGENT),
        *_new("prefix_reused", "assembly_prefix_reuse_sum", _AGENT),
        *_over("prefix_reuse:mean", "assembly:prefix_reused:new$W / (assembly:prefix_compared:new$W > 0)"),
        *_new("prefix_breaks", "assembly_prefix_breaks_total", (*_AGENT, "assembly_prefix_break"), _LONG),
        *_new("items_dropped", "assembly_items_dropped_total", reasons),
        *_over(
            "items_dropped_per_assembly:ratio",
            f"""\
(
    sum by ({service}) (assembly:items_dropped:new$W)
  or
    sum by ({service}) (assembly:assemblies:new$W) * 0
)
/
(sum by ({service}) (assembly:assemblies:new$W) > 0)""",
        ),
        *_new("calibrations", "assembly_tokens_calibration_count", _MODEL),
        *_new("calibrated", "assembly_tokens_calibration_sum", _MODEL),
        *_over("tokens_calibration:mean", "assembly:calibrated:new$W / (assembly:calibrations:new$W > 0)"),
    )


def _new(
    name: str,
    counter: str,
    by: tuple[str, ...],
    windows: tuple[str, ...] = _LONG_AND_SHORT,
    past: str = _TWO_HOURS,
) -> tuple[Rule, ...]:
    """How much of a counter is new within each window."""
    return tuple(Rule(f"assembly:{name}:new{window}", _risen(counter, by, window, past)) for window in windows)


def _over(name: str, expression: str) -> tuple[Rule, ...]:
    """An expression over both windows; ``$W`` stands for the window."""
    return tuple(Rule(f"assembly:{name}{window}", expression.replace("$W", window)) for window in _LONG_AND_SHORT)


def _risen(counter: str, by: tuple[str, ...], window: str, past: str) -> str:
    """The one shape; the head of the file says why it has these four parts."""
    last, before = f"last_over_time({counter}[{window}])", f"last_over_time({counter}[{past}] offset {window})"
    highest = f"max_over_time({counter}[{window}])"
    return f"""\
sum by ({", ".join(by)}) (
    {highest} - ({before} or {highest} * 0) > 0
  or
    {last} < {before} > 0
  or
    increase({counter}[{window}])
  or
    {highest} * 0
)"""
