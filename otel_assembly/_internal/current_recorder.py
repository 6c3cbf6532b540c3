"""The recorder that records where none was named; `otel_assembly.recorder` says what a recorder is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Default:
    make: Callable[[], Any]
    recorder: Any = None


_DEFAULT = _Default()
#: What is told of every guard that closes: the halt, the guard, and on whose behalf it was closed, where that is known.
halt_listeners: list[Callable[[Any, Any, Any], None]] = []


def set_default_recorder(make: Callable[[], Any]) -> None:
    """Let `make` give the recorder of assemblers that are given none; it is called when the first one needs it."""
    _DEFAULT.make = make
    _DEFAULT.recorder = None


def default_recorder() -> Any:
    """The recorder of assemblers that are given none."""
    if _DEFAULT.recorder is None:
        _DEFAULT.recorder = _DEFAULT.make()
    return _DEFAULT.recorder


def is_default(recorder: Any) -> bool:
    """Whether it is the recorder of assemblers that are given none."""
    return recorder is _DEFAULT.recorder


@contextmanager
def using_recorder(recorder: Any) -> Iterator[None]:
    """Until the block ends, this is the recorder of assemblers that are given none; then it is again what it was."""
    before = _DEFAULT.make, _DEFAULT.recorder
    set_default_recorder(lambda: recorder)
    try:
        yield
    finally:
        _DEFAULT.make, _DEFAULT.recorder = before
