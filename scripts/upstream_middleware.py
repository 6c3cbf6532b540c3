"""A pytest plugin for AgentScope's own tests: what their middlewares derive from is our `MiddlewareBase`."""

from __future__ import annotations

import agentscope.middleware

from otel_assembly import MiddlewareBase


def pytest_configure() -> None:
    """Put our base where the tests look for theirs, before any of them is imported."""
    agentscope.middleware.MiddlewareBase = MiddlewareBase
