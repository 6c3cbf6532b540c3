"""Environment variables that change the exported telemetry, from this library and from OpenTelemetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_assembly.telemetry import conventions as names


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """An environment variable that changes the exported telemetry.

    Attributes:
        name: The variable's name.
        values: The allowed values; empty if any value is allowed.
        default: The value that is used if the variable is not set.
        brief: The meaning, as Markdown.
        standard: Whether OpenTelemetry defines the variable.
    """

    name: str
    values: tuple[str, ...]
    default: str
    brief: str
    standard: bool = False


ALERT_SIGNAL: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_ALERT_SIGNAL",
    ("span_event", "log_event", "both"),
    "span_event",
    f"How `{names.EVENT_OVERFLOW}`, `{names.EVENT_ALERT}` and `{names.EVENT_HALT}` are exported: as span events, as log"
    " records with that event name, or both. Jaeger shows span events only; log records do not depend on sampling.",
)
CAPTURE_ALERT_MESSAGE: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_CAPTURE_ALERT_MESSAGE",
    ("true", "false"),
    "true",
    f"Whether `{names.ALERT_MESSAGE}` is exported, and `{names.HALT_REASON}`, which quotes it.",
)
CAPTURE_MESSAGE_CONTENT: Final = EnvironmentVariable(
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
    ("NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT"),
    "NO_CONTENT",
    "Whether and where content is exported. `SPAN_ONLY` and `SPAN_AND_EVENT` add the opt-in attributes below to"
    " assembly spans; assembly events never contain content.",
    standard=True,
)
SPAN_FILE: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_SPAN_FILE",
    (),
    "otel-assembly-spans.jsonl",
    "The file that `OTEL_TRACES_EXPORTER=otel_assembly_file` writes. It contains OTLP JSON lines, which"
    " `otel-assembly explain`, `otel-assembly view` and the Collector read.",
)
UNCAPTURED_HINT: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_UNCAPTURED_HINT",
    ("true", "false"),
    "true",
    "Whether an instrumented process that calls a provider's client and records no assembly logs one line about it"
    " when it ends.",
)
SDK_METRICS: Final = EnvironmentVariable(
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED",
    ("true", "false"),
    "false",
    "Whether the SDK (1.45 and later) counts started, exported and lost spans. Otherwise lost spans are only logged.",
    standard=True,
)

FLUSH_ON_SIGTERM: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_FLUSH_ON_SIGTERM",
    ("true", "false"),
    "false",
    "Whether `opentelemetry-instrument` installs a SIGTERM handler that exports queued telemetry and then calls the"
    " previous handler. `true` limits the export to 5 seconds; a number sets another limit.",
)

ENVIRONMENT: Final = (
    ALERT_SIGNAL,
    CAPTURE_ALERT_MESSAGE,
    CAPTURE_MESSAGE_CONTENT,
    SPAN_FILE,
    UNCAPTURED_HINT,
    FLUSH_ON_SIGTERM,
    EnvironmentVariable(
        "OTEL_SDK_DISABLED",
        ("true", "false"),
        "false",
        "Whether telemetry is off. If `true`, nothing is exported; prompts are still assembled.",
        standard=True,
    ),
    EnvironmentVariable(
        "OTEL_TRACES_SAMPLER",
        (),
        "parentbased_always_on",
        "The sampler of spans. Spans that it drops are not exported; metrics and log records are still complete.",
        standard=True,
    ),
    SDK_METRICS,
    EnvironmentVariable(
        "OTEL_SPAN_EVENT_COUNT_LIMIT",
        (),
        "128",
        f"The most events of a span; older ones are dropped. `{names.ALERTS_DELIVERED}` still counts all alerts.",
        standard=True,
    ),
    EnvironmentVariable(
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        (),
        "none",
        f"The most characters of a string; longer ones are cut. A cut `{names.POLICY_CONFIG}` is not valid JSON.",
        standard=True,
    ),
)
