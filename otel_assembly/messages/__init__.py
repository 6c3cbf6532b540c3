"""Messages that are plain dicts, in the form of each provider; importing this registers how they are read."""

from __future__ import annotations

from otel_assembly.messages.chat import ROLES, ChatSummary
from otel_assembly.messages.draft import MEDIA_TOKENS, Draft, spelled
from otel_assembly.messages.parts import read_content, read_parts
from otel_assembly.messages.responses import ITEMS
from otel_assembly.messages.shortening import content_texts, parts_texts, parts_with_texts, with_texts

__all__ = [
    "ITEMS",
    "MEDIA_TOKENS",
    "ROLES",
    "ChatSummary",
    "Draft",
    "content_texts",
    "parts_texts",
    "parts_with_texts",
    "read_content",
    "read_parts",
    "spelled",
    "with_texts",
]
