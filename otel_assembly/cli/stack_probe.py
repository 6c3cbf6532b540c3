"""The checks of ``doctor`` on a running stack: send probes to the OTLP endpoint, and look for them in the servers."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.cli.export import otlp_endpoint, otlp_protocol
from otel_assembly.cli.findings import Finding
from otel_assembly.cli.probes import SERVICE, SPAN, metrics_endpoint, metrics_protocol, send_metric, send_trace
from otel_assembly.errors import AssemblyError
from otel_assembly.telemetry.jaeger import base_url, read_jaeger_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_assembly.cli.findings import Verdict

#: The probe's metric in Prometheus: dots become underscores, and the unit is added.
_METRIC_THERE: Final = "otel_assembly_doctor_probe_seconds"
_ALERT: Final = "AssemblyBudgetOverflow"
_WATCHDOG: Final = "Watchdog"

#: The pause between two tries, in seconds.
_EVERY: Final = 0.25
#: The timeout of one request, in seconds.
_TIMEOUT: Final = 10.0
#: The most bytes of a response that are read.
_MOST_BYTES: Final = 64 * 1024 * 1024


class StackProbe:
    """Checks whether the servers of a running stack receive probes, load the alert rules and deliver alerts.

    Args:
        jaeger: The URL of Jaeger, which should receive the probe trace. None: no trace is sent, and Jaeger is not
            checked.
        prometheus: The URL of Prometheus, which should receive the probe metric, load the alert rules and know an
            Alertmanager. None: no metric is sent, and none of these checks is made.
        alertmanager: The URL of Alertmanager, which should receive the alert ``Watchdog``, which always fires. None:
            Alertmanager is not checked.
        seconds: The longest time to wait for a result, in seconds, for each check.

    Raises:
        ConfigurationError: A URL is invalid.
    """

    def __init__(self, *, jaeger: str | None, prometheus: str | None, alertmanager: str | None, seconds: float) -> None:
        self._jaeger = _base(jaeger, "Jaeger", 16686)
        self._prometheus = _base(prometheus, "Prometheus", 9090)
        self._alertmanager = _base(alertmanager, "Alertmanager", 9093)
        self._seconds = seconds

    def findings(self) -> Iterator[Finding]:
        """Run the checks of the servers that have a URL, one after the other, and yield a finding for each check."""
        if self._jaeger is not None:
            yield _finding("probe trace", lambda: self._trace_arrival(str(self._jaeger)))
        if self._prometheus is not None:
            yield _finding("probe metric", lambda: self._metric_arrival(str(self._prometheus)))
            yield _finding("alert rules", lambda: self._rule_state(str(self._prometheus)))
            yield _finding("Alertmanager of Prometheus", lambda: self._alertmanager_urls(str(self._prometheus)))
        if self._alertmanager is not None:
            yield _finding("alerts arrive", lambda: self._alert_arrival(str(self._alertmanager)))

    def _trace_arrival(self, jaeger: str) -> str:
        # Fail before sending if this Jaeger does not answer.
        read_jaeger_trace(jaeger, "0" * 31 + "1")
        trace_id = send_trace()
        took = self._wait_until(lambda: any(span.name == SPAN for span in read_jaeger_trace(jaeger, trace_id)))
        if took is None:
            raise AssemblyError(
                f"{otlp_endpoint()} accepted the span, but {jaeger} does not have it after {self._seconds:g} s: check "
                "the Collector's exporter (otlp_grpc/jaeger), its endpoint and the Collector's log; a tail sampler "
                f"must keep service.name={SERVICE}"
            )
        return f"sent over {otlp_protocol()}, in Jaeger {_delay(took)}: {jaeger}/trace/{trace_id}"

    def _metric_arrival(self, prometheus: str) -> str:
        _data(prometheus, "/api/v1/query", query="1")
        # The value identifies this probe among those of other machines and earlier runs.
        value = round(time.time(), 3)
        send_metric(value)
        query = f"{_METRIC_THERE} == {value!r}"
        took = self._wait_until(lambda: bool(_data(prometheus, "/api/v1/query", query=query)["result"]))
        if took is None:
            raise AssemblyError(
                f"{metrics_endpoint()} accepted the metric, but {prometheus} does not have it after "
                f"{self._seconds:g} s: check the Collector's exporter (otlp_http/prometheus) and log, and that "
                "Prometheus runs with --web.enable-otlp-receiver"
            )
        return f"sent over {metrics_protocol()}, in Prometheus {_delay(took)}"

    def _rule_state(self, prometheus: str) -> str:
        def rules() -> list[dict[str, Any]]:
            groups = _data(prometheus, "/api/v1/rules", type="alert")["groups"]
            return [rule for group in groups for rule in group["rules"]]

        def is_watchdog_firing() -> bool:
            return any(rule["name"] == _WATCHDOG and rule["state"] == "firing" for rule in rules())

        loaded = rules()
        missing = {_ALERT, _WATCHDOG} - {rule["name"] for rule in loaded}
        if missing:
            raise AssemblyError(
                f"{' and '.join(sorted(missing))} not loaded in {prometheus}: add dashboards/rules/*.yaml to "
                "rule_files in its configuration"
            )
        rule_errors = [f"{rule['name']}: {rule.get('lastError')}" for rule in loaded if rule.get("health") == "err"]
        if rule_errors:
            raise AssemblyError(f"cannot be evaluated: {'; '.join(rule_errors)}")
        if self._wait_until(is_watchdog_firing) is None:
            raise AssemblyError(f"{_WATCHDOG}, which should always fire, does not: {prometheus} evaluates no rules")
        return f"{len(loaded)} loaded, including {_ALERT}; {_WATCHDOG} fires"

    def _alertmanager_urls(self, prometheus: str) -> str:
        alertmanagers = _data(prometheus, "/api/v1/alertmanagers")["activeAlertmanagers"]
        urls = [alertmanager["url"] for alertmanager in alertmanagers]
        if not urls:
            raise AssemblyError(
                f"{prometheus} has no Alertmanager, so alerts are not delivered: add one to targets/alertmanager.yaml"
            )
        return ", ".join(url.removesuffix("/api/v2/alerts") for url in urls)

    def _alert_arrival(self, alertmanager: str) -> str:
        def has_watchdog() -> bool:
            return bool(_answer(alertmanager, "/api/v2/alerts", filter=f'alertname="{_WATCHDOG}"'))

        took = self._wait_until(has_watchdog)
        if took is None:
            raise AssemblyError(
                f"{alertmanager} has not received {_WATCHDOG}, which always fires, after {self._seconds:g} s: check "
                "alerting.alertmanagers of Prometheus, and its log"
            )
        return f"{alertmanager} has received {_WATCHDOG}"

    def _wait_until(self, is_there: Callable[[], bool]) -> float | None:
        """Check a condition repeatedly until it is true, or until the longest wait (the probe's `seconds`) is over.

        Args:
            is_there: Checks the condition. If it raises an `AssemblyError`, it is called again.

        Returns:
            The seconds until the condition was true; None if it was still false after the longest wait.

        Raises:
            AssemblyError: After the longest wait, the last check raised this error.
        """
        start = time.monotonic()
        while True:
            try:
                if is_there():
                    return time.monotonic() - start
                failure = None
            except AssemblyError as error:
                # Jaeger on OpenSearch fails for a moment when the index of a new day is created.
                failure = error
            if time.monotonic() - start > self._seconds:
                if failure is not None:
                    raise failure
                return None
            time.sleep(_EVERY)


def _base(url: str | None, server: str, port: int) -> str | None:
    return None if url is None else base_url(url, server, f"http://localhost:{port}")


def _finding(what: str, look: Callable[[], str]) -> Finding:
    verdict: Verdict = "ok"
    try:
        result = look()
    except AssemblyError as error:
        verdict, result = "fail", str(error)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        verdict, result = "fail", f"the response has an unexpected form ({type(error).__name__})"
    return Finding(verdict, what, result)


def _delay(seconds: float) -> str:
    return "immediately" if seconds < 0.05 else f"after {seconds:.1f} s"


def _data(prometheus: str, path: str, **query: str) -> Any:
    answer = _answer(prometheus, path, **query)
    if not isinstance(answer, dict) or "data" not in answer:
        raise AssemblyError(f"{prometheus} is not a Prometheus")
    return answer["data"]


def _answer(base: str, path: str, **query: str) -> Any:
    target = f"{base}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    try:
        with urllib.request.urlopen(target, timeout=_TIMEOUT) as response:  # noqa: S310  # http(s) only: base_url
            body = response.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        raise AssemblyError(f"{base}{path} returned HTTP {error.code}; check the address") from None
    except http.client.HTTPException:
        raise AssemblyError(f"{base} is not an HTTP server; check the address") from None
    except OSError as error:
        cause = getattr(error, "reason", error)
        reason = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
        raise AssemblyError(f"cannot connect to {base}: {str(reason).lower()}") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise AssemblyError(f"{base}{path} did not return JSON; check the address") from None
