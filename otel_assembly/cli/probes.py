"""The probes of ``doctor``: a trace of one span and a gauge of one point, sent as the environment says.

They are of a service of their own and claim no assembly: no name under ``assembly.`` and not our instrumentation scope,
so that no panel, no rule and no reader counts them.
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

#: Who the probes are from: what a tail sampler is told to keep, and what is passed over where services are listed.
SERVICE: Final = "otel-assembly-doctor"
SPAN: Final = "doctor_probe"
METRIC: Final = "otel_assembly.doctor.probe"
_SCOPE: Final = "otel_assembly.doctor"
_METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
_METRICS_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"

#: Seconds that sending may take.
_SENDING: Final = 5.0
_LONGEST_REASON: Final = 160


def send_trace() -> str:
    """Send a trace of one span; its id.

    Raises:
        AssemblyError: It was not taken.
    """
    export = _exporter("trace_exporter", "OTLPSpanExporter", otlp_endpoint(), otlp_protocol())
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    # A sampler of the environment's would decide about agents, and this is none.
    provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False)
    span: Any = provider.get_tracer(_SCOPE, __version__).start_span(SPAN)
    span.end()
    export([span])
    return f"{span.get_span_context().trace_id:032x}"


def send_metric(value: float) -> None:
    """Send a gauge of one point.

    Raises:
        AssemblyError: It was not taken.
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

    # The machine, not a number of this run: a new series a day would be one that nobody needs.
    return Resource.create(
        {"service.name": SERVICE, "service.version": __version__, "service.instance.id": platform.node() or "doctor"}
    )


def _exporter(module: str, name: str, endpoint: str, protocol: str) -> Callable[[Any], None]:
    """What sends to an endpoint, and raises with the reason where that was refused."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        raise AssemblyError("OTEL_SDK_DISABLED is true, so nothing is sent")
    wire = "grpc" if protocol == "grpc" else "http"
    # What gRPC itself has to say of a failure goes past Python, to the terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        made: Any = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{wire}.{module}")
    except ImportError as error:
        raise AssemblyError(
            "the OTLP exporter is not installed; install it: pip install 'otel-assembly[otlp]'"
        ) from error
    why = reachable(endpoint)
    if why is not None:
        raise AssemblyError(f"nobody answers at {endpoint} ({why}); start a collector there, or set {_setting(module)}")

    def export(what: Any) -> None:
        heard = _Heard()
        logger = logging.getLogger("opentelemetry")
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(heard)
        try:
            exporter = getattr(made, name)(timeout=_SENDING)
            taken = exporter.export(what).name == "SUCCESS"
            exporter.shutdown()
        except Exception as error:  # headers, certificates, compression: whatever the environment says
            raise AssemblyError(f"nothing can be sent to {endpoint} over {protocol}: {error}") from error
        finally:
            logger.removeHandler(heard)
            logger.propagate = propagate
        if not taken:
            raise AssemblyError(
                f"{endpoint} did not take it over {protocol}: {heard.reason}; the port 4317 is for grpc, 4318 for "
                "http/protobuf (OTEL_EXPORTER_OTLP_PROTOCOL), and an endpoint without TLS begins with http://"
            )

    return export


def _setting(module: str) -> str:
    return OTEL_EXPORTER_OTLP_ENDPOINT if module == "trace_exporter" else _METRICS_ENDPOINT


def metrics_protocol() -> str:
    """``grpc`` or ``http/protobuf``, as the environment says for metrics."""
    return os.environ.get(_METRICS_PROTOCOL) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"


def metrics_endpoint() -> str:
    """The endpoint that metrics are sent to, as the environment says."""
    default = "http://localhost:4317" if metrics_protocol() == "grpc" else "http://localhost:4318"
    return os.environ.get(_METRICS_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or default


class _Heard(logging.Handler):
    """What the exporter says of its failure, which it logs and does not raise; the first time says most."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.reason:
            reason = re.split("rror details: ", record.getMessage())[-1]
            self.reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
