"""How the events of `autogen.beta` are read, and what may stand for them; imported once it is."""

from __future__ import annotations

from otel_assembly.instrumentation.ag2.rows import register

register("autogen.beta")
