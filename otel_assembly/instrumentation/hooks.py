"""Hooks: what of a framework is wrapped, in which versions of it, and what the wrappers are made of.

A wrapper asks its `Instrumentation` whether there is anything to do, does what the original does, and contains whatever
goes wrong in ours, so that the framework never feels it.
"""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.replacements import replacement
from otel_assembly.observe.assembler import ObservedAssembler
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextvars import ContextVar, Token
    from types import ModuleType

    from otel_assembly.observe.assembler import ObservedAssembly
    from otel_assembly.recorder import Recorder
    from otel_assembly.telemetry.run import OpenRun

logger = logging.getLogger("otel_assembly")

_NOTHING: Final = object()
T = TypeVar("T")


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
            not open, the replacement must do what the original does and nothing else.
        gives: What is seen by it, in a phrase for people.
        versions: The versions of the framework, as a specifier, that have it; all supported ones if empty.
    """

    module: str
    target: str
    wrap: Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]
    gives: str
    versions: str = ""

    @property
    def name(self) -> str:
        """The whole dotted name."""
        return f"{self.module}.{self.target}"

    def expected(self, version: str | None) -> bool:
        """Whether this version of the framework has it; where the version is not known, so is that."""
        return version is None or SpecifierSet(self.versions, prereleases=True).contains(version)


def installed(requirements: Iterable[str]) -> tuple[str, str] | None:
    """The first of these distributions that is installed, whatever its version, and its version."""
    for text in requirements:
        name = Requirement(text).name
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


class Patches:
    """Attributes that were replaced, so that the identical objects can be put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._lock = new_lock()
        self._restored = False

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        """Replace a function of a module, or one that a class itself defines; False where there is none.

        Whatever stands there goes on to be called as Python calls it, another one's wrapper included.
        """
        there = vars(owner).get(name, _NOTHING)
        ours = None if there is _NOTHING else replacement(owner, there, make)
        if ours is None:
            return False
        self.replace(owner, name, ours)
        return True

    def take(self, met: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a method in the class that defines it, once: for classes of users, which are known when they are met.

        Nothing is wrapped any more once everything was put back.
        """
        owner = next((one for one in met.__mro__ if name in vars(one)), None)
        if owner is None or self.holds(owner, name):
            return
        with self._lock:
            if not self._restored and not self.holds(owner, name):
                self.wrap(owner, name, make)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Put `value` in the place of an attribute that `owner` itself has."""
        self._replaced.append((owner, name, vars(owner)[name], value))
        setattr(owner, name, value)

    def holds(self, owner: Any, name: str) -> bool:
        """Whether this attribute was replaced."""
        return any(one is owner and other == name for one, other, _, _ in self._replaced)

    def restore(self) -> None:
        """Put everything back; what somebody has wrapped since stays wrapped, and is inert."""
        with self._lock:
            self._restored = True
        while self._replaced:
            owner, name, original, ours = self._replaced.pop()
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
            else:
                logger.debug("%s was replaced again after it was instrumented: it stays, and does nothing", name)


def find(module: ModuleType, target: str) -> tuple[Any, str] | None:
    """The object that holds a hook's target, and the attribute's name there."""
    owner: Any = module
    *path, name = target.split(".")
    for part in path:
        owner = getattr(owner, part, None)
        while owner is not None and not issubclass(type(owner), type):  # another one's wrapper around the class
            owner = getattr(owner, "__wrapped__", None)
        if owner is None:
            return None
    return (owner, name) if name in vars(owner) else None


class Following:
    """One method, followed through all classes that define it.

    Args:
        method: Its name.
        wrap: Makes the replacement, from the class's own function, the class and the instrumentation.
    """

    def __init__(
        self, method: str, wrap: Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]]
    ) -> None:
        self.method = method
        self.wrap = wrap
        self._lock = new_lock()
        self._seen: weakref.WeakSet[type] = weakref.WeakSet()
        self._instrumentation: weakref.ref[Instrumentation] | None = None
        self._watched: list[tuple[type, Any]] = []

    def tree(self, base: type, instrumentation: Instrumentation) -> None:
        """Wrap it in a class and in all its subclasses, those included that are yet to be defined."""
        self.watch(base, instrumentation)
        classes = [base]
        while classes:
            one = classes.pop()
            self.follow(one, instrumentation)
            classes += one.__subclasses__()

    def follow(self, one: type, instrumentation: Instrumentation) -> None:
        """Wrap it wherever a class has it from."""
        with instrumentation.contained(), self._lock:
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
        # A method that is yet to be defined is left alone.
        if getattr(vars(owner).get(self.method), "__isabstractmethod__", False):
            return
        if not instrumentation.patches.holds(owner, self.method):
            instrumentation.patches.wrap(owner, self.method, lambda made: self.wrap(made, owner, instrumentation))

    def watch(self, base: Any, instrumentation: Instrumentation) -> None:
        """Look at each subclass as it is defined."""
        if "__init_subclass__" in vars(base):
            return

        def look(cls: type, /, **arguments: Any) -> None:
            following: Any = super(base, cls)
            following.__init_subclass__(**arguments)
            if instrumentation.open:
                self.follow(cls, instrumentation)

        hook: Any = classmethod(look)
        base.__init_subclass__ = hook
        self._watched.append((base, hook))

    def leave(self) -> None:
        """Take away what was put there to see new subclasses."""
        while self._watched:
            base, hook = self._watched.pop()
            if vars(base).get("__init_subclass__") is hook:
                del base.__init_subclass__


class Instrumentation:
    """One framework while it is instrumented: what its wrappers ask, and where they report.

    Attributes:
        open: False once the framework is not instrumented any more: wrappers that something still holds are then inert.
        framework: The framework's name.
        observed: Where assemblies are reported.
        patches: What was replaced.
    """

    def __init__(self, framework: str, recorder: Recorder | None = None) -> None:
        self.open = True
        self.framework = framework
        self.observed = ObservedAssembler(framework, recorder=recorder)
        self.patches = Patches()

    @property
    def recorder(self) -> Recorder:
        """Where everything is recorded."""
        return self.observed.recorder

    def listening(self) -> bool:
        """Whether a provider is configured: every wrapper asks this first, so that it must cost next to nothing."""
        return self.open and self.observed.recorder.listening()

    def contained(self) -> contained:
        """A block of ours whose failure is a warning and a count, never the agent's."""
        return contained(self.failed)

    def failed(self, error: Exception) -> None:
        """Something of ours went wrong."""
        self.recorder.failed(f"instrumentation.{self.framework}", error)

    def take(self, met: type, name: str, wrap: Callable[[Callable[..., Any], Instrumentation], Any]) -> None:
        """Wrap a method of a class that is met as the framework runs, as a hook wraps one."""
        self.patches.take(met, name, lambda made: wrap(made, self))

    def begin_run(self, agent_name: str, *, conversation_id: str | None = None) -> OpenRun | None:
        """One run of an agent: an ``invoke_agent`` span where no span is current; None where no provider is configured.

        ``with run.current():`` around what runs in it, and never across a ``yield``; then ``run.end(error)``.
        """
        recorder, run = self.recorder, None
        if isinstance(recorder, OpenTelemetryRecorder):
            with self.contained():
                run = recorder.begin_run(agent_name, framework=self.framework, conversation_id=conversation_id)
        return run


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


def reported_whole(assembly: ObservedAssembly) -> contained:
    """A block whose failure leaves this assembly out: what cannot be reported whole is not reported in part."""
    return contained(assembly.fail)


class ByIdentity(Generic[T]):
    """What is known of objects, whatever they are equal to, for as long as they live.

    Of an object that cannot be weakly referred to nothing is remembered.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, of: Any) -> T | None:
        """What is known of an object; None where that is nothing."""
        held = self._held.get(id(of))
        return held[1] if held is not None and held[0]() is of else None

    def put(self, of: Any, known: T) -> T:
        """Remember this of an object; it is returned."""
        key, all_held = id(of), self._held
        with suppress(TypeError):
            all_held[key] = weakref.ref(of, lambda gone: _forget(all_held, key, gone)), known
        return known

    def pop(self, of: Any) -> T | None:
        """What is known of an object, which is forgotten."""
        known = self.get(of)
        self._held.pop(id(of), None)
        return known


def _forget(held: dict[int, tuple[weakref.ref[Any], Any]], key: int, gone: weakref.ref[Any]) -> None:
    known = held.get(key)
    if known is not None and known[0] is gone:
        del held[key]
