"""The rule for the first message of a prompt, and the items that no reduction drops."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from otel_assembly.history.tool_pairs import CLOSES, ORPHAN, PAIRED, RESPONSE
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_assembly.history.view import View

#: The kinds of events that are not part of the conversation.
NON_CONVERSATION: Final = frozenset({EventKind.ALERT, EventKind.OTHER})
#: The kinds that do not count as the first message, because they are not sent or become part of the system prompt.
_NEUTRAL: Final = NON_CONVERSATION | {EventKind.SYSTEM}


def leading(view: View) -> int:
    """Return the number of items at the view's beginning up to its last leading system message.

    These items are prompts, so no reducer drops them. Alerts and lifecycle events before such a message are included.
    """
    if not view.history.leading:
        return 0
    count, most = 0, min(view.history.leading, len(view))
    while count < most and view.position(count) < view.history.leading:
        count += 1
    return count


def newest_response(view: View) -> int:
    """Return the position of the view's newest response; −1 if the view has none."""
    pairing = view.history.pairing
    newest = pairing.last_response
    if newest < 0 or view.index_of(newest) >= 0:
        return newest
    return next((position for position in view.backward() if pairing.flags[position] & RESPONSE), -1)


def newest_atom(view: View, response: int) -> list[int]:
    """Return the positions of the view's newest atom, newest first.

    Alerts, lifecycle events and items that may not be sent (see `Pairing.is_sendable`) are skipped.

    Args:
        view: The view.
        response: The position of the view's newest response; −1 if it has none.
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
    """Return the position of the view's newest user request; empty if the view has none.

    If the request also has tool results, the positions of all items of its atom in the view are returned.
    """
    history = view.history
    request = history.newest_request(view)
    if request < 0 or not history.pairing.flags[request] & CLOSES:
        return [request] if request >= 0 else []
    return [position for position in history.pairing.members(history.atom(request)) if view.holds(position)]


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
    response = newest_response(kept)
    protected = {*fixed, *history.pairing.pending_calls(response), *newest_request(kept), *newest_atom(kept, response)}
    # An atom is dropped as a whole, unless one of its items is protected.
    for atom in {history.atom(position) for position in dropped}:
        members = [position for position in history.pairing.members(atom) if kept.holds(position)]
        if not protected.isdisjoint(members):
            dropped.difference_update(members)
        else:
            dropped.update(members)
    return dropped


def may_open_prompt(view: View, position: int) -> bool:
    """Return True if a prompt may start with an event: a user's request without tool results, or a summary."""
    history = view.history
    kind = history.kind(position)
    if kind is EventKind.REQUEST:
        return not history.flags(position) & (CLOSES | ORPHAN)
    return kind is EventKind.SUMMARY
