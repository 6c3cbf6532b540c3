"""Checks that each tool call has its result, independently of the code that policies use; for reports and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.messages.event_facts import EventFacts


def broken_pairs(facts: Sequence[EventFacts]) -> list[int]:
    """Return the positions of tool results without a call, calls without a result, and reasoning without an answer.

    A call that may still get its result, because no later response of the model exists or because it awaits an
    approval, is not included.

    Args:
        facts: The facts of a prompt's events, in order. A result must follow its call.
    """
    open_calls: dict[str, list[int]] = {}
    awaiting: dict[int, list[str]] = {}
    answered: set[str] = set()
    broken: list[int] = []
    last_response = max((at for at in range(len(facts)) if _ends_wait_for_results(facts, at)), default=-1)
    for position, event in enumerate(facts):
        if event.opens:
            if event.restates and all(open_calls.get(call) for call in event.opens):
                for call in event.awaiting:
                    waits = awaiting.setdefault(open_calls[call][-1], [])
                    waits += [call] if call not in waits else []
                continue
            awaiting[position] = [call for call in event.awaiting if call in event.opens]
            for call in event.opens:
                open_calls.setdefault(call, []).append(position)
        elif event.closes or event.kind == EventKind.TOOL_RESULT:
            remaining = {call: list(open_calls.get(call, ())) for call in event.closes}
            # Each answered call, with the position of the event that requested it; -1 if there is none.
            pairs = [(call, remaining[call].pop() if remaining[call] else -1) for call in event.closes]
            if not pairs or any(request < 0 and not (event.restates and call in answered) for call, request in pairs):
                broken.append(position)
                continue
            open_calls.update(remaining)
            for call, request in pairs:
                answered.add(call)
                while request >= 0 and awaiting[request].count(call) > open_calls[call].count(request):
                    awaiting[request].remove(call)
    for positions in open_calls.values():
        broken += (at for at in positions if at < last_response and not awaiting[at])
    broken += (at for at, event in enumerate(facts) if event.is_reasoning and not _is_followed(facts, at))
    return sorted(set(broken))


def _is_output(facts: EventFacts) -> bool:
    return facts.kind in (EventKind.RESPONSE, EventKind.TOOL_CALL)


def _sent(facts: Sequence[EventFacts]) -> Iterator[EventFacts]:
    return (event for event in facts if event.kind not in (EventKind.ALERT, EventKind.OTHER))


def _ends_wait_for_results(facts: Sequence[EventFacts], at: int) -> bool:
    """Return True if the event at a position is a new response of the model.

    Earlier calls without a result then never get one. Reasoning in the middle of a response is not a new response.
    """
    event = facts[at]
    if event.kind != EventKind.RESPONSE or not event.is_reasoning:
        return event.kind == EventKind.RESPONSE
    before = next(_sent(facts[:at][::-1]), None)
    return before is None or not _is_output(before)


def _is_followed(facts: Sequence[EventFacts], at: int) -> bool:
    """Return True if output of the model follows the reasoning at a position, or no event follows it."""
    following = next((event for event in _sent(facts[at + 1 :]) if not event.is_reasoning), None)
    return following is None or _is_output(following)
