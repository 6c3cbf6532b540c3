"""`validate_order`: what is wrong with the order of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import instance, several, text_of
from otel_assembly.errors import ConfigurationError
from otel_assembly.policies.base import INJECTION, REDUCTION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike

#: Names that say what they are, for policies of other libraries that have no ``kind``.
_KNOWN_KINDS: Final = {
    "conversation": REDUCTION,
    "sliding_window": REDUCTION,
    "token_budget": REDUCTION,
    "budget": REDUCTION,
    "episodic_memory": INJECTION,
    "working_memory": INJECTION,
    "topic_inbox": INJECTION,
    "network_context": INJECTION,
    "alert": INJECTION,
}
#: A filter takes nothing for room, so that an injection behind it is counted all the same.
_FILTERS: Final = frozenset({"conversation"})


_BY_NAME: Final = "name policies with Assembler.from_config({'policies': […]}), or give a list of instances"


def checked_chain(policies: Any) -> tuple[AssemblyPolicy, ...]:
    """The policies of a chain, each of which can be applied.

    Raises:
        ConfigurationError: It is no sequence, or one of them is no policy, or a class.
    """
    chain = several("policies", policies, _BY_NAME)
    for index, policy in enumerate(chain):
        where = f"policy at index {index}"
        instance(where, policy)
        if isinstance(policy, str | bytes):
            raise ConfigurationError(f"{where} is {text_of(policy)}; {_BY_NAME}")
        if not isinstance(getattr(policy, "name", None), str) or not callable(getattr(policy, "apply", None)):
            raise ConfigurationError(
                f"{where} ({type(policy).__name__}) needs a 'name' and an async 'apply(prompts, events, context)'"
            )
    return chain


def policy_kind(policy: PolicyLike) -> str | None:
    """``injection``, ``reduction``, or None where neither the policy nor its name says."""
    kind = getattr(policy, "kind", None)
    return kind if kind in {INJECTION, REDUCTION} else _KNOWN_KINDS.get(policy.name)


def validate_order(policies: Sequence[PolicyLike]) -> list[str]:
    """Warnings about an order that loses something; an empty list where there is none.

    Injection before reduction (seed 000): what is injected later is missing from the reduction's budget. And a filter
    in front of `AlertPolicy` takes the alerts away that it should deliver.

    Args:
        policies: The chain, in its order.
    """
    names = [policy.name for policy in policies]
    kinds = [policy_kind(policy) for policy in policies]
    warnings: list[str] = []
    for i, kind in enumerate(kinds):
        if kind != REDUCTION:
            continue
        for j in range(i + 1, len(names)):
            if kinds[j] != INJECTION:
                continue
            if names[i] not in _FILTERS:
                warnings.append(
                    f"Policy '{names[i]}' (index {i}) runs before '{names[j]}' (index {j}). Injection policies should "
                    "generally run before reduction policies so injected context is included in the reduction budget."
                )
            elif names[j] == "alert":
                warnings.append(
                    f"Policy '{names[i]}' (index {i}) runs before '{names[j]}' (index {j}). The filter drops observer "
                    "alerts, so that none is delivered and a FATAL one does not halt; place 'alert' first."
                )
    return warnings
