"""`StepReport`: everything that one policy or reducer did to the messages of a model call."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class StepReport:
    """What a policy or reducer did: the messages before and after it, and why it dropped some of them.

    A report is complete in itself: it can be recorded later than the reducer ran, and again if the model call is
    repeated. Use `dataclasses.replace` to add what is known only after the reducer has run.

    Attributes:
        policy: The name of the policy or reducer, of low cardinality.
        before: The input messages, as they were before the reducer ran.
        after: The output messages; None if they are the input messages.
        kind: ``reduction`` or ``injection``; None if unknown.
        config: The settings; numbers, booleans and enums among them are recorded.
        prompts_before: The system prompts before the reducer; None if it cannot change them.
        prompts: The system prompts after the reducer; None if it did not change them.
        reason: Why messages without a verdict were dropped.
        verdicts: Why messages were dropped or compacted, by message.
        budget: The limit of the output in tokens. More than twice as many tokens are recorded as an overflow.
        of_prompt: Whether the limit includes the system prompts and the tools.
        fixed: The tokens of the messages that could not be dropped.
        alerts: The alerts that were delivered to the model.
        halts: The number of halts that were emitted.
        reported: The number of dropped messages that the framework itself states, for example in the output.
        stands_in: Whether a new message replaces the dropped ones, which are then compacted and not dropped. None: it
            does, unless the framework reports a number of dropped messages.
        beside: Output messages that the reducer did not receive. They do not count against the limit.
        attempts: What summarizers did for a reducer that ran outside any model call.

    Example:
        >>> report = StepReport("window", [1, 2, 3], config={"size": 2})
        >>> replace(report, after=[2, 3], reason=DecisionReason.OUTSIDE_WINDOW).before
        (1, 2, 3)
    """

    policy: str
    before: Sequence[Any] = ()
    after: Sequence[Any] | None = None
    _: KW_ONLY
    kind: str | None = "reduction"
    config: Mapping[str, Any] = field(default_factory=dict)
    prompts_before: Sequence[str] | None = None
    prompts: Sequence[str] | None = None
    reason: DecisionReason = DecisionReason.POLICY
    verdicts: Sequence[Verdict] = ()
    budget: int | None = None
    of_prompt: bool = False
    fixed: int | None = None
    alerts: Sequence[AlertFacts] = ()
    halts: int = 0
    reported: int | None = None
    stands_in: bool | None = None
    beside: Sequence[Any] = ()
    attempts: Sequence[SummarizerAttempt] = ()

    def __post_init__(self) -> None:
        # A copy, because a reducer may change its list in place. `replace` copies no tuple again.
        object.__setattr__(self, "before", tuple(self.before))

    @property
    def has_details(self) -> bool:
        """True if the report has more than the messages and prompts before and after the reducer."""
        numbers = self.budget, self.fixed, self.reported, self.stands_in
        return (
            self.reason is not DecisionReason.POLICY
            or bool(self.verdicts or self.alerts or self.halts)
            or any(number is not None for number in numbers)
        )

    def repeated(self) -> StepReport:
        """Return the report for a repeated model call: alerts and halts are recorded only once."""
        return replace(self, alerts=(), halts=0, attempts=())

    def with_originals(self, originals: Mapping[int, Any]) -> StepReport:
        """Return the report with verdicts on the original messages instead of on copies of them.

        Args:
            originals: The original message by the `id` of its copy.
        """
        verdicts = [
            replace(verdict, events=[originals.get(id(event), event) for event in verdict.events])
            for verdict in self.verdicts
        ]
        return replace(self, verdicts=verdicts) if verdicts else self


@dataclass(slots=True)
class SummarizerAttempt:
    """A summarizer's attempt to compact messages for a reducer that ran outside any model call.

    Attributes:
        attempt: The outcome and the times of the attempt.
        tokens_in: Returns the tokens of the summarizer's input. It takes the function that counts the tokens of a text
            for the model call with which the attempt is recorded.
        text: The summary; None if there is none.
    """

    attempt: Attempt
    tokens_in: Callable[[Callable[[str], int]], int]
    text: str | None = None
