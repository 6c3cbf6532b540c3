"""Hooks of memories: record how they reduce the messages that they return, and the messages that they store.

The hooks wrap ``get`` and ``aget`` of every memory class, ``get_messages`` of chat stores, and the functions in which
`ChatSummaryMemoryBuffer` summarizes and `Memory` archives messages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason, Verdict
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.llama_index.calls import READINGS, invoking_agent_of
from otel_assembly.instrumentation.llama_index.memory_reads import Read
from otel_assembly.instrumentation.llama_index.messages import as_summary
from otel_assembly.instrumentation.reducers import (
    is_ours,
    is_own,
    known_of,
    no_summary,
    outcome_of,
    policy_name,
    settings_of,
)
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("llama_index",)
#: Memories that add messages or text from other sources to the stored messages.
_INJECTING: Final = {"Memory": True, "SimpleComposableMemory": True}
#: Memories that reduce their messages to ``token_limit``.
_LIMITING: Final = {"ChatMemoryBuffer": True, "ChatSummaryMemoryBuffer": True}
#: Memories that replace their stored messages with the reduced ones.
_REPLACING: Final = {"ChatSummaryMemoryBuffer": True}


def _config(memory: Any) -> Mapping[str, Any]:
    return settings_of(memory) if is_own(memory, _PACKAGES) else {}


def _memory_report(memory: Any) -> StepReport | None:
    """Return the report of a memory without its messages; None for the plug-in, which records its own assemblies."""
    if is_ours(memory):
        return None
    is_limiting = known_of(type(memory), _LIMITING, _PACKAGES)
    return StepReport(
        policy_name(memory, _PACKAGES, names={"Memory": "memory_blocks"}),
        kind="injection" if known_of(type(memory), _INJECTING, _PACKAGES) else "reduction",
        config=_config(memory),
        budget=memory.token_limit if is_limiting else None,
        reason=DecisionReason.OVER_BUDGET if is_limiting else DecisionReason.POLICY,
    )


def _memory_hook(*, is_sync: bool) -> Wrap:
    """Return the hook of ``get`` or ``aget`` of memories.

    A memory class of the program may use no chat store. Its stored messages are then read with ``get_all``, if the
    hooked method is sync.
    """
    return READINGS.store_hook(
        _memory_report,
        invoking_agent_of,
        stored=lambda memory: memory.get_all() if is_sync and not is_own(memory, _PACKAGES) else None,
        replaces_stored=lambda memory: known_of(type(memory), _REPLACING, _PACKAGES),
    )


get: Final = _memory_hook(is_sync=True)
aget: Final = _memory_hook(is_sync=False)
#: Hook of ``get_messages`` of chat stores: observes the stored messages of the memory that is being read.
get_messages: Final = READINGS.contents_hook


@observe_hook
def summarize(_: Instrumentation, memory: Any, messages: Sequence[Any], /) -> Observation:
    """Record the messages that a `ChatSummaryMemoryBuffer` summarizes as compacted, or as dropped if that fails."""
    compacted, summary, reduction = list(messages), (yield), reducing()
    has_failed = no_summary(summary.content, compacted) is not None
    reason = DecisionReason.POLICY_ERROR if has_failed else DecisionReason.COMPACTED
    if not has_failed:
        as_summary(summary)
    if reduction is not None:
        reduction.add_verdict(Verdict(compacted, outcome_of(reason), reason))


@observe_async_hook
def manage_queue(instrumentation: Instrumentation, memory: Any, /) -> Observation:
    """Record the oldest messages, which a `Memory` archives and passes to its blocks if its queue exceeds the limit."""
    reduction = Reduction(instrumentation, StepReport("memory_queue", config=_config(memory)))
    with READINGS.reading_scope(reduction) as reading:
        yield  # `archive_messages` adds what it observes to `reading.inner`
    archived_count = sum(len(archived.out) for archived in reading.inner)
    if archived_count:
        reduction.before = reading.stored or []
        after = reduction.before[archived_count:]
        limit = int(memory.token_limit * memory.chat_history_token_ratio)
        reduction.report = replace(reduction.report, budget=limit, reason=DecisionReason.OVER_BUDGET)
        reduction.done(after, invoking_agent=invoking_agent_of(memory))


@observe_async_hook
def archive_messages(_: Instrumentation, store: Any, /, *__: Any, **___: Any) -> Observation:
    """Collect the messages that a chat store archives, for `manage_queue`."""
    messages, reading = (yield), READINGS.current_reading.get()
    if reading is not None:
        reading.inner.append(Read(invoking_agent_of(store), messages))
