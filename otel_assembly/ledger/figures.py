"""The numbers of an assembly as data: `Totals`, `Prefix`, and the `Breakpoints` for a provider's cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from otel_assembly.decision import PrefixBreak

if TYPE_CHECKING:
    from otel_assembly.decision import Overflow


class Totals(NamedTuple):
    """The numbers of an assembly. Tokens are those of the rendered prompt, including framing.

    ``events_in + events_injected = events_out + dropped + compacted``.

    Attributes:
        tokens_in: The tokens of the input; those of `estimated_in` events are an estimate.
        estimated_in: The number of input events whose tokens are estimated. If more than 4 MiB of text is new in one
            input, the oldest events are estimated, unless they can be in the prompt or affect a cut.
        tokens_out: The tokens of the prompt to send; 0 if nothing is sent.
        method: How tokens were counted: ``exact``, ``calibrated`` or ``estimated``.
        encoding: The name of the tokenizer or estimate that counted.
        prompts_in: The number of prompts in the input.
        prompts_out: The number of prompts to send.
        events_in: The number of events in the input.
        events_out: The number of events to send.
        events_injected: The number of events to send that the input does not contain.
        injected_tokens: The tokens of the injected events.
        dropped: The number of input events that were dropped.
        dropped_tokens: The tokens of the dropped events.
        compacted: The number of input events that were compacted: another event replaces them.
        compacted_tokens: The tokens of the compacted events.
        alerts_delivered: The number of observer alerts that were delivered to the model.
        halts_emitted: The number of `HaltEvent`s that were emitted during the assembly.
        budget: The token limit that a policy enforced. If there are several, the exceeded one, else the one with the
            highest utilization. None if no policy has a limit.
        fixed: The tokens of content that must not be dropped; None if no policy reports them.
        overflow: The exceeded limit; None if no limit was exceeded. If the prompt exceeds only the model's window,
            that is the limit, with the cause ``window``.
        utilization: The highest ratio of needed tokens to a limit. The needed tokens are `used` for `budget` (or
            `tokens_out` if `used` is None), `tokens_out` for `window`, and ``overflow.needed`` for an overflow, also if
            it was raised, or if the content that did not fit was dropped. None if there is no limit, or if nothing is
            sent for a reason other than an overflow.
        window: The model's window, in tokens: the caller's value, else, if assemblies are recorded, the value in
            `genai-prices`; None if unknown.
        used: The tokens of the messages that count against `budget`, if it is a limit of messages alone; None if it
            limits the whole prompt.
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
    utilization: float | None
    window: int | None = None
    used: int | None = None

    @property
    def overflowed(self) -> bool:
        """Whether a limit was exceeded."""
        return self.overflow is not None

    def __repr__(self) -> str:
        return _shown(self, without=3)


def _shown(numbers: Totals | Prefix, without: int) -> str:
    """Return a representation without the last fields, which follow from others or are often None."""
    fields = ", ".join(f"{name}={value!r}" for name, value in [*zip(numbers._fields, numbers, strict=True)][:-without])
    return f"{type(numbers).__name__}({fields})"


class StepTotals(NamedTuple):
    """The numbers of a step. Counts are in events; `tokens_in` and `tokens_out` are those of the whole prompt."""

    tokens_in: int
    tokens_out: int
    injected: int
    injected_tokens: int
    dropped: int
    dropped_tokens: int
    compacted: int
    compacted_tokens: int


class Prefix(NamedTuple):
    """The common prefix of a prompt and the previous prompt of its ledger, which a provider can read from its cache.

    Attributes:
        tokens: The tokens of the prefix: its prompts and events, and the tool schemas.
        bytes: The bytes of text in the prefix (UTF-8).
        previous_bytes: The bytes of text in the previous prompt.
        prompts: The number of whole prompts in the prefix.
        events: The number of events in the prefix.
        cause: Why the prompt does not begin with the whole previous prompt, a `PrefixBreak`; None if it does, or if the
            prompts are not compared because the assembly failed.
        reuse: ``bytes ÷ previous_bytes``, a ratio; None if there is no previous prompt, or another process made it.
    """

    tokens: int = 0
    bytes: int = 0
    previous_bytes: int = 0
    prompts: int = 0
    events: int = 0
    cause: str | None = PrefixBreak.FIRST.value
    reuse: float | None = None

    def __repr__(self) -> str:
        return _shown(self, without=1)


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """The places for cache breakpoints, for providers with explicit cache control.

    Attributes:
        prompt: The index of the prompt after which to set a breakpoint: the last one of the common prefix, else the
            last prompt. None if there are no prompts.
        events: The indexes of the events after which to set one: the end of the common prefix, which the provider has
            cached already; and the last event, so that the provider caches the whole prompt for the next turn.
    """

    prompt: int | None
    events: tuple[int, ...]


def breakpoints_of(prefix: Prefix, prompts: int, events: int) -> Breakpoints:
    """Return the breakpoints of a prompt with these numbers of prompts and events."""
    stable = prefix.prompts if prefix.prompts and prefix.prompts < prompts else prompts
    marks = dict.fromkeys((prefix.events - 1, events - 1))
    return Breakpoints(stable - 1 if prompts else None, tuple(mark for mark in marks if mark >= 0))
