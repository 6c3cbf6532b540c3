"""The environment of a command whose assemblies are watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.telemetry.conventions_environment import ALERT_SIGNAL, CAPTURE_MESSAGE_CONTENT
from otel_assembly.telemetry.settings import ContentCapture

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How long an ended span waits for its export, in milliseconds, and the spans in one export.
_DELAY: Final = "200"
_BATCH: Final = "32"
#: A turn has hundreds of attributes; an SDK drops those above 128 without a trace.
_COUNT: Final = "100000"
#: Variables that would send telemetry elsewhere, cut it, or turn it off.
_UNSET: Final = (
    "OTEL_SDK_DISABLED",
    "OTEL_CONFIG_FILE",
    "OTEL_EXPERIMENTAL_CONFIG_FILE",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
)
_OF_SIGNALS: Final = ("ENDPOINT", "PROTOCOL", "HEADERS", "COMPRESSION", "CERTIFICATE", "INSECURE")


def child_environment(
    environment: Mapping[str, str], endpoint: str, *, content: bool | None, forwards: bool, headers: str = ""
) -> dict[str, str]:
    """Return the environment of the command, which sends all telemetry to `endpoint`.

    Args:
        environment: The environment of this process.
        endpoint: The URL of the receiver.
        content: Whether to capture message content; None: as `environment` sets it.
        forwards: Whether the receiver sends the telemetry on. Then metrics are exported too, with the user's headers.
        headers: Headers for each request, in the form of ``OTEL_EXPORTER_OTLP_HEADERS``.
    """
    of_signals = {
        f"OTEL_EXPORTER_OTLP_{signal}_{what}" for signal in ("TRACES", "LOGS", "METRICS") for what in _OF_SIGNALS
    }
    dropped = of_signals | set(_UNSET) | (set() if forwards else {"OTEL_EXPORTER_OTLP_HEADERS"})
    child = {name: value for name, value in environment.items() if name not in dropped}
    child |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "always_on",
        "OTEL_BSP_SCHEDULE_DELAY": _DELAY,
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": _BATCH,
        "OTEL_BLRP_SCHEDULE_DELAY": _DELAY,
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": _COUNT,
        "OTEL_SPAN_EVENT_COUNT_LIMIT": _COUNT,
        # A log record arrives when a halt happens; the span of the run ends later.
        ALERT_SIGNAL.name: "both",
    }
    if not forwards:
        child["OTEL_METRICS_EXPORTER"] = "none"
    if headers:
        child["OTEL_EXPORTER_OTLP_HEADERS"] = ",".join(filter(None, (child.get("OTEL_EXPORTER_OTLP_HEADERS"), headers)))
    if content is not None:
        capture = ContentCapture.SPAN_ONLY if content else ContentCapture.NO_CONTENT
        child[CAPTURE_MESSAGE_CONTENT.name] = capture.name
    for name in ("NO_PROXY", "no_proxy"):
        child[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1,localhost")))
    return child
