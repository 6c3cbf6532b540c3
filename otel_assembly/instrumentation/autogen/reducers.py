"""AutoGen's reducers: model contexts and memories, read from what went in and what came out.

The four contexts that AutoGen brings leave one contiguous range out, and strip at most one message at each edge of it:
what stays is looked at, however long the conversation has grown. What a memory's ``update_context`` puts into a
context is a step of the assembly that follows, for no model is called for the memory itself; AutoGen leaves it in the
context, so that from then on it is part of what comes in. Where a memory fails no assembly follows, for the run fails
with it: then it is the last step of one that sends nothing. Nothing here imports AutoGen.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.autogen.conversation import (
    NESTED,
    Injection,
    NestedRuns,
    begin,
    current_call,
    remember,
)
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.instrumented import argument, bound, ending
from otel_assembly.instrumentation.reducers import orphaned, same_objects
from otel_assembly.matching.event_index import EventMatcher
from otel_assembly.messages.describe import describe
from otel_assembly.observe.conversations import reported_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep


_SKIPPED: Final = re.compile(r"Skipped (\d+) messages\.")


def reported_skips(message: Any) -> int | None:
    """How many messages a placeholder says were skipped; None for any other message."""
    content = getattr(message, "content", None)
    if not isinstance(content, str) or getattr(message, "source", None) != "System":
        return None
    said = _SKIPPED.fullmatch(content)
    return int(said[1]) if said is not None else None


@dataclass(slots=True)
class Explanation:
    """What is known of one run of a reducer, beside its input and its output."""

    reason: DecisionReason = DecisionReason.POLICY
    verdicts: list[Verdict] = field(default_factory=list)
    budget: int | None = None
    reported: int | None = None
    overflowed: bool = False

    def report(self, step: ObservedStep, inputs: Sequence[Any], result: Sequence[Any]) -> None:
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
        settings: The settings that are reported, by the attribute that holds each.
        read: How its output is read, from the context, its input and its output; None for a class that is not known.
    """

    policy: str
    settings: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[Any, Sequence[Any], Sequence[Any]], Explanation] | None = None

    def config(self, context: Any) -> Mapping[str, Any]:
        """The settings of one context."""
        return {name: getattr(context, attribute, None) for name, attribute in self.settings.items()}


@dataclass(slots=True)
class ReducerRun:
    """One run of a context's reducer."""

    context: Any
    reducer: Reducer
    inputs: Sequence[Any]
    result: Sequence[Any]

    def explanation(self, nested: Sequence[ReducerRun] = ()) -> Explanation:
        """Why its messages left, where these ran inside of it on the same context, the innermost base's first."""
        if self.reducer.read is not None:
            return self.reducer.read(self.context, self.inputs, self.result)
        base = next((one for one in nested if one is not self), None)
        if base is not None and len(base.result) != len(self.inputs):
            return combined(base.explanation(), base.result, self.result)
        return Explanation()


def stored_messages(context: Any) -> list[Any] | None:
    """What AutoGen's base class holds; None for a class that holds its messages elsewhere."""
    stored = getattr(context, "_messages", None)
    return stored if isinstance(stored, list) else None


def reducer_of(owner: type) -> Reducer:
    """The reducer that a class defines: one of AutoGen's own, or a custom one, named by the class's name."""
    known = _KNOWN.get(owner.__name__) if owner.__module__.startswith("autogen_core.") else None
    return known or Reducer(owner.__name__, _settings_of(owner))


def _settings_of(owner: type) -> Mapping[str, str]:
    """A custom class has the settings of the one that it extends."""
    return next((_KNOWN[base.__name__].settings for base in owner.__mro__ if base.__name__ in _KNOWN), {})


def combined(explanation: Explanation, nested: Sequence[Any], result: Sequence[Any]) -> Explanation:
    """What a class's reducer did that calls its base's: what left there left for the base's reasons.

    Args:
        explanation: What is known of the base's run.
        nested: The base's output.
        result: The whole output.
    """
    kept = set(map(id, result))
    gone = [event for event in nested if id(event) not in kept]
    verdicts = [*explanation.verdicts]
    if gone:
        verdicts.append(Verdict(gone, DecisionOutcome.DROPPED, DecisionReason.POLICY))
    overflowed = explanation.overflowed and not result
    return Explanation(explanation.reason, verdicts, explanation.budget, explanation.reported, overflowed)


def _unbounded(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Explanation:
    return Explanation()


def _buffered(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Explanation:
    stays = inputs[max(0, len(inputs) - _positive(context, "_buffer_size")) :]
    return Explanation(DecisionReason.OUTSIDE_WINDOW, orphaned(stays, result))


def _head_and_tail(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Explanation:
    head, tail = _positive(context, "_head_size"), _positive(context, "_tail_size")
    if len(inputs) <= head + tail:
        return Explanation(DecisionReason.OUTSIDE_WINDOW)
    verdicts = orphaned([*inputs[:head], *inputs[-tail:]], result)
    # What stands in their place says how many they were, and nothing of what they said: they are dropped.
    note = result[head if result[head - 1] is inputs[head - 1] else head - 1]
    return Explanation(DecisionReason.OUTSIDE_WINDOW, verdicts, reported=reported_skips(note))


def _token_limited(context: Any, inputs: Sequence[Any], result: Sequence[Any]) -> Explanation:
    """It pops the middle, so that the oldest message is the last to go; then one result is stripped if it leads."""
    limit = getattr(context, "_token_limit", None)
    explanation = Explanation(DecisionReason.OVER_BUDGET, budget=limit)
    if not inputs or (result and result[0] is inputs[0]):
        return explanation
    if result or (len(inputs) == 1 and describe(inputs[0]).closes):
        explanation.verdicts += orphaned(inputs[:1], result)
        return explanation
    explanation.overflowed = True
    if limit is None:
        # Only what the model's client has left is known to it, and only it knows how much that is of nothing at all.
        client, tools = getattr(context, "_model_client", None), getattr(context, "_tool_schema", [])
        explanation.budget = max(0, int(client.remaining_tokens([], tools=tools))) if client is not None else None
    return explanation


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


MEMORY: Final = "memory"


def observed_memory(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """``update_context`` of one class."""
    policy = MEMORY if owner.__module__.startswith(("autogen_core.", "autogen_ext.")) else owner.__name__

    @around_awaited
    def update_context(instrumentation: Instrumentation, memory: Any, /, *args: Any, **kwargs: Any) -> Observation:
        if NESTED.get() is None:
            asked = _AskedMemory(instrumentation, policy, argument(args, kwargs, 0, "model_context"))
            with ending(asked.end), bound(NESTED, NestedRuns()):
                yield

    return update_context(original, instrumentation)


class _AskedMemory:
    """One memory, while it puts what it has into a context."""

    def __init__(self, instrumentation: Instrumentation, policy: str, context: Any) -> None:
        self._instrumentation = instrumentation
        self._policy = policy
        self._context = context
        self._started_ns = time.time_ns()
        held = stored_messages(context)
        self._count = len(held) if held is not None else 0
        self._last = held[-1] if held else None

    def end(self, error: BaseException | None) -> None:
        """Remember what it has put in, for the next assembly; where it raised, none follows, and it is reported now."""
        held, added = stored_messages(self._context) or [], self._added()
        if error is None:
            if added:
                remember(self._context, Injection(self._policy, self._started_ns, self._count, added))
            return
        before = held[: len(held) - len(added)]
        assembly = begin(self._instrumentation, self._context, before, started_ns=self._started_ns)
        if assembly is None:
            return
        with assembly.step(self._policy, kind="injection", started_ns=self._started_ns) as step:
            if added:
                step.out([*before, *added])
        step.failed(error)
        assembly.end(error)

    def _added(self) -> list[Any]:
        held, count = stored_messages(self._context), self._count
        if held is None or len(held) <= count or (count and held[count - 1] is not self._last):
            return []
        return held[count:]


def observed_context(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """``get_messages`` of one class."""
    reducer = reducer_of(owner)

    @around_awaited
    def get_messages(instrumentation: Instrumentation, context: Any, /, *args: Any, **kwargs: Any) -> Observation:
        if getattr(context, "otel_assembly_plugin", False):
            return
        nested = NESTED.get()
        if nested is not None:
            inputs = [*(stored_messages(context) or ())]
            result = yield
            nested.inner.append(ReducerRun(context, reducer, inputs, result))
            return
        observed = _ObservedReducer(instrumentation, context, reducer)
        with bound(NESTED, observed.nested):
            yield from observed.run()

    return get_messages(original, instrumentation)


class _ObservedReducer:
    """One run of the outermost ``get_messages``."""

    def __init__(self, instrumentation: Instrumentation, context: Any, reducer: Reducer) -> None:
        self._instrumentation = instrumentation
        self._context = context
        self._reducer = reducer
        call = current_call()
        self._call = call if call is not None and call.context is context else None
        self.nested = NestedRuns()

    def run(self) -> Observation:
        stored = stored_messages(self._context)
        if self._reducer.read is not None or (stored and not _stores_itself(self._context)):
            yield from self._as_it_runs(stored or [])
        else:
            yield from self._afterwards(stored or [])

    def _as_it_runs(self, stored: list[Any]) -> Observation:
        config = self._reducer.config(self._context)
        assembly = self._begin(stored)
        if assembly is None:
            return
        inputs = assembly.events
        try:
            with assembly.step(self._reducer.policy, kind="reduction", config=config) as step:
                result = yield
                with reported_whole(assembly):
                    self._explanation(inputs, result).report(step, inputs, result)
        except BaseException as error:
            assembly.end(error)
            raise
        self._close(assembly)

    def _explanation(self, inputs: list[Any], result: Sequence[Any]) -> Explanation:
        own = ReducerRun(self._context, self._reducer, inputs, result)
        try:
            return own.explanation(self.nested.of(self._context))
        except Exception as error:  # noqa: BLE001  # what it did can still be reported, if not why
            self._instrumentation.observed.failed(error)
            return Explanation()

    def _afterwards(self, stored: list[Any]) -> Observation:
        """Where the input may be stored elsewhere: the output, or a context that ran inside, says what it was."""
        started_ns, stored = time.time_ns(), [*stored]
        try:
            result = yield
        except BaseException as error:
            self._report_failure(stored, started_ns, error)
            raise
        self._report(stored, result, started_ns)

    def _report_failure(self, stored: list[Any], started_ns: int, error: BaseException) -> None:
        assembly = self._begin(stored, started_ns, unknown=not stored)
        if assembly is None:
            return
        step = assembly.step(self._reducer.policy, kind="reduction", started_ns=started_ns)
        step.__enter__()
        step.__exit__(type(error), error, error.__traceback__)
        assembly.end(error)

    def _report(self, stored: list[Any], result: Sequence[Any], started_ns: int) -> None:
        inputs: Sequence[Any] = stored
        chain = [ReducerRun(self._context, self._reducer, stored, result)]
        asked = self.nested.other_than(self._context)
        if not stored and asked is not None:
            inputs = asked.inputs
            chain = [asked] if same_objects(asked.result, result) else [asked, *chain]
            unknown = not inputs
        else:
            unknown = not inputs or None in EventMatcher(inputs).match(result)
        if unknown:
            inputs, chain = [*result], chain[-1:]
        assembly = self._begin(inputs, started_ns, unknown=unknown and bool(result))
        if assembly is None:
            return
        for one in chain:
            step = assembly.step(
                one.reducer.policy, kind="reduction", config=one.reducer.config(one.context), started_ns=started_ns
            )
            with step, reported_whole(assembly):
                one.explanation(self.nested.of(one.context)).report(step, assembly.events, one.result)
        self._close(assembly)

    def _begin(
        self, events: Sequence[Any], started_ns: int | None = None, *, unknown: bool = False
    ) -> ObservedAssembly | None:
        return begin(
            self._instrumentation, self._context, events, call=self._call, started_ns=started_ns, unknown=unknown
        )

    def _close(self, assembly: ObservedAssembly) -> None:
        if self._call is not None:
            self._call.take(assembly)
        else:
            assembly.end()


def _stores_itself(context: Any) -> bool:
    """Whether a class stores messages by a method of its own, so that only the class knows where they are."""
    owner = next((one for one in type(context).__mro__ if "add_message" in vars(one)), None)
    return owner is None or not owner.__module__.startswith("autogen_core.")
