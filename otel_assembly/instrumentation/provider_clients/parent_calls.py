"""Finds the earlier model call that a model call continues: its parent.

Providers' clients have no conversations: each request is a list of messages. A conversation is a tree of calls, and the
input of a call is what its parent sent, the parent's answer and what is new. The parent is found by evidence in the
request, from the strongest kind to the weakest (`_EVIDENCE`):

1. The request names the parent's answer (``previous_response_id``), or a conversation that the provider stores.
2. The request contains a tool call or a text that the parent answered, where the parent's messages end.
3. The parent failed, and the request consists of the parent's messages: a retry, perhaps shortened.
4. The request contains the parent's last messages, followed by an answer that the program edited.

A call without evidence starts a conversation of its own. Two candidates with equal evidence and equal messages are
interchangeable. If their messages differ, the input is unknown: a wrong parent would report messages as dropped that
the program never had. The same holds for calls with a name of their conversation, which only limits the search.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count, islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.instrumentation.provider_clients.call_inputs import take_messages
from otel_assembly.instrumentation.provider_clients.fingerprints import (
    answer_text,
    facts_of,
    message_keys,
    normalized,
    size_of,
)
from otel_assembly.instrumentation.provider_clients.parent_search import find_parent
from otel_assembly.instrumentation.provider_clients.recorded_calls import CallIndex, CallThread, Evidence, RecordedCall
from otel_assembly.messages.content_snapshot import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.provider_clients.recorded_calls import CallPosition, ParentMatch
    from otel_assembly.instrumentation.provider_clients.requests import ProviderAnswer, ProviderRequest

#: The most calls that are remembered.
_CALLS: Final = 4_000
#: The most characters and bytes that remembered calls use, estimated.
_SIZE: Final = 24_000_000
#: How long a call is remembered, in seconds.
_AGE: Final = 6 * 3_600.0
#: The estimated bytes that a call uses without its texts, and that one message in its lists uses.
_SIZE_OF_CALL: Final = 2_500
_SIZE_OF_ENTRY: Final = 24
#: Summaries are searched in this many of the newest calls, if the summary has at least this many characters.
_QUOTABLE_CALLS: Final = 64
_QUOTABLE_LENGTH: Final = 24


class ParentCalls:
    """The recent model calls of a process, and the search for the parent of a new one. Its methods are thread-safe.

    Memory is bounded: the oldest calls are forgotten if there are too many, if they use too much memory, or after some
    hours. In a forked child, the calls are forgotten if the fork may have interrupted a change.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = new_lock(self, ParentCalls.clear)
        self.clear()

    def clear(self) -> None:
        self._calls: OrderedDict[int, RecordedCall] = OrderedDict()
        self._index = CallIndex()
        self._size = 0
        self._numbers = count(1)
        self._last_prompts: list[str] = []

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def size(self) -> int:
        """The estimated bytes that all calls use."""
        return self._size

    def find(self, request: ProviderRequest, position: CallPosition) -> ParentMatch:
        """Return the earlier call that a request continues. In a named conversation, only its calls are searched."""
        with self._lock:
            return find_parent(self._index, request, position)

    def record(self, request: ProviderRequest, position: CallPosition) -> tuple[ParentMatch, RecordedCall]:
        """Find the parent of a request, and record the call."""
        with self._lock:
            match = self.find(request, position)
            return match, self.add(request, match, position)

    def add(self, request: ProviderRequest, match: ParentMatch, position: CallPosition) -> RecordedCall:
        """Record a call, and return the record.

        Messages that equal the parent's, and prompts that equal those of an earlier call, are shared. Only the others
        count in the call's size, until the parent is forgotten.
        """
        with self._lock:
            parent = match.parent
            call = RecordedCall(request, CallThread() if parent is None else parent.thread, position)
            call.is_incomplete = match.evidence.is_stored and (parent is None or parent.is_incomplete)
            added_size = take_messages(call, request.messages, match)
            call.shared_size = sum(call.sizes) - added_size
            call.size = _SIZE_OF_CALL + _SIZE_OF_ENTRY * len(call.messages) + added_size
            if call.prompts == self._last_prompts:
                call.prompts = self._last_prompts
            elif parent is not None and call.prompts == parent.prompts:
                call.prompts = parent.prompts
            else:
                call.size += sum(map(len, call.prompts))
            self._last_prompts = call.prompts
            call.thread.latest = ref(call)
            call.number, call.time = next(self._numbers), self._clock()
            if parent is not None:
                if parent.number in self._calls:
                    parent.children.append(call)
                else:  # the parent's messages are kept in memory by this call only
                    call.parent_forgotten()
                self._index.add_link(parent, request, position)
            self._calls[call.number] = call
            self._size += call.size
            if call.fingerprints:
                self._index.add(call, ("last", call.fingerprints[-1]))
            self._forget_calls()
        return call

    def record_answer(self, call: RecordedCall, answer: ProviderAnswer) -> None:
        """Record the answer to a call, in place of an earlier one."""
        with self._lock:
            call.has_failed = False
            call.answer_messages = [copied(message) for message in answer.messages]
            choices = [call.answer_messages, *answer.alternatives]
            messages = [message for choice in choices for message in choice]
            call.answer_texts = [text.strip() for text in map(answer_text, messages) if text.strip()]
            answer_size = sum(map(size_of, messages))
            growth, call.answer_size = answer_size - call.answer_size, answer_size
            call.size += growth
            if call.number in self._calls:  # the call is not forgotten
                self._size += growth
                if answer.id:
                    self._index.add(call, (Evidence.RESPONSE_ID, answer.id))
                if call.stored_conversation_id:
                    self._index.add(call, (Evidence.STORED_CONVERSATION, call.stored_conversation_id))
                for choice in choices:
                    self._index.add_answer(call, choice)
            self._forget_calls()

    def record_failure(self, call: RecordedCall) -> None:
        with self._lock:
            call.has_failed = True

    def quoted_calls(self, messages: Sequence[Any], *, besides: RecordedCall | None) -> list[RecordedCall]:
        """Return the recent calls whose answer is contained in one of these messages: the message is a summary.

        The assistant's own messages are ignored: they are edited answers. `besides` is the call that has the messages.
        """
        texts = []
        for message in messages:
            facts = facts_of(message)
            if facts is not None and not message_keys(message).is_from_assistant:
                texts.append(normalized(" ".join(facts.texts)))
        if not texts:
            return []
        with self._lock:
            recent = [*islice(reversed(self._calls.values()), _QUOTABLE_CALLS)]
        return [
            call
            for call in recent
            if call is not besides
            and any(
                len(answer) >= _QUOTABLE_LENGTH and answer in text
                for answer in map(normalized, call.answer_texts)
                for text in texts
            )
        ]

    def _forget_calls(self) -> None:
        """Forget the oldest calls, except the newest call, until all limits are met."""
        oldest_time = self._clock() - _AGE
        while len(self._calls) > 1:
            number, oldest = next(iter(self._calls.items()))
            if len(self._calls) <= _CALLS and self._size <= _SIZE and oldest.time >= oldest_time:
                return
            del self._calls[number]
            self._size -= oldest.size
            for child in oldest.children:  # the messages that they share count in their size now
                self._size += child.parent_forgotten()
            oldest.children = []
            self._index.remove(oldest)
