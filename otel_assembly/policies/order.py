"""`validate_order`: warnings about the order of a chain of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import instance, several, text_of
from otel_assembly.errors import ConfigurationError
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import INJECTION, REDUCTION, DecidingPolicy
from otel_assembly.policies.registry import policy_kind, trait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike

_BY_NAME: Final = "name policies with Assembler.from_config({'policies': […]}), or give a list of instances"


def checked_chain(policies: Any) -> tuple[AssemblyPolicy, ...]:
    """Return the policies of a chain as a tuple, after checking that each can be applied.

    Raises:
        ConfigurationError: `policies` is not a sequence, or an element is a class or not a policy.
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


def validate_order(policies: Sequence[PolicyLike]) -> list[str]:
    """Return warnings about a chain whose order or settings lose content; an empty list if there is no problem.

    The warnings report:

    * An injection (a policy that adds content) after a reduction (one that removes content), as in AG2: the reduction's
      limit does not include the injected content. This does not apply to a filter, which drops events by kind.
    * `AlertPolicy` after a filter that drops alerts.
    * `AlertPolicy` before another injection, for example of a memory: alerts change from turn to turn, so the provider
      cannot cache the prompts after them. AG2 recommends the same order.
    * A setting that cannot have an effect, such as a `BudgetPolicy` without room for the summaries that it should make
      (`DecidingPolicy.setting_warnings`).

    Args:
        policies: The chain, in its order.
    """
    warnings: list[str] = []
    for i, policy in enumerate(policies):
        kind, filters = policy_kind(policy), trait(policy, "filters")
        if isinstance(policy, DecidingPolicy):
            warnings += (f"Policy '{policy.name}' (index {i}): {warning}" for warning in policy.setting_warnings)
        for j, later in enumerate(policies[i + 1 :], i + 1):
            if policy_kind(later) != INJECTION:
                continue
            order = f"Policy '{policy.name}' (index {i}) runs before '{later.name}' (index {j})."
            if kind == INJECTION and EventKind.ALERT in _reads(policy) - _reads(later):
                warnings.append(
                    f"{order} Alerts change from turn to turn, so that the provider's cache cannot contain the prompts "
                    f"behind them; place '{later.name}' first."
                )
            elif kind == REDUCTION and filters is None:
                warnings.append(
                    f"{order} Injection policies should generally run before reduction policies so injected context is "
                    "included in the reduction budget."
                )
            elif kind == REDUCTION and (dropped_kinds := sorted(_reads(later).intersection(filters))):
                drops = (
                    "observer alerts, so that none is delivered and a FATAL one does not halt"
                    if dropped_kinds == [EventKind.ALERT]
                    else f"events that the injection reads: {', '.join(dropped_kinds)}"
                )
                warnings.append(f"{order} The filter drops {drops}; place '{later.name}' first.")
    return warnings


def _reads(policy: PolicyLike) -> frozenset[str]:
    return frozenset(trait(policy, "reads") or ())
