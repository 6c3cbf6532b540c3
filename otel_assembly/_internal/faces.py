"""Modules that are imported when a name of theirs is first asked for: behind the face of a package, or one by one."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def face(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package, by the module of it that each of these names stands in."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})


def homes(names: Mapping[str, str]) -> dict[str, str]:
    """By its name the module that it stands in, of the names that each module has, with spaces between them."""
    return {name: module for module, found in names.items() for name in found.split()}


class Later:
    """A module that most programs never need: it is imported when something of it is first asked for.

    Args:
        module: Its whole name.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(import_module(self._module), name)
        return found
