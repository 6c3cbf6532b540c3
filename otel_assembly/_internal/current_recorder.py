"""The recorder that records where none was named; `otel_assembly.recorder` says what a recorder is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Default:
    """Holds the recorder of assemblers that are given none; who first reads `recorder` has it made."""

    make: Callable[[], Any]
    recorder: Any

    def __getattr__(self, name: str) -> Any:
        if name != "recorder":
            raise AttributeError(name)
        self.recorder = made = self.make()
        return made


#: What is read wherever no recorder was named. A default that nobody has asked for yet is not among its ``vars``.
DEFAULT: Final = _Default()
#: What is told of every guard that closes: the halt, the guard, and on whose behalf it was closed, where that is known.
halt_listeners: list[Callable[[Any, Any, Any], None]] = []
#: What is told of a guard that was opened again, when it is, and at each beginning of a turn until it has told of it.
resume_listeners: list[Callable[[Any], None]] = []


def set_default_recorder(make: Callable[[], Any]) -> None:
    """Let `make` give the recorder of assemblers that are given none; it is called when the first one needs it."""
    DEFAULT.__dict__ = {"make": make}


def default_recorder() -> Any:
    """The recorder of assemblers that are given none."""
    return DEFAULT.recorder


@contextmanager
def using_recorder(recorder: Any) -> Iterator[None]:
    """Until the block ends, this is the recorder of assemblers that are given none; then it is again what it was."""
    before = DEFAULT.__dict__
    set_default_recorder(lambda: recorder)
    try:
        yield
    finally:
        DEFAULT.__dict__ = before
