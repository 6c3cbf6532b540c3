"""The `Unbounded` policy, and the policies for ``compat=True``, which copy AutoGen's reductions and their bugs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.view import Edited, difference, to_ranges
from otel_assembly.model_context.client_counter import call_counter
from otel_assembly.policies.base import DecidingPolicy, as_view, keep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.history.view import Range, View
    from otel_assembly.model_context.client_counter import ClientCounter
    from otel_assembly.model_context.message_types import MessageTypes


class Unbounded(DecidingPolicy):
    """Keeps all events except tool calls without results, and results without calls."""

    name = "unbounded"

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Drop tool calls without results and results without calls."""
        view = as_view(events)
        kept, verdicts = keep(view, [(0, len(view))], DecisionReason.OUTSIDE_WINDOW)
        return Outcome(prompts, kept, verdicts)


class _AsAutoGen(DecidingPolicy):
    """Base class of policies that reduce messages exactly as AutoGen, which can separate a call from its results."""

    def __init__(self, types: MessageTypes) -> None:
        self._types = types

    def _is_results(self, view: View, index: int) -> bool:
        return index < len(view) and isinstance(view[index], self._types.results)

    def _outcome(
        self,
        prompts: Sequence[str],
        view: View,
        ranges: Sequence[Range],
        reason: DecisionReason,
        single_drops: Mapping[int, DecisionReason],
    ) -> Outcome:
        """Return an outcome that keeps some index ranges of the view and drops all other messages.

        Args:
            prompts: The prompts, unchanged in the outcome.
            view: All messages.
            ranges: The index ranges to keep, as pairs of start and end; empty ranges are ignored.
            reason: Why messages are dropped.
            single_drops: The indexes of messages that are dropped for another reason, with that reason.
        """
        ranges = [(start, stop) for start, stop in ranges if start < stop]
        dropped_ranges = difference([(0, len(view))], ranges)
        if single_drops:
            dropped = {index for start, stop in dropped_ranges for index in range(start, stop)}
            dropped_ranges = to_ranges(sorted(dropped - single_drops.keys()))
        verdicts = [Verdict(view.pick(dropped_ranges), DecisionOutcome.DROPPED, reason)] if dropped_ranges else []
        verdicts += (
            Verdict(view.part(index, index + 1), DecisionOutcome.DROPPED, single_reason)
            for index, single_reason in single_drops.items()
        )
        return Outcome(prompts, view.pick(ranges), verdicts)


class UnboundedAsAutoGen(_AsAutoGen):
    """Keeps all messages, also tool calls without results and results without calls."""

    name = "unbounded"

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return all events."""
        return Outcome(prompts, as_view(events))


class BufferedAsAutoGen(_AsAutoGen):
    """Keeps the last messages. If the first kept message contains tool results, that message is dropped.

    Args:
        buffer_size: The number of messages to keep.
        types: The message classes.
    """

    name = "buffered"

    def __init__(self, buffer_size: int, types: MessageTypes) -> None:
        super().__init__(types)
        self.buffer_size = buffer_size

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the last events."""
        view = as_view(events)
        start = max(0, len(view) - self.buffer_size)
        single_drops = {start: DecisionReason.ORPHANED_TOOL_RESULT} if self._is_results(view, start) else {}
        ranges = [(start + len(single_drops), len(view))]
        return self._outcome(prompts, view, ranges, DecisionReason.OUTSIDE_WINDOW, single_drops)


class HeadAndTailAsAutoGen(_AsAutoGen):
    """Keeps the first and the last messages, with a note between them that states how many were skipped.

    A message with tool calls directly before the note, and a message with tool results directly after the note, are
    dropped too. The note does not count them.

    Args:
        head_size: The number of messages to keep from the beginning.
        tail_size: The number of messages to keep from the end.
        types: The message classes.
    """

    name = "head_and_tail"

    def __init__(self, head_size: int, tail_size: int, types: MessageTypes) -> None:
        super().__init__(types)
        self.head_size = head_size
        self.tail_size = tail_size

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the first and last events with the note."""
        view = as_view(events)
        head, tail = self.head_size, len(view) - self.tail_size
        if tail <= head:
            return Outcome(prompts, view)
        single_drops: dict[int, DecisionReason] = {}
        if self._calls(view[head - 1]):
            single_drops[head - 1] = DecisionReason.ORPHANED_TOOL_CALL
        if self._is_results(view, tail):
            single_drops[tail] = DecisionReason.ORPHANED_TOOL_RESULT
        ranges = [(0, head - (head - 1 in single_drops)), (tail + (tail in single_drops), len(view))]
        outcome = self._outcome(prompts, view, ranges, DecisionReason.OUTSIDE_WINDOW, single_drops)
        return replace(outcome, events=Edited(view.pick(ranges), ranges[0][1], [self._types.note(tail - head)]))

    def _calls(self, message: Any) -> bool:
        types = self._types
        if not isinstance(message, types.assistant) or not isinstance(message.content, list):
            return False
        return all(isinstance(call, types.call) for call in message.content)


class TokenLimitedAsAutoGen(_AsAutoGen):
    """Drops the middle message until the remaining messages fit the token limit.

    The client counts all remaining messages again after each drop, as in AutoGen.

    Args:
        client: The counter that uses the model client.
        token_limit: The most tokens. None: the client's ``remaining_tokens`` must not be negative.
        tool_schema: The tool definitions, which are counted too.
        types: The message classes.
    """

    name = "token_limited"

    def __init__(
        self, client: ClientCounter, token_limit: int | None, tool_schema: Sequence[Any], types: MessageTypes
    ) -> None:
        super().__init__(types)
        self._client = client
        self.token_limit = token_limit
        self._tools = list(tool_schema)

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events that fit the token limit."""
        view = as_view(events)
        messages, indexes = list(map(self._client.as_client_message, view)), list(range(len(view)))
        while messages and self._is_over(messages):
            middle = len(messages) // 2
            del messages[middle], indexes[middle]
        single_drops: dict[int, DecisionReason] = {}
        if indexes and self._is_results(view, indexes[0]):
            single_drops[indexes.pop(0)] = DecisionReason.ORPHANED_TOOL_RESULT
        return self._outcome(prompts, view, to_ranges(indexes), DecisionReason.OVER_BUDGET, single_drops)

    def _is_over(self, messages: Sequence[Any]) -> bool:
        if self.token_limit is None:
            return call_counter(self._client.remaining, messages, self._tools) < 0
        return call_counter(self._client.client.count_tokens, messages, self._tools) > self.token_limit
