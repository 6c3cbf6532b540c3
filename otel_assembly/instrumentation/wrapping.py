"""What the wrappers of all frameworks are made of, so that nothing of ours is felt by what they stand around."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import ContextVar, Token

    from otel_assembly.observe.assembler import ObservedAssembly

T = TypeVar("T")


def argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any = None) -> Any:
    """One argument of a call, however it was given."""
    return args[place] if len(args) > place else kwargs.get(name, default)


class bound(Generic[T]):  # noqa: N801  # read as a word: with bound(VARIABLE, value)
    """A context variable has a value in this block; never left open across the ``yield`` of a generator."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
            self._variable.reset(self._token)


class contained:  # noqa: N801  # as above
    """A block of ours whose failure goes to `failed`, and no further."""

    __slots__ = ("_failed",)

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed(error)
        return True


def told_whole(assembly: ObservedAssembly) -> contained:
    """What cannot be told of an assembly in this block is not told in part: that assembly is left out."""
    return contained(assembly.fail)


class ByIdentity(Generic[T]):
    """What is known of objects, whatever they are equal to, for as long as they live.

    Of an object that cannot be weakly referred to nothing is remembered.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[ref[Any], T]] = {}

    def get(self, of: Any) -> T | None:
        """What is known of an object; None where that is nothing."""
        held = self._held.get(id(of))
        return held[1] if held is not None and held[0]() is of else None

    def put(self, of: Any, known: T) -> T:
        """Remember this of an object; it is returned."""
        key, all_held = id(of), self._held
        with suppress(TypeError):
            all_held[key] = ref(of, lambda gone: _forget(all_held, key, gone)), known
        return known

    def pop(self, of: Any) -> T | None:
        """What is known of an object, which is forgotten."""
        known = self.get(of)
        self._held.pop(id(of), None)
        return known


def _forget(held: dict[int, tuple[ref[Any], Any]], key: int, gone: ref[Any]) -> None:
    known = held.get(key)
    if known is not None and known[0] is gone:
        del held[key]
