"""Ledgers of conversations that others hold: bounded, and never what keeps a conversation alive."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import in_child, new_lock
from otel_assembly.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

#: Conversations of one framework that are remembered; beyond it the least recently used are forgotten, and begin a new
#: ledger when they come back.
CONVERSATIONS: Final = 1_000
#: Events that the ledgers of all conversations of one framework hold together; beyond it, the same.
EVENTS: Final = 200_000


@dataclass(slots=True)
class _Held:
    ledger: Ledger
    reference: weakref.ref[Any] | None
    #: How many events it held when that was last looked at.
    size: int = 0


class ObservedLedgers:
    """Ledgers by conversation: an object that is only weakly held, or an id.

    A ledger holds the events of its conversation. The events may well refer to the conversation; so what is held of it
    beside that is let go of as soon as the conversation is let go of by everybody else, or grows too much. A forked
    child begins them all anew, for its parent goes on with them.
    """

    def __init__(self) -> None:
        self.lock = new_lock()
        self._begin()
        in_child(self._begin)

    def _begin(self) -> None:
        self.held: OrderedDict[Any, _Held] = OrderedDict()
        self._events = 0

    def of(self, conversation: Any) -> Ledger:
        """The ledger of a conversation."""
        if conversation is None:
            return Ledger(observed=True)
        by_id = isinstance(conversation, str)
        key = conversation if by_id else id(conversation)
        with self.lock:
            held = self.held.get(key)
            if held is None or (held.reference is not None and held.reference() is not conversation):
                if held is not None:
                    self._forget(key)
                held = self.held[key] = _Held(
                    Ledger(observed=True), None if by_id else weakref.ref(conversation, self._forgetting(key))
                )
                while len(self.held) > CONVERSATIONS:
                    self._forget(next(iter(self.held)))
            else:
                self.held.move_to_end(key)
            return held.ledger

    def turn(self, conversation: Any) -> None:
        """Count an assembly of a conversation, of which nothing else is kept."""
        if conversation is None:
            return
        held = self.held.get(conversation if isinstance(conversation, str) else id(conversation))
        if held is None or (held.reference is not None and held.reference() is not conversation):
            self.of(conversation).turn()
        else:
            held.ledger.turn()

    def grown(self, conversation: Any) -> None:
        """A conversation's ledger has read its events: others may have to be forgotten for it."""
        with self.lock:
            held = self.held.get(conversation if isinstance(conversation, str) else id(conversation))
            if held is None:
                return
            size = held.ledger.size
            self._events += size - held.size
            held.size = size
            while self._events > EVENTS and len(self.held) > 1:
                self._forget(next(iter(self.held)))

    def _forget(self, key: Any) -> None:
        held = self.held.pop(key, None)
        if held is not None:
            self._events -= held.size

    def _forgetting(self, key: int) -> Callable[[weakref.ref[Any]], None]:
        me = weakref.ref(self)

        def gone(reference: weakref.ref[Any]) -> None:
            ledgers = me()
            if ledgers is None:
                return
            with ledgers.lock:
                held = ledgers.held.get(key)
                if held is not None and held.reference is reference:
                    ledgers._forget(key)  # noqa: SLF001  # of our own class

        return gone

    def __len__(self) -> int:
        return len(self.held)
