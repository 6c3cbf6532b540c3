"""The activity of this process that is reported when it ends."""

from __future__ import annotations

from typing import Final


class _Activity:
    """Counts nothing: one flag, so that a turn pays an assignment and no call.

    Attributes:
        has_assembly: True once an assembly or an allocation has begun in this process, or in a parent it was forked
            from.
    """

    __slots__ = ("has_assembly",)

    def __init__(self) -> None:
        self.has_assembly = False


ACTIVITY: Final = _Activity()
