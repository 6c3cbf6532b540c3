"""A conversation rebuilt from its ledger: no word of it, but the kinds, tokens, bytes and pairs that policies go by.

What a ledger does not state is not made up. One thing it states only in part: which call awaits an approval, which is
told by the prompt that keeps it all the same.
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


#: Larger than any event is: a stand-in takes as much memory as the event that it stands for.
_MOST_BYTES: Final = 1 << 28
_MOST_CALLS: Final = 10_000


class UnknownError(Exception):
    """Something that an answer would need is not in the traces; the message is a sentence for the reader."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """An event of which only what the ledger states is known.

    Attributes:
        item: Its id.
        kind: Its kind.
        tokens: Its tokens.
        bytes: Bytes of its text.
        opens: Ids of calls, made up, that pair it with its results.
        closes: Ids of the calls that it answers.
        awaiting: Those of `opens` that await an approval.
        restates: Whether it says again what another event said.
        is_reasoning: Whether it is reasoning, which belongs to the item behind it.
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
    """Events by their item id, with made-up ids for as many calls as each of them asks for or answers.

    Args:
        ledger: The ledger.
        turn: The assembly.
        items: The ids of the events, in the order in which they stand.
        awaiting: Calls that are held to await an approval.

    Raises:
        UnknownError: An arrival is not in the traces, or it is not told which call a result answers.
    """
    made: dict[str, StandIn] = {}
    items = list(items)
    thoughts = _reasoning(ledger, turn, items)
    #: By atom and by event that asked, the ids that wait; and by atom, those that do not wait any more.
    waiting: dict[str, list[list[str]]] = {}
    answered: dict[str, list[str]] = {}
    for item in items:
        one = ledger.item(turn.number, item)
        if one is None:
            raise UnknownError(f"the arrival of item {item} is not in the traces")
        if not (0 <= one.bytes <= _MOST_BYTES and abs(one.calls) <= _MOST_CALLS):
            raise UnknownError(f"what the traces say of the size of item {item} cannot be")
        event = StandIn(item, one.kind, one.tokens, one.bytes)
        own = waiting.setdefault(one.atom, [])
        if one.calls > 0:
            ids = [f"{item}.{number}" for number in range(one.calls)]
            own.append(ids)
            event = replace(event, opens=tuple(ids), awaiting=tuple(ids) if item in awaiting else ())
        elif one.calls < 0:
            taken = _take(-one.calls, own)
            if one.atom == item and not taken:
                taken = [f"{item}.orphan.{number}" for number in range(-one.calls)]
            if len(taken) < -one.calls:
                raise UnknownError(f"the traces do not say which call each result answers: item {item}")
            answered.setdefault(one.atom, []).extend(taken)
            event = replace(event, closes=tuple(taken))
        elif one.atom in thoughts:
            event = replace(event, is_reasoning=item in thoughts[one.atom])
        elif one.atom != item and one.kind == EventKind.TOOL_RESULT:
            event = replace(event, closes=tuple(answered.get(one.atom, ())[:1]), restates=True)
        elif one.atom != item:
            asked = next((ids[:1] for ids in own if ids), [])
            event = replace(event, opens=tuple(asked), restates=True)
        made[item] = event
    return made


def _reasoning(ledger: LedgerHistory, turn: ReportedTurn, items: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the items that are reasoning, by the first item of their atom.

    An atom starts with a call, or with reasoning: responses that neither call nor answer, up to the last of them.
    """
    members: dict[str, list[str]] = {}
    for item in items:
        one = ledger.item(turn.number, item)
        if one is not None and one.kind != EventKind.TOOL_RESULT:
            members.setdefault(one.atom, []).append(item)
    exits = ledger.exits(turn.number)
    found: dict[str, frozenset[str]] = {}
    for atom, held in members.items():
        first = ledger.item(turn.number, atom)
        if first is None or first.calls or first.kind != EventKind.RESPONSE:
            continue
        if len(held) > 1:
            found[atom] = frozenset(held[:-1])
        elif atom in exits and exits[atom].reason == DecisionReason.ORPHANED_REASONING:
            found[atom] = frozenset(held)
    return found


def _take(count: int, waiting: list[list[str]]) -> list[str]:
    """Ids that a result answers: of every event that asked one, then another; what it answers, it makes one atom."""
    taken: list[str] = []
    while len(taken) < count and any(waiting):
        for ids in reversed(waiting):
            if ids and len(taken) < count:
                taken.append(ids.pop(0))
    return taken


@dataclass(frozen=True, slots=True)
class PromptsOfTurn:
    """The prompts of a turn as stand-ins, by who gave them, in prompt order: ``(source, text, tokens)``."""

    rows: Sequence[tuple[str, str, int]]

    @classmethod
    def of(cls, turn: ReportedTurn) -> PromptsOfTurn:
        """Read them from the span."""
        sources = turn.attributes.get(names.PROMPT_SOURCES, ())
        tokens = turn.attributes.get(names.PROMPT_TOKENS, ())
        if len(sources) != len(tokens):
            raise UnknownError("the tokens of this turn's prompts are not all in the traces")
        return cls([(str(s), f"prompt {i}", int(n)) for i, (s, n) in enumerate(zip(sources, tokens, strict=True))])

    def given_by(self, sources: set[str]) -> list[str]:
        """The texts of those sources, in order."""
        return [text for source, text, _ in self.rows if source in sources]

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens by text."""
        return {text: tokens for _, text, tokens in self.rows}


class SkeletonMeter(TokenMeter):
    """Measures stand-ins: an event by the tokens that it carries, a prompt by what the ledger says of it.

    What a policy of ours writes into the prompts itself (a note on what it left out) is counted by the tokenizer that
    the span names, or else costs what such a note cost when the ledger saw one.
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
        """The tokens of the tools of that turn, whatever they were."""
        return self._tool_tokens


class _Counter:
    """Counts the few texts that there are in a skeleton."""

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
                raise UnknownError(f"the tokens of the note that {policy} adds are not in the traces") from None
            return self._notes[policy]


def note_tokens(ledger: LedgerHistory) -> dict[str, int]:
    """What a policy's own prompts cost on the last turn that has one, by policy."""
    found: dict[str, int] = {}
    for turn in ledger.turns:
        sources, tokens = turn.attributes.get(names.PROMPT_SOURCES, ()), turn.attributes.get(names.PROMPT_TOKENS, ())
        found.update(zip(map(str, sources), map(int, tokens), strict=False))
    return found
