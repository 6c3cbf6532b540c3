"""The changes that a provider made to a request before the model read it, as its answer reports them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.recorder import ProviderEdit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.provider_clients.requests import ProviderAnswer

#: The counts in an edit of Anthropic's context management, and the fields of `ProviderEdit`.
_COUNTS: Final = {
    "cleared_input_tokens": "cleared_tokens",
    "cleared_tool_uses": "cleared_tool_uses",
    "cleared_thinking_turns": "cleared_thinking_turns",
}


def provider_edits(answer: ProviderAnswer) -> list[ProviderEdit]:
    """Return the edits that an answer reports, which come from three places (see `answers._applied_edits`).

    Anthropic's context management reports counts. A compaction has none, and is an edit of its own. Each of the others
    names one removed block or item; those with the same type and reason become one edit with their number.
    """
    edits: list[ProviderEdit] = []
    removed: Counter[tuple[str, str | None]] = Counter()
    for edit in answer.applied_edits:
        edit_type, reason = edit.get("type"), edit.get("reason")
        counts = {field: edit[name] for name, field in _COUNTS.items() if isinstance(edit.get(name), int)}
        if not isinstance(edit_type, str) or _is_failed_compaction(edit):
            continue
        if counts or edit_type == "compaction":
            edits.append(ProviderEdit(edit_type, **counts))
            continue
        if edit.get("action") == "removed":  # an item of OpenAI's, whose type is `reasoning`
            edit_type = f"{edit_type}_removed"
        removed[edit_type, reason if isinstance(reason, str) else None] += 1
    edits += [
        ProviderEdit(edit_type, cleared_blocks=count, reason=reason) for (edit_type, reason), count in removed.items()
    ]
    return edits


def _is_failed_compaction(edit: Mapping[str, Any]) -> bool:
    """Return True for a compaction of Anthropic's without a summary, which the API ignores."""
    return edit["type"] == "compaction" and edit.get("content") is None and edit.get("encrypted_content") is None
