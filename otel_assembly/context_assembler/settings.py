"""Checks the numeric settings of a `ContextAssembler`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_assembly._internal.arguments import of_type, whole_number
from otel_assembly.errors import ConfigurationError, UnknownNameError

_CUTTABLE: Final = ("evidence", "memory", "summary", "recent", "older")


def check_numbers(window: int, output_reserve: int, k: int, recall_k: int, step_tokens: int, deadline: Any) -> None:
    """Check that each number is in range.

    Raises:
        ConfigurationError: A number is out of range; the message names the setting.
    """
    for name, value, least in (
        ("window", window, 0),
        ("output_reserve", output_reserve, 0),
        ("k", k, 1),
        ("recall_k", recall_k, 1),
        ("step_tokens", step_tokens, 0),
    ):
        whole_number(name, value, least)
    if output_reserve >= window:
        raise ConfigurationError(
            f"output_reserve ({output_reserve}) leaves nothing of the window ({window}); it must be smaller"
        )
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not deadline > 0:
        raise ConfigurationError(f"deadline must be a number of seconds above 0, got {deadline!r}")


def checked_floors(floors: Mapping[str, int], budget: int) -> dict[str, int]:
    """Return the floors of blocks, after checking that each is a number of tokens within the budget.

    Raises:
        ConfigurationError: A floor is out of range; the message names the block.
    """
    of_type("floors", floors, Mapping, "give the tokens of each block by its name")
    for name, value in floors.items():
        if name not in _CUTTABLE:
            raise UnknownNameError("block with a floor", name, _CUTTABLE)
        if type(value) is not int or not 0 <= value <= budget:
            raise ConfigurationError(
                f"block {name!r}: its floor must be a whole number from 0 to the budget, {budget}, got {value!r}"
            )
    return dict(floors)
