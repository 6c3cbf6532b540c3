"""One policy of an assembly: what it took in and let out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.budget.compaction import Attempt
    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import BudgetReport, Overflow
    from otel_assembly.history.view import View
    from otel_assembly.ledger.snapshot import Group, NumberedHistory


@dataclass(frozen=True, slots=True)
class StepCompaction:
    """Events for which a shorter one stands, by ordinal, and what it took.

    Attributes:
        provenance: What it was made of, as runs ``[first, last]``: leaves alone, also of a summary of summaries.
        result: What stands for them.
        attempts: Every attempt of this assembly, in order.
    """

    provenance: tuple[tuple[int, int], ...]
    result: int
    attempts: tuple[Attempt, ...]


@dataclass(slots=True)
class Step:
    """One policy's application; what it changed nothing of is as it came in."""

    policy: str
    index: int
    kind: str | None
    config: Mapping[str, Any]
    prompts_in: tuple[str, ...]
    prompts_out: tuple[str, ...]
    #: Where each outgoing prompt is from: ``caller`` or a policy's name.
    sources: tuple[str, ...]
    frame_in: NumberedHistory
    view_in: View
    frame_out: NumberedHistory
    view_out: View
    #: What left, and why.
    exits: tuple[Group, ...] = ()
    #: What stayed although the rule would have taken it, and why.
    pinned: tuple[Group, ...] = ()
    #: The events in the output that were not in the input, with their ordinals.
    created: tuple[tuple[Any, int], ...] = ()
    #: Where those stand in the output's history.
    created_positions: tuple[int, ...] = ()
    #: Ordinals of the events that stand in another order than before.
    moved: tuple[int, ...] = ()
    budget: int | None = None
    fixed: int | None = None
    overflow: Overflow | None = None
    alerts: tuple[AlertFacts, ...] = ()
    halts: int = 0
    #: Events of the output that lost the other half of their pair, where that is known already.
    broken: int | None = None
    #: What a framework's reducer says itself that it left out.
    reported: int | None = None
    #: How the policy gave its budget out, if it is an allocator.
    report: BudgetReport | None = None
    compactions: tuple[StepCompaction, ...] = ()
    #: Tokens of messages that several events are joined to, and what joining them added.
    framing: int = 0
    separators: int = 0
    around_in: int = 0
    #: What the policy raised.
    error: BaseException | None = None

    @property
    def injected(self) -> tuple[int, ...]:
        """Ordinals of the events in the output that were not in the input."""
        return tuple(ordinal for _, ordinal in self.created)

    def let_out(self, prompts: tuple[str, ...]) -> None:
        """These are the prompts now: one that came in keeps its source, and a new one is the policy's."""
        known: dict[str, list[str]] = {}
        for prompt, source in zip(reversed(self.prompts_in), reversed(self.sources), strict=True):
            known.setdefault(prompt, []).append(source)
        self.prompts_out = prompts
        self.sources = tuple(some.pop() if (some := known.get(prompt)) else self.policy for prompt in prompts)
