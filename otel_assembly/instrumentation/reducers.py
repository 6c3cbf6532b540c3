"""What the reducers of all frameworks have in common."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.budget.compact_errors import is_error_text
from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: The step that reports what no hook explains of what a model is called with.
FRAMEWORK: Final = "framework"


def orphaned(stays: Sequence[Any], events: Sequence[Any]) -> list[Verdict]:
    """Why what a reducer's own rule keeps did not come out: calls and results that had lost their other half."""
    if len(events) >= len(stays) and all(map(is_, reversed(stays), reversed(events))):
        return []
    out = set(map(id, events))
    lost: dict[DecisionReason, list[Any]] = {
        DecisionReason.ORPHANED_TOOL_RESULT: [],
        DecisionReason.ORPHANED_TOOL_CALL: [],
    }
    results, calls = lost.values()
    for event in stays:
        if id(event) not in out:
            (results if describe(event).closes else calls).append(event)
    return [Verdict(gone, DecisionOutcome.DROPPED, reason) for reason, gone in lost.items() if gone]


def no_summary(answer: Any, read: Iterable[Any]) -> CompactionOutcome | None:
    """Why a summariser's answer is no summary of the messages that it has read; None where it is one."""
    text = answer if isinstance(answer, str) else ""
    if not text.strip():
        return CompactionOutcome.EMPTY
    if is_error_text(text, "\n".join(describe(message).text for message in read)):
        return CompactionOutcome.ERROR_TEXT
    return None


def unsummed(before: Sequence[Any], after: Sequence[Any], text_of: Callable[[Any], str | None]) -> list[Verdict]:
    """Why messages are lost, where what was made for them is no summary of them.

    Args:
        before: The messages that were compacted.
        after: What is left of them, with what was made.
        text_of: The text of a summary; None of any other message.
    """
    held, stays = set(map(id, before)), set(map(id, after))
    gone = [message for message in before if id(message) not in stays]
    made = [text for message in after if id(message) not in held and (text := text_of(message)) is not None]
    lost = bool(made) and all(no_summary(text, gone) for text in made)
    return [Verdict(gone, DecisionOutcome.DROPPED, DecisionReason.POLICY_ERROR)] if lost else []
