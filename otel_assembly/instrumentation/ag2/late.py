"""Classes of users that implement a protocol of AG2: they are known, and wrapped, when they are met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation


def take(
    instrumentation: Instrumentation,
    implementation: type,
    method: str,
    wrap: Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]],
) -> None:
    """Wrap a method in the class that defines it, once."""
    patches = instrumentation.patches
    owner = next((base for base in implementation.__mro__ if method in vars(base)), None)
    if owner is not None and not patches.holds(owner, method):
        patches.wrap(owner, method, lambda original: wrap(original, instrumentation))
