"""Whether anybody has configured OpenTelemetry, asked at next to no cost for a program that has not."""

from __future__ import annotations

import os
from typing import Final

from opentelemetry import _logs, metrics, trace

_API_MODULES: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")
#: By these variables, the API makes a provider that nobody has set.
_VARIABLES: Final = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_LOGGER_PROVIDER")
#: Where the API keeps the global providers. Asking its functions instead reads the environment each time, which costs
#: more than all that a program should pay that has not configured any.
_GETTERS: Final = (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider)
_TRACERS, _METERS, _LOGGERS = (getattr(get, "__globals__", {}) for get in _GETTERS)

_api_only: set[type] = set()


def are_named() -> bool:
    """Whether the environment names a provider, which the API then makes when it is first asked for one."""
    return any(name in os.environ for name in _VARIABLES)


def none_is_set() -> bool:
    """Whether nobody has set any global provider; False also where this API keeps them elsewhere."""
    return (
        _TRACERS.get("_TRACER_PROVIDER", _TRACERS) is None
        and _METERS.get("_METER_PROVIDER", _METERS) is None
        and _LOGGERS.get("_LOGGER_PROVIDER", _LOGGERS) is None
        and (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider) == _GETTERS
    )


def no_meter_is_set() -> bool:
    """Whether nobody has set the global provider of metrics."""
    return _METERS.get("_METER_PROVIDER", _METERS) is None and metrics.get_meter_provider is _GETTERS[1]


def one_records() -> bool:
    """Whether one of the global providers is more than the API's own.

    Raises:
        Exception: The environment names a provider that cannot be loaded.
    """
    return not (
        is_api_only(trace.get_tracer_provider())
        and is_api_only(metrics.get_meter_provider())
        and is_api_only(_logs.get_logger_provider())
    )


def is_api_only(provider: object) -> bool:
    """Whether a provider is the API's own, which records nothing; an SDK's, of whatever make, is not."""
    kind = type(provider)
    if kind in _api_only:
        return True
    module = kind.__module__
    api = any(module == part or module.startswith(part + "._internal") for part in _API_MODULES)
    if api:
        _api_only.add(kind)
    return api
