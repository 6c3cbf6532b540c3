"""The conversations of the plug-in: runs with the same id, or runs in one trace that continue each other's items."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from agents.exceptions import AgentsException

from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.plugin import PluginConversation
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Sequence


class _HaltedToolError(HaltedError, AgentsException):
    """A halt that is raised during a turn: an `AgentsException`, because the SDK replaces other errors of tools."""


class ItemConversation(PluginConversation):
    """One conversation. The SDK creates new objects for its items on each turn, so items are compared by content."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The items of the last model call, before any policy ran.
        self.items: Sequence[Any] = ()
        #: The items of the model's response to that call; empty until the model has responded.
        self.answers: Sequence[Any] = ()
        #: How often each content was passed to the observers.
        self._shown_counts: Counter[int] = Counter()

    async def show(self, events: Sequence[Any]) -> None:
        """Pass to the observers the events that are new to them; if several events are equal, each is passed once."""
        counts: Counter[int] = Counter()
        for event in events if self._plugin._observers else ():  # noqa: SLF001  # a plug-in and its conversation
            facts = describe(event)
            content = hash((facts.kind, facts.id, facts.texts, *facts.opens, *facts.closes))
            counts[content] += 1
            if counts[content] > self._shown_counts[content]:
                self._shown_counts[content] = counts[content]
                await self.stream.show(event)

    def continuation(self, items: Sequence[Any]) -> tuple[int, bool] | None:
        """Return how much items have in common with the last model call; None if they do not continue it.

        This is the number of the call's items, and whether the model's response follows them: `continued` chooses the
        conversation for which this is largest.
        """
        length, answers = len(self.items), list(self.answers)
        if length >= len(items) or list(items[:length]) != list(self.items):
            return None
        return length, bool(answers) and list(items[length : length + len(answers)]) == answers

    def raise_if_halted(self) -> None:
        halt = self.context.guard.halt
        if halt is not None:
            raise _HaltedToolError(halt.reason, halt.source)


def continued(conversations: Sequence[ItemConversation], items: Sequence[Any]) -> ItemConversation | None:
    """Return the conversation whose last model call the items continue; None if there is none.

    Runs with equal inputs are distinguished by the model's response. Of equal ones, the first is returned.

    Raises:
        HaltedError: One of the conversations is halted.
    """
    found: dict[ItemConversation, tuple[int, bool]] = {}
    for conversation in conversations:
        conversation.raise_if_halted()
        common = conversation.continuation(items)
        if common is not None:
            found[conversation] = common
    return max(found, key=found.__getitem__, default=None)
