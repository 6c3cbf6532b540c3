"""What takes the place of a framework's function: called as Python calls what stood there, and looking like it.

What stands there need not be the framework's own function. Other instrumentations, decorators and tests put objects
there that bind in a way of their own. So a hook is always given a function of the instance (or the class) that the call
is made on, and what stood there is bound to that one by its own `__get__` before it is called.
"""

from __future__ import annotations

import functools
import inspect
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.hidden_frames import hide_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Receiver(Enum):
    """What a hook gets as its first argument."""

    INSTANCE = "instance"
    CLASS = "class"
    NONE = "none"


def replacement(owner: Any, there: Any, make: Make) -> Any:
    """What to put in the place of `there`, an attribute of a module or of a class; None where nobody could call that.

    Args:
        owner: The module or the class.
        there: What stands in its `__dict__`.
        make: Makes the hook's function of what it is to call in the end.
    """
    if type(there) is FunctionType:
        made = make(there)
        return made if _alike(made, there) else _InPlaceOfFunction(there, made)
    if isinstance(owner, ModuleType):
        return _InPlaceOfFunction(there, make(there)) if callable(there) else None
    if type(there) in {classmethod, staticmethod} and type(there.__func__) is FunctionType:
        return type(there)(replacement(owner, there.__func__, make))
    if not callable(there) and not hasattr(type(there), "__get__"):
        return None
    kind = _InPlaceOfData if hasattr(type(there), "__set__") or hasattr(type(there), "__delete__") else _InPlaceOf
    return kind(owner, there, make)


def _alike(made: Callable[..., Any], there: Callable[..., Any]) -> bool:
    """Whether whoever asks what kind of function it is gets the same answer of both."""
    questions = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    return all(question(made) is question(there) for question in questions)


def _receiver(there: Any) -> _Receiver:
    """A wrapper binds as the innermost thing does that it stands around."""
    inner, seen = there, set[int]()
    while inner is not None and id(inner) not in seen:
        if isinstance(inner, staticmethod):
            return _Receiver.NONE
        if isinstance(inner, classmethod):
            return _Receiver.CLASS
        seen.add(id(inner))
        partial = isinstance(inner, functools.partial | functools.partialmethod)
        inner = inner.func if partial else getattr(inner, "__wrapped__", None)
    return _Receiver.INSTANCE


def _bind(there: Any, instance: Any, owner: Any) -> Any:
    """What Python finds where an attribute is asked for and `there` stands in the class."""
    get = getattr(type(there), "__get__", None)
    return there if get is None else get(there, instance, owner)


class _LooksLike:
    """An object that answers for another one, to whoever asks; only what is called is the hook's function.

    What a hook has noted on its function is found too.
    """

    def __init__(self, there: Any, made: Callable[..., Any]) -> None:
        self.__wrapped__ = there
        self._made = made
        self.__module__ = getattr(there, "__module__", "")
        self.__doc__ = getattr(there, "__doc__", None)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.__wrapped__.__class__

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # while it is unpickled or copied, nothing stands there yet
            raise AttributeError(name)
        try:
            return getattr(self.__wrapped__, name)
        except AttributeError:
            if name in vars(self._made):
                return getattr(self._made, name)
            raise

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


class _InPlaceOfFunction(_LooksLike):
    """In the place of a function that is of another kind than the hook's, or of anything that a module has."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._made(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if not hasattr(type(self.__wrapped__), "__get__") or instance is None:
            return self
        return MethodType(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str(self.__wrapped__.__qualname__)  # found by its name, as functions are


class _InPlaceOf(_LooksLike):
    """In the place of whatever a class has that is no plain function."""

    def __init__(self, owner: type, there: Any, make: Make) -> None:
        # A hook's function is one for all instances: it binds what stands here to the one that it is called with.
        bound, of_class = (
            make(functools.update_wrapper(functools.partial(call), there, updated=()))
            for call in (self._call_bound, self._call_of_class)
        )
        super().__init__(there, bound)
        self._of_class = of_class
        self._owner = owner
        self._receiver = _receiver(there)

    def _call_bound(self, receiver: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self._receiver is _Receiver.CLASS:
            return _bind(self.__wrapped__, None, receiver)(*args, **kwargs)
        return _bind(self.__wrapped__, receiver, type(receiver))(*args, **kwargs)

    def _call_of_class(self, /, *args: Any, **kwargs: Any) -> Any:
        owner = type(args[0]) if self._receiver is _Receiver.INSTANCE else self._owner
        return _bind(self.__wrapped__, None, owner)(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        found = _bind(self.__wrapped__, instance, owner)
        return _Found(self, found, instance, owner) if callable(found) else found

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Somebody took it from the class's `__dict__`: it is called as it is."""
        return self.__wrapped__(*args, **kwargs)

    def call(self, found: Any, instance: Any, owner: Any, args: Any, kwargs: Any) -> Any:
        """Call the hook's function with its receiver; where there is none, what was found."""
        if self._receiver is _Receiver.NONE:
            return self._of_class(*args, **kwargs)
        if self._receiver is _Receiver.CLASS:
            return self._made(owner, *args, **kwargs)
        if instance is not None:
            return self._made(instance, *args, **kwargs)
        if args and isinstance(args[0], self._owner) and hasattr(type(self.__wrapped__), "__get__"):
            return self._of_class(*args, **kwargs)
        return found(*args, **kwargs)


class _InPlaceOfData(_InPlaceOf):
    """The same, of a descriptor that decides also what becomes of an assignment."""

    def __set__(self, instance: Any, value: Any) -> None:
        type(self.__wrapped__).__set__(self.__wrapped__, instance, value)

    def __delete__(self, instance: Any) -> None:
        type(self.__wrapped__).__delete__(self.__wrapped__, instance)


class _Found(_LooksLike):
    """What an attribute of an instance, or of a class, gives: what it gave before, with the hook's function around."""

    def __init__(self, place: _InPlaceOf, found: Any, instance: Any, owner: Any) -> None:
        super().__init__(found, place._made)  # noqa: SLF001  # one thing in two parts
        self._place = place
        self._instance = instance
        self._type = owner

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._place.call(self.__wrapped__, self._instance, self._type, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Put into a class again, as somebody does who takes another wrapper off, it binds as it did there."""
        return self if self._instance is not None else self._place.__get__(instance, owner)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if type(other) is _Found else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


hide_frames(globals())
