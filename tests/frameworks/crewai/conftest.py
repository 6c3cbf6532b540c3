"""CrewAI without its own telemetry, which it sends to its makers."""

from __future__ import annotations

import os
import warnings

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", CREWAI_TESTING="true")
with warnings.catch_warnings():  # its packages warn when they are imported
    warnings.simplefilter("ignore")
    import crewai  # noqa: F401
