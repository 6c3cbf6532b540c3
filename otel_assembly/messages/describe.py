"""``describe()``: the one question the engine asks of an event of any framework.

Policies and the allocator never convert a message. What they need to know of it (what it is, the texts that the model
would read, the tool calls it opens and closes) is an `EventFacts`, and ``describe`` is how each type of message gives
it. A framework's module registers a row per type; nothing else in the engine knows that the type exists.
"""

from __future__ import annotations

from abc import get_cache_token
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from otel_assembly.errors import DescribeError, UnknownNameError
from otel_assembly.messages.facts import EventFacts, EventKind, KindName, ToolCallFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Row = TypeVar("Row", bound=Callable[..., Any])

__all__ = ["EventFacts", "EventKind", "KindName", "ToolCallFacts", "describe"]

#: Classes whose row is remembered; a program that makes classes without end makes us look up some of them again.
_REMEMBERED: Final = 1024


class _Describe:
    """``describe``: finds the row of an event's type and reads the event with it, as ``functools.singledispatch`` does.

    Whatever goes wrong inside a row is a `DescribeError`, for an event that a framework, a log or a person has put
    together wrongly must not look like a fault of ours.
    """

    def __init__(self, fallback: Callable[[Any], EventFacts], doc: str) -> None:
        self.__doc__ = doc
        self._rows = singledispatch(fallback)
        self._known: dict[type, Callable[[Any], EventFacts]] = {}
        self._token = get_cache_token()

    def __call__(self, event: Any, /) -> EventFacts:
        kind = event.__class__
        # singledispatch looks classes up in a mapping of weak references, which takes longer than to read a message.
        row = self._known.get(kind) if self._token == get_cache_token() else None
        if row is None:
            row = self._find(kind)
        try:
            facts = row(event)
        except (MemoryError, UnknownNameError):
            raise
        except DescribeError as error:
            if not error.problem or issubclass(kind, error.event_type):
                raise
            raise DescribeError(kind, error.problem) from None  # a row that reads parts of several frameworks' messages
        except Exception as error:
            raise DescribeError(kind, _problem(error)) from error
        if not isinstance(facts, EventFacts):
            raise DescribeError(kind, f"its row returned a {type(facts).__name__}, expected EventFacts")
        return facts

    @overload
    def register(self, cls: type, func: None = None) -> Callable[[Row], Row]: ...
    @overload
    def register(self, cls: Row, func: None = None) -> Row: ...
    @overload
    def register(self, cls: type, func: Row) -> Row: ...
    def register(self, cls: Any, func: Any = None) -> Any:
        """Register a row: ``@describe.register``, with the type as the argument's annotation or in parentheses."""
        if func is None and isinstance(cls, type):
            return lambda row: self.register(cls, row)
        row = self._rows.register(cls) if func is None else self._rows.register(cls, func)
        self._known = {}
        return row

    def dispatch(self, cls: type) -> Callable[[Any], EventFacts]:
        """The row that reads events of a type."""
        return self._rows.dispatch(cls)

    @property
    def registry(self) -> Mapping[Any, Callable[[Any], EventFacts]]:
        """The rows by type."""
        return self._rows.registry

    def _find(self, kind: type) -> Callable[[Any], EventFacts]:
        token = get_cache_token()
        if token != self._token or len(self._known) >= _REMEMBERED:
            self._known, self._token = {}, token
        known = self._known  # before looking up: what is registered meanwhile begins with an empty one
        row = known[kind] = self._rows.dispatch(kind)
        return row


def _problem(error: Exception) -> str:
    """What went wrong inside a row, without a word of the event: messages of errors quote what they were given."""
    if isinstance(error, AttributeError) and error.name:
        return f"its {type(error.obj).__name__} has no {error.name!r}"
    if isinstance(error, RecursionError) or (isinstance(error, ValueError) and "ircular" in str(error)):
        return "it contains itself, or is nested too deeply"
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f" ({at.tb_frame.f_globals.get('__name__', '?')}, line {at.tb_lineno})" if at is not None else ""
    return f"its row raised {type(error).__name__}{where}"


def _no_row(event: Any) -> EventFacts:
    raise DescribeError(type(event))


describe: Final = _Describe(
    _no_row,
    """Read one event of any registered type.

    Register a type of your own with ``@describe.register``; a subclass is read by its nearest registered base.

    Raises:
        DescribeError: No row covers the event's type, or the event is not a message of the form its row reads.
    """,
)
