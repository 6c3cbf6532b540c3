"""Rebuilds a conversation without content from the numbers in the spans, so that policies can be run on it.

The rebuilt events have the recorded kinds, tokens, bytes and tool pairs. The spans do not record which tool calls await
a human's approval. A call counts as such if the recorded prompt contains it without a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason, PromptPart
from otel_assembly.errors import AssemblyError
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.telemetry import conventions as names
from otel_assembly.tokens import MessageFraming, TiktokenCounter, TokenMeter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn
    from otel_assembly.tokens.meter import CountMethod

__all__ = ["PromptsOfTurn", "SkeletonMeter", "StandIn", "UnknownError", "stand_ins"]


#: The maximum size of an event that is rebuilt, because a rebuilt event has a text of the recorded size.
_MOST_BYTES: Final = 1 << 28
_MOST_CALLS: Final = 10_000


class UnknownError(Exception):
    """Raised if the spans do not record a fact that an explanation needs; the message says which, for the user."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """An event without content that replaces a recorded message when policies are run again.

    Attributes:
        item: The message's id in the ledger.
        kind: The message's kind.
        tokens: The message's tokens.
        bytes: The bytes of the message's text.
        opens: Generated ids for the message's tool calls.
        closes: The generated ids of the tool calls that the message answers.
        awaiting: The ids in `opens` whose calls await a human's approval.
        restates: Whether the message repeats another one.
        is_reasoning: Whether the message is reasoning, which is kept or dropped with the next message.
    """

    item: str
    kind: str
    tokens: int
    bytes: int
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    awaiting: tuple[str, ...] = ()
    restates: bool = False
    is_reasoning: bool = False


@describe.register
def _(event: StandIn) -> EventFacts:
    return EventFacts(
        EventKind(event.kind),
        text="x" * event.bytes,
        opens=event.opens,
        closes=event.closes,
        awaiting=event.awaiting,
        restates=event.restates,
        is_reasoning=event.is_reasoning,
        media_tokens=event.tokens,
    )


def stand_ins(
    ledger: LedgerHistory, turn: ReportedTurn, items: Iterable[str], awaiting: frozenset[str]
) -> dict[str, StandIn]:
    """Rebuild the events of a turn without their content; return them by item id.

    Args:
        ledger: The ledger that records the items.
        turn: The turn.
        items: The ids of the items, in order.
        awaiting: The ids of the items whose tool calls are assumed to await a human's approval.

    Raises:
        UnknownError: The spans do not record an item's numbers, or which call a result answers.
    """
    events: dict[str, StandIn] = {}
    items = list(items)
    thoughts = _reasoning(ledger, turn, items)
    #: By the first item of an atom: the ids of unanswered calls, one list for each event; and those of answered calls.
    unanswered: dict[str, list[list[str]]] = {}
    answered: dict[str, list[str]] = {}
    for item in items:
        known = ledger.item(turn.number, item)
        if known is None:
            raise UnknownError(f"the arrival of item {item} is not in the spans")
        if not (0 <= known.bytes <= _MOST_BYTES and abs(known.calls) <= _MOST_CALLS):
            raise UnknownError(f"the recorded size of item {item} is impossible")
        event = StandIn(item, known.kind, known.tokens, known.bytes)
        open_calls = unanswered.setdefault(known.atom, [])
        if known.calls > 0:
            ids = [f"{item}.{number}" for number in range(known.calls)]
            open_calls.append(ids)
            event = replace(event, opens=tuple(ids), awaiting=tuple(ids) if item in awaiting else ())
        elif known.calls < 0:
            answers = _take(-known.calls, open_calls)
            if known.atom == item and not answers:
                answers = [f"{item}.orphan.{number}" for number in range(-known.calls)]
            if len(answers) < -known.calls:
                raise UnknownError(f"the spans do not record which call each result answers: item {item}")
            answered.setdefault(known.atom, []).extend(answers)
            event = replace(event, closes=tuple(answers))
        elif known.atom in thoughts:
            event = replace(event, is_reasoning=item in thoughts[known.atom])
        elif known.atom != item and known.kind == EventKind.TOOL_RESULT:
            event = replace(event, closes=tuple(answered.get(known.atom, ())[:1]), restates=True)
        elif known.atom != item:
            call_ids = next((ids[:1] for ids in open_calls if ids), [])
            event = replace(event, opens=tuple(call_ids), restates=True)
        events[item] = event
    return events


def _reasoning(ledger: LedgerHistory, turn: ReportedTurn, items: Sequence[str]) -> dict[str, frozenset[str]]:
    """Find the items that are reasoning; return them by the first item of their atom.

    The spans do not record which items are reasoning. But an atom (items that are kept or dropped together) that does
    not start with a tool call starts with reasoning: all its items but the last are reasoning.
    """
    members: dict[str, list[str]] = {}
    for item in items:
        known = ledger.item(turn.number, item)
        if known is not None and known.kind != EventKind.TOOL_RESULT:
            members.setdefault(known.atom, []).append(item)
    exits = ledger.exits(turn.number)
    reasoning: dict[str, frozenset[str]] = {}
    for atom, ids in members.items():
        first_item = ledger.item(turn.number, atom)
        if first_item is None or first_item.calls or first_item.kind != EventKind.RESPONSE:
            continue
        if len(ids) > 1:
            reasoning[atom] = frozenset(ids[:-1])
        elif atom in exits and exits[atom].reason == DecisionReason.ORPHANED_REASONING:
            reasoning[atom] = frozenset(ids)
    return reasoning


def _take(count: int, unanswered: list[list[str]]) -> list[str]:
    """Remove and return the ids of the calls that a result answers.

    Args:
        count: How many calls the result answers.
        unanswered: The ids of unanswered calls, one list for each event. One id is taken from each list, the newest
            event first, until there are enough.
    """
    answered_ids: list[str] = []
    while len(answered_ids) < count and any(unanswered):
        for ids in reversed(unanswered):
            if ids and len(answered_ids) < count:
                answered_ids.append(ids.pop(0))
    return answered_ids


@dataclass(frozen=True, slots=True)
class PromptsOfTurn:
    """The system-level prompts of a turn, without their real texts.

    Attributes:
        rows: For each prompt its source, a text that represents it, and its tokens, in the order of the turn's prompts.
    """

    rows: Sequence[tuple[str, str, int]]

    @classmethod
    def of(cls, turn: ReportedTurn) -> PromptsOfTurn:
        """Read the sources and tokens of a turn's prompts from its span.

        Raises:
            UnknownError: The span does not record the tokens of all prompts.
        """
        sources = turn.attributes.get(names.PROMPT_SOURCES, ())
        tokens = turn.attributes.get(names.PROMPT_TOKENS, ())
        if len(sources) != len(tokens):
            raise UnknownError("the tokens of this turn's prompts are not all in the spans")
        return cls([(str(s), f"prompt {i}", int(n)) for i, (s, n) in enumerate(zip(sources, tokens, strict=True))])

    def texts_of(self, sources: set[str]) -> list[str]:
        """Return the texts that represent the prompts of these sources, in order."""
        return [text for source, text, _ in self.rows if source in sources]

    @property
    def tokens(self) -> dict[str, int]:
        """The tokens of each prompt, by the text that represents it."""
        return {text: tokens for _, text, tokens in self.rows}


class SkeletonMeter(TokenMeter):
    """A token meter for a rebuilt conversation, which returns the recorded tokens of prompts and `StandIn` events.

    A note that a policy adds to the prompts in a rerun is counted with the tokenizer that the spans record. If that
    tokenizer is not available, the tokens of the policy's latest recorded note are used.
    """

    __slots__ = ("_tool_tokens",)

    def __init__(self, turn: ReportedTurn, prompts: PromptsOfTurn, notes: Mapping[str, int]) -> None:
        kinds: dict[str, int] = dict(
            zip(turn.attributes.get(names.KIND_NAMES, ()), turn.attributes.get(names.KIND_TOKENS, ()), strict=False)
        )
        encoding = str(turn.attributes.get(names.TOKENS_ENCODING, ""))
        super().__init__(
            _Counter(prompts.tokens, notes, encoding),
            MessageFraming(0, 0, 0, 0, int(kinds.get(PromptPart.FRAMING, 0))),
        )
        self._tool_tokens = int(kinds.get(PromptPart.TOOL_SCHEMAS, 0))

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Return the recorded tokens of the turn's tool schemas."""
        return self._tool_tokens


class _Counter:
    """Counts the texts of a rebuilt conversation: prompts by their recorded tokens, notes of policies, 0 for others."""

    name = "skeleton"
    method: CountMethod = "exact"
    generation = 0

    def __init__(self, prompts: Mapping[str, int], notes: Mapping[str, int], encoding: str) -> None:
        self._prompts = prompts
        self._notes = notes
        self._encoding = encoding

    def count(self, text: str) -> int:
        if text in self._prompts:
            return self._prompts[text]
        return self._note(text) if text.startswith("[") else 0

    def _note(self, text: str) -> int:
        try:
            return TiktokenCounter(self._encoding).count(text) + MessageFraming().prompt()
        except AssemblyError:
            policy = text[1:].partition("]")[0]
            if policy not in self._notes:
                raise UnknownError(f"the tokens of the note that {policy} adds are not in the spans") from None
            return self._notes[policy]


def note_tokens(ledger: LedgerHistory) -> dict[str, int]:
    """Return the tokens of the latest prompt that each policy added, by the policy's name."""
    tokens_by_source: dict[str, int] = {}
    for turn in ledger.turns:
        sources, tokens = turn.attributes.get(names.PROMPT_SOURCES, ()), turn.attributes.get(names.PROMPT_TOKENS, ())
        tokens_by_source.update(zip(map(str, sources), map(int, tokens), strict=False))
    return tokens_by_source
