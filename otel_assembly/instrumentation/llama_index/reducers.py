"""What memories do: to the messages that one gives, before a model is called with them, and to those that it keeps."""

from __future__ import annotations

from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.hooks import around, around_awaited, around_either
from otel_assembly.instrumentation.instrumented import bound
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.llama_index.calls import Read, asker_of, given
from otel_assembly.instrumentation.llama_index.messages import SUMMARIES
from otel_assembly.instrumentation.reducers import is_ours, is_own, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.instrumentation.splicing import alike, same
from otel_assembly.instrumentation.summaries import summed_up
from otel_assembly.instrumentation.waiting import WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("llama_index",)
_NAMES: Final = {"Memory": "memory_blocks"}
#: What these do to messages, and why they leave: what goes by blocks puts something in, and what summarises keeps that.
_KINDS: Final = {"Memory": "injection", "SimpleComposableMemory": "injection"}
_LIMITED: Final = {"ChatMemoryBuffer": True, "ChatSummaryMemoryBuffer": True}
_KEEPS: Final = {"ChatSummaryMemoryBuffer": True}


class _Reading:
    """One memory that is read, or cares for what it keeps.

    Attributes:
        reduction: What it does.
        inner: What memories in it have given.
    """

    def __init__(self, instrumentation: Instrumentation, memory: Any, policy: str, kind: str | None) -> None:
        config = settings_of(memory) if is_own(memory, _PACKAGES) else {}
        self.reduction = Reduction(instrumentation, policy, (), kind=kind, config=config)
        self.inner: list[Read] = []
        self._held: list[tuple[Any, Any]] | None = None

    def sees(self, messages: Sequence[Any]) -> None:
        """A store has given these: the first are all that is held, before anything is written into them."""
        if self._held is None:
            self._held = [(message, copy(message)) for message in messages]

    @property
    def held(self) -> list[Any] | None:
        """What was held, in the very objects as far as they say the same still."""
        if self._held is None:
            return None
        return [message if alike(message, was) else was for message, was in self._held]

    def before(self, memory: Any, after: Sequence[Any], *, asks: bool) -> Sequence[Any] | None:
        """What is held, as far as that is known: by its store, a memory in it, or a program's own memory."""
        known = set(map(id, after))
        inner = next((one for one in reversed(self.inner) if not known.isdisjoint(map(id, one.out))), None)
        self.inner = [] if inner is None else [inner]
        if inner is not None:
            return inner.out
        held = self.held
        return list(memory.get_all()) if held is None and asks and not is_own(memory, _PACKAGES) else held


_READING: Final[ContextVar[_Reading | None]] = ContextVar("otel_assembly_llama_index_reading", default=None)


def _reads(*, asks: bool) -> Wrap:
    """The hook of what gives a memory's messages; what is kept is asked for where that need not be awaited."""

    def observe(instrumentation: Instrumentation, memory: Any, /, *_: Any, **__: Any) -> Observation:
        outer, asker = _READING.get(), asker_of(memory)
        kind = known_of(type(memory), _KINDS, _PACKAGES) or "reduction"
        reading = _Reading(instrumentation, memory, policy_name(memory, _PACKAGES, names=_NAMES), kind)
        reduction = reading.reduction
        try:
            with bound(_READING, reading), reduction.running():
                result = yield
        except BaseException as error:
            if outer is None:
                reduction.ended(error, asker)
            raise
        after = list(result)
        before = reading.before(memory, after, asks=asks)
        steps = [step for one in reading.inner for step in one.steps]
        reduction.before = list(after if before is None else before)
        if same(reduction.before, after):
            reduction.done(after)
        elif known_of(type(memory), _KEEPS, _PACKAGES):
            reduction.done(after, asker=asker, **_said(reduction, memory, after))
        else:
            steps.append(reduction.waiting(after, _said(reduction, memory, after)))
        read = Read(asker, after, steps)
        if outer is not None:
            outer.inner.append(read)
        elif reducing() is None:
            given(read)

    return around_either(observe)


def _said(reduction: Reduction, memory: Any, after: Sequence[Any]) -> dict[str, Any]:
    """The limit of a memory in tokens, and why messages left it: they did not fit, or are in a summary."""
    if not known_of(type(memory), _LIMITED, _PACKAGES):
        return {}
    said: dict[str, Any] = {"budget": memory.token_limit, "reason": DecisionReason.OVER_BUDGET}
    return said if reduction.attempt is None else {**said, "verdicts": summed_up(reduction, after)}


def _kept(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    messages, reading = (yield), _READING.get()
    if reading is not None:
        reading.sees(messages)


def _summarised(_: Instrumentation, memory: Any, messages: Sequence[Any], /) -> Observation:
    """A memory has a model summarise these."""
    summary, reduction = (yield), reducing()
    SUMMARIES.put(summary, True)  # noqa: FBT003  # what is known of it
    if reduction is not None:
        reduction.read = list(messages)


def _flushed(instrumentation: Instrumentation, memory: Any, /) -> Observation:
    """A memory has no room for what it keeps: the oldest are put away, and its blocks are handed them."""
    reading = _Reading(instrumentation, memory, "memory_queue", "reduction")
    with bound(_READING, reading), reading.reduction.running():
        yield
    held, gone = reading.held or [], sum(len(one.out) for one in reading.inner)
    if gone:
        reading.reduction.before = held
        budget = int(memory.token_limit * memory.chat_history_token_ratio)
        said: dict[str, Any] = {"budget": budget, "reason": DecisionReason.OVER_BUDGET}
        reading.reduction.done(held[gone:], asker=asker_of(memory), **said)


def _archived(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    messages, reading = (yield), _READING.get()
    if reading is not None:
        reading.inner.append(Read(asker_of(reading), messages))


get: Final = _reads(asks=True)
aget: Final = _reads(asks=False)
kept: Final = around_either(_kept)
summarised: Final = around(_summarised)
flushed: Final = around_awaited(_flushed)
archived: Final = around_awaited(_archived)
