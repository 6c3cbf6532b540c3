"""The policies that come with the engine, one file each."""

from __future__ import annotations

from otel_assembly.policies.alert import AlertPolicy
from otel_assembly.policies.base import INJECTION, REDUCTION, AssemblyPolicy, DecidingPolicy, PolicyLimit
from otel_assembly.policies.budget import BudgetPolicy
from otel_assembly.policies.conversation import ConversationPolicy
from otel_assembly.policies.memory import EpisodicMemoryPolicy, WorkingMemoryPolicy
from otel_assembly.policies.order import validate_order
from otel_assembly.policies.registry import POLICIES, policy_kind
from otel_assembly.policies.token_budget import TokenBudgetPolicy
from otel_assembly.policies.window import SlidingWindowPolicy

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
    "PolicyLimit",
    "SlidingWindowPolicy",
    "TokenBudgetPolicy",
    "WorkingMemoryPolicy",
    "policy_kind",
    "validate_order",
]
