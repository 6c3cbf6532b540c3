"""What a peer is to the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
#: Makes a peer's messages of ours, and what runs a turn: it is given the new ones.
Driver: TypeAlias = tuple[Callable[[list[Message]], list[Any]], Callable[[list[Any]], Callable[[list[Any]], Any]]]


@dataclass(frozen=True)
class Peer:
    """A peer, in one of the ways it can be run.

    Attributes:
        name: What it is called in the table.
        package: Its name on the package index.
        driver: What runs it.
        counts: How it counts.
        keeps: Whether the conversation is whole after a turn, or has lost what was cut.
    """

    name: str
    package: str
    driver: Callable[[], Driver]
    counts: str
    keeps: str = "kept"

    @property
    def exact_and_keeps(self) -> bool:
        """Whether it does what the floor does."""
        return self.counts == "exact" and self.keeps == "kept"
