"""System prompts that stand among a framework's messages: those in front of all else are the prompts of a call."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.messages.replacements import edited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def in_front(messages: Sequence[Any], is_prompt: Callable[[Any], bool]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The messages in front of everything else that are system prompts, and those behind them."""
    behind = next((at for at, message in enumerate(messages) if not is_prompt(message)), len(messages))
    return messages[:behind], messages[behind:]


def as_prompts(text: object) -> list[str]:
    """The system prompts of a call that has one text for them, or none."""
    return [text] if isinstance(text, str) and text else []


class PromptsInFront:
    """System prompts that are parts of messages.

    Args:
        holder: The type of the messages that may begin with such parts.
        attribute: The attribute that holds the parts.
        prompt: What a part says that is a system prompt; None of any other.
    """

    def __init__(self, holder: type, attribute: str, prompt: Callable[[Any], str | None]) -> None:
        self._holder = holder
        self._attribute = attribute
        self._prompt = prompt
        #: Of some messages, the same without the prompts at its front, and the parts that it had when it was made.
        self._behind: IdentityWeakMap[tuple[Any, list[Any]]] = IdentityWeakMap()

    def split(self, messages: Sequence[Any]) -> tuple[list[str], list[Any]]:
        """The system prompts in front of everything else, and the messages behind them.

        A message that begins with system prompts and goes on is, behind them, the same without: one object of it for as
        long as it is not changed.
        """
        prompts: list[str] = []
        for place, message in enumerate(messages):
            may = isinstance(message, self._holder)
            parts: Sequence[Any] = getattr(message, self._attribute) if may else ()
            said = list(takewhile(lambda text: text is not None, map(self._prompt, parts)))
            prompts += map(str, said)
            if not may or len(said) < len(parts):
                first = self._without(message, parts[len(said) :]) if said else message
                return prompts, [first, *messages[place + 1 :]]
        return prompts, []

    def _without(self, message: Any, parts: Sequence[Any]) -> Any:
        known, rest = self._behind.get(message), list(parts)
        if known is not None and same_objects(known[1], rest):
            return known[0]
        made = edited(message, **{self._attribute: list(rest)})
        return self._behind.put(message, (made, rest))[0]
