"""Which alerts a conversation's model was shown, and whether it answered since.

Nobody tells us that a model call failed. What tells is the next assembly: where a call came to something, what comes in
holds a response that did not come in when the alert was shown. As long as it does not, the alert is shown again, a few
times at most.
"""

from __future__ import annotations

import weakref
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.messages.describe import EventKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from otel_assembly._internal.forks import Lock
    from otel_assembly.history.history import History
    from otel_assembly.history.view import View

#: How often an alert that no response followed is shown again.
MAX_REPEATS: Final = 3
#: So many of the newest responses tell whether there is a new one, where what comes in is not what came in before with
#: more behind it.
_NEWEST: Final = 64
_RESPONSES: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})


class _Came:
    """What came in when an alert was shown: enough of it to know a newer response, and nothing that keeps it alive."""

    __slots__ = ("_end", "_history", "_newest")

    def __init__(self, view: View) -> None:
        self._history: weakref.ref[History] = weakref.ref(view.history)
        self._end = view.end
        self._newest = Counter(islice(_responses(view), _NEWEST))

    def answered(self, view: View) -> bool:
        """Whether a response has come in since."""
        history = view.history
        if self._history() is history:
            return any(history.kind(position) in _RESPONSES for position in range(self._end, view.end))
        return bool(Counter(islice(_responses(view), _NEWEST)) - self._newest)


def _responses(view: View) -> Iterator[int]:
    """What each response says, or its framework's id, as a number; from the newest backwards."""
    history = view.history
    for position in view.backward():
        kind = history.kind(position)
        if kind in _RESPONSES:
            facts = history.facts(position)
            yield hash(facts.id if facts.id is not None else (kind, facts.texts, tuple(facts.opens)))


class _Delivery:
    __slots__ = ("came", "ended", "shown", "taken")

    def __init__(self) -> None:
        #: Whether an assembly that shows it is under way.
        self.taken = True
        #: How often it was shown.
        self.shown = 0
        #: When it was shown last, in assemblies that have shown alerts.
        self.ended = 0
        #: What came in then; None where the matter is settled.
        self.came: _Came | None = None


class Deliveries:
    """The alerts of one conversation that were shown, by what they say."""

    __slots__ = ("_held", "_lock", "_open", "now")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._held: dict[Hashable, _Delivery] = {}
        #: Those that no response has followed yet.
        self._open: dict[Hashable, None] = {}
        #: How often an assembly that shows an alert has come to its end.
        self.now = 0

    def unanswered(self) -> tuple[Any, ...]:
        """Those that may have to be shown again."""
        with self._lock:
            return tuple(self._open)

    def claim(self, alert: Hashable, view: View, began: int) -> bool:
        """Take it upon an assembly to show an alert; False where another one did or does, and that is enough.

        Args:
            alert: The alert.
            view: What came in.
            began: What `now` was when the assembly began: a prompt that was not ready then is not one whose model call
                has failed since.
        """
        with self._lock:
            held = self._held.get(alert)
            if held is None:
                self._held[alert] = _Delivery()
                return True
            if held.taken or held.came is None or held.ended > began:
                return False
            if held.came.answered(view):
                self._settle(alert, held)
                return False
            held.taken = True
            return True

    def first(self, alert: Hashable) -> bool:
        """Whether an alert that was claimed has not been shown before."""
        with self._lock:
            return self._held[alert].shown == 0

    def release(self, alert: Hashable) -> bool:
        """The assembly that claimed it came to nothing; whether it is as if it had never been seen."""
        with self._lock:
            held = self._held[alert]
            held.taken = False
            if held.shown == 0:
                del self._held[alert]
            return held.shown == 0

    def deliver(self, alert: Hashable, view: View) -> None:
        """The assembly that claimed it has come to a good end: its prompt is sent."""
        came = _Came(view)
        with self._lock:
            held = self._held[alert]
            held.taken = False
            held.shown += 1
            self.now += 1
            held.ended, held.came = self.now, came
            self._open[alert] = None
            if held.shown > MAX_REPEATS:
                self._settle(alert, held)

    def _settle(self, alert: Hashable, held: _Delivery) -> None:
        held.came = None
        self._open.pop(alert, None)
