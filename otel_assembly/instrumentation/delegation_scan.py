"""Reads from the bytecode of a client's class which of its calls pass the request on to another method or client."""

from __future__ import annotations

import dis
import inspect
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import CodeType


def scan_delegation(owner: type, method: str, delegated_methods: Collection[str]) -> tuple[bool, bool]:
    """Return whether a class's method calls the same method on ``super()``, and whether it calls other clients.

    The second is true if code that does not use ``super`` reads one of the names `delegated_methods`. The scan includes
    the class's own functions that the method names, and those that these name, but no inherited ones. It is static,
    because a hook has to decide whether a method's call is recorded before the method runs. It finds names only: a
    function that reads a name is assumed to call it.
    """
    functions, scanned = vars(owner), {method}
    codes = _codes(functions.get(method))
    for code in codes:  # the loop also visits the codes that it adds
        codes += filter(inspect.iscode, code.co_consts)
        for name in code.co_names:
            if name in functions and name not in scanned:
                scanned.add(name)
                codes += _codes(functions[name])
    names_without_super = [set(code.co_names) for code in codes if "super" not in code.co_names]
    return (
        any(method in _names_after_super(code) for code in codes),
        any(not names.isdisjoint(delegated_methods) for names in names_without_super),
    )


def _names_after_super(code: CodeType) -> set[str]:
    """Return the attributes that code reads from ``super()``, such as ``run`` in ``super().run(messages)``."""
    names, follows_super = set[str](), False
    for previous, instruction in pairwise(dis.get_instructions(code)):
        if instruction.opname == "LOAD_GLOBAL" and instruction.argval == "super":
            follows_super = True
        elif follows_super and (
            instruction.opname.startswith("LOAD_SUPER")  # since Python 3.12, it also calls ``super``
            or (previous.opname.startswith("CALL") and instruction.opname in {"LOAD_ATTR", "LOAD_METHOD"})
        ):
            names.add(str(instruction.argval))
            follows_super = False
    return names


def _codes(attribute: Any, depth: int = 3) -> list[CodeType]:
    """Return the code of a function, and of the functions in its closure.

    A decorator without ``functools.wraps`` leaves the decorated function only in the closure. Closures are searched to
    this depth.
    """
    function = inspect.unwrap(attribute)
    function = function if callable(function) else attribute  # a framework may set `__wrapped__` to a mere flag
    code = getattr(function, "__code__", None)
    codes = [] if code is None else [code]
    for cell in (getattr(function, "__closure__", None) or ()) if depth else ():
        with suppress(ValueError):  # the cell is still empty
            if inspect.isfunction(cell.cell_contents):
                codes += _codes(cell.cell_contents, depth - 1)
    return codes
