"""Which metrics there are, their buckets, and what they are split by."""

from __future__ import annotations

from typing import Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.conventions_model import Metric, conditional, required

DURATION_BUCKETS: Final = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""An assembly takes tens of microseconds, a policy that asks a model to summarise takes seconds."""

TOKEN_BUCKETS: Final = tuple(4.0**power for power in range(14))
"""Those of GenAI's token histograms, so that both can stand in one panel."""

UTILIZATION_BUCKETS: Final = (0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0, 1.1, 1.5, 2.0)
REUSE_BUCKETS: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0)
CALIBRATION_BUCKETS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0)

_AGENT = conditional(names.GEN_AI_AGENT_NAME, when="it is known")
_AGENT_AND_FRAMEWORK = (*_AGENT, *conditional(names.FRAMEWORK, when="a framework's hook made the assembly"))
_POLICY = required(names.POLICY_NAME)

DURATION: Final = Metric(
    "assembly.duration",
    "histogram",
    "s",
    "How long one assembly took.",
    _AGENT_AND_FRAMEWORK,
    DURATION_BUCKETS,
)
POLICY_DURATION: Final = Metric(
    "assembly.policy.duration",
    "histogram",
    "s",
    "How long one policy took.",
    _POLICY,
    DURATION_BUCKETS,
)
INPUT_TOKENS: Final = Metric(
    "assembly.input.tokens",
    "histogram",
    "{token}",
    "Tokens that one assembly was given.",
    _AGENT_AND_FRAMEWORK,
    TOKEN_BUCKETS,
)
OUTPUT_TOKENS: Final = Metric(
    "assembly.output.tokens",
    "histogram",
    "{token}",
    "Tokens of the prompt that one assembly made.",
    _AGENT_AND_FRAMEWORK,
    TOKEN_BUCKETS,
)
BUDGET_UTILIZATION: Final = Metric(
    "assembly.budget.utilization",
    "histogram",
    "1",
    "Tokens of the prompt ÷ tokens of its budget.",
    _AGENT,
    UTILIZATION_BUCKETS,
)
BUDGET_FIXED_UTILIZATION: Final = Metric(
    "assembly.budget.fixed_utilization",
    "histogram",
    "1",
    "Tokens that may not be dropped ÷ tokens of the budget. The one worth an alert: a reducer fills any budget.",
    _AGENT,
    UTILIZATION_BUCKETS,
)
ITEMS_DROPPED: Final = Metric(
    "assembly.items.dropped",
    "counter",
    "{item}",
    "Items that a policy took out of the prompt: once, when they leave it, not on each turn that they are gone.",
    (*_POLICY, *required(names.DECISION_REASON)),
)
TOKENS_DROPPED: Final = Metric(
    "assembly.tokens.dropped",
    "counter",
    "{token}",
    "Their tokens.",
    (*_POLICY, *required(names.DECISION_REASON)),
)
BUDGET_OVERFLOWS: Final = Metric(
    "assembly.budget.overflows",
    "counter",
    "{overflow}",
    "Assemblies whose limit could not hold, raised or not. Starts at 0 when an agent is first seen.",
    _AGENT_AND_FRAMEWORK,
)
HALTS: Final = Metric(
    "assembly.halts",
    "counter",
    "{halt}",
    "Conversations that were halted. Starts at 0 when an agent is first seen.",
    _AGENT_AND_FRAMEWORK,
)
ALERTS_DELIVERED: Final = Metric(
    "assembly.alerts.delivered",
    "counter",
    "{alert}",
    "Observer alerts that were shown to a model.",
    required(names.ALERT_SEVERITY, names.ALERT_SOURCE),
)
POLICY_DECLINED: Final = Metric(
    "assembly.policy.declined",
    "counter",
    "{check}",
    "Checks by which a reducer of a framework found that there was nothing to do; no span is opened for one.",
    (*_POLICY, *_AGENT_AND_FRAMEWORK),
)
POLICY_ERRORS: Final = Metric(
    "assembly.policy.errors",
    "counter",
    "{error}",
    "Policies that raised, or broke their contract; and sources of a `ContextAssembler` that failed. One that was "
    "cancelled did not.",
    (*_POLICY, *required(names.ERROR_TYPE)),
)
TELEMETRY_ERRORS: Final = Metric(
    "assembly.telemetry.errors",
    "counter",
    "{error}",
    "Failures of this library's telemetry; the assembly itself went on.",
    required(names.COMPONENT),
)
PREFIX_REUSE: Final = Metric(
    "assembly.prefix.reuse",
    "histogram",
    "1",
    "Bytes of the stable prefix ÷ bytes of the previous prompt; first turns excluded.",
    _AGENT,
    REUSE_BUCKETS,
)
PREFIX_BREAKS: Final = Metric(
    "assembly.prefix.breaks",
    "counter",
    "{break}",
    "Prompts that did not begin with the whole of the previous one.",
    required(names.PREFIX_BREAK),
)
TOKENS_CALIBRATION: Final = Metric(
    "assembly.tokens.calibration",
    "histogram",
    "1",
    "Input tokens as counted ÷ as billed by the provider.",
    required(names.MODEL),
    CALIBRATION_BUCKETS,
)

METRICS: Final = (
    DURATION,
    POLICY_DURATION,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    BUDGET_UTILIZATION,
    BUDGET_FIXED_UTILIZATION,
    ITEMS_DROPPED,
    TOKENS_DROPPED,
    BUDGET_OVERFLOWS,
    HALTS,
    ALERTS_DELIVERED,
    POLICY_DECLINED,
    POLICY_ERRORS,
    TELEMETRY_ERRORS,
    PREFIX_REUSE,
    PREFIX_BREAKS,
    TOKENS_CALIBRATION,
)
