"""Replacements of a framework's functions: they bind as the original attribute does, and look like it.

The attribute that is replaced need not be a plain function: other instrumentations, decorators and tests leave objects
there that bind in their own way. A hook always gets a function whose first argument is the instance (or the class) of
the call. Before that function calls the original attribute, it binds the attribute by its own ``__get__``.
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

    #: Makes a hook's function from the function that it is to call.
    Make = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Receiver(Enum):
    """The first argument of a hook's function; NONE if the original takes neither instance nor class."""

    INSTANCE = "instance"
    CLASS = "class"
    NONE = "none"


def replacement_for(owner: Any, original: Any, make: Make) -> Any:
    """Return the object to set in place of an attribute of a module or class; None if the attribute is a mere value.

    A function, or a class method or static method around one, is replaced by an object of its own type if the hook's
    function has the same kind. Any other attribute is replaced by an object that imitates it (`_LooksLike`). `original`
    is the attribute as it is in the owner's ``__dict__``. `make` returns the hook's function from the function that it
    is to call.
    """
    if type(original) is FunctionType:
        hook_function = make(original)
        if _is_same_kind(hook_function, original):  # both functions bind alike and look alike to `inspect`
            return hook_function
        return _InPlaceOfFunction(original, hook_function)  # `inspect` would report another kind for the function
    if isinstance(owner, ModuleType):  # Python binds no attributes of modules, so `make` gets the original itself
        return _InPlaceOfFunction(original, make(original)) if callable(original) else None
    if type(original) in {classmethod, staticmethod} and type(original.__func__) is FunctionType:
        # The same decorator binds the hook's function as it bound the original.
        return type(original)(replacement_for(owner, original.__func__, make))
    if not callable(original) and not hasattr(type(original), "__get__"):  # a constant
        return None
    if hasattr(type(original), "__set__") or hasattr(type(original), "__delete__"):
        return _InPlaceOfDataDescriptor(owner, original, make)  # it passes assignments and deletions on
    return _InPlaceOfDescriptor(owner, original, make)  # another library's wrapper, a partial method, or the like


def _is_same_kind(function: Callable[..., Any], original: Callable[..., Any]) -> bool:
    """Return True if `inspect` reports the same kind for both: coroutine function, generator function or neither."""
    predicates = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    return all(predicate(function) is predicate(original) for predicate in predicates)


def _receiver(original: Any) -> _Receiver:
    """Return the kind of receiver of an attribute; a wrapper has the kind of the innermost function that it wraps."""
    inner, visited = original, set[int]()
    while inner is not None and id(inner) not in visited:
        if isinstance(inner, staticmethod):
            return _Receiver.NONE
        if isinstance(inner, classmethod):
            return _Receiver.CLASS
        visited.add(id(inner))
        is_partial = isinstance(inner, functools.partial | functools.partialmethod)
        inner = inner.func if is_partial else getattr(inner, "__wrapped__", None)
    return _Receiver.INSTANCE


def _bind(attribute: Any, instance: Any, owner: Any) -> Any:
    get = getattr(type(attribute), "__get__", None)
    return attribute if get is None else get(attribute, instance, owner)


class _LooksLike:
    """An object that has the class, attributes and representation of another; a call runs the hook's function.

    Attributes that the hook has set on its function are found too.
    """

    def __init__(self, original: Any, hook_function: Callable[..., Any]) -> None:
        self.__wrapped__ = original
        self._hook_function = hook_function
        self.__module__ = getattr(original, "__module__", "")
        self.__doc__ = getattr(original, "__doc__", None)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.__wrapped__.__class__

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # not set yet while the object is unpickled or copied
            raise AttributeError(name)
        try:
            return getattr(self.__wrapped__, name)
        except AttributeError:
            if name in vars(self._hook_function):
                return getattr(self._hook_function, name)
            raise

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


class _InPlaceOfFunction(_LooksLike):
    """Replaces a callable of a module, or a plain function of another kind than the hook's function."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._hook_function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if not hasattr(type(self.__wrapped__), "__get__") or instance is None:
            return self
        return MethodType(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str(self.__wrapped__.__qualname__)  # pickled by its name, as functions are


class _InPlaceOfDescriptor(_LooksLike):
    """Replaces an attribute of a class that is not a plain function, and binds as that attribute does.

    The path of a call: reading the attribute (`__get__`) returns a `_BoundReplacement`. Calling that runs `call`, which
    calls the hook's function with the receiver as its first argument. The hook's function calls `_call_bound` as its
    original, which binds the replaced attribute to the receiver again, and calls it.
    """

    def __init__(self, owner: type, original: Any, make: Make) -> None:
        # All instances share one hook function, so its original cannot be bound in advance. A second hook function has
        # `_call_from_class` as its original, for calls like `Class.method(instance)`.
        hook_function, hook_function_of_class = (
            make(functools.update_wrapper(functools.partial(call), original, updated=()))
            for call in (self._call_bound, self._call_from_class)
        )
        super().__init__(original, hook_function)
        self._hook_function_of_class = hook_function_of_class
        self._owner = owner
        self._receiver = _receiver(original)

    def _call_bound(self, receiver: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the replaced attribute as a method of the receiver, which is an instance or a class."""
        if self._receiver is _Receiver.CLASS:
            return _bind(self.__wrapped__, None, receiver)(*args, **kwargs)
        return _bind(self.__wrapped__, receiver, type(receiver))(*args, **kwargs)

    def _call_from_class(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the replaced attribute as read from the class, with the instance among the arguments, if any."""
        owner = type(args[0]) if self._receiver is _Receiver.INSTANCE else self._owner
        return _bind(self.__wrapped__, None, owner)(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = _bind(self.__wrapped__, instance, owner)
        return _BoundReplacement(self, bound, instance, owner) if callable(bound) else bound

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the original attribute unbound and unobserved: the caller took it from the class's ``__dict__``."""
        return self.__wrapped__(*args, **kwargs)

    def call(self, bound: Any, instance: Any, owner: Any, args: Any, kwargs: Any) -> Any:
        """Call the hook's function with the receiver of the call.

        If the call has no receiver, as in ``Class.method()``, call the original without the hook.
        """
        if self._receiver is _Receiver.NONE:
            return self._hook_function_of_class(*args, **kwargs)
        if self._receiver is _Receiver.CLASS:
            return self._hook_function(owner, *args, **kwargs)
        if instance is not None:
            return self._hook_function(instance, *args, **kwargs)
        if args and isinstance(args[0], self._owner) and hasattr(type(self.__wrapped__), "__get__"):
            return self._hook_function_of_class(*args, **kwargs)
        return bound(*args, **kwargs)


class _InPlaceOfDataDescriptor(_InPlaceOfDescriptor):
    """Replaces a descriptor that also handles assignment or deletion, which are passed on to it."""

    def __set__(self, instance: Any, value: Any) -> None:
        type(self.__wrapped__).__set__(self.__wrapped__, instance, value)

    def __delete__(self, instance: Any) -> None:
        type(self.__wrapped__).__delete__(self.__wrapped__, instance)


class _BoundReplacement(_LooksLike):
    """The value of a replaced attribute on an instance or class: looks like the original's value, calls the hook.

    Args:
        descriptor: The descriptor that replaces the attribute, and creates this object when the attribute is read.
        bound: The original's value.
        instance: The instance from which the attribute was read; None if it was read from the class.
        read_from: The class of the instance, or the class itself. It may be a subclass of the descriptor's class.
    """

    def __init__(self, descriptor: _InPlaceOfDescriptor, bound: Any, instance: Any, read_from: Any) -> None:
        super().__init__(bound, descriptor._hook_function)  # noqa: SLF001  # both classes are one mechanism
        self._descriptor = descriptor
        self._instance = instance
        self._read_from = read_from

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._descriptor.call(self.__wrapped__, self._instance, self._read_from, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind like the descriptor if this object was read from a class and then set in a class.

        Code that removes another wrapper does so: it reads the class's attribute and assigns it again.
        """
        return self if self._instance is not None else self._descriptor.__get__(instance, owner)

    def __eq__(self, value: object) -> bool:
        return bool(self.__wrapped__ == (value.__wrapped__ if type(value) is _BoundReplacement else value))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


hide_frames(globals())
