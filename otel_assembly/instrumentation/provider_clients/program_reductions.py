"""Reductions that a program reports itself, with `record_reduction`, between its trimming and its model call.

A report is stored in the context of the task or thread that made it, until a model call has the reduced messages. The
program may report other objects than the model call has: copies, or messages in another format. So messages are found
by identity, and then by the keys of their content.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.arguments import of_type
from otel_assembly.decision import DecisionReason
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.instrumented import enabled_instrumentation
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS
from otel_assembly.instrumentation.provider_clients.conversations import current_conversation
from otel_assembly.instrumentation.provider_clients.fingerprints import facts_of, message_keys
from otel_assembly.instrumentation.provider_clients.requests import plain
from otel_assembly.messages.content_snapshot import equal
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The most reductions that wait in one context; the oldest ones are dropped first.
_MOST_WAITING: Final = 16
#: A reduction is dropped after this many calls that lack its messages: to compare them takes time at each call.
_MOST_MISSED: Final = 8


@dataclass(eq=False, slots=True)
class ProgramReduction:
    """A reported reduction that waits for its model call.

    Attributes:
        report: The reduction; None after a model call has taken it. Contexts that were copied from the one in which it
            was reported share this object, so that only one call takes the report.
        conversation_id: The conversation that was current; None: a call of any conversation takes the report.
        missed: The number of model calls that did not have the reduced messages.
    """

    report: StepReport | None
    conversation_id: str | None
    missed: int = 0


#: The reductions that the program reported in this context, oldest first; also those that a call has recorded.
PROGRAM_REDUCTIONS: Final[ContextVar[tuple[ProgramReduction, ...]]] = ContextVar(
    "otel_assembly_program_reductions", default=()
)


def record_reduction(
    before: Iterable[Any],
    after: Iterable[Any],
    policy: str,
    *,
    reason: DecisionReason | str = DecisionReason.POLICY,
) -> None:
    """Record that the program itself removed messages from those that its next model call sends.

    Call this function after the program has trimmed its messages, and before it calls an instrumented client or
    framework. The assembly of the model call then has a step with this policy and reason. Messages that the call lacks
    for another reason remain in the step ``caller`` (``framework`` if a framework is instrumented).

    The next model call of this task or thread that has at least half of the messages in `after` takes the report. If
    `after` is empty, the next call takes it, whatever messages it has. If `conversation` names a conversation, calls
    of other named conversations do not take the report, but a call without a name can. Several reductions before one
    call are steps in their order. At most 16 reports wait. A report is dropped after eight calls that lack these
    messages. Nothing is stored if no telemetry provider is configured.

    Args:
        before: The messages before the reduction. If the program changes its list in place, pass a copy from before.
        after: The messages after it; empty if all were removed. Messages that are equal to those in `before` count as
            kept, also if they are copies. A new message in the place of removed ones is their summary: they are
            recorded as compacted.
        policy: The name of the step, such as ``my_trim``. Use few names: they are values of metric attributes.
        reason: Why messages were removed, a `DecisionReason` or its value, such as ``outside_window``.

    Raises:
        ConfigurationError: `before` or `after` is not a list of messages, both are the same list, `policy` is not a
            name, or `reason` is unknown.

    Example:
        >>> messages = [{"role": "user", "content": text} for text in ("Hello", "Where is my bag?")]
        >>> trimmed = messages[-1:]
        >>> record_reduction(messages, trimmed, "newest_message", reason="outside_window")
    """
    for role, messages in (("before", before), ("after", after)):
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            raise ConfigurationError(f"{role} must be a list of messages, got a {type(messages).__name__}")
    if before is after:
        raise ConfigurationError("before and after are the same list; copy the list before you trim it: list(messages)")
    of_type("policy", policy, str, "give the name of the step")
    if not policy:
        raise ConfigurationError("policy is empty; give the name of the step")
    try:
        known_reason = DecisionReason(reason)
    except ValueError:
        known = ", ".join(DecisionReason)
        raise ConfigurationError(f"reason must be one of {known}; got a {type(reason).__name__}") from None
    instrumentation = enabled_instrumentation()
    if instrumentation is None:
        return
    with instrumentation.suppress_errors():
        defer_reduction(StepReport(policy, tuple(before), tuple(after), reason=known_reason))


def defer_reduction(report: StepReport) -> None:
    """Store a reduction until the next model call of this task or thread that has its messages."""
    reduction = ProgramReduction(report, current_conversation().id)
    waiting = [earlier for earlier in PROGRAM_REDUCTIONS.get() if earlier.report is not None]
    PROGRAM_REDUCTIONS.set((*waiting, reduction)[-_MOST_WAITING:])


def take_program_reductions(
    messages: Sequence[Any],
    conversation_id: str | None,
    *,
    call_input: Sequence[Any] | None = None,
    read: Callable[[Sequence[Any]], Sequence[Any]] = list,
) -> tuple[list[Any], list[StepReport]]:
    """Take the reports that belong to a model call. Return the call's input before them, and the reports, oldest first.

    One call takes a report: calls after it do not find the report again. If no call with the reduced messages follows,
    the report is dropped after eight other calls, after 16 newer reports, or with the context of its task or thread.
    The returned reports are about all messages of the call: `call_input` may have messages that the call lacks,
    although no reduction removed them.

    Args:
        messages: The messages of the model call.
        conversation_id: The conversation of the call; None if it has no name, which fits reports of any conversation.
        call_input: The input of the call without the reports, such as the messages of its parent. Messages that it
            shares with `messages` are the same objects. None if it is `messages`.
        read: Converts the messages of a report to the form of the call.
    """
    call_input = messages if call_input is None else call_input
    current = [*messages]  # the call's messages before the reductions that the loop has undone
    undone: list[_UndoneReduction] = []
    for reduction in reversed(PROGRAM_REDUCTIONS.get()):
        report = reduction.report
        is_of_conversation = conversation_id in (None, reduction.conversation_id) or reduction.conversation_id is None
        if report is None or not is_of_conversation:
            continue
        before, after = read(report.before), read(report.after or ())
        sent = _find_each(after, current)
        if 2 * sum(message is not None for message in sent) < len(after):
            reduction.missed += 1  # a call of other messages, such as a moderation check
            if reduction.missed == _MOST_MISSED:
                reduction.report = None
            continue
        reduction.report = None
        undone_reduction = _undo(report, before, after, sent, current, call_input)
        if undone_reduction is not None:
            undone.append(undone_reduction)
            current = undone_reduction.before
    if not undone:
        return [*call_input], []
    summaries = [message for reduction in undone for message in reduction.added]
    # Messages that the program edited or added without a report are not part of the input, nor of the steps.
    unreported = _without(_without(messages, call_input), summaries)
    whole = before_step = _merged(_without(call_input, summaries), _without(current, unreported))
    reports = []
    for reduction in reversed(undone):
        after_step = _merged(_without(before_step, reduction.removed), _without(reduction.after, unreported))
        reports.append(replace(reduction.report, before=before_step, after=after_step))
        before_step = after_step
    return whole, reports


class _UndoneReduction(NamedTuple):
    """A reduction whose effect on the messages of a model call is undone.

    Attributes:
        report: The report, with verdicts on the call's objects.
        before: The call's messages before the reduction.
        after: The call's messages after it.
        removed: The messages that it removed.
        added: The messages that it added, such as a summary.
    """

    report: StepReport
    before: list[Any]
    after: list[Any]
    removed: list[Any]
    added: list[Any]


def _undo(
    report: StepReport,
    before: Sequence[Any],
    after: Sequence[Any],
    sent: Sequence[Any],
    current: list[Any],
    call_input: Sequence[Any],
) -> _UndoneReduction | None:
    """Undo a reduction from `before` to `after`; None if the program did not use the result of the reduction.

    `current` are the call's messages after the reduction. `sent` has for each message of `after` the call's object, or
    None if the call lacks it.
    """
    kept = _find_each(before, after)  # for each message of `before`, the object in `after`; None if it was removed
    missing_places = [place for place, found in enumerate(kept) if found is None]
    missing = [before[place] for place in missing_places]
    in_call = _find_each(missing, _without(current, sent))
    if missing and None not in in_call:  # the call has all messages that the reduction removed
        return None
    in_input = _find_each(missing, _without(call_input, current))
    sent_of = dict(zip(map(id, after), sent, strict=True))
    # The messages of `before`, as objects of the call or its input if these have them.
    original = [None if found is None else sent_of[id(found)] for found in kept]
    removed = []
    for place, call_object, input_object in zip(missing_places, in_call, in_input, strict=True):
        original[place] = call_object or input_object or before[place]
        if call_object is None:
            removed.append(original[place])
    added = _without(sent, [sent_of[id(message)] for message in kept if message is not None])
    pairs = (*zip(before, original, strict=True), *zip(after, sent, strict=True))
    objects = {id(reported): message for reported, message in pairs if message is not None}
    verdicts = [
        replace(
            verdict,
            events=[objects.get(id(event), event) for event in verdict.events],
            into=objects.get(id(verdict.into), verdict.into),
        )
        for verdict in report.verdicts
    ]
    list_before = _merged([message for message in original if message is not None], _without(current, added))
    return _UndoneReduction(replace(report, verdicts=verdicts), list_before, current, removed, added)


def _find_each(messages: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return for each message its object in `known`; None without one. Of equal objects, the last is found first."""
    if equal(list(known), list(messages)):
        return list(known)
    known_ids = set(map(id, known))
    found = [message if id(message) in known_ids else None for message in messages]
    if None not in found:
        return found
    taken = set(map(id, found))
    by_key = defaultdict(list)
    for message in known:
        if id(message) not in taken:
            by_key[_key(message)].append(message)
    for position in range(len(messages) - 1, -1, -1):
        if found[position] is None and (same_key := by_key.get(_key(messages[position]))):
            found[position] = same_key.pop()
    return found


def _without(messages: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return the messages that are not among the objects of another list."""
    other_ids = set(map(id, others))
    return [message for message in messages if id(message) not in other_ids]


def _key(message: Any) -> int:
    """Return a key that is equal for messages that a model reads as equal, in any format."""
    return message_keys(message if facts_of(message) is not None else plain(message)).fingerprint


def _merged(earlier: Sequence[Any], now: Sequence[Any]) -> list[Any]:
    """Return `now` with the messages of `earlier` that it lacks, each in front of the next one that both lists have."""
    place_of = dict(zip(map(id, now), range(len(now)), strict=True))
    merged: list[Any] = []
    start = 0  # `now[:start]` is merged
    for message in earlier:
        place = place_of.get(id(message))
        if place is None:
            merged.append(message)
        elif place >= start:
            merged += now[start : place + 1]
            start = place + 1
    return [*merged, *now[start:]]


DEFERRED_REDUCTIONS.take_reported = take_program_reductions
