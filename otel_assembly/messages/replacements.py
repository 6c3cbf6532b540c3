"""Events that stand for others, in the shape of a framework's own, so that whatever sends the prompt can send them.

As with `describe`, a framework's module registers a row for each of its types; nothing else knows that they exist.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@singledispatch
def summary_like(event: Any, text: str, events: Sequence[Any]) -> Any:
    """An event that says `text` in the place of earlier ones.

    Args:
        event: An event of the conversation, by whose type the row is found.
        text: The summary.
        events: What it stands for: leaves, never an earlier summary of some of them.

    Returns:
        None where no row covers the type.
    """
    return None


@singledispatch
def result_texts(event: Any) -> Sequence[str]:
    """The texts of the tools' results in an event, one for each result that has a text; a text can be shortened.

    Returns:
        Nothing where no row covers the type.
    """
    return ()


@singledispatch
def shortened(event: Any, texts: Sequence[str]) -> Any:
    """The event with other texts in the place of its `result_texts`, which still answers the same calls.

    Returns:
        None where no row covers the type.
    """
    return None
