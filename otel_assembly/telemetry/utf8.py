"""What of a text may leave: half of a surrogate pair, as cut logs and streams have it, has no UTF-8 form.

Exporters refuse the attribute that holds one, and some of them its whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def sendable(text: str) -> str:
    """The text with U+FFFD in the place of each half of a pair."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def sendable_values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes whose strings can be sent."""
    return {name: sendable(value) if isinstance(value, str) else value for name, value in attributes.items()}
