"""What policies did, by the objects that went in and came out: the truth that spans are compared with."""

from __future__ import annotations


class Spied:
    """A policy, with what went in and came out the last time, and why."""

    def __init__(self, policy):
        self.policy, self.name = policy, policy.name
        self.kind = getattr(policy, "kind", None)
        self.seen = None

    async def apply(self, prompts, events, context):
        came, self.seen = list(events), None
        prompts, events = await self.policy.apply(prompts, events, context)
        self.seen = came, list(events), {}
        return prompts, events


class SpiedDeciding(Spied):
    """One that says why."""

    async def decide(self, prompts, events, context):
        came, self.seen = list(events), None
        outcome = await self.policy.decide(prompts, events, context)
        why = {
            id(event): decision.reason.value for decision in reversed(outcome.decisions) for event in decision.events
        }
        self.seen = came, list(outcome.events), why
        return outcome


def spied(policy):
    return (SpiedDeciding if hasattr(policy, "decide") else Spied)(policy)


def truth(chain):
    """By object, the place of the policy that took it out in the end, and the reason that it gave."""
    out = {}
    for index, policy in enumerate(chain):
        if policy.seen is None:
            continue
        came, went, why = policy.seen
        stays = set(map(id, went))
        for event in came:
            if id(event) not in stays:
                out[id(event)] = index, why.get(id(event))
        for event in went:
            out.pop(id(event), None)
    return out
