"""Whose conversation a list of messages is: the thread of a graph, else the list that the messages open."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import new_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.langchain.graph_runs import GraphRun

#: Conversations without a thread that are remembered; beyond it the oldest are forgotten. A ledger holds the messages
#: of its last assembly, so that who opened a conversation lives as long as it is remembered.
CONVERSATIONS: Final = 100


class _Ledger:
    """Stands for one asker of one conversation."""

    __slots__ = ("__weakref__",)


class Conversations:
    """Conversations, by their thread, or else by the message object that stands first in them."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._of: OrderedDict[int, tuple[weakref.ref[Any], dict[str, _Ledger]]] = OrderedDict()

    def ledger(self, messages: Sequence[Any], thread: str | None, asker: str, run: GraphRun | None) -> Any:
        """Whose ledger it is: that of one asker in the conversation that these messages are."""
        if thread is not None:
            return f"{thread}\0{asker}"
        with self._lock:
            ledgers = self._ledgers(_opening(messages), run)
            return None if ledgers is None else ledgers.setdefault(asker, _Ledger())

    def meet(self, messages: Sequence[Any], run: GraphRun) -> None:
        """A run's state holds these messages: middleware may show copies of them alone to the reducers behind it."""
        if run.thread_id is None and run.opening is None:
            run.opening = _opening(messages)
            if run.opening is not None:
                with self._lock:
                    run.ledgers = run.ledgers or self._known(run.opening)

    def goes_on(self, messages: Sequence[Any], becomes: Sequence[Any]) -> None:
        """A conversation's messages are others now; who meets them next is to know whose they are."""
        first, new = _opening(messages), _opening(becomes)
        if first is None or new is None or new is first:
            return
        with self._lock:
            known = self._known(first)
            if known is not None:
                self._hold(new, known)

    def _ledgers(self, first: Any, run: GraphRun | None) -> dict[str, _Ledger] | None:
        ledgers = self._known(first) if first is not None else None
        if ledgers is None:
            ledgers = run.ledgers if run is not None else None
            if first is not None:
                ledgers = {} if ledgers is None else ledgers
                self._hold(first, ledgers)
        if run is not None and run.ledgers is None:
            run.ledgers = ledgers
            if run.opening is not None and ledgers is not None:
                self._hold(run.opening, ledgers)
        return ledgers

    def _known(self, message: Any) -> dict[str, _Ledger] | None:
        held = self._of.get(id(message))
        if held is None or held[0]() is not message:
            return None
        self._of.move_to_end(id(message))
        return held[1]

    def _hold(self, message: Any, ledgers: dict[str, _Ledger]) -> None:
        self._of[id(message)] = weakref.ref(message), ledgers
        self._of.move_to_end(id(message))
        while len(self._of) > CONVERSATIONS:
            self._of.popitem(last=False)


def _opening(messages: Sequence[Any]) -> Any:
    return next((message for message in messages if getattr(message, "type", "system") != "system"), None)


CONVERSATIONS_WITHOUT_THREAD: Final = Conversations()
