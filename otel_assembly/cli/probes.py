"""The probes of ``doctor``: a trace of one span and a gauge of one point, sent with the configured OTLP exporter.

The probes have a service name and an instrumentation scope of their own, and no name that begins with ``assembly.``.
Dashboards, alert rules and the commands that read spans therefore do not count them as assemblies.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import re
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._version import __version__
from otel_assembly.cli.export import OTEL_EXPORTER_OTLP_ENDPOINT, otlp_endpoint, otlp_protocol, reachable
from otel_assembly.errors import AssemblyError

if TYPE_CHECKING:
    from collections.abc import Callable

#: The service name of the probes. A tail sampler must keep its traces.
SERVICE: Final = "otel-assembly-doctor"
SPAN: Final = "doctor_probe"
METRIC: Final = "otel_assembly.doctor.probe"
_SCOPE: Final = "otel_assembly.doctor"
_METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
_METRICS_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"

#: The timeout of an export, in seconds.
_SENDING: Final = 5.0
#: The most characters of an exporter's error that are printed.
_LONGEST_REASON: Final = 160


def send_trace() -> str:
    """Send the probe trace, which has one span, and return its trace id.

    Raises:
        AssemblyError: The endpoint did not accept the span.
    """
    export = _exporter("trace_exporter", "OTLPSpanExporter", otlp_endpoint(), otlp_protocol())
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    # Ignore the sampler that the environment sets, because it could drop the probe.
    provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False)
    span: Any = provider.get_tracer(_SCOPE, __version__).start_span(SPAN)
    span.end()
    export([span])
    return f"{span.get_span_context().trace_id:032x}"


def send_metric(value: float) -> None:
    """Send the probe metric, a gauge, with this value.

    Raises:
        AssemblyError: The endpoint did not accept the metric.
    """
    export = _exporter("metric_exporter", "OTLPMetricExporter", metrics_endpoint(), metrics_protocol())
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=_resource(), shutdown_on_exit=False)
    meter = provider.get_meter(_SCOPE, __version__)
    meter.create_gauge(METRIC, unit="s", description="When otel-assembly doctor last sent a probe.").set(value)
    export(reader.get_metrics_data())


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    # The instance id is the host name, because an id per run would create a new series for each run.
    return Resource.create(
        {"service.name": SERVICE, "service.version": __version__, "service.instance.id": platform.node() or "doctor"}
    )


def _exporter(module: str, name: str, endpoint: str, protocol: str) -> Callable[[Any], None]:
    """Return a function that exports telemetry to an endpoint, and raises an `AssemblyError` if the export fails."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        raise AssemblyError("OTEL_SDK_DISABLED is true, so nothing is sent")
    wire = "grpc" if protocol == "grpc" else "http"
    # gRPC's C core logs errors to the terminal, outside Python's logging.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        exporter_module: Any = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{wire}.{module}")
    except ImportError as error:
        raise AssemblyError(
            "the OTLP exporter is not installed; install it: pip install 'otel-assembly[otlp]'"
        ) from error
    reason = reachable(endpoint)
    if reason is not None:
        raise AssemblyError(
            f"{endpoint} does not answer ({reason}); start a Collector there, or set {_setting(module)}"
        )

    def export(telemetry: Any) -> None:
        failure = _FailureReason()
        logger = logging.getLogger("opentelemetry")
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(failure)
        try:
            exporter = getattr(exporter_module, name)(timeout=_SENDING)
            is_accepted = exporter.export(telemetry).name == "SUCCESS"
            exporter.shutdown()
        except Exception as error:  # wrong headers, certificates or compression in the environment
            raise AssemblyError(f"cannot export to {endpoint} over {protocol}: {error}") from error
        finally:
            logger.removeHandler(failure)
            logger.propagate = propagate
        if not is_accepted:
            raise AssemblyError(
                f"{endpoint} did not accept the export over {protocol}: {failure.reason}; port 4317 is for grpc, 4318 "
                "for http/protobuf (OTEL_EXPORTER_OTLP_PROTOCOL), and an endpoint without TLS begins with http://"
            )

    return export


def _setting(module: str) -> str:
    return OTEL_EXPORTER_OTLP_ENDPOINT if module == "trace_exporter" else _METRICS_ENDPOINT


def metrics_protocol() -> str:
    """Return the OTLP protocol for metrics from the environment: ``grpc`` or ``http/protobuf``."""
    return os.environ.get(_METRICS_PROTOCOL) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"


def metrics_endpoint() -> str:
    """Return the OTLP endpoint for metrics from the environment."""
    default = "http://localhost:4317" if metrics_protocol() == "grpc" else "http://localhost:4318"
    return os.environ.get(_METRICS_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or default


class _FailureReason(logging.Handler):
    """A log handler that keeps an exporter's first warning, because exporters log failures and do not raise them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.reason:
            reason = re.split("rror details: ", record.getMessage())[-1]
            self.reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
