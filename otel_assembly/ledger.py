"""The ledger of a conversation: who its items are, and what the last assembly did with them.

Items have an *ordinal*, counted from 0 at first sight, that stays theirs however the caller rearranges a list. What a
policy took out in an assembly is held as intervals, so that remembering it, and finding what changed since, cost what
changed, and not what the conversation has grown to.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from otel_assembly.errors import DescribeError
from otel_assembly.facts import describe
from otel_assembly.history import History
from otel_assembly.matching import Matcher
from otel_assembly.ordinals import Ordinals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.decision import DecisionOutcome, DecisionReason
    from otel_assembly.history import TokenTable
    from otel_assembly.view import View

Key = TypeVar("Key")

#: Ledgers that are known only by a conversation id; the least recently used are forgotten beyond it.
LEDGERS_BY_ID: Final = 1_000


@dataclass(slots=True)
class Frame:
    """A history together with the ordinals that a ledger gave its positions."""

    history: History
    ordinals: Ordinals
    #: Tokens by ordinal that a reader of the traces was told while the item stood in an earlier frame.
    told: dict[int, int] = field(default_factory=dict)
    #: How often the caller had changed an item in place so that it reads differently, by ordinal.
    changes: dict[int, int] = field(default_factory=dict)

    def of(self, view: View) -> Iterator[int]:
        """The ordinals of a view's items, in order."""
        ordinal = self.ordinals.of
        return (ordinal(position) for position in view.positions())


@dataclass(frozen=True, slots=True)
class Group:
    """Some items with one outcome and one reason."""

    view: View
    frame: Frame
    outcome: DecisionOutcome
    reason: DecisionReason

    @property
    def tag(self) -> tuple[DecisionOutcome, DecisionReason]:
        """What makes two groups the same to a reader."""
        return self.outcome, self.reason


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one assembly did, as far as the next one needs it."""

    assembly_id: str
    #: By step: what left, what was held, what was moved, and the events that were made, with their ordinals.
    groups: tuple[tuple[Group, ...], ...]
    held: tuple[tuple[Group, ...], ...]
    moved: tuple[tuple[int, ...], ...]
    made: tuple[tuple[tuple[Any, int], ...], ...]
    prompts: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]
    kept: View
    frame: Frame
    #: The input's frame, how many of its positions came in, and how many some assembly up to this one has announced:
    #: more than came in where one that began later ended first.
    source: Frame
    end: int
    seen: int
    #: The source's token table, and how many counts were made in it by then.
    table: TokenTable
    counted: int

    def told(self) -> dict[int, int]:
        """Tokens by ordinal, of the items that came in, as they were announced up to this assembly."""
        ordinal = self.source.ordinals.of
        now = {ordinal(position): self.table.known(position) for position in self.table.order[: self.counted]}
        return {**self.source.told, **now}


@dataclass(frozen=True, slots=True)
class Bill:
    """What was counted for a prompt, until the provider says what it billed."""

    frame: Frame
    #: A response at this position or later is the answer to that prompt.
    seen: int
    tokens: int
    generation: int


@dataclass(slots=True)
class Opening:
    """The input of one assembly, read into the ledger."""

    frame: Frame
    view: View


class Ledger:
    """One conversation under one assembler in one process."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.lock = threading.RLock()
        self.turns = 0
        self.last: Snapshot | None = None
        #: The last assembly whose span was recorded: what a reader of the traces knows.
        self.recorded: Snapshot | None = None
        self.awaits_bill: Bill | None = None
        self._next = 0
        self._frame: Frame | None = None
        #: Of each chat message of a list, what it said when it was read.
        self._said: list[Any] = []

    def take(self, count: int) -> int:
        """Give `count` new items their ordinals; the first is returned."""
        with self.lock:
            first = self._next
            self._next += count
            return first

    def turn(self) -> int:
        """Count an assembly; its number, from 0, is returned."""
        with self.lock:
            self.turns += 1
            return self.turns - 1

    def open(self, events: Sequence[Any]) -> Opening:
        """Read an assembly's input.

        Raises:
            DescribeError: An event of a list cannot be read; the ledger stays as it was.
        """
        with self.lock:
            if isinstance(events, History):
                return self._open_history(events)
            return self._open_list(list(events))

    def _open_history(self, history: History) -> Opening:
        if self._frame is None:
            self._frame = Frame(history, Ordinals())
        frame = self._frame
        view = history.view()
        new = len(view) - len(frame.ordinals)
        if new > 0:
            frame.ordinals.extend(new, self.take(new))
        return Opening(frame, view)

    def _open_list(self, events: list[Any]) -> Opening:
        frame = self._frame
        if frame is None:
            frame = self._frame = Frame(History(), Ordinals())
            frame.history.passing = True
        known = len(frame.history)
        if len(events) >= known and all(map(is_, frame.history, events)) and self._unchanged(events, known):
            new = events[known:]
            if new:
                frame.history.extend(new)
                frame.ordinals.extend(len(new), self.take(len(new)))
                self._said += map(_said, new)
            return Opening(frame, frame.history.view())
        return self._rearranged(frame, events)

    def _unchanged(self, events: list[Any], known: int) -> bool:
        """Whether chat messages that were seen before still say what they said; a dict can be changed in place."""
        return all(said is None or event == said for event, said in zip(events[:known], self._said, strict=True))

    def _rearranged(self, old: Frame, events: list[Any]) -> Opening:
        history = History(events)
        history.passing = True
        matched = Matcher(old.history).match(events)
        frame = Frame(history, Ordinals())
        for index in matched:
            if index is None:
                frame.ordinals.extend(1, self.take(1))
            else:
                frame.ordinals.extend(1, old.ordinals.of(index))
        changes = dict(old.changes)
        for position, said in enumerate(self._said):
            if said is not None and _reading(old.history.event(position)) != _reading(said):
                item = old.ordinals.of(position)
                changes[item] = changes.get(item, 0) + 1
        frame.changes = {item: changes[item] for item in frame.ordinals.all() if item in changes} if changes else {}
        if self.recorded is not None:
            told = self.recorded.told()
            frame.told = {ordinal: told[ordinal] for ordinal in frame.ordinals.all() if ordinal in told}
        self._frame = frame
        self._said = list(map(_said, events))
        return Opening(frame, history.view())


def _said(value: Any) -> Any:
    """A chat message with the containers in it copied; None for an event of another type."""
    return _copied(value) if isinstance(value, dict) else None


def _copied(value: Any) -> Any:
    """A value with the mappings and lists in it copied, so that a change in place shows."""
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return list(map(_copied, value)) if isinstance(value, list) else value


def _reading(message: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        facts = describe(message)
    except DescribeError:
        return ()
    return facts.kind, *facts.texts


class Ledgers:
    """The ledgers of one assembler: by `History`, else by conversation id, else by `Context` object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_context: WeakKeyDictionary[Context, Ledger] = WeakKeyDictionary()
        self._by_id: OrderedDict[str, Ledger] = OrderedDict()

    def of(self, events: Sequence[Any], context: Context) -> Ledger:
        """The ledger of the conversation that these events belong to."""
        with self._lock:
            if isinstance(events, History):
                # A ledger refers to its history, so that a dictionary of ours would keep both for ever: it is held by
                # the history itself, and goes with it, or with this assembler.
                held: WeakKeyDictionary[Ledgers, Ledger] = events.kept_for
                return _at(held, self)
            if context.conversation_id is not None:
                return self._of_id(context.conversation_id)
            return _at(self._by_context, context)

    def _of_id(self, conversation_id: str) -> Ledger:
        ledger = self._by_id.get(conversation_id)
        if ledger is None:
            ledger = self._by_id[conversation_id] = Ledger()
            if len(self._by_id) > LEDGERS_BY_ID:
                self._by_id.popitem(last=False)
        else:
            self._by_id.move_to_end(conversation_id)
        return ledger


def _at(ledgers: WeakKeyDictionary[Key, Ledger], key: Key) -> Ledger:
    ledger = ledgers.get(key)
    if ledger is None:
        ledger = ledgers[key] = Ledger()
    return ledger
