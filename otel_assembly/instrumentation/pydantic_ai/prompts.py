"""Separates the system prompts that are leading parts of messages, as Pydantic AI's requests have them."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.messages.replacements import edited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class PromptsInFront:
    """Separates system prompts that are leading parts of messages.

    Args:
        message_type: The type of the messages that can begin with such parts.
        attribute: The attribute with a message's parts.
        prompt: Returns the text of a part that is a system prompt; None for any other part.
    """

    def __init__(self, message_type: type, attribute: str, prompt: Callable[[Any], str | None]) -> None:
        self._message_type = message_type
        self._attribute = attribute
        self._prompt = prompt
        #: The copy of a message without its leading prompts, and the other parts from which the copy was made.
        self._copies: IdentityWeakMap[tuple[Any, list[Any]]] = IdentityWeakMap()

    def split(self, messages: Sequence[Any]) -> tuple[list[str], list[Any]]:
        """Return the leading system prompts, and the messages after them.

        If a message has both prompts and other parts, a copy with the other parts replaces it. The copy is the same
        object each time, until the message's parts change.
        """
        prompts: list[str] = []
        for position, message in enumerate(messages):
            has_parts = isinstance(message, self._message_type)
            parts: Sequence[Any] = getattr(message, self._attribute) if has_parts else ()
            texts = list(takewhile(lambda text: text is not None, map(self._prompt, parts)))
            prompts += map(str, texts)
            if not has_parts or len(texts) < len(parts):
                first = self._copy(message, parts[len(texts) :]) if texts else message
                return prompts, [first, *messages[position + 1 :]]
        return prompts, []

    def _copy(self, message: Any, parts: Sequence[Any]) -> Any:
        """Return a copy of a message with these parts: the same object, if the parts are the same objects as before."""
        known, rest = self._copies.get(message), list(parts)
        if known is not None and same_objects(known[1], rest):
            return known[0]
        copy = edited(message, **{self._attribute: list(rest)})  # a list of its own, which may be changed
        return self._copies.put(message, (copy, rest))[0]
