"""A conversation rebuilt from its ledger: no word of it, but the kinds, tokens, bytes and pairs that policies go by.

What a ledger does not state is not made up. One thing it states only in part: which call awaits an approval (told by
the prompt that keeps it all the same). Where it does not count calls, as ledgers once did not, a second one: which call
has no result yet (told by the reason ``orphaned_tool_call``, or by an event that is a call and nothing else).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionReason, PromptPart
from otel_assembly.errors import AssemblyError
from otel_assembly.messages.describe import EventFacts, EventKind, describe
from otel_assembly.telemetry import conventions as names
from otel_assembly.tokens import MessageFraming, TiktokenCounter, TokenMeter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedItem, ReportedTurn
    from otel_assembly.tokens.counters import CountMethod

__all__ = ["PromptsOfTurn", "SkeletonMeter", "StandIn", "UnknownError", "stand_ins"]


class UnknownError(Exception):
    """Something that an answer would need is not in the traces; the message is a sentence for the reader."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """An event of which only what the ledger states is known.

    Attributes:
        item: Its ordinal.
        kind: Its kind.
        tokens: Its tokens; None where nobody counted them.
        bytes: Bytes of its text.
        opens: Ids of calls, made up, that pair it with its results.
        closes: Ids of the calls that it answers.
        awaiting: Those of `opens` that await an approval.
        restates: Whether it says again what another event said.
    """

    item: int
    kind: str
    tokens: int | None
    bytes: int
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    awaiting: tuple[str, ...] = ()
    restates: bool = False


@describe.register
def _(event: StandIn) -> EventFacts:
    return EventFacts(
        EventKind(event.kind),
        text="x" * event.bytes,
        opens=event.opens,
        closes=event.closes,
        awaiting=event.awaiting,
        restates=event.restates,
        media_tokens=event.tokens or 0,
    )


def stand_ins(
    ledger: LedgerHistory, turn: ReportedTurn, items: Iterable[int], awaiting: frozenset[int]
) -> dict[int, StandIn]:
    """The events of an assembly's input, by ordinal.

    Args:
        ledger: The ledger.
        turn: The assembly.
        items: The ordinals of the input.
        awaiting: Calls that are held to await an approval.
    """
    known = [ledger.items[item] for item in sorted(items)]
    bare = {one.id: StandIn(one.id, one.kind, ledger.tokens_known(turn.number, one.id), one.bytes) for one in known}
    if all(one.calls is not None for one in known):
        return _paired_by_count(known, bare, awaiting)
    atoms: dict[int, list[StandIn]] = {}
    for one in known:
        atoms.setdefault(one.atom, []).append(bare[one.id])
    return {
        event.item: event for members in atoms.values() for event in _paired_by_atom(members, ledger, turn, awaiting)
    }


def _paired_by_count(
    known: Sequence[ReportedItem], bare: dict[int, StandIn], awaiting: frozenset[int]
) -> dict[int, StandIn]:
    """Events with ids for as many calls as each of them asks for or answers."""
    #: By atom and by event that asked, the ids that wait; and by atom, those that do not wait any more.
    waiting: dict[int, list[list[str]]] = {}
    answered: dict[int, list[str]] = {}
    for one in known:
        event, calls = bare[one.id], one.calls or 0
        own = waiting.setdefault(one.atom, [])
        if calls > 0:
            ids = [f"{one.id}.{number}" for number in range(calls)]
            own.append(ids)
            awaits = tuple(ids) if one.id in awaiting else ()
            bare[one.id] = replace(event, opens=tuple(ids), awaiting=awaits)
        elif calls < 0:
            taken = _take(-calls, own)
            if len(taken) < -calls:
                raise UnknownError(f"the traces do not say which call each result answers: item {one.id}")
            answered.setdefault(one.atom, []).extend(taken)
            bare[one.id] = replace(event, closes=tuple(taken))
        elif one.atom != one.id and one.kind == EventKind.TOOL_RESULT:
            bare[one.id] = replace(event, closes=tuple(answered.get(one.atom, ())[:1]), restates=True)
        elif one.atom != one.id:
            asked = next((ids[:1] for ids in own if ids), [])
            bare[one.id] = replace(event, opens=tuple(asked), restates=True)
    return bare


def _take(count: int, waiting: list[list[str]]) -> list[str]:
    """Ids that a result answers: of every event that asked one, then another; what it answers, it makes one atom."""
    taken: list[str] = []
    while len(taken) < count and any(waiting):
        for ids in reversed(waiting):
            if ids and len(taken) < count:
                taken.append(ids.pop(0))
    return taken


def _paired_by_atom(
    members: list[StandIn], ledger: LedgerHistory, turn: ReportedTurn, awaiting: frozenset[int]
) -> list[StandIn]:
    """The members of one atom, with ids that make them one again, where the ledger does not count calls."""
    ask, rest = members[0], members[1:]
    if ask.kind == EventKind.TOOL_RESULT and not rest:
        return members  # a result on its own is an orphan, with or without an id
    answers = {one.item: f"{ask.item}.{one.item}" for one in rest if not _is_echo(one)}
    opens = tuple(answers.values())
    waits: tuple[str, ...] = ()
    restated = any(one.kind == EventKind.TOOL_CALL for one in rest) and not opens
    if restated or ask.item in awaiting or _is_unanswered(ask, opens, ledger, turn):
        waits = (f"{ask.item}.?",)
    paired = [replace(ask, opens=opens + waits, awaiting=waits if ask.item in awaiting else ())]
    answered: list[str] = []
    for one in rest:
        if one.item in answers:
            answered.append(answers[one.item])
            paired.append(replace(one, closes=(answers[one.item],)))
        elif one.kind == EventKind.TOOL_RESULT:
            paired.append(replace(one, closes=tuple(answered[:1]), restates=True))
        else:
            asked = tuple(call for call in opens + waits if call not in answered)
            paired.append(replace(one, opens=asked[:1], restates=True))
    return paired


def _is_echo(event: StandIn) -> bool:
    """An event that restates another one has neither tokens nor bytes of its own."""
    return not event.tokens and event.bytes == 0 and event.tokens is not None


def _is_unanswered(ask: StandIn, opens: tuple[str, ...], ledger: LedgerHistory, turn: ReportedTurn) -> bool:
    if ask.kind == EventKind.TOOL_CALL and not opens:
        return True
    exit_ = ledger.exit(turn.number, ask.item)
    return exit_ is not None and exit_.reason == DecisionReason.ORPHANED_TOOL_CALL


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
