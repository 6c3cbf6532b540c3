"""Checks of constructor arguments, so that a mistake is found at once and not at the first turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from otel_assembly.errors import ConfigurationError

#: The action if a policy or a source fails.
OnError: TypeAlias = Literal["raise", "skip"]
#: The action if the conversation is halted.
OnHalt: TypeAlias = Literal["raise", "return"]
#: The action if the newest atom does not fit the budget.
OnOverflow: TypeAlias = Literal["raise", "drop"]

_LONGEST: Final = 40
#: The largest whole number that OTLP can carry: its integers are signed 64-bit numbers. A span with a larger one fails
#: to export, and takes its whole batch with it.
LARGEST_INTEGER: Final = 2**63 - 1


def one_of(setting: str, value: object, known: Any) -> None:
    """Refuse a value that is not in a closed set.

    Args:
        setting: The name of the setting.
        value: The value.
        known: The `Literal` with the allowed values.

    Raises:
        ConfigurationError: The value is not allowed.
    """
    values = get_args(known)
    if not isinstance(value, str) or value not in values:
        raise ConfigurationError(f"{setting} must be {' or '.join(map(repr, values))}, got {value!r}")


def whole_number(setting: str, value: Any, least: int = 1, unit: str = "") -> int:
    """Return a whole number that a setting can have.

    Args:
        setting: The name of the setting, for the message.
        value: The value.
        least: The smallest value that works.
        unit: The counted unit, for the message: ``tokens``.

    Raises:
        ConfigurationError: The value is not an ``int``, is below `least`, or is above `LARGEST_INTEGER`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        of_unit = f" of {unit}" if unit else ""
        raise ConfigurationError(f"{setting} must be a whole number{of_unit}, got {value!r}")
    if value < least:
        raise ConfigurationError(f"{setting} must be at least {least}, got {value}")
    if value > LARGEST_INTEGER:
        raise ConfigurationError(
            f"{setting} must be at most {LARGEST_INTEGER} (2**63 - 1), got a number of {value.bit_length()} bits"
        )
    return value


def window(setting: str, value: object) -> None:
    """Refuse a value that is not the window of a model.

    Raises:
        ConfigurationError: The value is not a whole number of tokens from 1 to `LARGEST_INTEGER`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(
            f"{setting} must be a whole number of tokens, at least 1, got {value!r}; leave it out if it is not known"
        )
    whole_number(setting, value)


def share(setting: str, value: object) -> float:
    """Return a ratio above 0 and at most 1 as a float.

    Raises:
        ConfigurationError: The value is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigurationError(f"{setting} must be a number above 0, at most 1, got {value!r}")
    return float(value)


def instance(role: str, given: object) -> None:
    """Refuse a class in place of an instance.

    Raises:
        ConfigurationError: The argument is a class.
    """
    if isinstance(given, type):
        raise ConfigurationError(f"{role} is the class {given.__name__}; give an instance of it: {given.__name__}(…)")


def of_type(role: str, given: object, kind: type, fix: str = "") -> None:
    """Refuse an object of another type. The message names types, never the content.

    Args:
        role: The role of the object, for the message.
        given: The object.
        kind: The type that works.
        fix: The fix, as the message states it.

    Raises:
        ConfigurationError: The object is not a `kind`.
    """
    if isinstance(given, kind):
        return
    instance(role, given)
    raise ConfigurationError(
        f"{role} must be a {_type_name(kind)}, got a {_type_name(type(given))}" + (f"; {fix}" if fix else "")
    )


def function(role: str, given: object) -> None:
    """Refuse an object that cannot be called, and a class in place of its callable instance.

    Raises:
        ConfigurationError: The object is neither a function nor another callable.
    """
    called(role, given)
    if not callable(given):
        raise ConfigurationError(f"{role} must be a callable, got a {_type_name(type(given))}")


def items_of_type(role: str, given: Any, kind: type, fix: str = "") -> tuple[Any, ...]:
    """Return a collection as a tuple, if all of its items are of one type. The messages never contain content.

    Args:
        role: The role of the items, for the message.
        given: The collection.
        kind: The type of each item.
        fix: The fix, as the message states it.

    Raises:
        ConfigurationError: The argument is not a collection, or an item has another type.
    """
    fix = fix or f"give a list of {_type_name(kind)}"
    if isinstance(given, str | bytes | Mapping | kind | type) or not isinstance(given, Iterable):
        what = f"the class {given.__name__}" if isinstance(given, type) else f"a {_type_name(type(given))}"
        raise ConfigurationError(f"{role} must be a collection of {_type_name(kind)}, got {what}; {fix}")
    found = tuple(given)
    for index, item in enumerate(found):
        of_type(f"{role}: item {index}", item, kind, fix)
    return found


def _type_name(kind: type) -> str:
    return "text" if kind is str else kind.__name__


def objects(dependencies: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return dependencies, which are objects by their type; the values of other keys may be classes.

    Raises:
        ConfigurationError: The value of a type is a class.
    """
    for key, dependency in dependencies.items():
        if isinstance(key, type) and key is not object and not issubclass(key, type):
            instance(f"dependency {key.__name__}", dependency)
    return dict(dependencies)


def called(role: str, given: object) -> None:
    """Refuse a class whose instances are callable, in place of an instance.

    Raises:
        ConfigurationError: The argument is such a class.
    """
    if isinstance(given, type) and any("__call__" in vars(base) for base in given.__mro__):
        instance(role, given)


def several(role: str, given: Any, fix: str = "put it into a list") -> tuple[Any, ...]:
    """Return an iterable as a tuple.

    Raises:
        ConfigurationError: The argument is a class, a text or a single object; `fix` is the advice for a text.
    """
    if isinstance(given, type):
        raise ConfigurationError(
            f"{role} is the class {given.__name__}; give a list of instances: [{given.__name__}(…)]"
        )
    if isinstance(given, str | bytes):
        raise ConfigurationError(f"{role} is {text_of(given)}; {fix}")
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"{role} is one {type(given).__name__}; put it into a list")
    return tuple(given)


def text_of(given: str | bytes) -> str:
    """Return the name of a text in a message about a wrong argument."""
    return f"the text {given[:_LONGEST]!r}"


def counts(role: str, counter: Any) -> None:
    """Refuse an object that is not a `TokenCounter`.

    Raises:
        ConfigurationError: The argument is a class, or has not all members of `TokenCounter`.
    """
    instance(role, counter)
    if not callable(getattr(counter, "count", None)) or not all(
        hasattr(counter, member) for member in ("name", "method", "generation")
    ):
        raise ConfigurationError(
            f"{role} ({type(counter).__name__}) cannot count: it needs 'name', 'method', 'generation' and count(text)"
        )
