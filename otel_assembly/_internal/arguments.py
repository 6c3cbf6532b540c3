"""Checks of what constructors are given, so that a mistake is found where it was made, not at the first turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from otel_assembly.errors import ConfigurationError

#: What to do where a policy, or a source, fails.
OnError: TypeAlias = Literal["raise", "skip"]
#: What to do with the assembly of a conversation that is halted.
OnHalt: TypeAlias = Literal["raise", "return"]
#: What to do where the newest atom does not fit a budget.
OnOverflow: TypeAlias = Literal["raise", "drop"]

_LONGEST: Final = 40


def one_of(setting: str, value: object, known: Any) -> None:
    """Refuse a value that is none of a closed set's.

    Args:
        setting: What the setting is called.
        value: What was given.
        known: The `Literal` of the set.

    Raises:
        ConfigurationError: It is none of them.
    """
    values = get_args(known)
    if not isinstance(value, str) or value not in values:
        raise ConfigurationError(f"{setting} must be {' or '.join(map(repr, values))}, got {value!r}")


def window(setting: str, value: object) -> None:
    """Refuse what can be no model's window.

    Raises:
        ConfigurationError: It is no whole number of tokens, or none that anything fits into.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(
            f"{setting} must be a whole number of tokens, at least 1, got {value!r}; leave it out where nobody knows it"
        )


def share(setting: str, value: object) -> float:
    """A share of something: all of it, or some.

    Raises:
        ConfigurationError: It is no number above 0, or it is one above 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigurationError(f"{setting} must be a number above 0, at most 1, got {value!r}")
    return float(value)


def instance(role: str, given: object) -> None:
    """Refuse a class where an instance of it is meant.

    Raises:
        ConfigurationError: It is a class.
    """
    if isinstance(given, type):
        raise ConfigurationError(f"{role} is the class {given.__name__}; give an instance of it: {given.__name__}(…)")


def objects(dependencies: Mapping[Any, Any]) -> dict[Any, Any]:
    """Dependencies: objects by their type. What stands under another key may be a class.

    Raises:
        ConfigurationError: Under a type there is a class.
    """
    for key, dependency in dependencies.items():
        if isinstance(key, type) and key is not object and not issubclass(key, type):
            instance(f"dependency {key.__name__}", dependency)
    return dict(dependencies)


def called(role: str, given: object) -> None:
    """Refuse a class where an instance of it is meant to be called; a class that is itself called may be meant.

    Raises:
        ConfigurationError: It is a class whose instances can be called.
    """
    if isinstance(given, type) and any("__call__" in vars(base) for base in given.__mro__):
        instance(role, given)


def several(role: str, given: Any, mend: str = "put it into a list") -> tuple[Any, ...]:
    """What was given where several are asked for.

    Raises:
        ConfigurationError: It is a class, a text, or a single one; `mend` says what to do about a text.
    """
    if isinstance(given, type):
        raise ConfigurationError(
            f"{role} is the class {given.__name__}; give a list of instances: [{given.__name__}(…)]"
        )
    if isinstance(given, str | bytes):
        raise ConfigurationError(f"{role} is {text_of(given)}; {mend}")
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"{role} is one {type(given).__name__}; put it into a list")
    return tuple(given)


def text_of(given: str | bytes) -> str:
    """How a message names a text that stands where something else belongs."""
    return f"the text {given[:_LONGEST]!r}"


def counts(role: str, counter: Any) -> None:
    """Refuse what cannot count for the engine.

    Raises:
        ConfigurationError: It is a class, or lacks a member of `TokenCounter`.
    """
    instance(role, counter)
    if not callable(getattr(counter, "count", None)) or not all(
        hasattr(counter, member) for member in ("name", "method", "generation")
    ):
        raise ConfigurationError(
            f"{role} ({type(counter).__name__}) cannot count: it needs 'name', 'method', 'generation' and count(text)"
        )
