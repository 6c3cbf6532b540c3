"""The tracer, meter and logger providers of one recorder, and whether any of them is configured.

The check is fast if no provider is configured. It is not repeated after it has found one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from opentelemetry import _logs, metrics, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_API_MODULES: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")
#: If one of these variables is set, the API loads the provider that it names on first use.
_VARIABLES: Final = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_LOGGER_PROVIDER")
#: The API's modules hold the global providers in private globals. The public functions read the environment on each
#: call, which is too slow for every turn of a program that does not use OpenTelemetry.
_GETTERS: Final = (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider)
_TRACERS, _METERS, _LOGGERS = (getattr(get, "__globals__", {}) for get in _GETTERS)

_api_only: set[type] = set()


class Providers:
    """The providers of one recorder.

    Attributes:
        tracer: The tracer provider; None: the global one.
        meter: The meter provider; None: the global one.
        logger: The logger provider; None: the global one.
        configured: True once a configured provider has been found; never reset.
    """

    def __init__(
        self, tracer: TracerProvider | None, meter: MeterProvider | None, logger: LoggerProvider | None
    ) -> None:
        self.tracer, self.meter, self.logger = tracer, meter, logger
        self.configured = any(provider is not None for provider in (tracer, meter, logger))
        #: Whether the environment names a provider, which the API loads on first use.
        self._in_environment = any(name in os.environ for name in _VARIABLES)
        self._unloadable = self._measures = False

    def are_configured(self, failed: Callable[[str, BaseException], None]) -> bool:
        """Return whether any provider is configured; report a provider that cannot be loaded to `failed`."""
        if self.configured or self._unloadable:
            return self.configured
        getters = (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider)
        if (
            not self._in_environment
            and getters == _GETTERS
            and _TRACERS.get("_TRACER_PROVIDER", _TRACERS) is None
            and _METERS.get("_METER_PROVIDER", _METERS) is None
            and _LOGGERS.get("_LOGGER_PROVIDER", _LOGGERS) is None
        ):
            return False
        try:
            self.configured = not all(_is_api_only(get()) for get in getters)
        except Exception as error:  # noqa: BLE001  # the environment names a provider that cannot be loaded
            self._unloadable = True
            failed("provider", error)
        return self.configured

    def measure(self) -> bool:
        """Return whether a meter provider is configured, so that metrics are recorded; once True, always True."""
        if not self._measures:
            unset = _METERS.get("_METER_PROVIDER", _METERS) is None and metrics.get_meter_provider is _GETTERS[1]
            if self.meter is None and unset and not self._in_environment:
                return False
            self._measures = not _is_api_only(self.meter or metrics.get_meter_provider())
        return self._measures


def _is_api_only(provider: object) -> bool:
    """Return whether a provider is one of the OpenTelemetry API, which records nothing, and not one of an SDK."""
    kind = type(provider)
    if kind in _api_only:
        return True
    module = kind.__module__
    api = any(module == part or module.startswith(part + "._internal") for part in _API_MODULES)
    if api:
        _api_only.add(kind)
    return api
