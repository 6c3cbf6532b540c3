"""Names of the metrics; ``registry/metrics.yaml`` defines them."""

from __future__ import annotations

from typing import Final

DURATION: Final = "assembly.duration"
POLICY_DURATION: Final = "assembly.policy.duration"
INPUT_TOKENS: Final = "assembly.input.tokens"
OUTPUT_TOKENS: Final = "assembly.output.tokens"
BUDGET_UTILIZATION: Final = "assembly.budget.utilization"
BUDGET_FIXED_UTILIZATION: Final = "assembly.budget.fixed_utilization"
ITEMS_DROPPED: Final = "assembly.items.dropped"
TOKENS_DROPPED: Final = "assembly.tokens.dropped"
BUDGET_OVERFLOWS: Final = "assembly.budget.overflows"
HALTS: Final = "assembly.halts"
ALERTS_DELIVERED: Final = "assembly.alerts.delivered"
POLICY_DECLINED: Final = "assembly.policy.declined"
POLICY_ERRORS: Final = "assembly.policy.errors"
TELEMETRY_ERRORS: Final = "assembly.telemetry.errors"
PREFIX_REUSE: Final = "assembly.prefix.reuse"
PREFIX_BREAKS: Final = "assembly.prefix.breaks"
TOKENS_CALIBRATION: Final = "assembly.tokens.calibration"
COST: Final = "assembly.cost"
COST_AVOIDED: Final = "assembly.cost.avoided"
SESSION_POSTS: Final = "assembly.session.posts"
SESSION_POST_DURATION: Final = "assembly.session.post.duration"
SESSION_INBOX_WAITING: Final = "assembly.session.inbox.waiting"
SESSION_VIOLATIONS: Final = "assembly.session.violations"
