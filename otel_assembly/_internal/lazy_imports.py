"""Lazy imports: names of a package, and modules, that are imported on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_attributes(
    package: str, modules_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package whose names are defined in these modules."""

    def find(name: str) -> Any:
        if name not in modules_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules_of[name]}"), name)

    return find, lambda: sorted({*vars(sys.modules[package]), *modules_of})


def modules_of(names: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name, from the names of each module, separated by spaces."""
    return {name: module for module, found in names.items() for name in found.split()}


class LazyModule:
    """A module that is imported when an attribute of it is first used.

    Args:
        module: The full name of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(import_module(self._module), name)
        return found
