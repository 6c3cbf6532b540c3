"""The data that a transcript format returns: conversations, the model calls in them, and their reductions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.json_values import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Arrivals", "Conversation", "LoggedCall", "LoggedReduction", "arrived_messages"]


@dataclass(frozen=True, slots=True)
class LoggedReduction:
    """A reduction of the messages between two model calls, such as a compaction, that a log records.

    Attributes:
        policy: The reducer's name, of low cardinality, such as ``compact``.
        before: The messages before the reduction, without leading system messages.
        created: The messages that the reduction created: a summary, or shorter versions of tool results.
        is_summary: True if the created messages replace all messages that the reduction removed.
        settings: Numbers that the log records about the reduction, such as the tokens before and after it.
        call_id: The id of the summarizer's own model call, if the log records it; else empty. Logs do not contain the
            prompt of this call.
    """

    policy: str
    before: Sequence[dict[str, Any]]
    created: Sequence[dict[str, Any]] = ()
    is_summary: bool = True
    settings: Mapping[str, int | float] = field(default_factory=dict)
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One model call of a log, with the messages that the model received.

    Attributes:
        id: The call's id in the log, such as the id of the response.
        messages: The messages in order. A message that several calls received is the same object in each of them.
        reduction: The reduction directly before this call; None if there was none.
        edits: The provider's edits of the request: the numbers of each edit by its type.
    """

    id: str
    messages: Sequence[dict[str, Any]]
    reduction: LoggedReduction | None = None
    edits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Conversation:
    """One conversation of a transcript file.

    Attributes:
        id: The conversation's id in the file; None if the file contains none.
        messages: The messages in order, in a form that `otel_assembly.messages` reads.
        agent: The agent's name, if the file contains conversations of several agents; else empty.
        tools: The tool schemas, unchanged.
        prompts: System prompts that are not among the messages.
        calls: The model calls, if the file states what each of them received. None: each response of the model is a
            call, which received all messages before it.
        is_request: True if the messages are those of a request, which the model received even without a response.
        unknown: The names of the parts of a prompt that the file does not contain, such as ``system prompt``.
        skipped: The number of records or messages that the format does not know or cannot read, by description.
    """

    id: str | None
    messages: list[dict[str, Any]]
    agent: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    calls: Sequence[LoggedCall] | None = None
    is_request: bool = False
    unknown: tuple[str, ...] = ()
    skipped: Counter[str] = field(default_factory=Counter)


class Arrivals:
    """The messages of a log's calls, each once, in the order of its first call, without those that reductions created.

    The messages that a call shares with the call before it are skipped: without this, a log of 1,000 calls takes
    500,000 steps.
    """

    def __init__(self) -> None:
        self._arrived: dict[int, dict[str, Any]] = {}
        self._created: set[int] = set()
        self._newest: Sequence[dict[str, Any]] = ()

    def add(self, call: LoggedCall) -> None:
        """Add the messages of the next call."""
        if call.reduction is not None:
            self._created.update(map(id, call.reduction.created))
            self._add(call.reduction.before)
        self._add(call.messages)

    def _add(self, messages: Sequence[dict[str, Any]]) -> None:
        shared = len(self._newest) if all(map(is_, self._newest, messages)) else 0
        for message in messages[shared:]:
            if id(message) not in self._created:
                self._arrived.setdefault(id(message), message)
        self._newest = messages

    def messages(self, pending: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return the messages, then those of the next request, which the log does not contain yet.

        Raises:
            MalformedError: There are no messages.
        """
        known = self._arrived.keys() | self._created
        arrived = {id(message): message for message in pending if id(message) not in known}
        if not self._arrived and not arrived:
            raise MalformedError("a log without messages, expected at least one")
        return [*self._arrived.values(), *arrived.values()]


def arrived_messages(calls: Iterable[LoggedCall], pending: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return the messages of a whole log, as `Arrivals.messages` does.

    Args:
        calls: The calls.
        pending: The messages of the next request, which the log does not contain yet.

    Raises:
        MalformedError: There are no messages.
    """
    arrivals = Arrivals()
    for call in calls:
        arrivals.add(call)
    return arrivals.messages(pending)
