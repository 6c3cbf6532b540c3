"""An assembly in numbers, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_assembly.decision import PrefixBreak

if TYPE_CHECKING:
    from otel_assembly.decision import Overflow


@dataclass(frozen=True, slots=True)
class Totals:
    """An assembly in numbers; tokens are those of the rendered prompt, framing included.

    ``events_in + events_injected = events_out + dropped + compacted``.

    Attributes:
        tokens_in: Tokens that came in; a lower bound while `tokens_in_estimated`.
        tokens_in_estimated: Whether items that came in have not been counted yet.
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
        dropped_tokens: Their tokens, as far as they are counted.
        compacted: Events that came in and for which another one stands.
        compacted_tokens: Their tokens, as far as they are counted.
        alerts_delivered: Observer alerts delivered to the model.
        halts_emitted: `HaltEvent`s emitted meanwhile.
        budget: The tightest token limit that a policy held; None where none did.
        fixed: Tokens of what may not be dropped; None where no policy knew.
        overflow: The limit that could not hold; None where all did.
    """

    tokens_in: int
    tokens_in_estimated: bool
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

    @property
    def overflowed(self) -> bool:
        """Whether a limit could not hold."""
        return self.overflow is not None

    @property
    def utilization(self) -> float | None:
        """``tokens_out ÷ budget``, a ratio; None where there is no budget."""
        return self.tokens_out / self.budget if self.budget else None


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
    """

    tokens: int = 0
    bytes: int = 0
    previous_bytes: int = 0
    prompts: int = 0
    events: int = 0
    cause: str | None = PrefixBreak.FIRST.value

    @property
    def reuse(self) -> float | None:
        """``bytes ÷ previous_bytes``, a ratio; None on a conversation's first turn."""
        return self.bytes / self.previous_bytes if self.previous_bytes else None


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
