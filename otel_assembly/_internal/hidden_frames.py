"""Frames that `warnings.warn(stacklevel=…)` and `logging`'s ``stacklevel`` do not count.

A wrapper puts its own frame between a caller and the function that the caller meant to call. A warning of that function
with ``stacklevel=2`` would then name the wrapper instead of the caller. Python has no switch for this on the wrapper's
side: `warnings` (all versions, C and Python) and `logging` (3.11 and later) skip exactly those frames whose file name
contains both ``importlib`` and ``_bootstrap``. So the code of a wrapper gets a file name that contains both after its
real path. Tracebacks keep the path and the line number, and `traceback` finds the source line through the module's
loader. `inspect.stack()` still lists the frame, as it does for any decorator.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Follows the real path in the file name of hidden code.
MARK: Final = " (hidden from warnings, like importlib._bootstrap)"


def hide_frames(module: Mapping[str, Any]) -> None:
    """Hide the frames of all functions that a module defines, those in classes and in other functions included.

    Call it once, as the last statement of the module, with ``globals()``.

    Args:
        module: The module's namespace.
    """
    name = module["__name__"]
    for value in [*module.values()]:
        if getattr(value, "__module__", None) == name:
            for function in _functions(value):
                if function.__code__.co_filename == module["__file__"]:  # not a decorator's code, such as contextlib's
                    function.__code__ = _marked(function.__code__)


def _functions(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, type):
        for attribute in vars(value).values():
            function = attribute.__func__ if isinstance(attribute, classmethod | staticmethod) else attribute
            if isinstance(function, FunctionType) and function.__module__ == value.__module__:
                yield function


def _marked(code: CodeType) -> CodeType:
    constants = tuple(_marked(value) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_filename=code.co_filename + MARK, co_consts=constants)
