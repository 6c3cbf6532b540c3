"""Reads messages that are dicts, in the formats of all providers.

Importing this package registers the reader functions of `describe` for dicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of
from otel_assembly.messages import shortening as _shortening  # noqa: F401  # registers the shortening of results
from otel_assembly.messages.chat import ChatSummary
from otel_assembly.messages.draft import MEDIA_TOKENS, Draft
from otel_assembly.messages.event_facts import ROLES, EventFacts, EventKind, ToolCallFacts, describe, spelled
from otel_assembly.messages.parts import read_content, read_parts
from otel_assembly.messages.replacements import (
    edited,
    register_results,
    register_summaries,
    result_texts,
    shortened,
    summary_like,
    summary_text,
)
from otel_assembly.messages.responses import ITEMS

if TYPE_CHECKING:
    from otel_assembly.messages.pair_check import broken_pairs
    from otel_assembly.messages.rows import (
        answers,
        asks,
        function_schema,
        holds,
        is_silent,
        read_each,
        read_part,
        register_parts,
        result_text,
        says,
        shows,
    )

_MODULE_NAMES = {
    "pair_check": "broken_pairs",
    "rows": "answers asks function_schema holds is_silent read_each read_part register_parts result_text says shows",
}
__getattr__, __dir__ = lazy_attributes(__name__, modules_of(_MODULE_NAMES))

__all__ = [
    "ITEMS",
    "MEDIA_TOKENS",
    "ROLES",
    "ChatSummary",
    "Draft",
    "EventFacts",
    "EventKind",
    "ToolCallFacts",
    "answers",
    "asks",
    "broken_pairs",
    "describe",
    "edited",
    "function_schema",
    "holds",
    "is_silent",
    "read_content",
    "read_each",
    "read_part",
    "read_parts",
    "register_parts",
    "register_results",
    "register_summaries",
    "result_text",
    "result_texts",
    "says",
    "shortened",
    "shows",
    "spelled",
    "summary_like",
    "summary_text",
]
