"""What a program did to the messages that its next request lacks: it dropped, edited or summarized them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def omission_verdicts(before: Sequence[Any], after: Sequence[Any], summaries: Collection[int]) -> list[Verdict]:
    """Return the verdicts on the messages that a program replaced; what is omitted without a replacement has none.

    A new message stands for the omitted messages between the same two neighbors: for one of them if it is an edit of it
    (the result of the same tool call, or the message at the same place), for all of them if it is a summary. Messages
    that the program kept are the identical objects. `summaries` has the `id` of each new message that quotes an earlier
    answer.
    """
    position_of = {id(message): position for position, message in enumerate(before)}
    sent = set(map(id, after))
    verdicts = []
    start = 0
    runs = [(is_known, list(run)) for is_known, run in groupby(after, lambda message: id(message) in position_of)]
    for index, (is_known, run) in enumerate(runs):
        if is_known:
            start = position_of[id(run[-1])] + 1
            continue
        end = position_of[id(runs[index + 1][1][0])] if index + 1 < len(runs) else len(before)
        omitted = [message for message in before[start:end] if id(message) not in sent]
        verdicts += _replacements(omitted, run, summaries)
    return verdicts


def _replacements(omitted: list[Any], added: list[Any], summaries: Collection[int]) -> list[Verdict]:
    """Return the verdicts on omitted messages that stood where the program added others."""
    verdicts = []
    by_result = {tuple(describe(message).closes): message for message in omitted if describe(message).closes}
    same_count = len(omitted) == len(added)
    for place, message in enumerate(added):
        if id(message) in summaries:
            continue
        facts = describe(message)
        edited = by_result.pop(tuple(facts.closes), None) if facts.closes else None
        if edited is None and same_count and describe(omitted[place]).kind == facts.kind:
            edited = omitted[place]
        if edited is not None:
            verdicts.append(_compacted([edited], message))
    edited_ids = {id(event) for verdict in verdicts for event in verdict.events}
    remaining = [message for message in omitted if id(message) not in edited_ids]
    summary = next((message for message in added if id(message) in summaries), None)
    if summary is not None and remaining:
        verdicts.append(_compacted(remaining, summary))
    return verdicts


def _compacted(messages: list[Any], into: Any) -> Verdict:
    return Verdict(messages, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, into)
