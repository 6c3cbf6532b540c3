"""The policies that come with the engine, one file each."""

from __future__ import annotations

from typing import Final

from otel_assembly.policies.alert import AlertPolicy
from otel_assembly.policies.base import INJECTION, REDUCTION, AssemblyPolicy, DecidingPolicy
from otel_assembly.policies.budget import BudgetPolicy
from otel_assembly.policies.conversation import ConversationPolicy
from otel_assembly.policies.memory import EpisodicMemoryPolicy, WorkingMemoryPolicy
from otel_assembly.policies.order import policy_kind, validate_order
from otel_assembly.policies.token_budget import TokenBudgetPolicy
from otel_assembly.policies.window import SlidingWindowPolicy

#: Our policies by the name that configuration files and the command line use.
POLICIES: Final[dict[str, type[DecidingPolicy]]] = {
    policy.name: policy
    for policy in (
        AlertPolicy,
        BudgetPolicy,
        ConversationPolicy,
        EpisodicMemoryPolicy,
        SlidingWindowPolicy,
        TokenBudgetPolicy,
        WorkingMemoryPolicy,
    )
}

__all__ = [
    "INJECTION",
    "POLICIES",
    "REDUCTION",
    "AlertPolicy",
    "AssemblyPolicy",
    "BudgetPolicy",
    "ConversationPolicy",
    "DecidingPolicy",
    "EpisodicMemoryPolicy",
    "SlidingWindowPolicy",
    "TokenBudgetPolicy",
    "WorkingMemoryPolicy",
    "policy_kind",
    "validate_order",
]
