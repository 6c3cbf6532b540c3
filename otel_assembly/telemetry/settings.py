"""Which texts and signals telemetry contains; read from the environment when a recorder is created."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("otel_assembly")

#: How alerts, overflows and halts are exported: ``span_event`` (the default), ``log_event`` or ``both``.
OTEL_ASSEMBLY_ALERT_SIGNAL: Final = "OTEL_ASSEMBLY_ALERT_SIGNAL"
#: ``false`` removes the messages of alerts and the reasons of halts, which may quote them; ``true`` by default.
OTEL_ASSEMBLY_CAPTURE_ALERT_MESSAGE: Final = "OTEL_ASSEMBLY_CAPTURE_ALERT_MESSAGE"
#: ``NO_CONTENT`` (the default), ``SPAN_ONLY``, ``EVENT_ONLY`` or ``SPAN_AND_EVENT``; defined by OpenTelemetry.
OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


_E = TypeVar("_E", bound=StrEnum)


class AlertSignal(StrEnum):
    """How alerts, overflows and halts are exported: as span events, as log records, or both."""

    SPAN_EVENT = "span_event"
    LOG_EVENT = "log_event"
    BOTH = "both"


class ContentCapture(StrEnum):
    """Where content is exported; the values of OpenTelemetry's variable for GenAI content."""

    NO_CONTENT = "no_content"
    SPAN_ONLY = "span_only"
    EVENT_ONLY = "event_only"
    SPAN_AND_EVENT = "span_and_event"


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Which texts are exported, and how.

    Attributes:
        alert_signal: How alerts, overflows and halts are exported.
        capture_alert_message: Whether messages of alerts and reasons of halts are exported.
        content: Whether and where content is exported.
        redact: Called with each text before it is exported; the text that it returns is exported. None: texts are
            exported unchanged.
    """

    alert_signal: AlertSignal = AlertSignal.SPAN_EVENT
    capture_alert_message: bool = True
    content: ContentCapture = ContentCapture.NO_CONTENT
    redact: Callable[[str], str] | None = None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, redact: Callable[[str], str] | None = None
    ) -> Self:
        """Read the settings from environment variables; log a warning for an invalid value, and use the default.

        Args:
            environment: The variables by name; None for those of this process.
            redact: The setting `redact`, which has no variable.
        """
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
        """Whether spans contain content."""
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
        logger.warning("%s must be one of %s; the default %s is used", name, ", ".join(values), default.value)
        return default
