"""What ``doctor`` finds out about a running stack: probes are sent, and looked for where they should be by then."""

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

#: As Prometheus calls it: dots become underscores, the unit is added.
_METRIC_THERE: Final = "otel_assembly_doctor_probe_seconds"
_ALERT: Final = "AssemblyBudgetOverflow"
_WATCHDOG: Final = "Watchdog"

_EVERY: Final = 0.25
#: Seconds that one answer may keep us waiting.
_TIMEOUT: Final = 10.0
_MOST_BYTES: Final = 64 * 1024 * 1024


class StackProbe:
    """What is asked of a stack; the findings come as they are made.

    Args:
        jaeger: Where the probe trace should come to be; None: no trace is sent.
        prometheus: Where the probe metric should, and where our alert rules should be loaded; None: no metric is sent.
        alertmanager: Where the alert that always fires should have come; None: it is not asked.
        seconds: How long each is waited for.

    Raises:
        ConfigurationError: A URL is none.
    """

    def __init__(self, *, jaeger: str | None, prometheus: str | None, alertmanager: str | None, seconds: float) -> None:
        self._jaeger = _base(jaeger, "Jaeger", 16686)
        self._prometheus = _base(prometheus, "Prometheus", 9090)
        self._alertmanager = _base(alertmanager, "Alertmanager", 9093)
        self._seconds = seconds

    def findings(self) -> Iterator[Finding]:
        """Look at one after the other; each waits until it is there, or its time is up."""
        if self._jaeger is not None:
            yield _found("probe trace", lambda: self._trace(str(self._jaeger)))
        if self._prometheus is not None:
            yield _found("probe metric", lambda: self._metric(str(self._prometheus)))
            yield _found("alert rules", lambda: self._rules(str(self._prometheus)))
            yield _found("Alertmanager of Prometheus", lambda: self._connected(str(self._prometheus)))
        if self._alertmanager is not None:
            yield _found("alerts arrive", lambda: self._arrived(str(self._alertmanager)))

    def _trace(self, jaeger: str) -> str:
        # Asked before anything is sent: where nobody answers there is nothing to wait for.
        read_jaeger_trace(jaeger, "0" * 31 + "1")
        trace_id = send_trace()
        took = self._until(lambda: any(span.name == SPAN for span in read_jaeger_trace(jaeger, trace_id)))
        if took is None:
            raise AssemblyError(
                f"{otlp_endpoint()} took the span, but {jaeger} does not have it after {self._seconds:g} s: look at "
                "the Collector's exporter (otlp_grpc/jaeger) and its log, and whether it sends to this Jaeger; a tail "
                f"sampler must keep service.name={SERVICE}"
            )
        return f"by {otlp_protocol()}, in Jaeger {_after(took)}: {jaeger}/trace/{trace_id}"

    def _metric(self, prometheus: str) -> str:
        _data(prometheus, "/api/v1/query", query="1")
        # A value that no other probe has: by it this one is known among those of other machines and earlier runs.
        value = round(time.time(), 3)
        send_metric(value)
        query = f"{_METRIC_THERE} == {value!r}"
        took = self._until(lambda: bool(_data(prometheus, "/api/v1/query", query=query)["result"]))
        if took is None:
            raise AssemblyError(
                f"{metrics_endpoint()} took the metric, but {prometheus} does not have it after {self._seconds:g} s: "
                "look at the Collector's exporter (otlp_http/prometheus) and its log, and whether Prometheus runs with "
                "--web.enable-otlp-receiver"
            )
        return f"by {metrics_protocol()}, in Prometheus {_after(took)}"

    def _rules(self, prometheus: str) -> str:
        def rules() -> list[dict[str, Any]]:
            groups = _data(prometheus, "/api/v1/rules", type="alert")["groups"]
            return [rule for group in groups for rule in group["rules"]]

        def watching() -> bool:
            return any(rule["name"] == _WATCHDOG and rule["state"] == "firing" for rule in rules())

        loaded = rules()
        missing = {_ALERT, _WATCHDOG} - {rule["name"] for rule in loaded}
        if missing:
            raise AssemblyError(
                f"{' and '.join(sorted(missing))} not loaded in {prometheus}: name dashboards/rules/*.yaml under "
                "rule_files of its configuration"
            )
        broken = [f"{rule['name']}: {rule.get('lastError')}" for rule in loaded if rule.get("health") == "err"]
        if broken:
            raise AssemblyError(f"cannot be evaluated: {'; '.join(broken)}")
        if self._until(watching) is None:
            raise AssemblyError(f"{_WATCHDOG}, which always fires, does not: {prometheus} evaluates no rules")
        return f"{len(loaded)} loaded, {_ALERT} among them; {_WATCHDOG} fires"

    def _connected(self, prometheus: str) -> str:
        known = [one["url"] for one in _data(prometheus, "/api/v1/alertmanagers")["activeAlertmanagers"]]
        if not known:
            raise AssemblyError(
                f"{prometheus} knows none, so nobody is told of an alert: name one in targets/alertmanager.yaml"
            )
        return ", ".join(url.removesuffix("/api/v2/alerts") for url in known)

    def _arrived(self, alertmanager: str) -> str:
        def watchdogs() -> bool:
            return bool(_answer(alertmanager, "/api/v2/alerts", filter=f'alertname="{_WATCHDOG}"'))

        took = self._until(watchdogs)
        if took is None:
            raise AssemblyError(
                f"{_WATCHDOG}, which always fires, is not at {alertmanager} after {self._seconds:g} s: look at "
                "alerting.alertmanagers of Prometheus, and its log"
            )
        return f"{_WATCHDOG} is at {alertmanager}"

    def _until(self, there: Callable[[], bool]) -> float | None:
        """The seconds that it took; None where the time is up.

        Raises:
            AssemblyError: The time is up, and the last answer was a failure.
        """
        began = time.monotonic()
        while True:
            try:
                if there():
                    return time.monotonic() - began
                failed = None
            except AssemblyError as error:
                # OpenSearch cannot be asked for the first moments of a new day's index.
                failed = error
            if time.monotonic() - began > self._seconds:
                if failed is not None:
                    raise failed
                return None
            time.sleep(_EVERY)


def _base(url: str | None, server: str, port: int) -> str | None:
    return None if url is None else base_url(url, server, f"http://localhost:{port}")


def _found(what: str, look: Callable[[], str]) -> Finding:
    verdict: Verdict = "ok"
    try:
        said = look()
    except AssemblyError as error:
        verdict, said = "fail", str(error)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        verdict, said = "fail", f"the answer is of another form than expected ({type(error).__name__})"
    return Finding(verdict, what, said)


def _after(seconds: float) -> str:
    return "at once" if seconds < 0.05 else f"after {seconds:.1f} s"


def _data(prometheus: str, path: str, **query: str) -> Any:
    answer = _answer(prometheus, path, **query)
    if not isinstance(answer, dict) or "data" not in answer:
        raise AssemblyError(f"what answers at {prometheus} is no Prometheus")
    return answer["data"]


def _answer(base: str, path: str, **query: str) -> Any:
    target = f"{base}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    try:
        with urllib.request.urlopen(target, timeout=_TIMEOUT) as response:  # noqa: S310  # http(s) only: base_url
            body = response.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        raise AssemblyError(f"{base} says HTTP {error.code} to {path}: is it the right address?") from None
    except http.client.HTTPException:
        raise AssemblyError(f"what answers at {base} does not speak HTTP") from None
    except OSError as error:
        why = getattr(error, "reason", error)
        told = getattr(why, "strerror", None) or str(why) or type(error).__name__
        raise AssemblyError(f"cannot connect to {base}: {str(told).lower()}") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise AssemblyError(f"what answers at {base} says no JSON to {path}: is it the right address?") from None
