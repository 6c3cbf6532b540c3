"""An assembly's numbers as data: `Totals`, `Prefix`, and the `Breakpoints` that follow from a prefix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from otel_assembly.decision import PrefixBreak

if TYPE_CHECKING:
    from otel_assembly.decision import Overflow


@dataclass(frozen=True, slots=True)
class Totals:
    """An assembly in numbers; tokens are those of the rendered prompt, framing included.

    ``events_in + events_injected = events_out + dropped + compacted``.

    Attributes:
        tokens_in: Tokens that came in; those of `estimated_in` items are an estimate.
        estimated_in: Of the events that came in, how many have an estimate of their tokens: where more than 4 MiB of
            text arrived at once, the oldest, as long as none of them may stand in a prompt or decide a cut.
        tokens_out: Tokens of the prompt as it would be sent; 0 where nothing is sent.
        method: ``exact``, ``calibrated`` or ``estimated``.
        encoding: What counted.
        prompts_in: Prompts that came in.
        prompts_out: Prompts to send.
        events_in: Events that came in.
        events_out: Events to send.
        events_injected: Events to send that did not come in.
        injected_tokens: Their tokens.
        dropped: Events that came in and left.
        dropped_tokens: Their tokens.
        compacted: Events that came in and for which another one stands.
        compacted_tokens: Their tokens.
        alerts_delivered: Observer alerts delivered to the model.
        halts_emitted: `HaltEvent`s emitted meanwhile.
        budget: The token limit that a policy held; of several, the one that could not hold, or else the fullest. None
            where none did.
        fixed: Tokens of what may not be dropped; None where no policy knew.
        overflow: The limit that could not hold; None where all did. Where the prompt is over the model's window alone,
            that is the limit, with the cause ``window``.
        overflowed: Whether one could not.
        utilization: Tokens needed ÷ the limit, a ratio; of several limits the largest. Needed are `used`, or
            `tokens_out` if that is None, of `budget`; `tokens_out` of `window`; and what an overflow needed, also if it
            was raised or if the content that did not fit was dropped. None if there is no limit, or if nothing is sent
            for another reason than an overflow.
        window: The model's window, in tokens: as the caller says it, else, where assemblies are recorded, as
            `genai-prices` knows it; None where nobody knows.
        used: Tokens of the messages that count against `budget`, where that is a limit of those alone; None where it is
            one of the whole prompt.
    """

    tokens_in: int
    estimated_in: int
    tokens_out: int
    method: str
    encoding: str
    prompts_in: int
    prompts_out: int
    events_in: int
    events_out: int
    events_injected: int
    injected_tokens: int
    dropped: int
    dropped_tokens: int
    compacted: int
    compacted_tokens: int
    alerts_delivered: int
    halts_emitted: int
    budget: int | None
    fixed: int | None
    overflow: Overflow | None
    overflowed: bool = field(repr=False)
    utilization: float | None = field(repr=False)
    window: int | None = field(default=None, repr=False)
    used: int | None = field(default=None, repr=False)


class StepTotals(NamedTuple):
    """A step in numbers."""

    tokens_in: int
    tokens_out: int
    injected: int
    injected_tokens: int
    dropped: int
    dropped_tokens: int
    compacted: int
    compacted_tokens: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a prompt begins with in common with the previous one of its conversation.

    Attributes:
        tokens: Tokens of the prompts and events in it, and of the tool schemas.
        bytes: Bytes of text in it.
        previous_bytes: Bytes of text of the whole previous prompt.
        prompts: Whole prompts in it.
        events: Events in it.
        cause: Why the previous prompt is not a prefix of this one; None where it is.
        reuse: ``bytes ÷ previous_bytes``, a ratio; None on a conversation's first turn.
    """

    tokens: int = 0
    bytes: int = 0
    previous_bytes: int = 0
    prompts: int = 0
    events: int = 0
    cause: str | None = PrefixBreak.FIRST.value
    reuse: float | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """Where a marker of explicit cache control pays, for providers that want one.

    Attributes:
        prompt: Index of the prompt after which to mark: the last one that all turns have had so far, else the last.
            None where there are no prompts.
        events: Indexes of the events after which to mark: the end of what the provider has cached already, so that it
            is read; and the last event, so that all of this prompt is there for the next turn.
    """

    prompt: int | None
    events: tuple[int, ...]


def breakpoints_of(prefix: Prefix, prompts: int, events: int) -> Breakpoints:
    """Where a prompt of so many prompts and events is worth marking."""
    stable = prefix.prompts if prefix.prompts and prefix.prompts < prompts else prompts
    marks = dict.fromkeys((prefix.events - 1, events - 1))
    return Breakpoints(stable - 1 if prompts else None, tuple(mark for mark in marks if mark >= 0))
