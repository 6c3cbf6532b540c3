"""The environment variables that change what is exported: ours, and the standard ones that matter here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_assembly.telemetry import conventions as names


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """A variable that changes what is exported; `standard` ones are OpenTelemetry's own."""

    name: str
    values: tuple[str, ...]
    default: str
    brief: str
    standard: bool = False


ALERT_SIGNAL: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_ALERT_SIGNAL",
    ("span_event", "log_event", "both"),
    "span_event",
    f"What carries `{names.EVENT_OVERFLOW}`, `{names.EVENT_ALERT}` and `{names.EVENT_HALT}`: events on the span, log"
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
    "Whether content is exported, and where. `SPAN_ONLY` and `SPAN_AND_EVENT` add the opt-in attributes below to"
    " our spans; no event of ours carries content.",
    standard=True,
)
SPAN_FILE: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_SPAN_FILE",
    (),
    "otel-assembly-spans.jsonl",
    "Where `OTEL_TRACES_EXPORTER=otel_assembly_file` writes: OTLP JSON lines, which `otel-assembly explain`,"
    " `otel-assembly view` and the Collector read.",
)
UNCAPTURED_HINT: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_UNCAPTURED_HINT",
    ("true", "false"),
    "true",
    "Whether an instrumented process that calls a model through a provider's client, and records no assembly, logs one"
    " line about it at its end.",
)
SDK_METRICS: Final = EnvironmentVariable(
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED",
    ("true", "false"),
    "false",
    "Whether the SDK (1.45 and later) counts the spans that it started, exported and lost: without it, what was lost is"
    " a line in a log.",
    standard=True,
)

FLUSH_ON_SIGTERM: Final = EnvironmentVariable(
    "OTEL_ASSEMBLY_FLUSH_ON_SIGTERM",
    ("true", "false"),
    "false",
    "Whether `opentelemetry-instrument` installs a handler that exports what is queued when the process gets SIGTERM,"
    " and then calls the handler that was there. A number of seconds instead of `true` limits the export; with `true`,"
    " the limit is 5.",
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
        "`true`: nothing is exported. Assembly itself is the same.",
        standard=True,
    ),
    EnvironmentVariable(
        "OTEL_TRACES_SAMPLER",
        (),
        "parentbased_always_on",
        "Spans that are not sampled carry nothing; metrics and log records stay whole.",
        standard=True,
    ),
    SDK_METRICS,
    EnvironmentVariable(
        "OTEL_SPAN_EVENT_COUNT_LIMIT",
        (),
        "128",
        f"A span keeps its newest events only; `{names.ALERTS_DELIVERED}` counts all of them.",
        standard=True,
    ),
    EnvironmentVariable(
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        (),
        "none",
        f"Cuts every string; below a few hundred characters `{names.POLICY_CONFIG}` is no JSON any more.",
        standard=True,
    ),
)
