"""Hooks: what of a framework is wrapped, in which versions of it, and in what.

An original is wrapped in an observation that runs around it, or in a function that runs in its place. Either asks the
`Instrumentation` that it serves whether a provider is configured; while none is, it does what the original does and
nothing else. What fails in an observation is a warning and a count: the original runs all the same, once, and what it
returns or raises goes through.
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, TypeAlias

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.instrumented import call_if_accepted, signature_accepts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable
    from types import ModuleType

    from otel_assembly.instrumentation.instrumented import Instrumentation

    #: It yields once, where the original runs, and is sent what that returned or thrown what it raised; or it returns
    #: before that, where there is nothing to observe.
    Observation: TypeAlias = Generator[None, Any, None]
    #: Makes the replacement of an original, as `Hook.wrap` does.
    Wrap: TypeAlias = Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]


class HookState(StrEnum):
    """What became of a hook."""

    WAITING = "waiting"  #: Its module has not been imported yet.
    TAKEN = "taken"
    NOT_EXPECTED = "not_expected"  #: This version of the framework is known not to have it.
    MISSING = "missing"  #: This version should have it, and has not.


@dataclass(frozen=True, slots=True)
class Hook:
    """One attribute of a framework that is wrapped while it is instrumented.

    Attributes:
        module: The module that is waited for.
        target: ``function``, or ``Class.method``; an inherited method is absent.
        wrap: Makes the replacement, from the original function and the `Instrumentation` that it serves. While that is
            not open, the replacement must do what the original does and nothing else. A `SubclassHook` makes one in
            each class that derives from the target's.
        purpose: What is seen by it, in a phrase for people.
        versions: The versions of the framework, as a specifier, that have it; all supported ones if empty.
        after: The framework's module that has to be imported first. Required if `module` belongs to another package,
            such as a provider's client: programs import that package without the framework, and the framework imports
            it while it is only partly imported itself.
    """

    module: str
    target: str
    wrap: Wrap | SubclassHook
    purpose: str
    versions: str = ""
    after: str = ""

    @property
    def name(self) -> str:
        """The whole dotted name."""
        return f"{self.module}.{self.target}"

    def expected(self, version: str | None) -> bool:
        """Whether this version of the framework has it; where the version is not known, so is that."""
        return version is None or SpecifierSet(self.versions, prereleases=True).contains(version)


class LazyWrappers:
    """What the hooks of a table are wrapped in, of one module: imported with the first of them that is taken.

    An instrumentor is loaded in every process of an instrumented program, and few of them import the framework.

    Args:
        module: Its whole name.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., Callable[..., Any]]:
        def wrap(*args: Any, **kwargs: Any) -> Callable[..., Any]:
            made: Callable[..., Any] = getattr(import_module(self._module), name)(*args, **kwargs)
            return made

        return wrap


def in_module(
    module: str,
    *rows: tuple[str, Any, str] | tuple[str, Any, str, str],
    versions: str = "",
    followed: bool | Callable[[type], bool] = False,
    after: str = "",
) -> list[Hook]:
    """The hooks of one module.

    Args:
        module: Its whole name.
        rows: Of each hook its target, or several separated by spaces, what that is wrapped in, what is seen by it, and
            its own versions.
        versions: The versions of all others.
        followed: Whether each is a method that is followed through all classes that define it, and wrapped alike; or
            which of them it leaves: each is then wrapped for its class, as `SubclassHook` does.
        after: The framework's module that has to be imported first, if this module belongs to another package.
    """

    def wrapped(target: str, wrap: Any) -> Wrap | SubclassHook:
        method = target.rpartition(".")[2]
        if callable(followed):
            return SubclassHook(method, wrap, followed)
        return SubclassHook.for_method(method, wrap) if followed else wrap

    return [
        Hook(module, target, wrapped(target, row[1]), row[2], *(row[3:] or (versions,)), after=after)
        for row in rows
        for target in row[0].split()
    ]


def in_package(package: str, *rows: tuple[Any, ...], versions: str = "", followed: bool = False) -> list[Hook]:
    """The hooks of several modules of one package.

    Args:
        package: Its whole name.
        rows: Those of `in_module`, behind the module's name in the package.
        versions: The versions of all that have none of their own.
        followed: As for `in_module`.
    """
    return [
        hook
        for module, target, *row in rows
        for hook in in_module(f"{package}.{module}", (target, *row), versions=versions, followed=followed)
    ]


def in_class(
    module: str,
    name: str,
    *rows: tuple[str, Wrap | SubclassHook, str] | tuple[str, Wrap | SubclassHook, str, str],
    **settings: Any,
) -> list[Hook]:
    """The hooks of one class of a module: as `in_module`, but for the class's name, which stands before each target."""
    named = [(" ".join(f"{name}.{method}" for method in row[0].split()), *row[1:]) for row in rows]
    return in_module(module, *named, **settings)


def installed(requirements: Iterable[str]) -> tuple[str, str] | None:
    """The first of these distributions that is installed, whatever its version, and its version."""
    for text in requirements:
        name = Requirement(text).name
        with suppress(metadata.PackageNotFoundError):
            return name, metadata.version(name)
    return None


def is_shadowed(distribution: str, module: ModuleType) -> bool:
    """Return whether a module hides the distribution's own module of the same name.

    Programs have packages of their own that are called ``agents`` or ``haystack``. An editable install has no files at
    the place of the distribution, so a module is not called a shadow for that.
    """
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    path = module.__name__.replace(".", "/") + ("/__init__.py" if hasattr(module, "__path__") else ".py")
    try:
        own = os.fspath(metadata.distribution(distribution).locate_file(path))  # type: ignore[call-overload]
        return origin is not None and os.path.exists(own) and not os.path.samefile(own, origin)
    except (OSError, metadata.PackageNotFoundError):
        return False


def find(module: ModuleType, target: str) -> tuple[Any, str] | None:
    """The object that holds a hook's target, and the attribute's name there; what a metaclass makes may have any."""
    owner: Any = module
    *path, name = target.split(".")
    for part in path:
        owner = getattr(owner, part, None)
        while owner is not None and not issubclass(type(owner), type):  # another one's wrapper around the class
            owner = getattr(owner, "__wrapped__", None)
        if owner is None:
            return None
    return (owner, name) if name in vars(owner) or (isinstance(owner, type) and issubclass(owner, type)) else None


def observe_hook(observe: Callable[..., Observation]) -> Wrap:
    """The hook of a function around which `observe` runs, called with the instrumentation and the arguments."""

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return original(*args, **kwargs)
            with _Observed(original, observe, instrumentation, args, kwargs) as returned:
                return returned(original(*args, **kwargs))

        return observed

    return wrap


def observe_async_hook(observe: Callable[..., Observation]) -> Wrap:
    """The hook of a coroutine function, likewise."""

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        async def observed(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return await original(*args, **kwargs)
            with _Observed(original, observe, instrumentation, args, kwargs) as returned:
                return returned(await original(*args, **kwargs))

        return observed

    return wrap


def observe_any_hook(observe: Callable[..., Observation]) -> Wrap:
    """The hook of a function that may be awaited or not; what it returns is awaited where it can be."""

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(original):
            return observe_async_hook(observe)(original, instrumentation)

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return original(*args, **kwargs)
            observation = _Observed(original, observe, instrumentation, args, kwargs)
            with observation as returned:
                result = original(*args, **kwargs)
                if not inspect.iscoroutine(result):
                    return returned(result)
            return _awaited(observation, result)

        return observed

    return wrap


async def _awaited(observation: _Observed, work: Any) -> Any:
    try:
        result = await work
    except BaseException as error:
        observation.__exit__(type(error), error, error.__traceback__)
        raise
    return observation.returned(result)


def replace_hook(work: Callable[..., Any]) -> Wrap:
    """The hook of a function in whose place `work` runs, called with the instrumentation, the original, the arguments.

    Where `work` is a coroutine function, so is the original.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        def done(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return original(*args, **kwargs)
            try:
                return work(instrumentation, original, *args, **kwargs)
            except TypeError:
                if signature_accepts(original, args, kwargs):
                    raise
            return original(*args, **kwargs)

        @functools.wraps(original)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await done(*args, **kwargs)

        return awaited if inspect.iscoroutinefunction(work) else done

    return wrap


class _Observed:
    """One call of an original, while an observation runs around it."""

    __slots__ = ("_instrumentation", "_observation")

    def __init__(
        self,
        original: Callable[..., Any],
        observe: Callable[..., Observation],
        instrumentation: Instrumentation,
        args: Any,
        kwargs: Any,
    ) -> None:
        self._instrumentation = instrumentation
        self._observation = _all_of(original, partial(observe, instrumentation), args, kwargs)

    def __enter__(self) -> Callable[[Any], Any]:
        with self._instrumentation.suppress_errors():
            next(self._observation, None)
        return self.returned

    def returned(self, result: Any) -> Any:
        with self._instrumentation.suppress_errors(), suppress(StopIteration):
            self._observation.send(result)
        return result

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        with self._instrumentation.suppress_errors():
            try:
                self._observation.throw(error)
            except BaseException as raised:
                if raised is not error and raised.__cause__ is not error:  # a `StopIteration` comes out as a cause
                    raise
            finally:
                error.__traceback__ = trace


def _all_of(original: Callable[..., Any], observe: Callable[..., Observation], args: Any, kwargs: Any) -> Observation:
    """An observation whose call is a part of it, so that it is contained as the rest is."""
    yield from call_if_accepted(original, observe, args, kwargs) or ()


class SubclassHook:
    """One method, followed through all classes that define it: those that derive from one, or that a metaclass makes.

    Args:
        method: Its name.
        wrap: Makes the replacement, from the class's own function, the class and the instrumentation.
        excludes: Classes that are left as they are, such as those that only ask others: their names, or whether one is.
    """

    def __init__(
        self,
        method: str,
        wrap: Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]],
        excludes: Collection[str] | Callable[[type], bool] = (),
    ) -> None:
        self.method = method
        self.wrap = wrap
        self._leaves = excludes if callable(excludes) else partial(_is_named, frozenset(excludes))
        self._lock = new_lock()
        self._seen: weakref.WeakSet[type] = weakref.WeakSet()
        self._instrumentation: weakref.ref[Instrumentation] | None = None
        self._watched: list[tuple[Any, Any, Any]] = []

    @classmethod
    def for_method(
        cls, method: str, wrap: Wrap, excludes: Collection[str] | Callable[[type], bool] = ()
    ) -> SubclassHook:
        """One that wraps it in whatever class in the same way, as `Hook.wrap` does."""
        return cls(method, lambda original, _, instrumentation: wrap(original, instrumentation), excludes)

    def tree(self, base: type, instrumentation: Instrumentation) -> None:
        """Wrap it in a class and in all its subclasses, those included that are yet to be defined.

        Of a metaclass these are the classes that it makes, of which it keeps no list: all that there are are gone
        through.
        """
        self.watch(base, instrumentation)
        made = issubclass(base, type)
        classes, met = [object if made else base], set[type]()
        while classes:
            one = classes.pop()
            if one not in met:
                met.add(one)
                if not made or isinstance(one, base):
                    self.follow(one, instrumentation)
                classes += type.__subclasses__(one)

    def follow(self, one: type, instrumentation: Instrumentation) -> None:
        """Wrap it wherever a class has it from."""
        with instrumentation.suppress_errors(), self._lock:
            if self._instrumentation is None or self._instrumentation() is not instrumentation:
                self._instrumentation = weakref.ref(instrumentation)
                self._seen = weakref.WeakSet()
            if one in self._seen:
                return
            for owner in one.__mro__:
                if owner not in self._seen and instrumentation.open:
                    self._seen.add(owner)
                    self._take(owner, instrumentation)

    def _take(self, owner: type, instrumentation: Instrumentation) -> None:
        if not self._leaves(owner) and not instrumentation.patches.holds(owner, self.method):
            instrumentation.patches.unwrap(owner, self.method)
            instrumentation.patches.wrap(owner, self.method, lambda made: self.wrap(made, owner, instrumentation))

    def watch(self, base: Any, instrumentation: Instrumentation) -> None:
        """Look at each subclass as it is defined; what the class itself does then, it does first.

        A metaclass initialises the classes that it makes.
        """
        made = issubclass(base, type)
        name = "__init__" if made else "__init_subclass__"
        there = vars(base).get(name)
        if any(held is base for held, _, _ in self._watched):
            return

        def look(cls: type, /, *given: Any, **arguments: Any) -> None:
            if there is None:
                getattr(super(base, cls), name)(*given, **arguments)
            else:
                there.__get__(*((cls,) if made else (None, cls)))(*given, **arguments)
            if instrumentation.open:
                self.follow(cls, instrumentation)

        hook: Any = look if made else classmethod(look)
        setattr(base, name, hook)
        self._watched.append((base, hook, there))

    def leave(self) -> None:
        """Take away what was put there to see new subclasses."""
        while self._watched:
            base, hook, there = self._watched.pop()
            name = "__init__" if issubclass(base, type) else "__init_subclass__"
            if vars(base).get(name) is not hook:
                continue
            if there is None:
                delattr(base, name)
            else:
                setattr(base, name, there)


def _is_named(names: Collection[str], met: type) -> bool:
    return met.__name__ in names


hide_frames(globals())
