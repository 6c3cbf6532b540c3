"""The rule for the first message of a prompt, and the items that no reduction drops."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_assembly.history.tool_pairs import CLOSES, ORPHAN, PAIRED, newest_response
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from otel_assembly.history.view import View

#: The kinds of events that are not part of the conversation.
NON_CONVERSATION: Final = frozenset({EventKind.ALERT, EventKind.OTHER})
#: The kinds that do not count as the first message, because they are not sent or become part of the system prompt.
_NEUTRAL: Final = NON_CONVERSATION | {EventKind.SYSTEM}


def leading(view: View) -> int:
    """Return the number of items at the view's beginning up to its last leading system message.

    These items are prompts, so no reducer drops them. Alerts and lifecycle events before such a message are included.
    """
    first = view.history.leading
    return len(list(takewhile(first.__gt__, view.positions()))) if first else 0


class Essential(NamedTuple):
    """The positions of a view's events that no reduction drops, besides the leading system messages.

    Attributes:
        request: The newest user request; if it also has tool results, all items of its atom. Empty if there is none.
        pending: The calls that await an approval, with the other items of their atoms.
        newest: The newest atom that may be sent, newest first.
        response: The newest response; −1 if there is none.
    """

    request: list[int]
    pending: list[int]
    newest: list[int]
    response: int

    @property
    def events(self) -> list[int]:
        """The positions of all these events."""
        return [*self.request, *self.pending, *self.newest]


def essential_events(view: View) -> Essential:
    """Return the positions of a view's events that no reduction drops."""
    response = newest_response(view)
    pending = list(filter(view.holds, view.history.pairing.pending_calls(response)))
    return Essential(_newest_request(view), pending, _newest_atom(view, response), response)


def _newest_request(view: View) -> list[int]:
    pairing, requests = view.history.pairing, view.history.requests.positions
    for index in range(bisect_left(requests, view.end) - 1, -1, -1):
        request = requests[index]
        if view.index_of(request) >= 0:
            is_answer = pairing.flags[request] & CLOSES
            return list(filter(view.holds, pairing.members(pairing.atoms[request]))) if is_answer else [request]
        if request < view.position(0):
            break
    return []


def _newest_atom(view: View, response: int) -> list[int]:
    history = view.history
    pairing, last = history.pairing, view.end - 1
    if last >= 0 and not pairing.flags[last] & PAIRED and history.kind(last) not in NON_CONVERSATION:
        return [last]
    members: list[int] = []
    atom = -1
    for position in view.backward():
        if atom < 0:
            if history.kind(position) in NON_CONVERSATION or not pairing.is_sendable(position, response):
                continue
            atom = pairing.atoms[position]
        if pairing.atoms[position] == atom:
            members.append(position)
        if position <= atom:
            break
    return members


def opening_request(view: View, always_kept: Iterable[int]) -> list[int]:
    """Return the position of an older user request that must be kept too, as a list of at most one.

    A tool call that awaits an approval can be older than the newest request. A provider that requires a user's request
    as the first message then needs the last request before that call.

    Args:
        view: The events.
        always_kept: Positions of the events that a policy keeps regardless of its limit.
    """
    first, requests = min(always_kept, default=-1), view.history.requests.positions
    if first < 0 or may_open_prompt(view, first):
        return []
    older = reversed(requests[: bisect_left(requests, first)])
    return list(islice((at for at in older if view.holds(at) and may_open_prompt(view, at)), 1))


def before_user(kept: View, fixed: Collection[int] = ()) -> set[int]:
    """Return the positions to drop from a reduction's output so that it begins with a user's request or a summary.

    Some providers reject any other first message. The result excludes leading system messages, events that are not
    sent, calls that await an approval, the newest request and the newest atom. It is empty if there is no request or
    summary at all: providers reject an empty prompt as well, and some clients add a user message themselves.

    Args:
        kept: The events that the reduction keeps.
        fixed: Positions that are not dropped in any case.
    """
    history, dropped = kept.history, set[int]()
    for position in islice(kept.positions(), leading(kept), None):
        if may_open_prompt(kept, position):
            break
        if history.kind(position) not in _NEUTRAL:
            dropped.add(position)
    else:
        return set()
    if not dropped:
        return dropped
    protected = {*fixed, *essential_events(kept).events}
    # An atom is dropped as a whole, unless one of its items is protected.
    for atom in set(map(history.pairing.atoms.__getitem__, dropped)):
        members = history.pairing.members(atom)
        if not protected.isdisjoint(members):
            dropped.difference_update(members)
        else:
            dropped.update(filter(kept.holds, members))
    return dropped


def may_open_prompt(view: View, position: int) -> bool:
    """Return True if a prompt may start with an event: a user's request without tool results, or a summary."""
    history = view.history
    kind = history.kind(position)
    if kind is EventKind.REQUEST:
        return not history.pairing.flags[position] & (CLOSES | ORPHAN)
    return kind is EventKind.SUMMARY
