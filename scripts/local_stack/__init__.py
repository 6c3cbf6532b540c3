"""The real Collector, Jaeger, Prometheus and Alertmanager on loopback, without Docker and without root."""

from __future__ import annotations

from local_stack.builds import BuildError, find_go, programs
from local_stack.processes import LOOPBACK, Server, answers, free_port, wait_until
from local_stack.servers import COLLECTORS, RULES, Alertmanager, Collector, Jaeger, Prometheus, stop_all, write_targets
from local_stack.stack import Stack

__all__ = [
    "COLLECTORS",
    "LOOPBACK",
    "RULES",
    "Alertmanager",
    "BuildError",
    "Collector",
    "Jaeger",
    "Prometheus",
    "Server",
    "Stack",
    "answers",
    "find_go",
    "free_port",
    "programs",
    "stop_all",
    "wait_until",
    "write_targets",
]
