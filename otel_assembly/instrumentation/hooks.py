"""Hooks: the functions and methods of a framework that are wrapped, in which of its versions, and by which wrapper.

`observe_hook` and its variants run an observation around the original; `replace_hook` runs a function in place of the
original. While no telemetry provider is configured, the wrappers only call the original. An error in an observation
becomes a log warning and a count; the original still runs exactly once, and its result or exception passes through.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
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
    from collections.abc import Callable, Generator, Iterable
    from types import ModuleType
    from typing import Self

    from otel_assembly.instrumentation.instrumented import Instrumentation

    #: A generator that yields once, at the point where the original runs. The original's result is then sent into the
    #: generator, or its exception thrown. A generator that returns before it yields observes nothing.
    Observation: TypeAlias = Generator[None, Any, None]
    #: Makes the replacement of an original function; see `Hook.wrap`.
    Wrap: TypeAlias = Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]


class HookState(StrEnum):
    """The state of a hook since ``instrument()`` was called."""

    WAITING = "waiting"  #: The hook's module has not been imported yet.
    TAKEN = "taken"  #: The target is wrapped.
    NOT_EXPECTED = "not_expected"  #: The installed version of the framework is known not to have the target.
    MISSING = "missing"  #: The installed version should have the target, but does not.


@dataclass(frozen=True, slots=True)
class Hook:
    """One function or method of a framework that is wrapped while the framework is instrumented.

    Attributes:
        module: The full name of the module with the target. The hook is applied after this module is imported.
        target: ``function`` or ``Class.method``. A method that the class only inherits counts as missing.
        wrap: Makes the replacement from the original function and the `Instrumentation`. After the instrumentation is
            closed, the replacement must only call the original. A `SubclassHook` makes a replacement in the target's
            class and in each of its subclasses that defines the method.
        purpose: The data that the hook captures, as a phrase for ``doctor`` and log messages.
        versions: A specifier of the framework versions that have the target; all supported versions if empty.
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
        """The dotted name of the target, including its module."""
        return f"{self.module}.{self.target}"

    def expected(self, version: str | None) -> bool:
        """Return True if this version of the framework should have the target, or if the version is unknown (None)."""
        return version is None or SpecifierSet(self.versions, prereleases=True).contains(version)


class LazyWrappers:
    """The wrapper factories of one module, which is imported when the first of its hooks is applied.

    An instrumentor with its table of hooks is loaded in every process of an instrumented program, but few of these
    processes import the framework. Each attribute is a function for `Hook.wrap`.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., Callable[..., Any]]:
        def wrap(*args: Any, **kwargs: Any) -> Callable[..., Any]:
            replacement: Callable[..., Any] = getattr(import_module(self._module), name)(*args, **kwargs)
            return replacement

        return wrap


def in_module(
    module: str,
    *rows: tuple[str, Any, str] | tuple[str, Any, str, str],
    versions: str = "",
    followed: bool | Callable[[type], bool] = False,
    after: str = "",
) -> list[Hook]:
    """Return the hooks of one module.

    Args:
        module: The full name of the module.
        rows: For each hook its target (or several, separated by spaces), its wrapper (`Hook.wrap`), its purpose and,
            optionally, its versions.
        versions: The versions of the rows that do not give their own.
        followed: If True, each target is a method that is wrapped in every subclass that defines it. A function also
            has this effect: it returns True for the classes to exclude, and the wrapper takes the class as its second
            argument (see `SubclassHook`).
        after: The framework's module that has to be imported first, if this module belongs to another package.
    """

    def wrap_for(target: str, wrap: Any) -> Wrap | SubclassHook:
        method = target.rpartition(".")[2]
        if callable(followed):
            return SubclassHook(method, wrap, followed)
        return SubclassHook.for_method(method, wrap) if followed else wrap

    return [
        Hook(module, target, wrap_for(target, row[1]), row[2], *(row[3:] or (versions,)), after=after)
        for row in rows
        for target in row[0].split()
    ]


def in_package(package: str, *rows: tuple[Any, ...], **settings: Any) -> list[Hook]:
    """Return the hooks of several modules of one package, like `in_module`; each row begins with the module's name."""
    return [hook for module, *row in rows for hook in in_module(f"{package}.{module}", tuple(row), **settings)]


def in_class(
    module: str,
    name: str,
    *rows: tuple[str, Wrap | SubclassHook, str] | tuple[str, Wrap | SubclassHook, str, str],
    **settings: Any,
) -> list[Hook]:
    """Return the hooks of the class `name`, like `in_module` but with method names as targets."""
    qualified = [(" ".join(f"{name}.{method}" for method in row[0].split()), *row[1:]) for row in rows]
    return in_module(module, *qualified, **settings)


def installed(requirements: Iterable[str]) -> tuple[str, str] | None:
    """Return name and version of the first required distribution that is installed, even in an unsupported version."""
    path = tuple(sys.path)
    for text in requirements:
        name = parse_requirement(text).name
        with suppress(metadata.PackageNotFoundError):
            return name, _installed_version(name, path)
    return None


@functools.lru_cache(maxsize=256)
def parse_requirement(text: str) -> Requirement:
    """Return a requirement that is written as in ``requirements.txt``; it is shared, so it must not be changed."""
    return Requirement(text)


@functools.lru_cache(maxsize=256)
def _installed_version(name: str, path: tuple[str, ...]) -> str:
    """Return a distribution's version on this `sys.path`.

    `importlib.metadata` parses the whole metadata file, with the description, which takes 2 ms. The cache has no
    distributions that are not installed, so that an installation in a notebook is noticed.
    """
    return metadata.version(name)


def is_shadowed(distribution: str, module: ModuleType) -> bool:
    """Return True if a module of the program hides the distribution's module of the same name.

    Programs have their own packages that are called ``agents`` or ``haystack``. The result is False if the distribution
    has no file for the module, as in an editable install.
    """
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    path = module.__name__.replace(".", "/") + ("/__init__.py" if hasattr(module, "__path__") else ".py")
    try:
        own = os.fspath(metadata.distribution(distribution).locate_file(path))  # type: ignore[call-overload]
        return origin is not None and os.path.exists(own) and not os.path.samefile(own, origin)
    except (OSError, TypeError, metadata.PackageNotFoundError):  # `TypeError`: the distribution is in a zip file
        return False


def find(module: ModuleType, target: str) -> tuple[Any, str] | None:
    """Return the module or class that defines a hook's target, and the attribute's name; None if the target is missing.

    A metaclass need not define the attribute: the classes that it makes define it.
    """
    owner: Any = module
    *path, name = target.split(".")
    for part in path:
        owner = getattr(owner, part, None)
        while owner is not None and not issubclass(type(owner), type):  # another instrumentation has wrapped the class
            owner = getattr(owner, "__wrapped__", None)
        if owner is None:
            return None
    return (owner, name) if name in vars(owner) or (isinstance(owner, type) and issubclass(owner, type)) else None


def observe_hook(observe: Callable[..., Observation]) -> Wrap:
    """Return a wrapper that runs an observation around a function.

    `observe` makes the observation from the `Instrumentation` and the arguments of the call. If the function returns a
    coroutine, the observation ends when that has been awaited.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(original):
            return observe_async_hook(observe)(original, instrumentation)

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return original(*args, **kwargs)
            observed_call = _ObservedCall(original, observe, instrumentation, args, kwargs)
            with observed_call:
                result = original(*args, **kwargs)
                if not inspect.iscoroutine(result):
                    return observed_call.record_result(result)
            return _await_observed(observed_call, result)

        return observed

    wrap.__doc__ = observe.__doc__  # for decorated functions whose names are public
    return wrap


def observe_async_hook(observe: Callable[..., Observation]) -> Wrap:
    """Return a wrapper for a function whose result is always awaitable, such as a coroutine; see `observe_hook`."""

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        async def observed(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return await original(*args, **kwargs)
            with _ObservedCall(original, observe, instrumentation, args, kwargs) as observed_call:
                return observed_call.record_result(await original(*args, **kwargs))

        return observed

    wrap.__doc__ = observe.__doc__  # as in `observe_hook`
    return wrap


async def _await_observed(observed_call: _ObservedCall, coroutine: Any) -> Any:
    with observed_call:
        return observed_call.record_result(await coroutine)


def replace_hook(work: Callable[..., Any]) -> Wrap:
    """Return a wrapper that calls `work` in place of the original.

    `work` gets the `Instrumentation`, the original and the original's arguments. It must be a coroutine function if the
    original is one.
    """

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            if not instrumentation.is_enabled():
                return original(*args, **kwargs)
            try:
                return work(instrumentation, original, *args, **kwargs)
            except TypeError:
                if signature_accepts(original, args, kwargs):
                    raise
            # The arguments do not fit, so the program gets the original's own error, and not that of `work`.
            return original(*args, **kwargs)

        @functools.wraps(original)
        async def replaced_async(*args: Any, **kwargs: Any) -> Any:
            return await replaced(*args, **kwargs)

        return replaced_async if inspect.iscoroutinefunction(work) else replaced

    return wrap


class _ObservedCall:
    """One call of an original function, whose observation starts now; a context manager around the original."""

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
        self._observation: Observation | None = None
        with instrumentation.suppress_errors():
            observation = call_if_accepted(original, partial(observe, instrumentation), args, kwargs)
            if observation is not None:
                next(observation, None)
                self._observation = observation

    def __enter__(self) -> Self:
        return self

    def record_result(self, result: Any) -> Any:
        if self._observation is not None:
            with self._instrumentation.suppress_errors(), suppress(StopIteration):
                self._observation.send(result)
        return result

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Throw the original's exception into the observation, so that it can record the failure and clean up.

        The observation lets the exception pass; another exception is suppressed and logged. The program always
        gets the original's exception.
        """
        if error is None or self._observation is None:
            return
        with self._instrumentation.suppress_errors():
            try:
                self._observation.throw(error)
            except BaseException as raised:
                # A generator turns a `StopIteration` thrown into it into a `RuntimeError` that has it as its cause.
                has_passed = raised is error or raised.__cause__ is error
                if not has_passed:
                    raise
            finally:
                error.__traceback__ = trace  # without the generator's frames, which the throw added


class SubclassHook:
    """A hook of a method in every class that defines it: a base class's subclasses, or all classes of a metaclass.

    Args:
        wrap: Makes the replacement from the class's own function, the class and the `Instrumentation`.
        excludes: Returns True for classes whose method is not wrapped, such as those that only delegate to others.
    """

    def __init__(
        self,
        method: str,
        wrap: Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]],
        excludes: Callable[[type], bool] = lambda _: False,
    ) -> None:
        self.method = method
        self.wrap = wrap
        self._is_excluded = excludes
        self._lock = new_lock()
        self._visited: weakref.WeakSet[type] = weakref.WeakSet()
        self._instrumentation: weakref.ref[Instrumentation] | None = None
        #: For each watched base class: the class, the name of the hooked method, the hook, and the original attribute.
        self._definition_hooks: list[tuple[Any, str, Any, Any]] = []

    @classmethod
    def for_method(cls, method: str, wrap: Wrap, excludes: Callable[[type], bool] = lambda _: False) -> SubclassHook:
        """Return a hook whose wrapper does not depend on the class; `wrap` is like `Hook.wrap`."""
        return cls(method, lambda original, _, instrumentation: wrap(original, instrumentation), excludes)

    def wrap_subclasses(self, base: type, instrumentation: Instrumentation) -> None:
        """Wrap the method in a class and its subclasses, including those that are defined later.

        If `base` is a metaclass, the method is wrapped in its instances. A metaclass keeps no list of these, so all
        classes of the process are searched.
        """
        self.watch_subclasses(base, instrumentation)
        is_metaclass = issubclass(base, type)
        pending, visited = [object if is_metaclass else base], set[type]()
        while pending:
            candidate = pending.pop()
            if candidate not in visited:
                visited.add(candidate)
                if not is_metaclass or isinstance(candidate, base):
                    self.wrap_class(candidate, instrumentation)
                pending += type.__subclasses__(candidate)

    def wrap_class(self, subclass: type, instrumentation: Instrumentation) -> None:
        """Wrap the method in a class and in all classes that it inherits from, if they define the method.

        A hook calls this for the class of an object that need not derive from the watched base class.
        """
        with instrumentation.suppress_errors(), self._lock:
            # After ``uninstrument()``, all classes are unwrapped, and each has to be visited again.
            if self._instrumentation is None or self._instrumentation() is not instrumentation:
                self._instrumentation = weakref.ref(instrumentation)
                self._visited = weakref.WeakSet()
            if subclass in self._visited:
                return
            for owner in subclass.__mro__:
                if owner not in self._visited and instrumentation.open:
                    self._visited.add(owner)
                    self._wrap_in(owner, instrumentation)

    def _wrap_in(self, owner: type, instrumentation: Instrumentation) -> None:
        if not self._is_excluded(owner) and not instrumentation.patches.has_replaced(owner, self.method):
            # A decorator such as `dataclass(slots=True)` makes a second class with a copy of our replacement, which
            # `patches` does not know. The copy is taken off first, or the method would be wrapped twice.
            instrumentation.patches.unwrap(owner, self.method)
            instrumentation.patches.wrap(
                owner, self.method, lambda original: self.wrap(original, owner, instrumentation)
            )

    def watch_subclasses(self, base: Any, instrumentation: Instrumentation) -> None:
        """Wrap the method in each subclass when it is defined, after the base class's own ``__init_subclass__``.

        If `base` is a metaclass, its ``__init__`` is hooked instead, which initializes the classes that it makes.
        """
        if any(watched_base is base for watched_base, *_ in self._definition_hooks):
            return
        is_metaclass = issubclass(base, type)
        name = "__init__" if is_metaclass else "__init_subclass__"
        previous = vars(base).get(name)  # None if the class only inherits it

        def on_definition(cls: type, /, *args: Any, **kwargs: Any) -> None:
            if previous is None:
                getattr(super(base, cls), name)(*args, **kwargs)
            else:  # bound as Python does: a class is an instance of its metaclass, `__init_subclass__` a classmethod
                previous.__get__(*((cls,) if is_metaclass else (None, cls)))(*args, **kwargs)
            if instrumentation.open:
                self.wrap_class(cls, instrumentation)

        hook: Any = on_definition if is_metaclass else classmethod(on_definition)
        setattr(base, name, hook)
        self._definition_hooks.append((base, name, hook, previous))

    def stop_watching(self) -> None:
        """Undo `watch_subclasses` at ``uninstrument()``. A hook that other code has replaced or wrapped stays."""
        while self._definition_hooks:
            base, name, hook, previous = self._definition_hooks.pop()
            if vars(base).get(name) is not hook:
                continue
            if previous is None:
                delattr(base, name)
            else:
                setattr(base, name, previous)


hide_frames(globals())
