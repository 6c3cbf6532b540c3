"""How AG2's events are read, and what may stand for them; imported once AG2 is."""

from __future__ import annotations

from otel_assembly.instrumentation.ag2.rows import register

register("ag2")
