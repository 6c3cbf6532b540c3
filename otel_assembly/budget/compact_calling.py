"""How a compactor is called: what its signature asks for, whether it is async, what it is named in telemetry."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from otel_assembly._internal.arguments import called
from otel_assembly.errors import ConfigurationError

#: A compactor: ``compact(text, target_tokens)`` gives a text of at most so many tokens, or an awaitable of one.
Compact: TypeAlias = Callable[..., str | Awaitable[str]]

_TARGET: Final = "target_tokens"
_COUNT: Final = "count"
_BY_NAME = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})


class Calling:
    """One compactor, and the way it is called; decided once, from its signature.

    Args:
        compact: The compactor.
        role: What it is to the user, for the message of an error: ``compact``, ``fallback``, ``summarizer``.
        given: What it is called with in the place of the text, if it reads something else.

    Raises:
        ConfigurationError: It cannot be called with a text and a number of tokens.
    """

    __slots__ = ("_counts", "_given", "_named", "compact", "is_async", "name", "never_waits")

    def __init__(self, compact: Compact, role: str = "compact", *, given: Any = None) -> None:
        called(role, compact)
        if not callable(compact):
            raise ConfigurationError(f"{role} is a {type(compact).__name__}; give a callable ({role}(text, target))")
        self.compact = compact
        self._given = given
        self.name = _name_of(compact)
        self.is_async = is_async(compact)
        #: It needs no model and no network, so it cannot hang, and its answer is made of the text's own words.
        self.never_waits = getattr(compact, "never_waits", False) is True
        try:
            signature = inspect.signature(compact)
        except (TypeError, ValueError):  # some callables written in C have none
            self._named = self._counts = False
            return
        parameters = signature.parameters.values()
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
        named = signature.parameters.get(_TARGET)
        counted = signature.parameters.get(_COUNT)
        # By keyword only: a second parameter of that name may well be the number of tokens.
        self._counts = counted is not None and counted.kind is inspect.Parameter.KEYWORD_ONLY
        self._named = named.kind in _BY_NAME if named is not None else takes_any and not _binds(signature, "", 1)
        if not self._bound(signature):
            raise ConfigurationError(
                f"{role} {self.name} takes {signature}; it is called with the text and the tokens it may have: "
                "def compact(text, target_tokens)"
            )

    def _bound(self, signature: inspect.Signature) -> bool:
        keywords: dict[str, Any] = {_COUNT: len} if self._counts else {}
        return (
            _binds(signature, "", **{_TARGET: 1}, **keywords) if self._named else _binds(signature, "", 1, **keywords)
        )

    def __call__(self, text: str, target: int, count: Callable[[str], int]) -> Any:
        """What the compactor returns: a text, an awaitable of one, or what it should not have returned."""
        source = text if self._given is None else self._given
        keywords: dict[str, Any] = {_COUNT: count} if self._counts else {}
        if self._named:
            return self.compact(source, target_tokens=target, **keywords)
        return self.compact(source, target, **keywords)


def _binds(signature: inspect.Signature, *values: Any, **keywords: Any) -> bool:
    try:
        signature.bind(*values, **keywords)
    except TypeError:
        return False
    return True


def _unwrapped(compact: Any) -> Any:
    while isinstance(compact, functools.partial):
        compact = compact.func
    return compact


def is_async(compact: Any) -> bool:
    """Whether a callable is known to give an awaitable: a coroutine function, or one that says so (`is_async`)."""
    inner = _unwrapped(compact)
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return True
    return getattr(inner, "is_async", False) is True


def _name_of(compact: Any) -> str:
    inner = _unwrapped(compact)
    named = inspect.isroutine(inner) or isinstance(inner, type)
    return str(getattr(inner, "__name__", "") if named else type(inner).__name__).strip("<>") or "compactor"
