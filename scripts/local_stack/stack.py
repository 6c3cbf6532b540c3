"""Everything that one machine needs, wired together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from local_stack.servers import COLLECTORS, Alertmanager, Collector, Jaeger, Prometheus, stop_all

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from local_stack.processes import Server


class Stack:
    """Collector → Jaeger and Prometheus → Alertmanager; a context manager.

    Args:
        programs: The programs, from ``builds.programs()``.
        folder: Where everything of this run is kept.
        webhook: Where Alertmanager sends: ``/pager``, ``/chat`` and ``/watchdog`` are added.
        settings: Environment variables for the Collector, over what it is given anyway.
        evaluation_interval: How often rules are evaluated, where the shipped 15 s are too slow.
        group_wait: How long Alertmanager waits before it tells of a new group.
        preferred: Take the ports that everybody knows where they are free.
    """

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        *,
        webhook: str = "http://127.0.0.1:9095",
        settings: Mapping[str, str] | None = None,
        evaluation_interval: str | None = None,
        group_wait: str | None = None,
        preferred: bool = False,
    ) -> None:
        self.alertmanager = Alertmanager(programs, folder, webhook=webhook, group_wait=group_wait, preferred=preferred)
        self.jaeger = Jaeger(programs, folder / "jaeger", preferred=preferred)
        self.collector = Collector(
            programs, COLLECTORS / "local.yaml", folder / "collector", settings, preferred=preferred
        )
        self.prometheus = Prometheus(
            programs,
            folder / "prometheus",
            alertmanager=self.alertmanager.address,
            targets={
                "collector": self.collector.own_metrics,
                "jaeger": self.jaeger.own_metrics,
                "alertmanager": self.alertmanager.address,
            },
            jaeger_url=self.jaeger.url,
            evaluation_interval=evaluation_interval,
            preferred=preferred,
        )
        self.jaeger.set(PROMETHEUS_URL=self.prometheus.url)
        self.collector.set(JAEGER_ENDPOINT=self.jaeger.otlp, PROMETHEUS_ENDPOINT=self.prometheus.otlp)

    @property
    def servers(self) -> tuple[Server, ...]:
        """In the order in which they start."""
        return (self.alertmanager, self.prometheus, self.jaeger, self.collector)

    def start(self) -> None:
        """Start what does not run."""
        try:
            for server in self.servers:
                server.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything, the Collector first."""
        stop_all(self.servers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
