"""An independent check that each tool call has its result, for reports and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.messages.event_facts import EventFacts


def broken_pairs(facts: Sequence[EventFacts]) -> list[int]:
    """Return the positions of tool results without a call, and of calls without a result.

    The events are those of a request, in order. A result must come after its call, so positions are compared and not
    sets of ids.
    """
    open_calls: dict[str, list[int]] = {}
    awaiting: dict[int, list[str]] = {}
    answered: set[str] = set()
    broken: list[int] = []
    last_response = max((i for i, one in enumerate(facts) if _gives_up(facts, i)), default=-1)
    for position, one in enumerate(facts):
        if one.opens:
            if one.restates and all(open_calls.get(call) for call in one.opens):
                for call in one.awaiting:
                    waits = awaiting.setdefault(open_calls[call][-1], [])
                    waits += [call] if call not in waits else []
                continue
            awaiting[position] = [call for call in one.awaiting if call in one.opens]
            for call in one.opens:
                open_calls.setdefault(call, []).append(position)
        elif one.closes or one.kind == EventKind.TOOL_RESULT:
            waiting = {call: list(open_calls.get(call, ())) for call in one.closes}
            taken = [(call, waiting[call].pop() if waiting[call] else -1) for call in one.closes]
            if not taken or any(ask < 0 and not (one.restates and call in answered) for call, ask in taken):
                broken.append(position)
                continue
            open_calls.update(waiting)
            for call, ask in taken:
                answered.add(call)
                while ask >= 0 and awaiting[ask].count(call) > open_calls[call].count(ask):
                    awaiting[ask].remove(call)
    for positions in open_calls.values():
        broken += (ask for ask in positions if ask < last_response and not awaiting[ask])
    broken += (at for at, one in enumerate(facts) if one.is_reasoning and not _is_followed(facts, at))
    return sorted(set(broken))


def _is_output(facts: EventFacts) -> bool:
    return facts.kind in (EventKind.RESPONSE, EventKind.TOOL_CALL)


def _sent(facts: Sequence[EventFacts]) -> Iterator[EventFacts]:
    return (one for one in facts if one.kind not in (EventKind.ALERT, EventKind.OTHER))


def _gives_up(facts: Sequence[EventFacts], at: int) -> bool:
    """Return True if earlier calls without a result count as unanswered from this item on.

    Reasoning within an answer does not end the wait for results.
    """
    one = facts[at]
    if one.kind != EventKind.RESPONSE or not one.is_reasoning:
        return one.kind == EventKind.RESPONSE
    before = next(_sent(facts[:at][::-1]), None)
    return before is None or not _is_output(before)


def _is_followed(facts: Sequence[EventFacts], at: int) -> bool:
    """Return True if the model's output follows its reasoning, or if the reasoning is the newest item."""
    behind = next((one for one in _sent(facts[at + 1 :]) if not one.is_reasoning), None)
    return behind is None or _is_output(behind)
