"""What the environment says of our telemetry; read once, when a recorder is made."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("otel_assembly")

#: Which signal carries alerts, overflows and halts: ``span_event`` (the default), ``log_event`` or ``both``.
OTEL_ASSEMBLY_ALERT_SIGNAL: Final = "OTEL_ASSEMBLY_ALERT_SIGNAL"
#: ``false`` leaves out the messages of alerts, and the reasons of halts that quote them; ``true`` by default.
OTEL_ASSEMBLY_CAPTURE_ALERT_MESSAGE: Final = "OTEL_ASSEMBLY_CAPTURE_ALERT_MESSAGE"
#: ``NO_CONTENT`` (the default), ``SPAN_ONLY``, ``EVENT_ONLY`` or ``SPAN_AND_EVENT``: GenAI's own variable.
OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


_E = TypeVar("_E", bound=StrEnum)


class AlertSignal(StrEnum):
    """Which signal carries alerts, overflows and halts."""

    SPAN_EVENT = "span_event"
    LOG_EVENT = "log_event"
    BOTH = "both"


class ContentCapture(StrEnum):
    """Where content is exported, as GenAI's variable names it."""

    NO_CONTENT = "no_content"
    SPAN_ONLY = "span_only"
    EVENT_ONLY = "event_only"
    SPAN_AND_EVENT = "span_and_event"


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What is exported beside numbers.

    Attributes:
        alert_signal: The carrier of alerts, overflows and halts.
        capture_alert_message: Whether alerts' messages and halts' reasons are exported.
        content: Whether and where content is exported.
        redact: Runs on every text before it leaves; what it returns is exported.
    """

    alert_signal: AlertSignal = AlertSignal.SPAN_EVENT
    capture_alert_message: bool = True
    content: ContentCapture = ContentCapture.NO_CONTENT
    redact: Callable[[str], str] | None = None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, redact: Callable[[str], str] | None = None
    ) -> Self:
        """Read the environment; a value that is none of a variable's is a warning, and the default holds."""
        env = os.environ if environment is None else environment
        return cls(
            alert_signal=_read(env, OTEL_ASSEMBLY_ALERT_SIGNAL, AlertSignal, AlertSignal.SPAN_EVENT),
            capture_alert_message=env.get(OTEL_ASSEMBLY_CAPTURE_ALERT_MESSAGE, "true").strip().lower()
            not in {"false", "0", "no", "off"},
            content=_read(
                env,
                OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT,
                ContentCapture,
                ContentCapture.NO_CONTENT,
                also={"true": ContentCapture.SPAN_AND_EVENT, "false": ContentCapture.NO_CONTENT},
            ),
            redact=redact,
        )

    @property
    def content_on_spans(self) -> bool:
        """Whether our spans carry content."""
        return self.content in {ContentCapture.SPAN_ONLY, ContentCapture.SPAN_AND_EVENT}


def _read(env: Mapping[str, str], name: str, values: type[_E], default: _E, also: Mapping[str, _E] | None = None) -> _E:
    raw = env.get(name, "").strip().lower()
    if not raw:
        return default
    if also and raw in also:
        return also[raw]
    try:
        return values(raw)
    except ValueError:
        logger.warning("%s must be one of %s; %s holds", name, ", ".join(values), default.value)
        return default
