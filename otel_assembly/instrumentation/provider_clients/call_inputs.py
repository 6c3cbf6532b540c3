"""The input of a model call: the messages that its parent sent, the parent's answer, and what is new."""

from __future__ import annotations

from itertools import compress, count
from operator import ne
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.provider_clients.fingerprints import facts_of, message_keys, size_of
from otel_assembly.messages.content_snapshot import comparison_key, copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.instrumentation.provider_clients.recorded_calls import ParentMatch, RecordedCall
    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest

#: The estimated bytes of a new message without its texts.
SIZE_OF_MESSAGE: Final = 400


def input_of(match: ParentMatch, request: ProviderRequest) -> tuple[list[Any], bool]:
    """Return the input of a call, and True if the request differs from it.

    The input is the messages that its parent sent, followed by what is new. Messages that the request lacks are the
    parent's objects, all others the request's. A message that the program put in front of the parent's answer, such as
    a summary, is not part of the input: the program injected it. The request has the messages of the `RecordedCall` for
    it.
    """
    parent, messages = match.parent, request.messages
    if parent is None:
        return [*messages], False
    before = parent.messages
    if match.evidence.is_stored:
        stored = [*before, *parent.answer_messages]
        has_stored = bool(messages) and bool(stored) and messages[0] is stored[0]
        return ([*messages] if has_stored else [*stored, *messages]), False
    first_new = match.answer_index if match.answer_index >= 0 else len(messages)
    if first_new >= len(before) and messages[: len(before)] == before:
        return [*messages], False
    positions = positions_in(parent, messages[:first_new])
    kept = {}  # the messages of the parent that the request has, by their index in `before`
    last_kept = -1  # the index of the last of them in the request
    for index, position in enumerate(positions):
        message = messages[index]
        if position >= 0 and (message is before[position] or _reads_the_same(before[position], message)):
            kept[position], last_kept = message, index
    # Between the parent's messages and its answer are injected messages, but new ones if the request has their end.
    has_end = last_kept >= 0 and positions[last_kept] == len(before) - 1
    if match.answer_index < 0 or has_end:
        first_new = last_kept + 1
    new_messages = messages[first_new:]
    # Messages that the program appends to each request, such as a reminder, are behind the new messages now.
    first_moved = len(before)
    while first_moved and first_moved - 1 not in kept and before[first_moved - 1] in new_messages:
        first_moved -= 1
    complete = [kept.get(position, before[position]) for position in range(first_moved)] + new_messages
    return complete, [*map(id, complete)] != [*map(id, messages)]


def _reads_the_same(before: Any, after: Any) -> bool:
    """Return True if the model reads two messages with equal fingerprints as equal, their reasoning included."""
    if before == after:
        return True
    facts, new_facts = facts_of(before), facts_of(after)
    return facts is not None and new_facts is not None and comparison_key(facts) == comparison_key(new_facts)


def take_messages(call: RecordedCall, messages: Sequence[Any], match: ParentMatch) -> int:
    """Set the messages of a call, and return the size of those that are not shared with its parent."""
    parent = match.parent
    positions: Sequence[int] = [-1] * len(messages)  # of the request's messages among the parent's
    if parent is not None and match.evidence.is_stored:  # the request has the new messages only
        call.share_messages(parent)
        call.messages += parent.answer_messages
        call.fingerprints += [message_keys(message).fingerprint for message in parent.answer_messages]
        call.sizes += map(_size_of, parent.answer_messages)
    elif parent is not None and messages[: len(parent.messages)] == parent.messages:
        call.share_messages(parent)
        messages = messages[len(parent.messages) :]
        positions = [-1] * len(messages)
    elif parent is not None:
        end = match.answer_index if match.answer_index >= 0 else len(messages)
        positions = [*positions_in(parent, messages[:end]), *[-1] * (len(messages) - end)]
    added_size = 0
    for message, position in zip(messages, positions, strict=True):
        if parent is not None and position >= 0 and parent.messages[position] == message:
            call.messages.append(parent.messages[position])
            call.fingerprints.append(parent.fingerprints[position])
            call.sizes.append(parent.sizes[position])
        else:
            call.messages.append(copied(message))
            call.fingerprints.append(message_keys(message).fingerprint)
            call.sizes.append(_size_of(message))
            added_size += call.sizes[-1]
    return added_size


def positions_in(parent: RecordedCall, messages: Sequence[Any]) -> list[int]:
    """Return for each message its index in the parent's messages, or -1.

    Equal messages at the end and at the beginning are found first. Of those between them, messages at the same index
    are compared, and the others by their fingerprints, which are computed only for these.
    """
    before = parent.messages
    shorter = min(len(before), len(messages))
    tail = common_length(reversed(before), reversed(messages), shorter)
    head = min(common_length(before, messages, shorter), shorter - tail)
    end = len(messages) - tail
    positions = [*range(head), *[-1] * (end - head), *range(len(before) - tail, len(before))]
    if head == end:
        return positions
    unmatched: dict[int, list[int]] = {}  # the positions of the parent's other messages, by fingerprint
    for position in range(head, len(before) - tail):
        if position < end and before[position] == messages[position]:
            positions[position] = position
        else:
            unmatched.setdefault(parent.fingerprints[position], []).append(position)
    for index in range(head, end):
        if positions[index] < 0 and (same := unmatched.get(message_keys(messages[index]).fingerprint)):
            positions[index] = same.pop(0)
    return positions


def common_length(left: Iterable[Any], right: Iterable[Any], shorter: int) -> int:
    """Return how many items at the start of two sequences are equal; `shorter` is the length of the shorter one."""
    # The index of the first difference. No Python code runs for each item, because conversations can be long.
    return next(compress(count(), map(ne, left, right)), shorter)


def _size_of(message: Any) -> int:
    return SIZE_OF_MESSAGE + size_of(message)
