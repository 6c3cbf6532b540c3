"""What is known of a framework's own reducers, beside what goes into each and what comes out: a row each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionReason, OverflowCause
from otel_assembly.instrumentation.reducers import orphaned
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.reductions import Reduction


@dataclass(frozen=True, slots=True)
class KnownReducer:
    """What is known of one reducer of a framework's.

    Each function takes the reducer, what goes in and what comes out.

    Attributes:
        policy: Its name, of low cardinality.
        kind: ``reduction`` or ``injection``; None where that is not known.
        reason: Why messages leave that its own rule does not keep.
        settings: The settings that are reported, by the attribute that holds each.
        stays: What its own rule keeps; what of that does not come out had lost its other half.
        limit: Its limit: a budget where that is in tokens. Where nothing comes out, or more items do, it did not hold.
        unit: What the limit is in.
        reported: How many messages it says itself that it left out.
    """

    policy: str = ""
    kind: str | None = "reduction"
    reason: DecisionReason = DecisionReason.POLICY
    settings: Mapping[str, str] = field(default_factory=dict)
    stays: Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None
    limit: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | None = None
    unit: str = "tokens"
    reported: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | None = None

    def config(self, reducer: Any) -> dict[str, Any]:
        """Its settings, as far as they can be read."""
        held = {name: getattr(reducer, attribute, None) for name, attribute in self.settings.items()}
        return {name: value for name, value in held.items() if value is not None}

    def done(self, reduction: Reduction, reducer: Any, after: Sequence[Any], **said: Any) -> None:
        """Say of one run of it what came out, and why."""
        read = reducer, reduction.before, after
        limit = None if self.limit is None else self.limit(*read)
        verdicts = () if self.stays is None else orphaned(self.stays(*read), after)
        if limit is not None and self.unit == "items" and len(after) > max(0, limit):
            self._overflow(reduction, limit, len(after), OverflowCause.FRAMEWORK)
        elif limit is not None and self.unit == "tokens" and reduction.before and not (after or verdicts):
            step = reduction.open()
            needed = sum(map(step.count, describe(reduction.before[-1]).texts)) if step is not None else 0
            # The framework's own count was above the limit, whatever ours is.
            self._overflow(reduction, limit, max(needed, limit + 1), OverflowCause.NEWEST_ATOM)
        budget = limit if self.unit == "tokens" else None
        said |= {"budget": budget, "verdicts": verdicts, "reported": self.reported and self.reported(*read)}
        known = {name: value for name, value in said.items() if value not in (None, ())}
        if self.reason is not DecisionReason.POLICY:
            known["reason"] = self.reason
        reduction.done(after, always=True, **known)

    def _overflow(self, reduction: Reduction, limit: int, needed: int, cause: OverflowCause) -> None:
        step = reduction.open()
        if step is not None:
            step.overflow(budget=limit, needed=needed, cause=cause, unit=self.unit)
