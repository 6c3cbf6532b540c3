"""Distributes a token budget over the blocks of a prompt: rule, order and compactors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of

if TYPE_CHECKING:
    from otel_assembly.budget.allocation import Allocation, BlockDecision, ItemDecision, texts_of
    from otel_assembly.budget.allocator import allocate, allocate_async
    from otel_assembly.budget.attempt import Attempt, CompactionOutcome
    from otel_assembly.budget.block import Block, BlockItem, Cut
    from otel_assembly.budget.compact_errors import is_error_text
    from otel_assembly.budget.compact_model import DEFAULT_COMPACTION_INSTRUCTIONS, ModelCompactor
    from otel_assembly.budget.compact_turns import compact_history, compact_history_async
    from otel_assembly.budget.compacted_block import CompactedBlock, leaf_ids
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.budget.extractive import ExtractiveCompactor
    from otel_assembly.budget.measure import measure_for
    from otel_assembly.budget.ordering import OrderedPrompt, order_for_attention_and_cache
    from otel_assembly.budget.sections import Zone

__getattr__, __dir__ = lazy_attributes(
    __name__,
    modules_of(
        {
            "allocation": "Allocation BlockDecision ItemDecision texts_of",
            "allocator": "allocate allocate_async",
            "attempt": "Attempt CompactionOutcome",
            "block": "Block BlockItem Cut",
            "compact_errors": "is_error_text",
            "compact_model": "DEFAULT_COMPACTION_INSTRUCTIONS ModelCompactor",
            "compact_turns": "compact_history compact_history_async",
            "compacted_block": "CompactedBlock leaf_ids",
            "compaction": "Compactors",
            "extractive": "ExtractiveCompactor",
            "measure": "measure_for",
            "ordering": "OrderedPrompt order_for_attention_and_cache",
            "sections": "Zone",
        }
    ),
)

__all__ = [
    "DEFAULT_COMPACTION_INSTRUCTIONS",
    "Allocation",
    "Attempt",
    "Block",
    "BlockDecision",
    "BlockItem",
    "CompactedBlock",
    "CompactionOutcome",
    "Compactors",
    "Cut",
    "ExtractiveCompactor",
    "ItemDecision",
    "ModelCompactor",
    "OrderedPrompt",
    "Zone",
    "allocate",
    "allocate_async",
    "compact_history",
    "compact_history_async",
    "is_error_text",
    "leaf_ids",
    "measure_for",
    "order_for_attention_and_cache",
    "texts_of",
]
