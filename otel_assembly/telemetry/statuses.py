"""The status of our spans: ERROR with a fixed phrase, and numbers at most; an exception could quote a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Status, StatusCode

from otel_assembly.errors import HaltedError, is_failure
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.projection import error_attributes
from otel_assembly.telemetry.run import HALTED

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_assembly.decision import Overflow

_FAILED: Final = Status(StatusCode.ERROR, names.STATUS_POLICY_FAILED)
_CANCELLED: Final = Status(StatusCode.ERROR)


def set_status(span: Span, error: BaseException | None, *, overflow: Overflow | None, halted: bool) -> None:
    """Say how the work of a span ended."""
    if error is not None:
        span.set_attributes(error_attributes(error))
    if halted or isinstance(error, HaltedError):
        span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
        span.set_status(HALTED)
    elif overflow is not None:
        span.set_attribute(names.ERROR_TYPE, names.ERROR_CONTEXT_OVERFLOW)
        span.set_status(_overflowed(overflow))
    elif error is not None:
        span.set_status(_FAILED if is_failure(error) else _CANCELLED)


def _overflowed(overflow: Overflow) -> Status:
    """By how much of what the need is over which limit."""
    unit = overflow.unit if overflow.excess != 1 else overflow.unit.removesuffix("s")
    numbers = f"{overflow.excess:,} {unit} over {overflow.budget:,}"
    return Status(StatusCode.ERROR, f"{names.STATUS_CONTEXT_OVERFLOW}: {numbers}")
