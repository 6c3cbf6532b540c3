"""What memories do: to the messages that one gives, before a model is called with them, and to those that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason, Verdict
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.llama_index.calls import READINGS, invoking_agent_of
from otel_assembly.instrumentation.llama_index.memory_reads import Read
from otel_assembly.instrumentation.llama_index.messages import as_summary
from otel_assembly.instrumentation.reducers import is_ours, is_own, no_summary, outcome_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, Reduction, reducing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("llama_index",)
#: Memories that put something in beside what they hold; that cut it to their limit in tokens; that keep what they cut.
_INJECTS: Final = {"Memory": True, "SimpleComposableMemory": True}
_CUTS: Final = {"ChatMemoryBuffer": True, "ChatSummaryMemoryBuffer": True}
_KEEPS: Final = {"ChatSummaryMemoryBuffer": True}


def _config(memory: Any) -> Mapping[str, Any]:
    return settings_of(memory) if is_own(memory, _PACKAGES) else {}


def _said(_: Any, __: Any, memory: Any) -> Mapping[str, Any]:
    cuts = known_of(type(memory), _CUTS, _PACKAGES)
    return {"budget": memory.token_limit, "reason": DecisionReason.OVER_BUDGET} if cuts else {}


def _memory(*, asks: bool) -> Wrap:
    """The hook of what gives a memory's messages; a program's own is asked for all, where that need not be awaited."""
    return READINGS.store(
        Reducer(
            lambda memory: memory.get_all() if asks and not is_own(memory, _PACKAGES) else None,
            policy=lambda memory: policy_name(memory, _PACKAGES, names={"Memory": "memory_blocks"}),
            kind=lambda memory: "injection" if known_of(type(memory), _INJECTS, _PACKAGES) else "reduction",
            config=_config,
            said=_said,
            invoking_agent=invoking_agent_of,
            by=lambda memory: None if is_ours(memory) else memory,
        ),
        keeps=lambda memory: known_of(type(memory), _KEEPS, _PACKAGES),
    )


get: Final = _memory(asks=True)
aget: Final = _memory(asks=False)
kept: Final = READINGS.kept


@observe_hook
def summarised(_: Instrumentation, memory: Any, messages: Sequence[Any], /) -> Observation:
    """A memory has a model summarise these, which are lost where it says nothing."""
    held, summary, reduction = list(messages), (yield), reducing()
    lost = no_summary(summary.content, held) is not None
    reason = DecisionReason.POLICY_ERROR if lost else DecisionReason.COMPACTED
    if not lost:
        as_summary(summary)
    if reduction is not None:
        reduction.verdicts.append(Verdict(held, outcome_of(reason), reason))


@observe_async_hook
def flushed(instrumentation: Instrumentation, memory: Any, /) -> Observation:
    """A memory has no room for what it keeps: the oldest are put away, and its blocks are handed them."""
    reduction = Reduction(instrumentation, "memory_queue", (), config=_config(memory))
    with READINGS.reads(reduction) as reading:
        yield
    gone = sum(len(put_away.out) for put_away in reading.inner)
    if gone:
        reduction.before = reading.held or []
        limit, why = int(memory.token_limit * memory.chat_history_token_ratio), DecisionReason.OVER_BUDGET
        reduction.done(reduction.before[gone:], invoking_agent=invoking_agent_of(memory), budget=limit, reason=why)


@observe_async_hook
def archived(_: Instrumentation, store: Any, /, *__: Any, **___: Any) -> Observation:
    """A store puts these away."""
    messages, reading = (yield), READINGS.reading.get()
    if reading is not None:
        reading.inner.append(Read(invoking_agent_of(store), messages))
