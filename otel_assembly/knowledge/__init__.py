"""Knowledge that an agent keeps between conversations: stores, and aggregates that write to them.

All stores behave as `KnowledgeStore` defines. An aggregate turns a conversation into a summary, or into an update of
the working memory (the notes that an agent reads before each answer). ``WorkingMemoryPolicy`` and
``EpisodicMemoryPolicy`` add the stored texts to the prompts of later conversations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of

if TYPE_CHECKING:
    from otel_assembly.knowledge.aggregates import (
        DEFAULT_CONVERSATION_SUMMARY_PROMPT,
        DEFAULT_WORKING_MEMORY_PROMPT,
        Aggregate,
        AggregateTrigger,
        ConversationSummaryAggregate,
        WorkingMemoryAggregate,
    )
    from otel_assembly.knowledge.disk import DiskKnowledgeStore
    from otel_assembly.knowledge.items import StoreOfItems
    from otel_assembly.knowledge.memory import MemoryKnowledgeStore
    from otel_assembly.knowledge.redis import RedisKnowledgeStore
    from otel_assembly.knowledge.rendering import MAX_TOOL_RESULT_CHARACTERS, render_events
    from otel_assembly.knowledge.sqlite import SqliteKnowledgeStore
    from otel_assembly.knowledge.store import (
        CONVERSATIONS_PREFIX,
        WORKING_MEMORY_PATH,
        ComparingKnowledgeStore,
        KnowledgeStore,
    )

__getattr__, __dir__ = lazy_attributes(
    __name__,
    modules_of(
        {
            "aggregates": (
                "DEFAULT_CONVERSATION_SUMMARY_PROMPT DEFAULT_WORKING_MEMORY_PROMPT "
                "Aggregate AggregateTrigger ConversationSummaryAggregate WorkingMemoryAggregate"
            ),
            "disk": "DiskKnowledgeStore",
            "items": "StoreOfItems",
            "memory": "MemoryKnowledgeStore",
            "redis": "RedisKnowledgeStore",
            "rendering": "MAX_TOOL_RESULT_CHARACTERS render_events",
            "sqlite": "SqliteKnowledgeStore",
            "store": "CONVERSATIONS_PREFIX WORKING_MEMORY_PATH ComparingKnowledgeStore KnowledgeStore",
        }
    ),
)

__all__ = [
    "CONVERSATIONS_PREFIX",
    "DEFAULT_CONVERSATION_SUMMARY_PROMPT",
    "DEFAULT_WORKING_MEMORY_PROMPT",
    "MAX_TOOL_RESULT_CHARACTERS",
    "WORKING_MEMORY_PATH",
    "Aggregate",
    "AggregateTrigger",
    "ComparingKnowledgeStore",
    "ConversationSummaryAggregate",
    "DiskKnowledgeStore",
    "KnowledgeStore",
    "MemoryKnowledgeStore",
    "RedisKnowledgeStore",
    "SqliteKnowledgeStore",
    "StoreOfItems",
    "WorkingMemoryAggregate",
    "render_events",
]
