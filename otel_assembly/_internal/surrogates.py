"""Texts that can be sent: half a surrogate pair, as cut logs and streams have them, has no UTF-8 form."""

from __future__ import annotations

from typing import Any


def sendable(text: str) -> str:
    """The text with U+FFFD in the place of each half of a surrogate pair.

    Exporters refuse the attribute that holds one, for it has no UTF-8 form, and some of them refuse its whole batch.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def sendable_json(value: Any) -> Any:
    """A value that is to be sent as JSON, with texts that can be sent; the very same value where they all can."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        made = {key: sendable_json(one) for key, one in value.items()}
        return value if all(made[key] is one for key, one in value.items()) else made
    if isinstance(value, (list, tuple)):
        parts = [sendable_json(one) for one in value]
        return value if all(part is one for part, one in zip(parts, value, strict=True)) else parts
    return value
