"""`Unbounded`, and policies that reduce messages exactly as AutoGen, including its bugs (``compat=True``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.view import complement, to_runs
from otel_assembly.model_context.client_counter import counted
from otel_assembly.policies.base import DecidingPolicy, as_view, keep
from otel_assembly.policies.head_and_tail import with_event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.history.view import Run, View
    from otel_assembly.model_context.client_counter import ClientCounter
    from otel_assembly.model_context.message_types import MessageTypes


class Unbounded(DecidingPolicy):
    """Keeps all events except tool calls without results, and results without calls."""

    name = "unbounded"

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events without orphans."""
        view = as_view(events)
        kept, verdicts = keep(view, [(0, len(view))], DecisionReason.OUTSIDE_WINDOW)
        return Outcome(prompts, kept, verdicts)


class _AsAutoGen(DecidingPolicy):
    """The base of AutoGen's reductions, which can separate calls from their results."""

    def __init__(self, types: MessageTypes) -> None:
        self._types = types

    def _is_results(self, view: View, index: int) -> bool:
        return index < len(view) and isinstance(view[index], self._types.results)

    def _taken(
        self,
        prompts: Sequence[str],
        view: View,
        runs: Sequence[Run],
        reason: DecisionReason,
        stripped: Mapping[int, DecisionReason],
    ) -> Outcome:
        """Keep runs of indexes. Messages that were stripped at the edges have their own drop reason."""
        runs = [run for run in runs if run[0] < run[1]]
        out = {index for run in complement(len(view), runs) for index in range(*run)} if stripped else set()
        rest = to_runs(sorted(out - stripped.keys())) if stripped else complement(len(view), runs)
        verdicts = [Verdict(view.pick(rest), DecisionOutcome.DROPPED, reason)] if rest else []
        verdicts += (
            Verdict(view.pick([(index, index + 1)]), DecisionOutcome.DROPPED, why) for index, why in stripped.items()
        )
        return Outcome(prompts, view.pick(runs), verdicts)


class UnboundedAsAutoGen(_AsAutoGen):
    """Keeps all messages, including orphans."""

    name = "unbounded"

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return all events."""
        return Outcome(prompts, as_view(events))


class BufferedAsAutoGen(_AsAutoGen):
    """Keeps the last messages. If the first of them contains tool results, it is dropped.

    Args:
        buffer_size: How many.
        types: The types of the messages.
    """

    name = "buffered"

    def __init__(self, buffer_size: int, types: MessageTypes) -> None:
        super().__init__(types)
        self.buffer_size = buffer_size

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the last events."""
        view = as_view(events)
        start = max(0, len(view) - self.buffer_size)
        stripped = {start: DecisionReason.ORPHANED_TOOL_RESULT} if self._is_results(view, start) else {}
        runs = [(start + len(stripped), len(view))]
        return self._taken(prompts, view, runs, DecisionReason.OUTSIDE_WINDOW, stripped)


class HeadAndTailAsAutoGen(_AsAutoGen):
    """Keeps the first and the last messages, and a note with the number of skipped messages.

    Tool calls at the end of the head and results at the start of the tail are dropped. The note does not count them.

    Args:
        head_size: The number of first messages.
        tail_size: The number of last messages.
        types: The types of the messages.
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
        stripped: dict[int, DecisionReason] = {}
        if self._calls(view[head - 1]):
            stripped[head - 1] = DecisionReason.ORPHANED_TOOL_CALL
        if self._is_results(view, tail):
            stripped[tail] = DecisionReason.ORPHANED_TOOL_RESULT
        runs = [(0, head - (head - 1 in stripped)), (tail + (tail in stripped), len(view))]
        outcome = self._taken(prompts, view, runs, DecisionReason.OUTSIDE_WINDOW, stripped)
        return with_event(outcome, view.pick(runs), runs[0][1], self._types.note(tail - head))

    def _calls(self, message: Any) -> bool:
        types = self._types
        if not isinstance(message, types.assistant) or not isinstance(message.content, list):
            return False
        return all(isinstance(call, types.call) for call in message.content)


class TokenLimitedAsAutoGen(_AsAutoGen):
    """Drops messages from the middle until the client's count fits. Each step counts all messages again.

    Args:
        client: The client's counter.
        token_limit: The most tokens. None: the client's ``remaining_tokens`` must not be negative.
        tool_schema: The tool definitions, which are counted too.
        types: The types of the messages.
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
        """Return the remaining events."""
        view = as_view(events)
        messages, places = list(map(self._client.made, view)), list(range(len(view)))
        while messages and self._is_over(messages):
            middle = len(messages) // 2
            del messages[middle], places[middle]
        stripped: dict[int, DecisionReason] = {}
        if places and self._is_results(view, places[0]):
            stripped[places.pop(0)] = DecisionReason.ORPHANED_TOOL_RESULT
        return self._taken(prompts, view, to_runs(places), DecisionReason.OVER_BUDGET, stripped)

    def _is_over(self, messages: Sequence[Any]) -> bool:
        if self.token_limit is None:
            return counted(self._client.remaining, messages, self._tools) < 0
        return counted(self._client.client.count_tokens, messages, self._tools) > self.token_limit
