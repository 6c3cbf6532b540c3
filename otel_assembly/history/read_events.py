"""Events that were read when they were made: the items of blocks, which are laid out anew on every turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.history.history import History, ListHistory
from otel_assembly.history.view import Column
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from otel_assembly.history.token_counts import TokenTable


class ReadEvent:
    """An event that says what it says for as long as it lives.

    Args:
        facts: What it says.
    """

    __slots__ = ("facts",)

    def __init__(self, facts: EventFacts) -> None:
        self.facts = facts


@describe.register
def _(event: ReadEvent) -> EventFacts:
    return event.facts


class ReadEvents(list[ReadEvent]):
    """Such events, one turn's; nobody changes the list."""


class ReadHistory(ListHistory):
    """The history of one turn's events, which reads its columns once somebody asks for one.

    Args:
        events: The events.
    """

    def __init__(self, events: ReadEvents) -> None:
        self.events: list[Any] = events
        self.all = Column(self)
        self.lock = new_lock(self, ReadHistory._read_again)
        self.strict = False
        self._dicts = False
        #: Of no assembly's events the next one's go on from, so that no bill is compared with what was counted.
        self.billed = None
        self._tables = {}
        self._last_table: tuple[Any, int, TokenTable | None] = (None, 0, None)

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        read = ListHistory(self.events, [event.facts for event in self.events])
        for column, held in vars(read).items():
            vars(self).setdefault(column, held)
        return vars(self)[name]

    def facts(self, position: int) -> EventFacts:
        facts: EventFacts = self.events[position].facts
        return facts

    def _read_again(self) -> None:
        """A fork caught another thread while it was counting here."""
        self._tables = {}
        self._last_table = (None, 0, None)


#: What is read of a history's events beside them.
_COLUMNS = frozenset(vars(History()))
