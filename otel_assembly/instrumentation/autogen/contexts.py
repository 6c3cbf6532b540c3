"""What AutoGen's model contexts do to a conversation, read from what went in and what came out.

The four that AutoGen brings leave one contiguous range out, and strip at most one message at each edge of it: that is
read by arithmetic, whatever the conversation has grown to. Nothing here imports AutoGen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.observe.assembler import ObservedStep

_SKIPPED: Final = re.compile(r"Skipped (\d+) messages\.")


def reported_skips(message: Any) -> int | None:
    """How many messages a placeholder says were skipped; None for any other message."""
    content = getattr(message, "content", None)
    if not isinstance(content, str) or getattr(message, "source", None) != "System":
        return None
    said = _SKIPPED.fullmatch(content)
    return int(said[1]) if said is not None else None


@dataclass(slots=True)
class Reading:
    """What is known of one run of a reducer, beside its input and its output."""

    reason: DecisionReason = DecisionReason.POLICY
    verdicts: list[Verdict] = field(default_factory=list)
    budget: int | None = None
    reported: int | None = None
    overflowed: bool = False

    def tell(self, step: ObservedStep, inputs: Sequence[Any], result: Sequence[Any]) -> None:
        """Say it of a step."""
        if self.overflowed and self.budget is not None:
            needed = sum(map(step.count, describe(inputs[-1]).texts))
            # The framework's own count was above the limit, whatever ours is.
            step.overflow(budget=self.budget, needed=max(needed, self.budget + 1), cause=OverflowCause.NEWEST_ATOM)
        step.out(result, reason=self.reason, verdicts=self.verdicts, budget=self.budget, reported=self.reported)


@dataclass(frozen=True, slots=True)
class Reducer:
    """One class's ``get_messages``.

    Attributes:
        policy: Its name on spans.
        settings: The settings that are told, by the attribute that holds each.
        read: How its output is read, from the context, its input and its output; None for a class that is not known.
    """

    policy: str
    settings: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[Any, Sequence[Any], Sequence[Any]], Reading] | None = None

    def config(self, context: Any) -> Mapping[str, Any]:
        """The settings of one context."""
        return {name: getattr(context, attribute, None) for name, attribute in self.settings.items()}


@dataclass(slots=True)
class Inner:
    """One run of a context's reducer."""

    context: Any
    reducer: Reducer
    inputs: Sequence[Any]
    result: Sequence[Any]

    def reading(self, within: Sequence[Inner] = ()) -> Reading:
        """How it is read, where these ran inside it on the same context: the first of them is the innermost base's."""
        if self.reducer.read is not None:
            return self.reducer.read(self.context, self.inputs, self.result)
        base = next((one for one in within if one is not self), None)
        if base is not None and len(base.result) != len(self.inputs):
            return combined(base.reading(), base.result, self.result)
        return Reading()


@dataclass(slots=True)
class Within:
    """What ran inside the time of the outermost reducer, or of a memory: no assemblies of their own."""

    inner: list[Inner] = field(default_factory=list)

    def of(self, context: Any) -> list[Inner]:
        """What ran on a context, the innermost first."""
        return [one for one in self.inner if one.context is context]

    def other_than(self, context: Any) -> Inner | None:
        """The whole of what ran on the one other context that was asked; None where none was, or several were."""
        others = [one for one in self.inner if one.context is not context]
        return others[-1] if others and all(one.context is others[-1].context for one in others) else None


def stored_messages(context: Any) -> list[Any] | None:
    """What AutoGen's base class holds; None for a class that holds its messages elsewhere."""
    stored = getattr(context, "_messages", None)
    return stored if isinstance(stored, list) else None


def is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists hold the very same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def reducer_of(owner: type) -> Reducer:
    """The reducer that a class defines: one of AutoGen's own, or a custom one, told by the class's name."""
    known = _KNOWN.get(owner.__name__) if owner.__module__.startswith("autogen_core.") else None
    return known or Reducer(owner.__name__, _settings_of(owner))


def _settings_of(owner: type) -> Mapping[str, str]:
    """A custom class has the settings of the one that it extends."""
    return next((_KNOWN[base.__name__].settings for base in owner.__mro__ if base.__name__ in _KNOWN), {})


def combined(reading: Reading, within: Sequence[Any], result: Sequence[Any]) -> Reading:
    """What a class's reducer did that calls its base's: what left there left for the base's reasons.

    Args:
        reading: How the base's run is read.
        within: The base's output.
        result: The whole output.
    """
    kept = set(map(id, result))
    gone = [event for event in within if id(event) not in kept]
    verdicts = [*reading.verdicts]
    if gone:
        verdicts.append(Verdict(gone, DecisionOutcome.DROPPED, DecisionReason.POLICY))
    overflowed = reading.overflowed and not result
    return Reading(reading.reason, verdicts, reading.budget, reading.reported, overflowed)


def _orphan(event: Any, reason: DecisionReason) -> Verdict:
    return Verdict([event], DecisionOutcome.DROPPED, reason)


def _unbounded(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Reading:
    return Reading()


def _buffered(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Reading:
    reading = Reading(DecisionReason.OUTSIDE_WINDOW)
    start = max(0, len(inputs) - _positive(context, "_buffer_size"))
    if len(result) < len(inputs) - start:
        reading.verdicts.append(_orphan(inputs[start], DecisionReason.ORPHANED_TOOL_RESULT))
    return reading


def _head_and_tail(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Reading:
    reading = Reading(DecisionReason.OUTSIDE_WINDOW)
    head, tail = _positive(context, "_head_size"), _positive(context, "_tail_size")
    if len(inputs) <= head + tail:
        return reading
    if result[head - 1] is not inputs[head - 1]:
        head -= 1
        reading.verdicts.append(_orphan(inputs[head], DecisionReason.ORPHANED_TOOL_CALL))
    if len(result) < head + 1 + tail:
        reading.verdicts.append(_orphan(inputs[-tail], DecisionReason.ORPHANED_TOOL_RESULT))
    # What stands in their place says how many they were, and nothing of what they said: they are dropped.
    reading.reported = reported_skips(result[head])
    return reading


def _token_limited(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Reading:
    """It pops the middle, so that the oldest message is the last to go; then one result is stripped if it leads."""
    limit = getattr(context, "_token_limit", None)
    reading = Reading(DecisionReason.OVER_BUDGET, budget=limit)
    if not inputs or (result and result[0] is inputs[0]):
        return reading
    if result or (len(inputs) == 1 and describe(inputs[0]).closes):
        reading.verdicts.append(_orphan(inputs[0], DecisionReason.ORPHANED_TOOL_RESULT))
        return reading
    reading.overflowed = True
    if limit is None:
        # Only what the model's client has left is known to it, and only it knows how much that is of nothing at all.
        client, tools = getattr(context, "_model_client", None), getattr(context, "_tool_schema", [])
        reading.budget = max(0, int(client.remaining_tokens([], tools=tools))) if client is not None else None
    return reading


def _positive(context: Any, attribute: str) -> int:
    value = getattr(context, attribute)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{type(context).__name__}.{attribute} is no positive number")
    return value


_KNOWN: Final[Mapping[str, Reducer]] = {
    "UnboundedChatCompletionContext": Reducer("unbounded", {}, _unbounded),
    "BufferedChatCompletionContext": Reducer("buffered", {"buffer_size": "_buffer_size"}, _buffered),
    "HeadAndTailChatCompletionContext": Reducer(
        "head_and_tail", {"head_size": "_head_size", "tail_size": "_tail_size"}, _head_and_tail
    ),
    "TokenLimitedChatCompletionContext": Reducer("token_limited", {"token_limit": "_token_limit"}, _token_limited),
}
