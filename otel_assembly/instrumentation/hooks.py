"""Hooks: what of a framework is wrapped, by which versions of it, and what became of it here."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.replacements import replacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from otel_assembly.instrumentation.instrumentor import Instrumentation

logger = logging.getLogger("otel_assembly")

_NOTHING: Final = object()


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
