"""Rebuild a conversation from its ledger, without content: kinds, tokens, bytes and tool pairs, as policies need them.

Nothing is guessed. The ledger does not record which tool calls await approval; they are inferred from the prompt, which
keeps them although they have no result.
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


#: The largest event that is rebuilt; a stand-in takes as much memory as its event.
_MOST_BYTES: Final = 1 << 28
_MOST_CALLS: Final = 10_000


class UnknownError(Exception):
    """The spans do not record something that an answer needs; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """An event with the facts that the ledger records.

    Attributes:
        item: Its id.
        kind: Its kind.
        tokens: Its tokens.
        bytes: Bytes of its text.
        opens: Generated ids of its tool calls.
        closes: Ids of the calls that it answers.
        awaiting: The calls in `opens` that await approval.
        restates: Whether it repeats another event.
        is_reasoning: Whether it is reasoning, which belongs to the next item.
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
    """Return stand-ins by item id, with generated ids for their tool calls and results.

    Args:
        ledger: The ledger.
        turn: The assembly.
        items: The ids of the events, in order.
        awaiting: The items whose calls are assumed to await approval.

    Raises:
        UnknownError: An arrival is not in the spans, or it is unknown which call a result answers.
    """
    made: dict[str, StandIn] = {}
    items = list(items)
    thoughts = _reasoning(ledger, turn, items)
    #: By atom: the unanswered call ids of each event, and the answered ones.
    waiting: dict[str, list[list[str]]] = {}
    answered: dict[str, list[str]] = {}
    for item in items:
        known = ledger.item(turn.number, item)
        if known is None:
            raise UnknownError(f"the arrival of item {item} is not in the spans")
        if not (0 <= known.bytes <= _MOST_BYTES and abs(known.calls) <= _MOST_CALLS):
            raise UnknownError(f"the recorded size of item {item} is impossible")
        event = StandIn(item, known.kind, known.tokens, known.bytes)
        open_calls = waiting.setdefault(known.atom, [])
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
            asked = next((ids[:1] for ids in open_calls if ids), [])
            event = replace(event, opens=tuple(asked), restates=True)
        made[item] = event
    return made


def _reasoning(ledger: LedgerHistory, turn: ReportedTurn, items: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the items that are reasoning, by the first item of their atom.

    An atom starts with a call, or with reasoning: responses that neither call nor answer, up to the last of them.
    """
    members: dict[str, list[str]] = {}
    for item in items:
        known = ledger.item(turn.number, item)
        if known is not None and known.kind != EventKind.TOOL_RESULT:
            members.setdefault(known.atom, []).append(item)
    exits = ledger.exits(turn.number)
    found: dict[str, frozenset[str]] = {}
    for atom, ids in members.items():
        first = ledger.item(turn.number, atom)
        if first is None or first.calls or first.kind != EventKind.RESPONSE:
            continue
        if len(ids) > 1:
            found[atom] = frozenset(ids[:-1])
        elif atom in exits and exits[atom].reason == DecisionReason.ORPHANED_REASONING:
            found[atom] = frozenset(ids)
    return found


def _take(count: int, waiting: list[list[str]]) -> list[str]:
    """Remove and return the call ids that a result answers: one of each event in turn, the newest event first."""
    taken: list[str] = []
    while len(taken) < count and any(waiting):
        for ids in reversed(waiting):
            if ids and len(taken) < count:
                taken.append(ids.pop(0))
    return taken


@dataclass(frozen=True, slots=True)
class PromptsOfTurn:
    """The prompts of a turn as stand-ins, in prompt order: ``(source, text, tokens)``."""

    rows: Sequence[tuple[str, str, int]]

    @classmethod
    def of(cls, turn: ReportedTurn) -> PromptsOfTurn:
        """Return the prompts of a turn."""
        sources = turn.attributes.get(names.PROMPT_SOURCES, ())
        tokens = turn.attributes.get(names.PROMPT_TOKENS, ())
        if len(sources) != len(tokens):
            raise UnknownError("the tokens of this turn's prompts are not all in the spans")
        return cls([(str(s), f"prompt {i}", int(n)) for i, (s, n) in enumerate(zip(sources, tokens, strict=True))])

    def given_by(self, sources: set[str]) -> list[str]:
        """Return the texts of these sources, in order."""
        return [text for source, text, _ in self.rows if source in sources]

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens by text."""
        return {text: tokens for _, text, tokens in self.rows}


class SkeletonMeter(TokenMeter):
    """Measures stand-ins by their recorded tokens.

    A note that a policy adds to the prompts is counted by the recorded tokenizer, or else has the recorded tokens of an
    earlier note of this policy.
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
    """A counter for the texts of a rebuilt conversation."""

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
    """Return the tokens of each policy's prompts on the last turn that has one."""
    found: dict[str, int] = {}
    for turn in ledger.turns:
        sources, tokens = turn.attributes.get(names.PROMPT_SOURCES, ()), turn.attributes.get(names.PROMPT_TOKENS, ())
        found.update(zip(map(str, sources), map(int, tokens), strict=False))
    return found
