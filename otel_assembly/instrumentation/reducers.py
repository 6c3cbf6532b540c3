"""What comes of the summarisers that frameworks call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.budget.compact_errors import is_error_text
from otel_assembly.budget.compaction import CompactionOutcome
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterable


def no_summary(answer: Any, read: Iterable[Any]) -> CompactionOutcome | None:
    """Why a summariser's answer is no summary of the messages that it has read; None where it is one."""
    text = answer if isinstance(answer, str) else ""
    if not text.strip():
        return CompactionOutcome.EMPTY
    if is_error_text(text, "\n".join(describe(message).text for message in read)):
        return CompactionOutcome.ERROR_TEXT
    return None
