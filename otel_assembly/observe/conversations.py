"""What is remembered of the conversations that one framework holds: their ledgers, and what counts their tokens."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly._internal.registry import Registry
from otel_assembly.ledger.ledger import Ledger
from otel_assembly.tokens import TokenMeter, counter_for

if TYPE_CHECKING:
    from otel_assembly.recorder import Recorder, Recording
    from otel_assembly.tokens import TokenCounter

#: Conversations of one framework that are remembered; beyond it the least recently used are forgotten, and begin a new
#: ledger when they come back.
CONVERSATIONS: Final = 1_000
#: Events that the ledgers of all conversations of one framework hold together; beyond it, the same.
EVENTS: Final = 200_000
#: Models whose counts are remembered, and views of conversations.
_MODELS: Final = 32
_VIEWS: Final = 32


def _observed() -> Ledger:
    return Ledger(observed=True)


def _ledgers() -> Registry[Any, Ledger]:
    """Ledgers by conversation: an object that is only weakly held, or an id.

    A ledger holds the events of its conversation, which may well refer to the conversation; so it is let go of as soon
    as everybody else has let go of the conversation, or it grows too much. A forked child begins all of them anew,
    because its parent goes on with them.
    """
    return Registry(CONVERSATIONS, anew_in_child=True)


class ObservedConversations:
    """What is remembered of the conversations that one framework holds.

    Args:
        framework: The framework's name, as on its spans (``assembly.framework``).
        recorder: Where the record of each assembly goes; by default where everything else goes.
        counter: Counts instead of the model's tokenizer.
    """

    def __init__(
        self, framework: str, *, recorder: Recorder | None = None, counter: TokenCounter | None = None
    ) -> None:
        self.framework = framework
        self._recorder = recorder
        self._counter = counter
        self._meters: Registry[str | None, TokenMeter] = Registry(_MODELS)
        self.forget()

    def forget(self) -> None:
        """Let go of every conversation."""
        self._ledgers = _ledgers()
        self._views: Registry[str, Registry[Any, Ledger]] = Registry(_VIEWS)

    @property
    def recorder(self) -> Recorder:
        """Where records go."""
        return self._recorder if self._recorder is not None else DEFAULT.recorder

    def ledger(self, conversation: Any) -> Ledger:
        """The ledger of a conversation; None is a conversation of this one assembly."""
        return _observed() if conversation is None else self._ledgers.of(conversation, _observed)

    def view_ledger(self, view: str, conversation: Any) -> Ledger:
        """The ledger of what is seen of a conversation in one view."""
        return _observed() if conversation is None else self._views.of(view, _ledgers).of(conversation, _observed)

    def make_room(self, conversation: Any, ledger: Ledger) -> None:
        """A conversation's ledger has read its events: others may have to be forgotten for it."""
        if conversation is not None:
            self._ledgers.weigh(conversation, ledger.size, EVENTS)

    def meter(self, model: str | None) -> TokenMeter:
        """What counts for a model."""
        return self._meters.of(model, lambda: TokenMeter(self._counter or counter_for(model)))

    def failed(self, recording: Recording | None, error: Exception) -> None:
        """Something of ours went wrong: that assembly is left out, and the agent goes on."""
        with suppress(Exception):  # what reports failures may be what is broken
            if recording is not None:
                recording.abandon()
            self.recorder.failed(f"instrumentation.{self.framework}", error)
