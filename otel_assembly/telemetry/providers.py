"""The providers that one recorder records to, and whether anybody has configured any.

Who has not configured OpenTelemetry pays next to nothing for the question, and who has asks it once.
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
#: By these variables, the API makes a provider that nobody has set.
_VARIABLES: Final = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_LOGGER_PROVIDER")
#: Where the API keeps the global providers, as far as is known. Asking its functions instead reads the environment each
#: time, which costs more than all that a program should pay that has not configured any.
_GETTERS: Final = (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider)
_TRACERS, _METERS, _LOGGERS = (getattr(get, "__globals__", {}) for get in _GETTERS)

_api_only: set[type] = set()


class Providers:
    """Where one recorder's telemetry goes: the providers that it was given, and the global ones for the others.

    Attributes:
        tracer: Instead of the global one.
        meter: Instead of the global one.
        logger: Instead of the global one.
        configured: Whether anybody had configured one when it was last asked; once somebody has, it stays so.
    """

    def __init__(
        self, tracer: TracerProvider | None, meter: MeterProvider | None, logger: LoggerProvider | None
    ) -> None:
        self.tracer, self.meter, self.logger = tracer, meter, logger
        self.configured = any(one is not None for one in (tracer, meter, logger))
        #: Whether the environment names a provider, which the API then makes when it is first asked for one.
        self._named = any(name in os.environ for name in _VARIABLES)
        self._unloadable = self._measures = False

    def are_configured(self, failed: Callable[[str, BaseException], None]) -> bool:
        """Look whether anybody has configured one by now; `failed` hears of one that cannot be loaded."""
        if self.configured or self._unloadable:
            return self.configured
        getters = (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider)
        if (
            not self._named
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
        """Whether metrics go anywhere; once they do, it stays so."""
        if not self._measures:
            unset = _METERS.get("_METER_PROVIDER", _METERS) is None and metrics.get_meter_provider is _GETTERS[1]
            if self.meter is None and unset and not self._named:
                return False
            self._measures = not _is_api_only(self.meter or metrics.get_meter_provider())
        return self._measures


def _is_api_only(provider: object) -> bool:
    """Whether a provider is the API's own, which records nothing; an SDK's, of whatever make, is not."""
    kind = type(provider)
    if kind in _api_only:
        return True
    module = kind.__module__
    api = any(module == part or module.startswith(part + "._internal") for part in _API_MODULES)
    if api:
        _api_only.add(kind)
    return api
