"""The built-in policies by name, and lookups of a policy's kind and limits."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.policies.base import INJECTION, REDUCTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.policies.base import DecidingPolicy, PolicyLike, PolicyLimit


class _Policies(Mapping[str, "type[DecidingPolicy]"]):
    """Maps the names of policies to their classes, and imports a class on first use.

    Most chains use two policies, so the other modules are not imported.
    """

    _MODULES: Final = {
        "alert": ("alert", "AlertPolicy"),
        "budget": ("budget", "BudgetPolicy"),
        "conversation": ("conversation", "ConversationPolicy"),
        "episodic_memory": ("memory", "EpisodicMemoryPolicy"),
        "head_and_tail": ("head_and_tail", "HeadAndTailPolicy"),
        "sliding_window": ("window", "SlidingWindowPolicy"),
        "token_budget": ("token_budget", "TokenBudgetPolicy"),
        "working_memory": ("memory", "WorkingMemoryPolicy"),
    }

    def __getitem__(self, name: str) -> type[DecidingPolicy]:
        module, policy = self._MODULES[name]
        policy_type: type[DecidingPolicy] = getattr(import_module(f"otel_assembly.policies.{module}"), policy)
        return policy_type

    def __iter__(self) -> Iterator[str]:
        return iter(self._MODULES)

    def __len__(self) -> int:
        return len(self._MODULES)


#: The built-in policies by the name that configuration files and the command line use.
POLICIES: Final = _Policies()
#: The names of AG2's policies that add content. Their classes have no ``kind``.
_INJECTIONS_OF_AG2: Final = frozenset({"topic_inbox", "network_context"})


def trait(policy: PolicyLike, name: str) -> Any:
    """Return an attribute of a policy, such as `DecidingPolicy.limit`; None if it is unknown.

    If the policy does not have the attribute, as for AG2's policies, that of the built-in policy of the same name is
    returned.
    """
    value = getattr(policy, name, None)
    return value if value is not None else getattr(POLICIES.get(policy.name), name, None)


def policy_kind(policy: PolicyLike) -> str | None:
    """Return a policy's kind: ``injection`` (adds content) or ``reduction`` (removes content).

    Returns:
        None if the policy has no ``kind`` and its name is not that of a known policy.
    """
    kind: str | None = getattr(policy, "kind", None)
    if kind in {INJECTION, REDUCTION}:
        return kind
    built_in = POLICIES.get(policy.name)
    return built_in.kind if built_in is not None else INJECTION if policy.name in _INJECTIONS_OF_AG2 else None


def token_limit(policy: PolicyLike) -> int | None:
    """Return the most tokens that a policy's output may have; None if it has no such limit."""
    limit: PolicyLimit | None = trait(policy, "limit")
    try:
        config = dict(getattr(policy, "config", {}))
    except Exception:  # noqa: BLE001  # a policy's own property may raise anything; then no limit is known
        return None
    max_tokens = config.get(limit.setting) if limit is not None and limit.unit == "tokens" else None
    return None if limit is None or max_tokens is None else max_tokens - (config.get(limit.reserve) or 0)
