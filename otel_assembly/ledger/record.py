"""The record of one assembly, from which `Assembly`, spans and metrics are read, and its numbers as data."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import PrefixBreak
from otel_assembly.history.tool_pairs import broken_in
from otel_assembly.ledger.snapshot import ItemGroup, Snapshot, gone, item_id_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from otel_assembly.context import Context
    from otel_assembly.conversation import HaltGuard
    from otel_assembly.decision import Overflow
    from otel_assembly.events import HaltEvent
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import Run, View
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import LedgerInput, NumberedHistory, Step
    from otel_assembly.tokens import TokenMeter

CALLER = "caller"


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
        budget: The tightest token limit that a policy held; None where none did.
        fixed: Tokens of what may not be dropped; None where no policy knew.
        overflow: The limit that could not hold; None where all did.
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

    @property
    def overflowed(self) -> bool:
        """Whether a limit could not hold."""
        return self.overflow is not None

    @property
    def utilization(self) -> float | None:
        """``tokens_out ÷ budget``, a ratio; None where there is no budget."""
        return self.tokens_out / self.budget if self.budget else None


@dataclass(slots=True)
class StepTotals:
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


@dataclass(slots=True)
class Record:
    """One assembly, whole."""

    name: str | None
    model: str | None
    turn: int
    ledger: Ledger
    ledger_input: LedgerInput
    context: Context
    meter: TokenMeter
    prompts_in: tuple[str, ...]
    assembly_id: str = field(default_factory=lambda: os.urandom(16).hex())
    #: The assembly before this one in the ledger.
    last: Snapshot | None = None
    #: The id of the ledger's last assembly whose span was recorded.
    previous_id: str | None = None
    steps: list[Step] = field(default_factory=list)
    #: Whether somebody else's code ran it, so that nobody has seen to it that what belongs together stays together.
    observed: bool = False
    #: Whether what came in could not be known: what is said to have come in is what is sent.
    unknown: bool = False
    #: Whether a model is called with what it sends.
    called: bool = True
    #: When it was over, where it is told later than that.
    ended_ns: int | None = None
    #: What went wrong, where nothing is sent.
    error: BaseException | None = None
    #: What went wrong, where what came in stays as it was all the same: a framework's care of a history, and no prompt.
    spared: BaseException | None = None
    overflow: Overflow | None = None
    #: Those that close where the conversation is halted: the context's, and that of the history that came in.
    guards: Sequence[HaltGuard] = ()
    #: What halted the conversation before this assembly came to its end.
    halt: HaltEvent | None = None
    _prompts: tuple[tuple[str, ...], int] | None = None
    #: Tokens of what is sent, by kind, once somebody has asked.
    kinds: Sequence[int] | None = None
    #: Its numbers and those of its steps, once somebody has asked.
    totals: Totals | None = None
    step_totals: Sequence[StepTotals] = ()
    #: By step, what it took out that was in the previous prompt, or is new.
    left: dict[int, Sequence[ItemGroup]] = field(default_factory=dict)

    @property
    def prompts_out(self) -> tuple[str, ...]:
        """The prompts to send."""
        if self.error is not None:
            return ()
        return self.steps[-1].prompts_out if self.steps else self.prompts_in

    @property
    def sources(self) -> tuple[str, ...]:
        """Where each prompt to send is from."""
        if self.error is not None:
            return ()
        return self.steps[-1].sources if self.steps else (CALLER,) * len(self.prompts_in)

    @property
    def view_out(self) -> View:
        """The events to send."""
        view = self.steps[-1].view_out if self.steps else self.ledger_input.view
        return view if self.error is None else view.pick([])

    @property
    def events_out(self) -> list[Any]:
        """The events to send, of a list those that came in with this assembly: a later one may bring other objects."""
        view, given = self.view_out, self.ledger_input.given
        if given and view.history is self.ledger_input.view.history:
            return list(map(given.__getitem__, view.positions()))
        return list(view)

    @property
    def numbered_out(self) -> NumberedHistory:
        """The numbered history of the events to send."""
        return self.steps[-1].numbered_out if self.steps else self.ledger_input.numbered

    @property
    def framing(self) -> int:
        """Tokens of messages to send that several events are joined to."""
        return sum([step.framing for step in self.steps])

    @property
    def separators(self) -> int:
        """Tokens that joining events to messages added."""
        return sum([step.separators for step in self.steps])

    @property
    def pure(self) -> bool:
        """Whether no step made events: every item in the output stood in the input."""
        return not any(step.created for step in self.steps)

    @property
    def counted_by(self) -> tuple[str, int]:
        """What counts its tokens, and the generation of that: where it is another, so are they."""
        return self.meter.encoding, self.meter.counter.generation

    @property
    def told(self) -> Sequence[Run]:
        """The items that recorded assemblies have told of as they are."""
        source = self.ledger_input
        return self.ledger.told_of(self.counted_by, self.table(source.view), source.numbered.item_ids)

    def tell(self) -> None:
        """A reader knows of this assembly now."""
        self.ledger.tell(self.assembly_id, self.items, self.counted_by, self.table(self.ledger_input.view))

    @property
    def items(self) -> Iterator[Run]:
        """All that came in and that steps made, by item id, as runs in any order."""
        source = self.ledger_input
        yield from ((first, last + 1) for first, last in item_id_runs(source.view, source.numbered))
        yield from ((item, item + 1) for step in self.steps for item in step.injected)

    @property
    def made(self) -> AbstractSet[int]:
        """The items that steps made: those that they let out, that did not go in, and that did not come in either."""
        return {item for step in self.steps for item in step.injected}.difference(
            item for step in self.steps for item in step.put_back
        )

    def gone(self, step: Step) -> Sequence[ItemGroup]:
        """What left by a step, and no later step put back."""
        return gone(self.steps, step.index)

    def broken(self, view: View) -> int:
        """Events of what a step let out that lost the other half of their pair."""
        known = (step.broken for step in self.steps if step.view_out is view and step.broken is not None)
        found = next(known, None)
        return broken_in(view) if found is None else found

    def items_tokens(self, view: View) -> int:
        """Tokens of a view's items."""
        return self.table(view).sum(view)

    def prompt_tokens(self, prompts: Sequence[str]) -> int:
        """Tokens of prompts; of the same ones, which several steps let through, they are counted once."""
        key = tuple(prompts)
        if self._prompts is None or self._prompts[0] != key:
            self._prompts = key, sum(map(self.meter.prompt, key))
        return self._prompts[1]

    def tokens(self, prompts: Sequence[str], view: View) -> int:
        """Tokens of a rendered prompt."""
        return (
            self.prompt_tokens(prompts)
            + self.meter.tools(self.context.tools)
            + self.meter.priming
            + self.items_tokens(view)
        )

    def table(self, view: View) -> TokenTable:
        """What was counted of a view's history."""
        return view.history.table(self.meter)

    def count_sent(self) -> None:
        """Count what is sent and has an estimate; where it came in too, for the tokens of arrivals are read there."""
        view, source = self.view_out, self.ledger_input.numbered
        self.table(view).exact(view)
        table = source.history.table(self.meter)
        if self.numbered_out is not source and table.estimated:
            for position in source.item_ids.find(self.numbered_out.of(view)):
                table.tokens(position)

    def snapshot(self) -> Snapshot:
        """What the next assembly needs of this one."""
        return Snapshot(
            steps=tuple(self.steps),
            prompts=self.prompts_out,
            tools=self.context.tools,
            kept=(kept := self.view_out),
            numbered=self.numbered_out,
            kinds=self.kinds,
            kept_table=self.table(kept),
        )
