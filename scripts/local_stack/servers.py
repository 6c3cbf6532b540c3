"""Each server with the configuration that is shipped for it, unchanged but for its ports."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from local_stack.builds import ROOT
from local_stack.processes import LOOPBACK, Server, answers, free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

COLLECTORS: Final = ROOT / "collectors"
RULES: Final = ROOT / "dashboards" / "rules"


class MeasuredServer(Server):
    """A server that says how it does, in Prometheus's form."""

    #: Where it says so: ``host:port``.
    own_metrics: str

    def measured(self, name: str) -> float:
        """The sum of one of its own metrics over all its labels; 0 where there is none.

        The name of a counter ends with ``_total`` in Jaeger 2.13, and does not in the Collector: give it without.
        """
        with urllib.request.urlopen(f"http://{self.own_metrics}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        named = (f"{name}{{", f"{name} ", f"{name}_total{{", f"{name}_total ")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(named))


class Collector(MeasuredServer):
    """An OpenTelemetry Collector."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        config: Path,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "collector",
        preferred: bool = False,
    ) -> None:
        ports = _ports(
            {"OTLP_GRPC_PORT": 4317, "OTLP_HTTP_PORT": 4318, "HEALTH_PORT": 13133, "SELF_METRICS_PORT": 8888},
            settings,
            preferred=preferred,
        )
        self.settings = {"LISTEN_HOST": LOOPBACK, "DATA_DIR": str(folder / "data"), **ports, **(settings or {})}
        self.own_metrics = f"{LOOPBACK}:{self.settings['SELF_METRICS_PORT']}"
        super().__init__(
            name,
            [programs["otelcol"], "--config", config],
            folder=folder,
            environment=self.settings,
            ready=lambda: answers(f"http://{LOOPBACK}:{self.settings['HEALTH_PORT']}/"),
        )

    @property
    def otlp_grpc(self) -> str:
        """Where it takes OTLP over gRPC: ``host:port``."""
        return f"{LOOPBACK}:{self.settings['OTLP_GRPC_PORT']}"

    @property
    def otlp_http(self) -> str:
        """Where it takes OTLP over HTTP: the base URL."""
        return f"http://{LOOPBACK}:{self.settings['OTLP_HTTP_PORT']}"


class Jaeger(MeasuredServer):
    """A Jaeger v2."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        config: Path = COLLECTORS / "jaeger" / "memory.yaml",
        name: str = "jaeger",
        preferred: bool = False,
    ) -> None:
        ports = _ports(
            {
                "JAEGER_OTLP_PORT": 14317,
                "JAEGER_QUERY_PORT": 16686,
                "JAEGER_QUERY_GRPC_PORT": 16685,
                "JAEGER_HEALTH_PORT": 13134,
                "JAEGER_SELF_METRICS_PORT": 8887,
            },
            settings,
            preferred=preferred,
        )
        self.settings = {
            "LISTEN_HOST": LOOPBACK,
            "JAEGER_UI_CONFIG": str(COLLECTORS / "jaeger" / "ui.json"),
            "JAEGER_DATA_DIR": str(folder / "data"),
            **ports,
            **(settings or {}),
        }
        self.own_metrics = f"{LOOPBACK}:{self.settings['JAEGER_SELF_METRICS_PORT']}"
        super().__init__(
            name,
            [programs["jaeger"], "--config", config],
            folder=folder,
            environment=self.settings,
            ready=lambda: (
                answers(f"{self.url}/api/services")
                and answers(f"http://{LOOPBACK}:{self.settings['JAEGER_HEALTH_PORT']}/status")
            ),
        )

    @property
    def url(self) -> str:
        """Its query API and page."""
        return f"http://{LOOPBACK}:{self.settings['JAEGER_QUERY_PORT']}"

    @property
    def otlp(self) -> str:
        """Where it takes spans: ``host:port``."""
        return f"{LOOPBACK}:{self.settings['JAEGER_OTLP_PORT']}"

    def get(self, path: str) -> Any:
        """What its query API answers, decoded."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)


class Prometheus(Server):
    """A Prometheus 3 with our rules, in a copy of its folder that names the ports of this run."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        *,
        alertmanager: str | None = None,
        targets: Mapping[str, str] | None = None,
        jaeger_url: str = "http://127.0.0.1:16686",
        evaluation_interval: str | None = None,
        port: int | None = None,
        preferred: bool = False,
    ) -> None:
        self.port = port or free_port(9090 if preferred else 0)
        home = folder / "collectors" / "prometheus"
        rules = folder / "dashboards" / "rules"
        shutil.copytree(COLLECTORS / "prometheus", home, dirs_exist_ok=True)
        shutil.copytree(RULES, rules, dirs_exist_ok=True)
        write_targets(home / "targets" / "alertmanager.yaml", {"alertmanager": alertmanager} if alertmanager else {})
        write_targets(home / "targets" / "stack.yaml", {"prometheus": f"{LOOPBACK}:{self.port}", **(targets or {})})
        if evaluation_interval is not None:
            _replace(
                home / "prometheus.yaml", "evaluation_interval: 15s", f"evaluation_interval: {evaluation_interval}"
            )
            for file in rules.glob("*.yaml"):
                text = file.read_text()
                file.write_text(text.replace("interval: 15s", f"interval: {evaluation_interval}"))
        super().__init__(
            "prometheus",
            [
                programs["prometheus"],
                f"@{home / 'prometheus.flags'}",
                f"--config.file={home / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'prometheus-data'}",
                f"--web.listen-address={LOOPBACK}:{self.port}",
            ],
            folder=folder,
            environment={"JAEGER_URL": jaeger_url},
            ready=lambda: answers(f"{self.url}/-/ready"),
        )

    @property
    def url(self) -> str:
        """Its API."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def otlp(self) -> str:
        """Where it takes metrics by OTLP over HTTP."""
        return f"{self.url}/api/v1/otlp"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query.

        Raises:
            ValueError: Prometheus refused it; its words are in the message.
        """
        return list(self._api("query", {"query": expression})["result"])

    def value(self, expression: str) -> float | None:
        """The one number that an expression gives; None where it gives nothing."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that are pending or firing."""
        return list(self._api("alerts", {})["alerts"])

    def exemplars(self, expression: str, seconds: float = 3600) -> list[dict[str, Any]]:
        """The exemplars of the series in an expression, of the last so many seconds."""
        now = time.time()
        window = {"start": f"{now - seconds:.3f}", "end": f"{now + 60:.3f}"}
        return list(self._api("query_exemplars", {"query": expression, **window}))

    def _api(self, path: str, parameters: Mapping[str, str]) -> Any:
        from urllib.error import HTTPError
        from urllib.parse import urlencode

        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode()}") from error


class Alertmanager(Server):
    """An Alertmanager, in a copy of its folder whose receivers are those of this run."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        *,
        webhook: str = "http://127.0.0.1:9095",
        group_wait: str | None = None,
        port: int | None = None,
        preferred: bool = False,
    ) -> None:
        self.port = port or free_port(9093 if preferred else 0)
        home = folder / "alertmanager"
        shutil.copytree(COLLECTORS / "alertmanager", home, dirs_exist_ok=True)
        for file in home.glob("*.url"):
            file.write_text(f"{webhook}/{file.stem}\n")
        if group_wait is not None:
            _replace(home / "alertmanager.yaml", "group_wait: 10s", f"group_wait: {group_wait}")
        super().__init__(
            "alertmanager",
            [
                programs["alertmanager"],
                f"--config.file={home / 'alertmanager.yaml'}",
                f"--storage.path={folder / 'alertmanager-data'}",
                f"--web.listen-address={LOOPBACK}:{self.port}",
                "--cluster.listen-address=",
            ],
            # It reads *.url from where it is started, not from where its configuration stands.
            folder=home,
            ready=lambda: answers(f"http://{self.address}/-/ready"),
        )

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{LOOPBACK}:{self.port}"


def stop_all(servers: Iterable[Server]) -> None:
    """Stop them, the last first."""
    for server in reversed(list(servers)):
        server.stop()


def write_targets(file: Path, targets: Mapping[str, str]) -> None:
    """Write a file of targets for Prometheus: component → ``host:port``. JSON is YAML."""
    entries = [{"targets": [address], "labels": {"component": name}} for name, address in targets.items()]
    # Prometheus reads it again when it changes: never half of it.
    written = file.with_suffix(".new")
    written.write_text(json.dumps(entries, indent=2))
    os.replace(written, file)


def _ports(defaults: Mapping[str, int], settings: Mapping[str, str] | None, *, preferred: bool) -> dict[str, str]:
    return {
        name: str(free_port(port if preferred else 0))
        for name, port in defaults.items()
        if name not in (settings or {})
    }


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{file}: {old!r} stands there {text.count(old)} times, and not once")
    file.write_text(text.replace(old, new))
