"""The built-in policies by name, lookups of a policy's kind and limits, and checks of a chain."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import instance, several, text_of
from otel_assembly.errors import ConfigurationError
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import INJECTION, REDUCTION, DecidingPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike, PolicyLimit


class _Policies(Mapping[str, "type[DecidingPolicy]"]):
    """Maps the names of policies to their classes, and imports a class on first use.

    Most chains use two policies, so the other modules are not imported.
    """

    _CLASSES: Final = {
        "alert": "AlertPolicy",
        "budget": "BudgetPolicy",
        "conversation": "ConversationPolicy",
        "episodic_memory": "EpisodicMemoryPolicy",
        "head_and_tail": "HeadAndTailPolicy",
        "sliding_window": "SlidingWindowPolicy",
        "token_budget": "TokenBudgetPolicy",
        "working_memory": "WorkingMemoryPolicy",
    }

    def __getitem__(self, name: str) -> type[DecidingPolicy]:
        policy: type[DecidingPolicy] = getattr(import_module("otel_assembly.policies"), self._CLASSES[name])
        return policy

    def __iter__(self) -> Iterator[str]:
        return iter(self._CLASSES)

    def __len__(self) -> int:
        return len(self._CLASSES)


#: The built-in policies by the name that configuration files and the command line use.
POLICIES: Final = _Policies()
#: The names of AG2's policies that add content. Their classes have no ``kind``.
_INJECTIONS_OF_AG2: Final = frozenset({"topic_inbox", "network_context"})
_BY_NAME: Final = "name policies with Assembler.from_config({'policies': […]}), or give a list of instances"


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
