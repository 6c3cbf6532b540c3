"""The policies that come with this package, one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of

if TYPE_CHECKING:
    from otel_assembly.policies.alert import AlertPolicy
    from otel_assembly.policies.base import INJECTION, REDUCTION, AssemblyPolicy, DecidingPolicy, PolicyLimit
    from otel_assembly.policies.budget import BudgetPolicy
    from otel_assembly.policies.conversation import ConversationPolicy
    from otel_assembly.policies.memory import EpisodicMemoryPolicy, WorkingMemoryPolicy
    from otel_assembly.policies.registry import POLICIES, policy_kind, validate_order
    from otel_assembly.policies.token_budget import TokenBudgetPolicy
    from otel_assembly.policies.window import HeadAndTailPolicy, SlidingWindowPolicy

__getattr__, __dir__ = lazy_attributes(
    __name__,
    modules_of(
        {
            "alert": "AlertPolicy",
            "base": "INJECTION REDUCTION AssemblyPolicy DecidingPolicy PolicyLimit",
            "budget": "BudgetPolicy",
            "conversation": "ConversationPolicy",
            "memory": "EpisodicMemoryPolicy WorkingMemoryPolicy",
            "registry": "POLICIES policy_kind validate_order",
            "token_budget": "TokenBudgetPolicy",
            "window": "HeadAndTailPolicy SlidingWindowPolicy",
        }
    ),
)

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
    "HeadAndTailPolicy",
    "PolicyLimit",
    "SlidingWindowPolicy",
    "TokenBudgetPolicy",
    "WorkingMemoryPolicy",
    "policy_kind",
    "validate_order",
]
