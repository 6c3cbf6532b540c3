"""The digest of a stable prefix: a prefix that only grew is not read again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from otel_assembly.history.history import text_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.history.view import View


class PrefixHash:
    """The digest of prompts and of a view's events behind them.

    Args:
        prompts: The prompts.
    """

    __slots__ = ("_prompts", "_state", "_view")

    def __init__(self, prompts: Sequence[str]) -> None:
        self._prompts = tuple(prompts)
        self._view: View | None = None
        self._state = hashlib.blake2b(digest_size=8)
        for prompt in self._prompts:
            self._state.update(text_digest((prompt,)).to_bytes(8, "little"))

    def begins(self, prompts: Sequence[str], view: View) -> bool:
        """Whether these prompts and this view begin with what is in the digest."""
        if tuple(prompts) != self._prompts:
            return False
        known = self._view
        if known is None or not known.segments:
            return True
        *whole, (column, start, stop) = known.segments
        if known.history is not view.history or len(view.segments) < len(known.segments):
            return False
        other, first, last = view.segments[len(whole)]
        same = tuple(whole) == view.segments[: len(whole)]
        return same and other is column and first == start and last >= stop

    def upto(self, view: View) -> PrefixHash:
        """The digest of the same prompts and of all of a view, which begins with what is in this one."""
        made = object.__new__(PrefixHash)
        made._prompts, made._view, made._state = self._prompts, view, self._state.copy()
        known = len(self._view) if self._view is not None else 0
        rest = view.pick([(known, len(view))])
        made._state.update(view.history.digests(rest))
        return made

    @property
    def digest(self) -> str:
        """16 hex digits, equal in every process."""
        return self._state.hexdigest()
