"""Separates system prompts from messages, for frameworks that keep both in one list.

Only the leading system prompts are the prompts of a model call. A later system prompt is a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def in_front(messages: Sequence[Any], is_prompt: Callable[[Any], bool]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the leading messages that are system prompts, and the messages after them."""
    end = next((position for position, message in enumerate(messages) if not is_prompt(message)), len(messages))
    return messages[:end], messages[end:]


def as_prompts(text: object) -> list[str]:
    """Return a list with one system prompt; an empty list if the value is not a string, or is empty."""
    return [text] if isinstance(text, str) and text else []
