"""The one rule for the message that a prompt starts with, and what of a conversation no cut drops."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from otel_assembly.history.tool_pairs import ANSWERS, ORPHAN, PAIRED, RESPONSE
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_assembly.history.view import View

#: What is no part of the conversation.
NON_CONVERSATION: Final = frozenset({EventKind.ALERT, EventKind.OTHER})
#: What does not count as the first message: it is not sent, or it is sent as part of the system prompt.
_NEUTRAL: Final = NON_CONVERSATION | {EventKind.SYSTEM}


def leading(view: View) -> int:
    """How many items lead the view up to its last leading system message: they are prompts, and no reducer takes one.

    Alerts and lifecycle notes in front of one count with it.
    """
    if not view.history.leading:
        return 0
    count, most = 0, min(view.history.leading, len(view))
    while count < most and view.position(count) < view.history.leading:
        count += 1
    return count


def newest_response(view: View) -> int:
    """The position of the view's newest response; −1 where it has none."""
    pairing = view.history.pairing
    newest = pairing.last_response
    if newest < 0 or view.holds(newest):
        return newest
    return next((position for position in view.backward() if pairing.flags[position] & RESPONSE), -1)


def newest_atom(view: View, response: int) -> list[int]:
    """The positions of the view's newest atom, newest first.

    Alerts and lifecycle notes are no part of any, and what cannot be sent (see `Pairing.is_sendable`) is passed over.
    """
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


def newest_request(view: View) -> list[int]:
    """The positions of the view's newest user request: its own, and where it also answers tools, all of that atom."""
    history = view.history
    request = history.newest_request(view)
    if request < 0 or not history.flags(request) & ANSWERS:
        return [request] if request >= 0 else []
    return [position for position in history.pairing.members(history.atom(request)) if view.holds(position)]


def before_user(kept: View, fixed: Collection[int] = ()) -> set[int]:
    """Return the positions of what is kept in front of the first user's request or summary; the one rule for all cuts.

    Leading system messages stay, and so do events that are not sent, calls that await an approval, and the newest
    request with what it answers. If there is no request or summary at all, nothing is dropped: an empty prompt would be
    refused too, and some clients add a user's message themselves.

    Args:
        kept: What a cut keeps.
        fixed: Positions of what stays in any case.
    """
    history, lost = kept.history, set[int]()
    for position in islice(kept.positions(), leading(kept), None):
        if opens(kept, position):
            break
        if history.kind(position) not in _NEUTRAL:
            lost.add(position)
    else:
        return set()
    if not lost:
        return lost
    response = newest_response(kept)
    held = {*fixed, *history.pairing.pending_calls(response), *newest_request(kept), *newest_atom(kept, response)}
    for atom in {history.atom(position) for position in lost}:
        members = [position for position in history.pairing.members(atom) if kept.holds(position)]
        if not held.isdisjoint(members):
            lost.difference_update(members)
        else:
            lost.update(members)
    return lost


def opens(view: View, position: int) -> bool:
    """Whether a prompt may start with an event: one of the user's that answers no tool, or a summary."""
    history = view.history
    kind = history.kind(position)
    if kind is EventKind.REQUEST:
        return not history.flags(position) & (ANSWERS | ORPHAN)
    return kind is EventKind.SUMMARY
