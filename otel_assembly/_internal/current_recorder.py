"""The default recorder; `otel_assembly.recorder` defines the interface."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Default:
    """The recorder of assemblers without a recorder of their own; created on first use."""

    make: Callable[[], Any]
    recorder: Any

    def __getattr__(self, name: str) -> Any:
        if name != "recorder":
            raise AttributeError(name)
        self.recorder = made = self.make()
        return made


#: The default. Until its first use, its ``vars`` do not contain `recorder`.
DEFAULT: Final = _Default()
#: Called for each guard that closes, with the halt, the guard and the agent that caused it, if that is known.
halt_listeners: list[Callable[[Any, Any, Any], None]] = []
#: Called with each assembly that an `Assembler` has made.
assembly_listeners: list[Callable[[Any], None]] = []
#: Called for each guard that is opened again, and at the start of each turn until the event is recorded.
resume_listeners: list[Callable[[Any], None]] = []


def set_default_recorder(make: Callable[[], Any]) -> None:
    """Set the factory of the default recorder, which is called on first use."""
    DEFAULT.__dict__ = {"make": make}


def default_recorder() -> Any:
    """Return the recorder of assemblers without a recorder of their own."""
    return DEFAULT.recorder


@contextmanager
def using_recorder(recorder: Any) -> Iterator[None]:
    """Replace the default recorder until the block ends."""
    before = DEFAULT.__dict__
    set_default_recorder(lambda: recorder)
    try:
        yield
    finally:
        DEFAULT.__dict__ = before
