"""Our policies by name, and what any policy says of itself: its kind, its settings, what it may not stand behind."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.policies.base import INJECTION, REDUCTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.policies.base import DecidingPolicy, PolicyLike, PolicyLimit


class _Policies(Mapping[str, "type[DecidingPolicy]"]):
    """Classes by the names of policies, each imported when it is asked for: most chains have two of them."""

    _HOMES: Final = {
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
        module, policy = self._HOMES[name]
        found: type[DecidingPolicy] = getattr(import_module(f"otel_assembly.policies.{module}"), policy)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._HOMES)

    def __len__(self) -> int:
        return len(self._HOMES)


#: Our policies by the name that configuration files and the command line use.
POLICIES: Final = _Policies()
#: Policies of AG2's that have no ``kind``, and whose names say what they are.
_INJECTIONS_OF_AG2: Final = frozenset({"topic_inbox", "network_context"})


def trait(policy: PolicyLike, name: str) -> Any:
    """What a policy's class says of it (see `DecidingPolicy`); where it says nothing, ours of the same name does."""
    said = getattr(policy, name, None)
    return said if said is not None else getattr(POLICIES.get(policy.name), name, None)


def policy_kind(policy: PolicyLike) -> str | None:
    """``injection``, ``reduction``, or None where neither the policy nor its name says."""
    kind: str | None = getattr(policy, "kind", None)
    if kind in {INJECTION, REDUCTION}:
        return kind
    ours = POLICIES.get(policy.name)
    return ours.kind if ours is not None else INJECTION if policy.name in _INJECTIONS_OF_AG2 else None


def token_limit(policy: PolicyLike) -> int | None:
    """How many tokens a policy lets out at most; None where it has no such limit."""
    limit: PolicyLimit | None = trait(policy, "limit")
    try:
        config = dict(getattr(policy, "config", {}))
    except Exception:  # noqa: BLE001  # settings that cannot be read state no limit
        return None
    most = config.get(limit.setting) if limit is not None and limit.unit == "tokens" else None
    return None if limit is None or most is None else most - (config.get(limit.reserve) or 0)
